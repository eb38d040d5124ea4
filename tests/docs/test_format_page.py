"""Readers written from docs/format.md alone, and what they must see; nothing of TokenMill is used for reading.

`PlainReader` and `read_header` use struct, zlib and json, `plain_eras` and `rolled` xxhash, too; what reads messages is
confluent-kafka. `pack` makes the blocks of the packing ``fit``.
"""

import json
import random
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import numpy as np
import pytest
import xxhash

from docs.generators.site import ROOT
from tests.conftest import TopicFactory
from tests.mills import PARTITION, RECIPE, flush, make_source, named, text, write
from tests.store.chains import (
    STREAM,
    cut,
    directory_of,
    fill,
    filled_store,
    make_chain,
    make_eras,
    make_info,
    make_store,
    tokens_of,
    write_eras,
)
from tokenmill.app.kafka.clients import producer
from tokenmill.app.local.broker import Broker
from tokenmill.app.segments.retiring import retire
from tokenmill.app.settings import Settings
from tokenmill.documents import Record
from tokenmill.reading import Blocks
from tokenmill.store import PartitionWriter, Store, open_eras, open_partition
from tokenmill.wire.message import HEADER_NAME, encode_header
from tokenmill.wire.pieces import decode_entry

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


def test_the_page_says_where_a_partition_begins_and_sealed_segments_alone_are_enough(tmp_path: Path) -> None:
    store, _ = written(tmp_path, "uint16")
    kept = {path: path.read_bytes() for path in directory_of(store).glob(f"{0:012d}.*")}
    retire(store.path, STREAM, 0, 4)
    for path, data in kept.items():
        path.write_bytes(data)
    assert [number for number, _, _ in PlainReader(directory_of(store)).blocks()] == list(range(4, 10))
    (directory_of(store) / "start.json").unlink()
    for file in {*directory_of(store).glob("*.commits"), *directory_of(store).glob(f"{8:012d}.*")}:
        file.unlink()
    assert [number for number, _, _ in PlainReader(directory_of(store)).blocks()] == list(range(8))


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
    filled_store(tmp_path / "store", info, make_chain(info, 4), [4])
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs/format.md").read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        names: dict[str, Any] = {}
        exec(snippet, names)  # noqa: S102 - code of our own page
        assert names["x"].shape == names["y"].shape == (4, 1024)
        assert names["x"][:, 1:].tolist() == names["y"][:, :-1].tolist()


FIXED = struct.Struct("<4s16sQI44s16s16sIII")
CURSOR = struct.Struct("<qqQqIq")
RECORDS = [named(0, "a", "hello, world"), text(2, "naïve"), flush(3), named(5, 7, "x" * 23), text(6, "left over")]


class Header(NamedTuple):
    fingerprint: bytes
    first: int
    blocks: int
    cursor: tuple[int, ...]
    before: bytes
    after: bytes
    totals: dict[str, Any]
    entries: bytes
    open_tokens: bytes


def read_header(data: bytes) -> Header:
    magic, fingerprint, first, count, cursor, before, after, totals, entries, opened = FIXED.unpack_from(data)
    assert magic == b"TMm1"
    assert zlib.crc32(data[:-4]) == struct.unpack("<I", data[-4:])[0]
    at = FIXED.size
    parts = []
    for size in (totals, entries, opened):
        parts.append(data[at : at + size])
        at += size
    assert at == len(data) - 4
    place = CURSOR.unpack(cursor)
    return Header(fingerprint, first, count, place, before, after, json.loads(parts[0]), parts[1], parts[2])


def cut_entries(data: bytes) -> list[bytes]:
    found = []
    while data:
        pieces, metas = struct.unpack_from("<II", data)
        size = 8 + 24 * pieces + metas
        found.append(data[:size])
        data = data[size:]
    return found


def rolled(header: Header, value: bytes) -> bytes:
    chain = header.before
    size = len(value) // header.blocks if header.blocks else 0
    for number, entry in enumerate(cut_entries(header.entries) if header.blocks else []):
        chain = xxhash.xxh3_128_digest(chain + value[number * size : (number + 1) * size] + entry)
    return chain


def read_with_confluent(broker: Broker, topic: str, count: int) -> list[confluent_kafka.Message]:
    client = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "somebody-else"})
    client.assign([confluent_kafka.TopicPartition(topic, PARTITION, 0)])
    found: list[confluent_kafka.Message] = []
    while len(found) < count:
        found += client.consume(count - len(found), timeout=10)
    client.close()
    return found


def header_of(message: confluent_kafka.Message) -> Header:
    found = dict(message.headers() or [])["tokenmill"]
    assert isinstance(found, bytes)
    return read_header(found)


async def test_another_client_reads_all_that_the_page_says(broker: Broker, topic: TopicFactory) -> None:
    source = make_source(RECIPE)
    messages = write(source, RECIPE, RECORDS, (2,), message_bytes=250, carries=(False, False, True))
    name = topic(PARTITION + 1)
    async with producer(Settings(bootstrap_servers=broker.bootstrap_servers)) as client:
        for sent in messages:
            headers = [(HEADER_NAME, encode_header(sent))]
            await client.send_and_wait(name, bytes(sent.tokens), partition=PARTITION, headers=headers)
    found = read_with_confluent(broker, name, len(messages))
    blocks = source.blocks(RECIPE, RECORDS)
    tokens: list[Any] = []
    chain = xxhash.xxh3_128_digest(b"tokenmill chain 1" + RECIPE.fingerprint + struct.pack("<I", PARTITION))
    for message in found:
        header = header_of(message)
        value = message.value() or b""
        assert header.fingerprint == RECIPE.fingerprint
        assert (header.first, header.before) == (len(tokens), chain)
        assert rolled(header, value) == header.after
        chain = header.after
        tokens += list(np.frombuffer(value, "<u1").reshape(header.blocks, RECIPE.block_tokens))
        if header.blocks:
            last = blocks[len(tokens) - 1]
            assert header.totals == last.totals.to_dict()
            assert header.cursor[:3] == (last.cursor.next_offset, last.cursor.taken, len(tokens))
            assert [*cut_entries(header.entries)] == [b.entry for b in blocks[header.first : len(tokens)]]
    assert [row.tobytes() for row in tokens] == [block.tokens for block in blocks]
    header = header_of(found[-1])  # a carry behind all records: it holds the open block's tokens and pieces
    full = len("left over\0") // RECIPE.block_tokens * RECIPE.block_tokens
    assert (header.blocks, found[-1].value() or b"") == (0, b"")
    assert header.open_tokens == b"left over\0"[full:]
    assert header.cursor[:3] == (RECORDS[-1].offset + 1, 0, len(blocks))
    (entry,) = cut_entries(header.entries)
    assert struct.unpack_from("<IIqq", entry, 8) == (0, 0, RECORDS[-1].offset, full)


SIZE, MOST_OPEN, AGE, PADDING = 16, 3, 12, 0
Piece = tuple[int, int, int]  # start, offset, position


def pack(records: list[Record]) -> tuple[list[tuple[list[int], list[Piece]]], list[dict[str, Any]]]:  # noqa: C901
    """Return the blocks that leave, and those that are open at the end; a record without a value is a flush."""
    left: list[tuple[list[int], list[Piece]]] = []
    opened: list[dict[str, Any]] = []

    def close(block: dict[str, Any], offset: int) -> None:
        opened.remove(block)
        pieces = [*block["pieces"], (len(block["tokens"]), offset, -1)]
        left.append((block["tokens"] + [PADDING] * (SIZE - len(block["tokens"])), pieces))

    for record in records:
        while opened and opened[0]["pieces"][0][1] + AGE < record.offset:
            close(opened[0], opened[0]["pieces"][0][1] + AGE + 1)
        if record.value is None:
            while opened:
                close(opened[0], record.offset)
            continue
        tokens, at = [*record.value, 0], 0
        while len(tokens) - at >= SIZE:
            left.append((tokens[at : at + SIZE], [(0, record.offset, at)]))
            at += SIZE
        rest = tokens[at:]
        if not rest:
            continue
        fitting = [block for block in opened if SIZE - len(block["tokens"]) >= len(rest)]
        if not fitting:
            if len(opened) == MOST_OPEN:
                close(max(opened, key=lambda block: len(block["tokens"])), record.offset)
            fitting = [{"tokens": [], "pieces": [], "references": []}]
            opened += fitting
        block = max(fitting, key=lambda block: len(block["tokens"]))
        block["pieces"].append((len(block["tokens"]), record.offset, at))
        block["references"].append((record.offset, at, len(rest), zlib.crc32((record.key or b"") + record.value)))
        block["tokens"] += rest
        if len(block["tokens"]) == SIZE:
            opened.remove(block)
            left.append((block["tokens"], block["pieces"]))
    return left, opened


def read_references(header: bytes) -> list[list[tuple[int, int, int, int]]]:
    magic, *_ = struct.unpack_from("<4s", header)
    totals, entries, opened = struct.unpack_from("<III", header, 108)
    assert struct.unpack("<I", header[-4:])[0] == zlib.crc32(header[:-4])
    if magic == b"TMm1":
        assert len(header) == 120 + totals + entries + opened + 4
        return []
    assert magic == b"TMm2"
    (size,) = struct.unpack_from("<I", header, 120)
    at = 124 + totals + entries + opened
    assert len(header) == at + size + 4
    (count,) = struct.unpack_from("<I", header, at)
    pieces = struct.unpack_from(f"<{count}I", header, at + 4)
    rows = list(struct.iter_unpack("<qIII", header[at + 4 + 4 * count : at + size]))
    assert len(rows) == sum(pieces)
    return [[rows.pop(0) for _ in range(number)] for number in pieces]


def read_entry(entry: bytes) -> list[Piece]:
    (count,) = struct.unpack_from("<I", entry)
    return [(s, offset, position) for s, _, offset, position in struct.iter_unpack("<IIqq", entry[8 : 8 + 24 * count])]


def test_the_page_makes_the_same_blocks() -> None:
    """Documents of up to three blocks, flushes, gaps; and after each message the open blocks that it names."""
    parameters = {"open_blocks": MOST_OPEN, "max_age_offsets": AGE}
    source = make_source(replace(RECIPE, block_tokens=SIZE, packing="fit", packing_parameters=parameters))
    (recipe,) = source.recipes
    rng, records, offset = random.Random(5), list[Record](), 0
    for _ in range(300):
        offset += rng.choice([1, 1, 1, 2, 20])
        size = rng.choice([1, 2, 5, 9, 15, 16, 40])
        records.append(flush(offset) if rng.random() < 0.03 else text(offset, rng.choice("abcde") * size))
    done = 0
    messages = write(source, recipe, records, (1,), carries=(True,))
    expected, _ = pack(records)
    blocks = [
        (list(bytes(message.tokens)[n * SIZE : (n + 1) * SIZE]), read_entry(entry))
        for message in messages
        for n, entry in enumerate(message.entries)
    ]
    assert blocks == expected
    for message in messages:
        if message.is_carry and rng.random() < 0.2:
            _, opened = pack([record for record in records if record.offset < message.cursor.next_offset])
            assert read_references(encode_header(message)) == [block["references"] for block in opened]
            done += bool(opened)
    assert done
