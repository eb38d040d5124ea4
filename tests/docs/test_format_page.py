"""A reader written from docs/format.md alone, and what it must see.

`PlainReader` uses struct, zlib and json, `plain_eras` xxhash, too. The tests write stores with TokenMill; nothing of it
is used for reading.
"""

import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import xxhash

from tests.store.chains import STREAM, cut, directory_of, fill, make_chain, make_info, make_store, tokens_of
from tests.store.eras import make_eras, write_eras
from tokenmill.app.segments.retiring import retire
from tokenmill.reading import Blocks
from tokenmill.store import PartitionWriter, Store, open_eras, open_partition
from tokenmill.wire.pieces import decode_entry

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
SIZES = {"uint8": ("B", 1), "uint16": ("H", 2), "uint32": ("I", 4)}


class Row(NamedTuple):
    docs_end: int
    tokens_crc: int
    entry_crc: int
    chain: bytes


class PlainReader:
    def __init__(self, directory: Path) -> None:
        stream = json.loads((directory.parent / "stream.json").read_bytes())
        assert stream["format"] == 1
        self.letter, size = SIZES[stream["dtype"]]
        self.block_tokens = stream["block_tokens"]
        self.block_bytes = self.block_tokens * size
        self.segment_blocks = stream["segment_blocks"]
        self.fingerprint = stream["fingerprint"]
        self.directory = directory

    def blocks(self) -> Iterator[tuple[int, list[int], list[tuple[int, int, int, int, Any]]]]:
        """Yield number, tokens and (start, stop, offset, position, meta) of each piece, of every block that counts."""
        names = [path.name for path in self.directory.iterdir()]
        found = {int(name[:12]) for name in names if re.fullmatch(r"\d{12}\.(bin|docs|commits|index|idx|json)", name)}
        for first in sorted(number for number in found if number >= self.first_block()):
            rows = self.sealed_rows(first) if self.path(first, "json").exists() else self.committed_rows(first)
            tokens = self.path(first, "bin").read_bytes()
            table = self.path(first, "docs").read_bytes()
            start = 0
            for k, row in enumerate(rows):
                block = tokens[k * self.block_bytes : (k + 1) * self.block_bytes]
                entry = table[start : row.docs_end]
                start = row.docs_end
                assert (zlib.crc32(block), zlib.crc32(entry)) == (row.tokens_crc, row.entry_crc)
                ids = struct.unpack(f"<{self.block_tokens}{self.letter}", block)
                yield first + k, list(ids), list(self.pieces(entry))

    def first_block(self) -> int:
        file = self.directory / "start.json"
        if not file.exists():
            return 0
        values = json.loads(file.read_bytes())
        crc = values.pop("crc32")
        assert zlib.crc32(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()) == crc
        assert (values["format"], values["first_block"] % self.segment_blocks) == (1, 0)
        assert len(bytes.fromhex(values["chain_before"])) == 16
        return int(values["first_block"])

    def path(self, first: int, suffix: str) -> Path:
        return self.directory / f"{first:012d}.{suffix}"

    def sealed_rows(self, first: int) -> list[Row]:
        manifest = json.loads(self.path(first, "json").read_bytes())
        assert (manifest["format"], manifest["first"], manifest["blocks"]) == (1, first, self.segment_blocks)
        assert (manifest["fingerprint"], manifest["partition"]) == (self.fingerprint, int(self.directory.name))
        for suffix in ("bin", "docs", "index"):
            assert zlib.crc32(self.path(first, suffix).read_bytes()) == manifest[f"{suffix}_crc32"]
        assert self.path(first, "bin").stat().st_size == manifest["bin_bytes"]
        assert self.path(first, "docs").stat().st_size == manifest["docs_bytes"]
        rows = [Row(*values) for values in struct.iter_unpack("<QII16s", self.path(first, "index").read_bytes())]
        assert rows[-1].chain.hex() == manifest["chain_after"]
        return rows

    def committed_rows(self, first: int) -> list[Row]:
        log = self.path(first, "commits").read_bytes() if self.path(first, "commits").exists() else b""
        rows: list[Row] = []
        at = 0
        while (record := self.record(log, at)) is not None:
            blocks, new = record
            assert blocks == len(rows) + len(new)
            rows += new
            at += 64 + 32 * len(new)
        assert not any(self.record(log, later) for later in range(at + 32, len(log), 32)), "damaged"
        return rows

    def record(self, log: bytes, at: int) -> tuple[int, list[Row]] | None:
        """Return blocks and rows of the commit record at byte ``at``, or None if there is no valid one."""
        if len(log) < at + 64:
            return None
        magic, size, blocks, bin_bytes, docs_bytes, chain, _, count, crc = struct.unpack_from("<4sIQQQ16sqII", log, at)
        if magic != b"TMc1" or size != 64 + 32 * count or len(log) < at + size or count == 0:
            return None
        record = log[at : at + size]
        if zlib.crc32(record[:60] + bytes(4) + record[64:]) != crc:
            return None
        rows = [Row(*values) for values in struct.iter_unpack("<QII16s", record[64:])]
        assert (bin_bytes, docs_bytes, chain) == (blocks * self.block_bytes, rows[-1].docs_end, rows[-1].chain)
        return blocks, rows

    def pieces(self, entry: bytes) -> Iterator[tuple[int, int, int, int, Any]]:
        count, meta_total = struct.unpack_from("<II", entry)
        rows = [struct.unpack_from("<IIqq", entry, 8 + 24 * n) for n in range(count)]
        assert len(entry) == 8 + 24 * count + meta_total
        stops = [row[0] for row in rows[1:]] + [self.block_tokens]
        at = 8 + 24 * count
        for (start, meta_bytes, offset, position), stop in zip(rows, stops, strict=True):
            meta = json.loads(entry[at : at + meta_bytes]) if meta_bytes else None
            at += meta_bytes
            yield start, stop, offset, position, meta


def expected(chain: Blocks, number: int, block_tokens: int) -> list[tuple[int, int, int, int, Any]]:
    pieces = decode_entry(chain.entries[number])
    stops = [piece.start for piece in pieces[1:]] + [block_tokens]
    return [
        (piece.start, stop, piece.offset, piece.position, json.loads(piece.meta) if piece.meta else None)
        for piece, stop in zip(pieces, stops, strict=True)
    ]


def written(path: Path, dtype: str) -> tuple[Store, Blocks]:
    """Write two sealed segments, an open one with two blocks in two commits, and one block that is not committed."""
    info = make_info(dtype=dtype)
    store = make_store(path, info)
    chain = make_chain(info, 11)
    fill(store, info, chain, [2, 7, 9, 10])
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(chain, info, 10, 11), token_offset=0)
    return store, chain


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_the_page_is_enough_to_read_a_store(tmp_path: Path, dtype: str) -> None:
    info = make_info(dtype=dtype)
    store, chain = written(tmp_path, dtype)
    rows = tokens_of(chain, info).tolist()
    found = list(PlainReader(directory_of(store)).blocks())
    assert found == [(number, rows[number], expected(chain, number, info.block_tokens)) for number in range(10)]


def test_the_page_and_the_reader_agree_on_a_torn_tail(tmp_path: Path) -> None:
    store, _ = written(tmp_path, "uint16")
    log = directory_of(store) / f"{8:012d}.commits"
    whole = log.read_bytes()
    for length in range(len(whole) + 1):
        log.write_bytes(whole[:length])
        plain = [number for number, _, _ in PlainReader(directory_of(store)).blocks()]
        assert plain == list(range(open_partition(store.path, STREAM, 0).blocks))


def test_sealed_segments_alone_are_enough(tmp_path: Path) -> None:
    store, _ = written(tmp_path, "uint16")
    for file in {*directory_of(store).glob("*.commits"), *directory_of(store).glob(f"{8:012d}.*")}:
        file.unlink()
    assert [number for number, _, _ in PlainReader(directory_of(store)).blocks()] == list(range(8))


def test_the_page_says_where_a_partition_begins(tmp_path: Path) -> None:
    store, _ = written(tmp_path, "uint16")
    kept = {path: path.read_bytes() for path in directory_of(store).glob(f"{0:012d}.*")}
    retire(store.path, STREAM, 0, 4)
    for path, data in kept.items():
        path.write_bytes(data)
    assert [number for number, _, _ in PlainReader(directory_of(store)).blocks()] == list(range(4, 10))


def plain_eras(directory: Path) -> list[dict[str, Any]]:
    """Return the eras of a stream that count, each held against its row, its predecessor and the page."""
    fingerprint = bytes.fromhex(json.loads((directory / "stream.json").read_bytes())["fingerprint"])
    lines, index = (directory / "eras.jsonl").read_bytes(), (directory / "eras.index").read_bytes()
    eras: list[dict[str, Any]] = []
    start = blocks = 0
    before = xxhash.xxh3_128_hexdigest(b"tokenmill eras 1" + fingerprint)
    for number in range(len(index) // 48):
        row = index[48 * number : 48 * (number + 1)]
        stop, total, _, closed, flags, _, line_crc, crc = struct.unpack("<QQQQIIII", row)
        if zlib.crc32(b"tokenmill eras 1" + fingerprint + struct.pack("<Q", number) + row[:44]) != crc:
            break
        line = lines[start:stop]
        era = json.loads(line)
        assert (zlib.crc32(line), line[-1:], era["era"], era["before"]) == (line_crc, b"\n", number, before)
        assert (era["closed"], era["end"]) == (closed, flags == 1)
        start, blocks = stop, blocks + sum(last - first for first, last, _, _ in era["ranges"])
        assert total == blocks
        before = xxhash.xxh3_128_hexdigest(line[:-1])
        eras.append(era)
    return eras


def test_the_page_is_enough_to_read_eras(tmp_path: Path) -> None:
    store, chain = written(tmp_path, "uint16")
    eras = make_eras(make_info(), {0: chain}, [{0: 3}, {0: 7}, {0: 8}, {0: 10}], end=True)
    write_eras(store, eras, commit=2)
    directory = store.path / STREAM
    assert [json.dumps(era, sort_keys=True, separators=(",", ":")).encode() for era in plain_eras(directory)] == [
        era.pack() for era in eras
    ]
    whole = (directory / "eras.index").read_bytes()
    for length in range(len(whole)):
        (directory / "eras.index").write_bytes(whole[:length])
        assert len(plain_eras(directory)) == open_eras(store.path, STREAM).eras


def test_the_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = make_info(block_tokens=1025)
    fill(make_store(tmp_path / "store", info), info, make_chain(info, 4), [4])
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        names: dict[str, Any] = {}
        exec(snippet, names)  # noqa: S102 - code of our own page
        assert names["x"].shape == names["y"].shape == (4, 1024)
        assert names["x"][:, 1:].tolist() == names["y"][:, :-1].tolist()
