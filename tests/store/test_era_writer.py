"""Writing eras into a store, and recovering what a crash left."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.chains import STREAM, make_chain, make_info, make_store
from tests.store.eras import OFFSET, make_eras, with_offsets, write_eras
from tests.store.test_recovery import flip
from tokenmill.eras import EraFollower
from tokenmill.errors import DamagedError, GapError, LockedError, StoreError
from tokenmill.store import EraReader, EraWriter, Store
from tokenmill.store.eras import COMMIT_ROWS, ROW_BYTES
from tokenmill.store.layout import ERA_INDEX_FILE, ERA_LINES_FILE

INFO = make_info()
CHAINS = {number: make_chain(INFO, 300, partition=number, seed=number) for number in range(2)}
ERAS = make_eras(INFO, CHAINS, [{0: 2}, {0: 4, 1: 3}, {1: 5}, {0: 9}, {0: 10, 1: 6}, {1: 7}, {1: 9}], end=True)
ENDS = (2, 3, 5, 8)
"""After how many eras each commit of the scene ended."""
NAMES = (ERA_LINES_FILE, ERA_INDEX_FILE)


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


def test_lines_are_the_records_of_the_control_topic(scene: Scene) -> None:
    scene.put()
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
        scene.put(lines=flip(scene.files[ERA_LINES_FILE], at, at % 8))
        number = next(n for n in range(8) if at < len(b"".join(era.pack() + b"\n" for era in ERAS[: n + 1])))
        with pytest.raises(DamagedError, match=rf"eras\.jsonl: era {number}, at byte \d+, is not what was committed"):
            EraWriter.open(scene.store, STREAM)


@pytest.mark.slow
def test_a_flip_in_the_index_is_damage_unless_it_is_in_the_last_commit(scene: Scene) -> None:
    """At every byte; the last commit may never have been written whole, so what is whole of it counts."""
    for at in range(len(scene.files[ERA_INDEX_FILE])):
        changed = flip(scene.files[ERA_INDEX_FILE], at, at % 8)
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


def many() -> Iterator[dict[int, int]]:
    for number in range(1, 3 * COMMIT_ROWS):
        yield {0: number}


def test_an_index_of_many_eras_is_recovered_by_its_end(tmp_path: Path) -> None:
    """After commits as large as they get, whole or cut off; damage far before the end is found when it is read."""
    eras = make_eras(INFO, CHAINS, list(many()))
    scene = make_store(tmp_path, INFO)
    write_eras(scene, eras, commit=1000)
    files = {name: (scene.path / STREAM / name).read_bytes() for name in NAMES}
    for rows in (0, 1, COMMIT_ROWS, COMMIT_ROWS + 1, 2 * COMMIT_ROWS, len(eras)):
        torn = bytes(len(files[ERA_INDEX_FILE]) - rows * ROW_BYTES) if rows > len(eras) - COMMIT_ROWS else b""
        (scene.path / STREAM / ERA_INDEX_FILE).write_bytes(files[ERA_INDEX_FILE][: rows * ROW_BYTES] + torn)
        (scene.path / STREAM / ERA_LINES_FILE).write_bytes(files[ERA_LINES_FILE])
        with EraWriter.open(scene, STREAM) as writer:
            assert writer.next_number == rows
        write_eras(scene, eras, commit=1000)
        assert {name: (scene.path / STREAM / name).read_bytes() for name in [ERA_LINES_FILE]}.items() <= files.items()
    (scene.path / STREAM / ERA_LINES_FILE).write_bytes(flip(files[ERA_LINES_FILE], 30))
    reader = EraReader(scene.path / STREAM, INFO)
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


def test_a_follower_goes_on_where_the_store_stands(scene: Scene) -> None:
    scene.put()
    with EraWriter.open(scene.store, STREAM) as writer:
        follower = EraFollower(STREAM, INFO.fingerprint, writer.last, writer.position)
    assert (follower.position, follower.log.next_number, follower.log.ended) == (OFFSET + 3 * 7, 8, True)


def test_there_is_one_writer(scene: Scene) -> None:
    scene.put()
    with EraWriter.open(scene.store, STREAM) as writer:
        with pytest.raises(LockedError):
            EraWriter.open(scene.store, STREAM)
        with pytest.raises(LockedError):
            Store.adopt(scene.store.path)
    with pytest.raises(StoreError, match="closed"):
        writer.append([])
