"""Reading a store's eras."""

import shutil
import threading
from pathlib import Path

import pytest

from tests.store.chains import STREAM, make_chain, make_info, make_store
from tests.store.eras import make_eras, write_eras
from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.store import Store, open_eras
from tokenmill.store.layout import ERA_INDEX_FILE, ERA_LINES_FILE

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
    """Blocks are counted through all eras."""
    reader = open_eras(store.path, STREAM)
    assert (reader.eras, reader.blocks, reader.ended) == (5, 14, True)
    assert [reader.era(number) for number in range(5)] == ERAS
    assert [reader.blocks_before(number) for number in range(6)] == [0, 2, 7, 9, 14, 14]
    assert [reader.find(block) for block in range(14)] == [0] * 2 + [1] * 5 + [2] * 2 + [3] * 5
    assert [reader.row(number).closed for number in range(5)] == [0, 1, 2, 3, 4]


def test_what_is_not_there_is_refused(store: Store) -> None:
    """By number, by block, and in a store without the stream."""
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
    """Neither files nor eras."""
    reader = open_eras(make_store(tmp_path, INFO).path, STREAM)
    assert (reader.eras, reader.blocks, reader.ended, reader.refresh(), reader.blocks_before(0)) == (0, 0, False, 0, 0)


def test_a_reader_follows_a_writer(tmp_path: Path) -> None:
    """At any time it sees whole eras, in order, each as it was written."""
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
    """A shorter index, or one without its lines."""
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
    """The seed of the rows is the stream's."""
    values = dict(INFO.values) | {"fingerprint": "ff" * 16}
    other = make_store(tmp_path / "other", INFO.from_values(values))
    for name in (ERA_LINES_FILE, ERA_INDEX_FILE):
        shutil.copy(store.path / STREAM / name, other.path / STREAM / name)
    assert open_eras(other.path, STREAM).eras == 0
