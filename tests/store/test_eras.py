"""The index of eras: which of its rows count, how it is written, and what is recovered after a crash."""

import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.eras.histories import chains
from tests.store.chains import (
    OFFSET,
    STREAM,
    flipped,
    make_chain,
    make_eras,
    make_info,
    make_store,
    with_offsets,
    write_eras,
)
from tokenmill.eras import Era, EraFollower
from tokenmill.errors import DamagedError, GapError, InputError, LockedError, StoreError
from tokenmill.store import EraReader, EraWriter, Store, open_eras
from tokenmill.store.eras import COMMIT_ROWS, ROW_BYTES, EraRow, encode_commit, row_seed, scan
from tokenmill.store.layout import ERA_INDEX_FILE, ERA_LINES_FILE

INFO = make_info()
CHAINS = {number: make_chain(INFO, 400, partition=number, seed=number) for number in range(2)}
ERAS = make_eras(INFO, CHAINS, [{0: 2}, {0: 4, 1: 3}, {1: 5}, {0: 9}, {0: 10, 1: 6}, {1: 7}, {1: 9}], end=True)
NAMES = (ERA_LINES_FILE, ERA_INDEX_FILE)
SEED = row_seed(bytes(range(16)))


History = tuple[bytes, bytes, list[int]]
"""Lines, rows, and after how many rows each commit ended."""


def commits(eras: list[Era], sizes: list[int]) -> History:
    lines, rows, ends, before = b"", b"", [0], EraRow()
    while ends[-1] < len(eras):
        some = eras[ends[-1] :][: sizes[len(ends) % len(sizes)]]
        more = encode_commit(with_offsets(some), SEED, before)
        lines, rows = lines + more[0], rows + more[1]
        before = EraRow.decode(rows[-ROW_BYTES:])
        ends.append(len(rows) // ROW_BYTES)
    return lines, rows, ends


histories = st.builds(commits, chains(9).filter(bool), st.lists(st.integers(1, 4), min_size=1, max_size=3))


@given(histories, st.data())
def test_whole_rows_count_from_any_of_them_on(history: History, data: st.DataObject) -> None:
    _, rows, ends = history
    first = data.draw(st.integers(0, ends[-1]))
    length = data.draw(st.integers(first * ROW_BYTES, len(rows)))
    found = scan(rows[first * ROW_BYTES : length], SEED, first)
    assert (found.count, found.damage) == (length // ROW_BYTES - first, None)


@given(histories, st.data())
def test_any_part_of_an_unfinished_commit_is_no_damage(history: History, data: st.DataObject) -> None:
    """A disk may have any of its bytes in any order; of a finished one, another follows and says so."""
    _, rows, ends = history
    begun = ends[-2] * ROW_BYTES
    torn = rows[:begun] + bytes(byte if data.draw(st.booleans()) else 0 for byte in rows[begun:])
    found = scan(torn, SEED, 0)
    assert found.damage is None
    assert ends[-2] <= found.count <= ends[-1]
    assert torn[: found.count * ROW_BYTES] == rows[: found.count * ROW_BYTES]


@given(histories, st.data())
def test_a_flip_counts_as_damage_if_a_later_commit_was_begun(history: History, data: st.DataObject) -> None:
    _, rows, ends = history
    at = data.draw(st.integers(0, len(rows) - 1))
    found = scan(flipped(rows, at, data.draw(st.integers(0, 7))), SEED, 0)
    assert (found.count, found.damage is not None) == (at // ROW_BYTES, at // ROW_BYTES < ends[-2])


@given(histories)
@pytest.mark.slow
def test_rows_say_where_lines_end_and_how_many_blocks_there_are(history: History) -> None:
    lines, rows, ends = history
    blocks = 0
    for number, line in enumerate(lines.splitlines(keepends=True)):
        row = EraRow.decode(rows[number * ROW_BYTES : (number + 1) * ROW_BYTES])
        blocks += Era.unpack(line[:-1]).blocks
        assert (lines[: row.stop].endswith(line), row.blocks, row.line) == (True, blocks, crc32(line))
    assert number + 1 == ends[-1]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = make_store(tmp_path, INFO)
    write_eras(store, ERAS)
    return store


def test_eras_are_found_by_number_and_by_block(store: Store) -> None:
    reader = open_eras(store.path, STREAM)
    assert (reader.eras, reader.blocks, reader.ended) == (8, 19, True)
    assert [reader.era(number) for number in range(8)] == ERAS
    assert [reader.blocks_before(number) for number in range(9)] == [0, 2, 7, 9, 14, 16, 17, 19, 19]
    assert [reader.find(block) for block in range(19)] == [0, 0, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3, 3, 4, 4, 5, 6, 6]
    assert [reader.row(number).closed for number in range(8)] == [*range(8)]


def test_what_is_not_there_is_refused(store: Store) -> None:
    reader = open_eras(store.path, STREAM)
    for wrong in (-2, 8):
        with pytest.raises(InputError, match="it has 8"):
            reader.era(wrong)
    for wrong in (-1, 19):
        with pytest.raises(InputError, match="have 19 blocks"):
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
    with pytest.raises(DamagedError, match="384 were committed"):
        reader.refresh()
    (store.path / STREAM / ERA_LINES_FILE).write_bytes(b"")
    with pytest.raises(DamagedError, match="era 0, at byte 0"):
        reader.era(0)


def test_eras_whose_lines_are_still_being_copied_come_later(store: Store) -> None:
    """At every byte: whoever copies by name puts the index in its place first. What was seen must stay there."""
    file = store.path / STREAM / ERA_LINES_FILE
    data, ends = file.read_bytes(), [open_eras(store.path, STREAM).row(number).stop for number in range(8)]
    for length in range(len(data)):
        file.write_bytes(data[:length])
        reader, there = open_eras(store.path, STREAM), sum(end <= length for end in ends)
        assert (reader.eras, reader.ahead, reader.ended) == (there, 8 - there, False)
        assert [reader.era(number) for number in range(there)] == ERAS[:there]
        if there:
            file.write_bytes(data[: ends[there - 1] - 1])
            with pytest.raises(DamagedError, match="were committed"):
                reader.refresh()
        file.write_bytes(data)
        assert (reader.refresh(), reader.ahead, reader.ended, reader.blocks) == (8, 0, True, 19)


def test_an_era_that_was_mended_is_read_again(store: Store) -> None:
    """What was read ahead of a damaged file is forgotten with the damage; the eras before it were good."""
    reader, file = open_eras(store.path, STREAM), store.path / STREAM / ERA_LINES_FILE
    data = file.read_bytes()
    file.write_bytes(data[:-2] + b"?\n")
    assert [reader.era(number) for number in range(7)] == ERAS[:7]
    with pytest.raises(DamagedError):
        reader.era(7)
    file.write_bytes(data)
    assert reader.era(7) == ERAS[7]


def test_files_of_another_stream_are_no_eras(store: Store, tmp_path: Path) -> None:
    other = make_store(tmp_path / "other", INFO.from_values({**INFO.values, "fingerprint": "ff" * 16}))
    for name in NAMES:
        shutil.copy(store.path / STREAM / name, other.path / STREAM / name)
    assert open_eras(other.path, STREAM).eras == 0


ENDS = (2, 3, 5, 8)
"""After how many eras each commit of the scene ended."""


@dataclass(frozen=True)
class Scene:
    """A store with eras in four commits: its two files, and their lengths after each commit."""

    store: Store
    files: dict[str, bytes]
    lengths: list[dict[str, int]]

    @property
    def directory(self) -> Path:
        return self.store.path / STREAM

    def put(self, **changed: bytes) -> None:
        for name, key in zip(NAMES, ("lines", "index"), strict=True):
            (self.directory / name).write_bytes(changed.get(key, self.files[name]))

    def recover(self, **changed: bytes) -> int:
        """Put the files in place and open for writing; return how many eras count. A reader sees as many."""
        self.put(**changed)
        seen = EraReader(self.directory, INFO).eras
        with EraWriter.open(self.store, STREAM) as writer:
            assert seen == writer.next_number
            assert writer.last == (ERAS[seen - 1] if seen else None)
            assert writer.position == (OFFSET + 3 * (seen - 1) if seen else None)
            return seen

    def sizes(self) -> dict[str, int]:
        return {name: (self.directory / name).stat().st_size for name in NAMES}

    def finish(self) -> bool:
        """Write what is missing; return whether the files are what they were."""
        write_eras(self.store, ERAS)
        lines = (self.directory / ERA_LINES_FILE).read_bytes()
        reader = EraReader(self.directory, INFO)
        return lines == self.files[ERA_LINES_FILE] and [reader.era(n) for n in range(reader.eras)] == ERAS


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Write the eras once; every test puts the files in place again."""
    store = make_store(tmp_path_factory.mktemp("store"), INFO)
    lengths = [dict.fromkeys(NAMES, 0)]
    for end in ENDS:
        write_eras(store, ERAS[:end])
        lengths.append({name: (store.path / STREAM / name).stat().st_size for name in NAMES})
    return Scene(store, {name: (store.path / STREAM / name).read_bytes() for name in NAMES}, lengths)


def test_lines_are_the_records_of_the_control_topic_and_a_follower_goes_on_behind_them(scene: Scene) -> None:
    scene.put()
    with EraWriter.open(scene.store, STREAM) as writer:
        follower = EraFollower(STREAM, INFO.fingerprint, writer.last, writer.position)
    assert (follower.position, follower.log.next_number, follower.log.ended) == (OFFSET + 3 * 7, 8, True)
    assert scene.files[ERA_LINES_FILE].split(b"\n") == [*(era.pack() for era in ERAS), b""]
    assert len(scene.files[ERA_INDEX_FILE]) == len(ERAS) * ROW_BYTES


@pytest.mark.slow
def test_an_index_cut_anywhere_gives_the_eras_before(scene: Scene) -> None:
    for length in range(len(scene.files[ERA_INDEX_FILE]) + 1):
        found = scene.recover(index=scene.files[ERA_INDEX_FILE][:length])
        assert found == length // ROW_BYTES
        lines = b"".join(era.pack() + b"\n" for era in ERAS[:found])
        assert (scene.directory / ERA_LINES_FILE).read_bytes() == lines
        if length % ROW_BYTES in {0, 7}:
            assert scene.finish()


@pytest.mark.slow
def test_lines_cut_anywhere_after_the_last_commit_are_cut_off(scene: Scene) -> None:
    """A crash before the rows leaves any part of the lines."""
    index = scene.files[ERA_INDEX_FILE][: scene.lengths[3][ERA_INDEX_FILE]]
    for length in range(scene.lengths[3][ERA_LINES_FILE], len(scene.files[ERA_LINES_FILE]) + 1):
        assert scene.recover(index=index, lines=scene.files[ERA_LINES_FILE][:length]) == ENDS[2]
        assert scene.sizes() == scene.lengths[3]


def test_missing_lines_are_damage(scene: Scene) -> None:
    """At every byte: the rows came after them, so they were there."""
    for length in range(0, len(scene.files[ERA_LINES_FILE]), 7):
        with pytest.raises(DamagedError, match=r"were committed.*again from the control topic"):
            scene.recover(lines=scene.files[ERA_LINES_FILE][:length])
    scene.put()
    (scene.directory / ERA_LINES_FILE).unlink()
    with pytest.raises(DamagedError, match=r"eras\.jsonl: it is missing\. Stop the segment worker"):
        EraWriter.open(scene.store, STREAM)


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_a_flip_in_the_lines_is_damage(scene: Scene) -> None:
    for at in range(len(scene.files[ERA_LINES_FILE])):
        scene.put(lines=flipped(scene.files[ERA_LINES_FILE], at, at % 8))
        number = next(n for n in range(8) if at < len(b"".join(era.pack() + b"\n" for era in ERAS[: n + 1])))
        with pytest.raises(DamagedError, match=rf"eras\.jsonl: era {number}, at byte \d+, is not what was committed"):
            EraWriter.open(scene.store, STREAM)


@pytest.mark.slow
def test_a_flip_in_the_index_is_damage_unless_it_is_in_the_last_commit(scene: Scene) -> None:
    """At every byte; the last commit may never have been written whole, so what is whole of it counts."""
    for at in range(len(scene.files[ERA_INDEX_FILE])):
        changed = flipped(scene.files[ERA_INDEX_FILE], at, at % 8)
        if at < scene.lengths[3][ERA_INDEX_FILE]:
            with pytest.raises(DamagedError, match=r"eras\.index: the row of era \d is damaged"):
                scene.recover(index=changed)
        else:
            assert scene.recover(index=changed) == at // ROW_BYTES
            assert scene.finish()


@given(st.binary(max_size=99), st.binary(max_size=99))
def test_an_uncommitted_tail_is_cut_off_whatever_it_holds(scene: Scene, lines: bytes, index: bytes) -> None:
    files = {"lines": scene.files[ERA_LINES_FILE] + lines, "index": scene.files[ERA_INDEX_FILE] + index}
    assert scene.recover(**files) == len(ERAS)
    assert {name: (scene.directory / name).read_bytes() for name in NAMES} == scene.files


def test_an_index_of_many_eras_is_recovered_by_its_end(tmp_path: Path) -> None:
    """After commits as large as they get, whole or cut off; damage far before the end is found when it is read."""
    eras = make_eras(INFO, CHAINS, [{0: blocks} for blocks in range(1, 3 * COMMIT_ROWS)])
    store = make_store(tmp_path, INFO)
    write_eras(store, eras, commit=1000)
    lines_file, index_file = (store.path / STREAM / name for name in NAMES)
    lines, index = lines_file.read_bytes(), index_file.read_bytes()
    for rows in (0, 1, COMMIT_ROWS, COMMIT_ROWS + 1, 2 * COMMIT_ROWS, len(eras)):
        torn = bytes(len(index) - rows * ROW_BYTES) if rows > len(eras) - COMMIT_ROWS else b""
        index_file.write_bytes(index[: rows * ROW_BYTES] + torn)
        lines_file.write_bytes(lines)
        with EraWriter.open(store, STREAM) as writer:
            assert writer.next_number == rows
        write_eras(store, eras, commit=1000)
        assert lines_file.read_bytes() == lines
    lines_file.write_bytes(flipped(lines, 30))
    reader = EraReader(store.path / STREAM, INFO)
    assert (reader.eras, reader.era(1)) == (len(eras), eras[1])
    with pytest.raises(DamagedError, match="era 0, at byte 0, is not what was committed"):
        reader.era(0)


@pytest.mark.parametrize("commit", [1, 2, 1000])
def test_stores_are_equal_however_eras_came(scene: Scene, tmp_path: Path, commit: int) -> None:
    store = make_store(tmp_path, INFO)
    write_eras(store, ERAS, commit=commit)
    assert (store.path / STREAM / ERA_LINES_FILE).read_bytes() == scene.files[ERA_LINES_FILE]


def test_eras_that_do_not_continue_are_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path, INFO)
    with EraWriter.open(store, STREAM) as writer:
        for wrong in (ERAS[1:2], [ERAS[0], ERAS[2]], [ERAS[0], ERAS[0]]):
            with pytest.raises(GapError, match="does not"):
                writer.append(with_offsets(wrong))
        assert writer.next_number == 0
        writer.append(with_offsets(ERAS))
    with EraWriter.open(store, STREAM) as writer, pytest.raises(GapError, match="continues era 7"):
        writer.append(with_offsets(ERAS[:1]))


def test_there_is_one_writer(scene: Scene) -> None:
    scene.put()
    with EraWriter.open(scene.store, STREAM) as writer:
        with pytest.raises(LockedError):
            EraWriter.open(scene.store, STREAM)
        with pytest.raises(LockedError):
            Store.adopt(scene.store.path)
    with pytest.raises(StoreError, match="closed"):
        writer.append([])
