"""The rows of the eras' index: which of them count."""

import shutil
import threading
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.eras.histories import chains
from tests.store.chains import STREAM, make_chain, make_info, make_store
from tests.store.eras import make_eras, with_offsets, write_eras
from tokenmill.eras import Era
from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.store import Store, open_eras
from tokenmill.store.eras import ROW_BYTES, EraRow, encode_commit, row_seed, scan
from tokenmill.store.layout import ERA_INDEX_FILE, ERA_LINES_FILE

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
    _, rows, ends = history
    at = data.draw(st.integers(0, len(rows) - 1))
    number = at // ROW_BYTES
    found = scan(rows[:at] + bytes([rows[at] ^ 1 << data.draw(st.integers(0, 7))]) + rows[at + 1 :], SEED, 0)
    assert (found.count, found.damage is not None) == (number, number < ends[-2])


@given(histories)
@pytest.mark.slow
def test_rows_say_where_lines_end_and_how_many_blocks_there_are(history: tuple[bytes, bytes, list[int]]) -> None:
    lines, rows, ends = history
    blocks = 0
    for number, line in enumerate(lines.splitlines(keepends=True)):
        row = EraRow.decode(rows[number * ROW_BYTES : (number + 1) * ROW_BYTES])
        blocks += Era.unpack(line[:-1]).blocks
        assert (lines[: row.stop].endswith(line), row.blocks, row.line) == (True, blocks, crc32(line))
    assert number + 1 == ends[-1]


INFO = make_info()
CHAINS = {number: make_chain(INFO, 400, partition=number, seed=number) for number in range(2)}
STOPS = [{0: 2}, {0: 4, 1: 3}, {1: 5}, {0: 9}]
ERAS = make_eras(INFO, CHAINS, STOPS, end=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with four eras and the end marker."""
    store = make_store(tmp_path, INFO)
    write_eras(store, ERAS)
    return store


def test_eras_are_found_by_number_and_by_block(store: Store) -> None:
    reader = open_eras(store.path, STREAM)
    assert (reader.eras, reader.blocks, reader.ended) == (5, 14, True)
    assert [reader.era(number) for number in range(5)] == ERAS
    assert [reader.blocks_before(number) for number in range(6)] == [0, 2, 7, 9, 14, 14]
    assert [reader.find(block) for block in range(14)] == [0] * 2 + [1] * 5 + [2] * 2 + [3] * 5
    assert [reader.row(number).closed for number in range(5)] == [0, 1, 2, 3, 4]


def test_what_is_not_there_is_refused(store: Store) -> None:
    reader = open_eras(store.path, STREAM)
    for wrong in (-2, 5):
        with pytest.raises(InputError, match="it has 5"):
            reader.era(wrong)
    for wrong in (-1, 14):
        with pytest.raises(InputError, match="have 14 blocks"):
            reader.find(wrong)
    with pytest.raises(StoreError, match="holds no stream"):
        open_eras(store.path, "other")


def test_a_stream_may_have_no_eras_yet(tmp_path: Path) -> None:
    reader = open_eras(make_store(tmp_path, INFO).path, STREAM)
    assert (reader.eras, reader.blocks, reader.ended, reader.refresh(), reader.blocks_before(0)) == (0, 0, False, 0, 0)


def test_a_reader_follows_a_writer(tmp_path: Path) -> None:
    store = make_store(tmp_path, INFO)
    eras = make_eras(INFO, CHAINS, [{0: blocks} for blocks in range(1, 400)], end=True)
    writer = threading.Thread(target=write_eras, args=(store, eras), kwargs={"commit": 7})
    writer.start()
    reader = open_eras(store.path, STREAM)
    seen = 0
    while not reader.ended:
        for number in range(seen, reader.refresh()):
            assert reader.era(number) == eras[number]
        assert seen <= reader.eras
        seen = reader.eras
        assert reader.blocks == min(seen, 399)
    writer.join()
    assert seen == len(eras)


def test_lost_eras_are_damage_to_a_reader_that_saw_them(store: Store) -> None:
    reader = open_eras(store.path, STREAM)
    index = store.path / STREAM / ERA_INDEX_FILE
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(DamagedError, match="240 were committed"):
        reader.refresh()
    (store.path / STREAM / ERA_LINES_FILE).write_bytes(b"")
    with pytest.raises(DamagedError, match="era 0, at byte 0"):
        reader.era(0)


def test_eras_whose_lines_are_still_being_copied_come_later(store: Store) -> None:
    """At every byte: whoever copies by name puts the index in its place first. What was seen must stay there."""
    file = store.path / STREAM / ERA_LINES_FILE
    data, ends = file.read_bytes(), [open_eras(store.path, STREAM).row(number).stop for number in range(5)]
    for length in range(len(data)):
        file.write_bytes(data[:length])
        reader, there = open_eras(store.path, STREAM), sum(end <= length for end in ends)
        assert (reader.eras, reader.ahead, reader.ended) == (there, 5 - there, False)
        assert [reader.era(number) for number in range(there)] == ERAS[:there]
        if there:
            file.write_bytes(data[: ends[there - 1] - 1])
            with pytest.raises(DamagedError, match="were committed"):
                reader.refresh()
        file.write_bytes(data)
        assert (reader.refresh(), reader.ahead, reader.ended, reader.blocks) == (5, 0, True, 14)


def test_an_era_that_was_mended_is_read_again(store: Store) -> None:
    """What was read ahead of a damaged file is forgotten with the damage; the eras before it were good."""
    reader, file = open_eras(store.path, STREAM), store.path / STREAM / ERA_LINES_FILE
    data = file.read_bytes()
    file.write_bytes(data[:-2] + b"?\n")
    assert [reader.era(number) for number in range(4)] == ERAS[:4]
    with pytest.raises(DamagedError):
        reader.era(4)
    file.write_bytes(data)
    assert reader.era(4) == ERAS[4]


def test_files_of_another_stream_are_no_eras(store: Store, tmp_path: Path) -> None:
    values = dict(INFO.values) | {"fingerprint": "ff" * 16}
    other = make_store(tmp_path / "other", INFO.from_values(values))
    for name in (ERA_LINES_FILE, ERA_INDEX_FILE):
        shutil.copy(store.path / STREAM / name, other.path / STREAM / name)
    assert open_eras(other.path, STREAM).eras == 0
