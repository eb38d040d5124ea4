"""The commit log as bytes, and sealing full segments."""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.chains import (
    STREAM,
    contents,
    cut,
    fill,
    filled_store,
    flip,
    flipped,
    make_chain,
    make_info,
    make_store,
    segment_of,
)
from tokenmill.errors import DamagedError
from tokenmill.store import PartitionWriter, sealing
from tokenmill.store.sealing import BLOCK_ROW, Commit, Manifest, Scan, chain_after, entry_span, make_rows, scan
from tokenmill.wire.chain import genesis_hash

LARGE = make_info(segment_blocks=12)
LONG = make_chain(LARGE, 12)
ROWS = make_rows(memoryview(LONG.tokens), LONG.entries, LONG.chains, docs_bytes=0)

cuts = st.sets(st.integers(1, 12), min_size=1, max_size=5).map(lambda ends: [0, *sorted(ends)])


def make_log(ends: list[int]) -> list[bytes]:
    return [
        Commit(
            blocks=end,
            bin_bytes=end * LARGE.block_bytes,
            docs_bytes=int(ROWS["docs_end"][end - 1]),
            chain=LONG.chains[end - 1],
            source_offset=end,
            rows=ROWS[start:end],
        ).encode()
        for start, end in pairwise(ends)
    ]


def read(log: bytes) -> Scan:
    return scan(log, block_bytes=LARGE.block_bytes, segment_blocks=LARGE.segment_blocks)


@given(cuts)
def test_what_was_encoded_is_found(ends: list[int]) -> None:
    log = b"".join(make_log(ends))
    found = read(log)
    assert (found.end, found.damage) == (len(log), None)
    assert [(commit.blocks, commit.source_offset) for commit in found.commits] == [(end, end) for end in ends[1:]]
    assert b"".join(commit.rows.tobytes() for commit in found.commits) == ROWS[: ends[-1]].tobytes()


@given(cuts, st.data())
def test_a_prefix_gives_the_longest_committed_prefix(ends: list[int], data: st.DataObject) -> None:
    records = make_log(ends)
    log = b"".join(records)
    length = data.draw(st.integers(0, len(log)))
    found = read(log[:length])
    whole = [
        end for end, n in zip(ends[1:], range(len(records)), strict=True) if len(b"".join(records[: n + 1])) <= length
    ]
    assert [commit.blocks for commit in found.commits] == whole
    assert found.end == len(b"".join(records[: len(whole)]))
    assert found.damage is None


@given(cuts, st.data())
def test_a_flipped_bit_is_damage_unless_it_is_in_the_last_record(ends: list[int], data: st.DataObject) -> None:
    """A record that another one follows was whole once; the last one may never have been."""
    records = make_log(ends)
    log = b"".join(records)
    at = data.draw(st.integers(0, len(log) - 1))
    found = read(flipped(log, at, data.draw(st.integers(0, 7))))
    broken = next(n for n in range(len(records)) if at < len(b"".join(records[: n + 1])))
    assert [commit.blocks for commit in found.commits] == ends[1 : broken + 1]
    assert (found.damage is None) == (broken == len(records) - 1)


@given(cuts, st.binary(max_size=200))
def test_garbage_after_the_last_record_was_never_written(ends: list[int], garbage: bytes) -> None:
    log = b"".join(make_log(ends))
    assert (read(log + garbage).end, read(log + garbage).damage) == (len(log), None)


@pytest.mark.parametrize("held", [[1, 2], [0, 2], [0, 1, 1]], ids=["the first is gone", "one is gone", "one is twice"])
def test_records_that_do_not_continue_each_other_are_damage(held: list[int]) -> None:
    records = make_log([0, 2, 5, 9])
    assert "does not continue" in (read(b"".join(records[number] for number in held)).damage or "")


def test_a_scan_goes_on_where_an_earlier_one_ended() -> None:
    records = make_log([0, 2, 5, 9])
    found = scan(
        records[2],
        block_bytes=LARGE.block_bytes,
        segment_blocks=LARGE.segment_blocks,
        blocks=5,
        docs_bytes=int(ROWS["docs_end"][4]),
    )
    assert [commit.blocks for commit in found.commits] == [9]


def test_a_row_says_where_its_entry_is_and_what_its_bytes_hash_to() -> None:
    rows = make_rows(memoryview(LONG.tokens), LONG.entries, LONG.chains, docs_bytes=100)
    assert rows.dtype == BLOCK_ROW
    assert rows.dtype.itemsize == 32
    assert rows["docs_end"][11] == 100 + sum(map(len, LONG.entries))
    assert rows["tokens_crc"][1] == crc32(LONG.tokens[LARGE.block_bytes : 2 * LARGE.block_bytes])
    assert rows["entry_crc"][1] == crc32(LONG.entries[1])
    assert chain_after(rows, 2) == LONG.chains[2]
    first, second = len(LONG.entries[0]), len(LONG.entries[0]) + len(LONG.entries[1])
    assert [entry_span(ROWS, 0), entry_span(ROWS, 1)] == [(0, first), (first, second)]


INFO = make_info()
CHAIN = make_chain(INFO, 6)


@pytest.mark.parametrize("chunk", [1, 15, 1 << 20])
def test_a_full_segment_gets_a_manifest_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(sealing, "_CHUNK", chunk)
    store = filled_store(tmp_path, INFO, CHAIN, [6])
    paths = segment_of(store)
    manifest = json.loads(paths.manifest.read_bytes())
    tokens, documents, index = (path.read_bytes() for path in (paths.tokens, paths.documents, paths.index))
    assert tokens == bytes(CHAIN.tokens[: 4 * INFO.block_bytes])
    assert documents == b"".join(CHAIN.entries[:4])
    assert manifest == {
        "format": 1,
        "stream": STREAM,
        "partition": 0,
        "first": 0,
        "blocks": 4,
        "block_tokens": 5,
        "dtype": "uint16",
        "fingerprint": INFO.fingerprint.hex(),
        "chain_before": genesis_hash(INFO.fingerprint, 0).hex(),
        "chain_after": CHAIN.chains[3].hex(),
        "bin_bytes": len(tokens),
        "docs_bytes": len(documents),
        "bin_crc32": crc32(tokens),
        "docs_crc32": crc32(documents),
        "index_crc32": crc32(index),
    }


def test_a_segment_that_is_not_full_is_never_sealed(tmp_path: Path) -> None:
    """Neither by closing nor by opening again; nothing but its blocks decides its end."""
    store = filled_store(tmp_path, INFO, CHAIN, [3])
    fill(store, INFO, CHAIN, [])
    assert not segment_of(store).manifest.exists()


@pytest.mark.parametrize("name", ["tokens", "documents"])
def test_a_file_that_was_removed_under_its_writer_is_damage_and_no_full_disk(tmp_path: Path, name: str) -> None:
    """The writer's descriptors hide it until the segment is sealed; then the file and its repair are named."""
    store = make_store(tmp_path, INFO)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(CHAIN, INFO, 0, 3), token_offset=0)
        writer.commit()
        path: Path = getattr(segment_of(store), name)
        path.unlink()
        with pytest.raises(DamagedError, match=rf"{path.name}: it is missing\. .*tokenmill repair") as refused:
            writer.append(cut(CHAIN, INFO, 3, 4), token_offset=1)
    assert "Make room" not in str(refused.value)


@pytest.mark.parametrize("lost", [["json"], ["json", "idx"], ["json", "idx", "index"]])
def test_a_crash_while_sealing_is_finished_by_the_next_writer(tmp_path: Path, lost: list[str]) -> None:
    store = filled_store(tmp_path, INFO, CHAIN, [4])
    sealed = contents(store)
    for suffix in lost:
        (segment_of(store).directory / f"{0:012d}.{suffix}").unlink()
    (segment_of(store).directory / f"{0:012d}.json.tmp").write_bytes(b"{")
    fill(store, INFO, CHAIN, [])
    assert contents(store) == sealed
    assert not list(segment_of(store).directory.glob("*.tmp"))


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("suffix", ["bin", "docs"])
def test_a_manifest_never_vouches_for_changed_bytes(tmp_path: Path, suffix: str, before: int) -> None:
    """What was committed is read back before it is sealed; a difference closes the writer, new or not."""
    store = filled_store(tmp_path, INFO, CHAIN, [before] if before else [])
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(CHAIN, INFO, before, 3), token_offset=0)
        writer.commit()
        file = segment_of(store).directory / f"{0:012d}.{suffix}"
        flip(file, INFO.block_bytes + 1)
        with pytest.raises(DamagedError, match=f"{file.name}: .*(block|entry)"):
            writer.append(cut(CHAIN, INFO, 3, 4), token_offset=1)
    assert not segment_of(store).manifest.exists()


MANIFEST = Manifest(
    stream="s",
    partition=1,
    first=8,
    blocks=4,
    block_tokens=5,
    dtype="uint16",
    fingerprint="00" * 16,
    chain_before="11" * 16,
    chain_after="22" * 16,
    bin_bytes=40,
    docs_bytes=99,
    bin_crc32=1,
    docs_crc32=2,
    index_crc32=3,
)


def test_a_manifest_is_canonical_json_and_a_newline() -> None:
    data = MANIFEST.encode()
    values = json.loads(data)
    assert data.decode() == json.dumps(values, sort_keys=True, separators=(",", ":")) + "\n"
    assert values == dataclasses.asdict(MANIFEST) | {"format": 1}
    assert Manifest.decode(data) == MANIFEST


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        MANIFEST.encode()[:-1],
        MANIFEST.encode().replace(b'"format":1', b'"format":2'),
        MANIFEST.encode().replace(b'"blocks":4,', b""),
        MANIFEST.encode().replace(b":", b": "),
        MANIFEST.encode().replace(b'"1111', b'"111q'),
        MANIFEST.encode().replace(b'"' + b"22" * 16 + b'"', b"5"),
    ],
)
def test_anything_else_is_no_manifest(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"manifest|format|spelled|JSON|hex"):
        Manifest.decode(data)
