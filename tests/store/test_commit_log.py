"""The commit log as bytes."""

from itertools import pairwise
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.chains import make_chain, make_info
from tokenmill.store.sealing import BLOCK_ROW, Commit, Scan, chain_after, entry_span, make_rows, scan

INFO = make_info(segment_blocks=12)
CHAIN = make_chain(INFO, 12)
ROWS = make_rows(memoryview(CHAIN.tokens), CHAIN.entries, CHAIN.chains, docs_bytes=0)

cuts = st.sets(st.integers(1, 12), min_size=1, max_size=5).map(lambda ends: [0, *sorted(ends)])


def make_log(ends: list[int]) -> list[bytes]:
    return [
        Commit(
            blocks=end,
            bin_bytes=end * INFO.block_bytes,
            docs_bytes=int(ROWS["docs_end"][end - 1]),
            chain=CHAIN.chains[end - 1],
            source_offset=end,
            rows=ROWS[start:end],
        ).encode()
        for start, end in pairwise(ends)
    ]


def read(log: bytes) -> Scan:
    return scan(log, block_bytes=INFO.block_bytes, segment_blocks=INFO.segment_blocks)


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
    log = bytearray(b"".join(records))
    at = data.draw(st.integers(0, len(log) - 1))
    log[at] ^= 1 << data.draw(st.integers(0, 7))
    found = read(bytes(log))
    broken = next(n for n in range(len(records)) if at < len(b"".join(records[: n + 1])))
    assert [commit.blocks for commit in found.commits] == ends[1 : broken + 1]
    assert (found.damage is None) == (broken == len(records) - 1)


@given(cuts, st.binary(max_size=200))
def test_garbage_after_the_last_record_was_never_written(ends: list[int], garbage: bytes) -> None:
    log = b"".join(make_log(ends))
    assert (read(log + garbage).end, read(log + garbage).damage) == (len(log), None)


@pytest.mark.parametrize("held", [[1, 2], [0, 2], [0, 1, 1]], ids=["the first is gone", "one is gone", "one is twice"])
def test_records_that_do_not_continue_each_other_are_damage(held: list[int]) -> None:
    """Whole ones are no torn write."""
    records = make_log([0, 2, 5, 9])
    assert "does not continue" in (read(b"".join(records[number] for number in held)).damage or "")


def test_a_scan_goes_on_where_an_earlier_one_ended() -> None:
    records = make_log([0, 2, 5, 9])
    found = scan(
        records[2],
        block_bytes=INFO.block_bytes,
        segment_blocks=INFO.segment_blocks,
        blocks=5,
        docs_bytes=int(ROWS["docs_end"][4]),
    )
    assert [commit.blocks for commit in found.commits] == [9]


def test_a_row_says_where_its_entry_ends_and_what_its_bytes_hash_to() -> None:
    info = make_info()
    chain = make_chain(info, 3)
    rows = make_rows(memoryview(chain.tokens), chain.entries, chain.chains, docs_bytes=100)
    assert rows.dtype == BLOCK_ROW
    assert rows.dtype.itemsize == 32
    assert rows["docs_end"][2] == 100 + sum(map(len, chain.entries))
    assert rows["tokens_crc"][1] == crc32(chain.tokens[info.block_bytes : 2 * info.block_bytes])
    assert rows["entry_crc"][1] == crc32(chain.entries[1])
    assert chain_after(rows, 2) == chain.chains[2]


def test_an_entry_spans_from_the_end_of_the_one_before() -> None:
    chain = make_chain(make_info(), 2)
    rows = make_rows(memoryview(chain.tokens), chain.entries, chain.chains, docs_bytes=0)
    ends = [len(chain.entries[0]), len(chain.entries[0]) + len(chain.entries[1])]
    assert [entry_span(rows, 0), entry_span(rows, 1)] == [(0, ends[0]), (ends[0], ends[1])]
