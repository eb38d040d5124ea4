"""The rows of the eras' index: which of them count."""

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.eras.histories import chains
from tests.store.eras import with_offsets
from tokenmill.eras import Era
from tokenmill.store.eras import ROW_BYTES, EraRow, encode_commit, row_seed, scan

SEED = row_seed(bytes(range(16)))


def commits(eras: list[Era], sizes: list[int]) -> tuple[bytes, bytes, list[int]]:
    """Return lines, rows, and after how many rows each commit ended, the eras cut by these sizes."""
    lines, rows, ends, before = b"", b"", [0], EraRow()
    while ends[-1] < len(eras):
        first = ends[-1]
        size = sizes[len(ends) % len(sizes)]
        more = encode_commit(with_offsets(eras[first : first + size]), SEED, before)
        lines, rows = lines + more[0], rows + more[1]
        before = EraRow.decode(rows[-ROW_BYTES:])
        ends.append(len(rows) // ROW_BYTES)
    return lines, rows, ends


histories = st.builds(commits, chains(9).filter(bool), st.lists(st.integers(1, 4), min_size=1, max_size=3))


@given(histories, st.data())
def test_whole_rows_count_from_any_of_them_on(history: tuple[bytes, bytes, list[int]], data: st.DataObject) -> None:
    """Cut anywhere, those before the cut do."""
    _, rows, ends = history
    first = data.draw(st.integers(0, ends[-1]))
    length = data.draw(st.integers(first * ROW_BYTES, len(rows)))
    found = scan(rows[first * ROW_BYTES : length], SEED, first)
    assert (found.count, found.damage) == (length // ROW_BYTES - first, None)


@given(histories, st.data())
def test_any_part_of_an_unfinished_commit_is_no_damage(
    history: tuple[bytes, bytes, list[int]], data: st.DataObject
) -> None:
    """A disk may have any of its bytes in any order; of a finished one, another follows and says so."""
    _, rows, ends = history
    begun = ends[-2] * ROW_BYTES
    torn = bytes(byte if data.draw(st.booleans()) else 0 for byte in rows[begun:])
    found = scan(rows[:begun] + torn, SEED, 0)
    assert found.damage is None
    assert ends[-2] <= found.count <= ends[-1]
    for row in range(found.count):
        assert (rows[:begun] + torn)[row * ROW_BYTES : (row + 1) * ROW_BYTES] == rows[row * ROW_BYTES :][:ROW_BYTES]


@given(histories, st.data())
def test_a_flip_counts_as_damage_if_a_later_commit_was_begun(
    history: tuple[bytes, bytes, list[int]], data: st.DataObject
) -> None:
    """Else the eras before it count."""
    _, rows, ends = history
    at = data.draw(st.integers(0, len(rows) - 1))
    number = at // ROW_BYTES
    found = scan(rows[:at] + bytes([rows[at] ^ 1 << data.draw(st.integers(0, 7))]) + rows[at + 1 :], SEED, 0)
    assert (found.count, found.damage is not None) == (number, number < ends[-2])


@given(histories)
@pytest.mark.slow
def test_rows_say_where_lines_end_and_how_many_blocks_there_are(history: tuple[bytes, bytes, list[int]]) -> None:
    """Of each era, all before it included."""
    lines, rows, ends = history
    blocks = 0
    for number, line in enumerate(lines.splitlines(keepends=True)):
        row = EraRow.decode(rows[number * ROW_BYTES : (number + 1) * ROW_BYTES])
        blocks += Era.unpack(line[:-1]).blocks
        assert (lines[: row.stop].endswith(line), row.blocks, row.line) == (True, blocks, crc32(line))
    assert number + 1 == ends[-1]
