"""A byte that was changed on the disk: refused by every loader that is opened without a word about it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.consumers.scenes import CHAINS, INFO, era_store, expected, open_batches, raises_in_workers, rows_of
from tests.store.chains import STREAM, segment_of, tokens_of
from tokenmill.consumers import EraDataset, StepDataset, Windows, sample_lookup
from tokenmill.consumers.sample_lookup import Gathering, Rows
from tokenmill.errors import DamagedError
from tokenmill.store import Store, open_partition

BLOCK = 6
"""The damaged one, of partition 0."""
MESSAGE = r"000000000004\.bin: block 6, at byte 20, is not what was committed.*tokenmill repair"

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def flip(store: Store, at: int = 2 * INFO.block_bytes + 3) -> None:
    with segment_of(store, 4).tokens.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = era_store(tmp_path)
    flip(store)
    return store


def by_batches(store: Store, **options: Any) -> list[list[int]]:
    return rows_of(open_batches(store, **options))


def by_steps(store: Store, workers: int = 0, **options: Any) -> list[list[int]]:
    dataset = StepDataset(store.path, STREAM, batch_size=2, sequence_length=4, seed=1, **options)
    return rows_of(DataLoader(dataset, batch_size=None, num_workers=workers))


def by_number(store: Store, **options: Any) -> list[list[int]]:
    dataset = EraDataset(store.path, STREAM, sequence_length=4, **options)
    return [[*x.tolist(), int(y[-1])] for x, y in (dataset[number] for number in range(len(dataset)))]


def by_windows(store: Store, **options: Any) -> list[list[int]]:
    windows = Windows(store.path, STREAM, 4, **options)
    return [row for block in range(23) for row in windows.rows(0, [5 * block]).tolist()]


def by_blocks(store: Store, **options: Any) -> list[list[int]]:
    reader = open_partition(store.path, STREAM, 0, **options)
    return [reader.read(block).tolist() for block in range(23)]


LOADERS: dict[str, Callable[..., list[list[int]]]] = {
    "Batches": by_batches,
    "Batches, as stored": lambda store, **options: [
        row for batch in open_batches(store, widen=False, **options) for row in batch.rows.tolist()
    ],
    "Batches, in order": lambda store, **options: by_batches(store, shuffle=False, **options),
    "Batches, views of blocks": lambda store, **options: by_batches(store, sequence_length=2, **options),
    "Batches, of all ranks": lambda store, **options: [
        row for rank in range(2) for row in by_batches(store, rank=rank, world_size=2, batch_size=1, **options)
    ],
    "StepDataset": by_steps,
    "StepDataset, in workers": lambda store, **options: by_steps(store, 2, **options),
    "EraDataset": by_number,
    "EraDataset, many at once": lambda store, **options: [
        [*x.tolist(), int(y[-1])]
        for x, y in EraDataset(store.path, STREAM, sequence_length=4, **options).__getitems__(range(40))
    ],
    "Windows": by_windows,
    "open_partition": by_blocks,
    "open_partition, many at once": lambda store, **options: (
        open_partition(store.path, STREAM, 0, **options).gather(range(23)).tolist()
    ),
}


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("table_blocks", [1, 1 << 20])
@pytest.mark.cases(8)
def test_a_changed_bit_is_refused_by_default(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str, table_blocks: int
) -> None:
    monkeypatch.setattr(sample_lookup, "_TABLE_BLOCKS", table_blocks)
    with raises_in_workers(DamagedError, MESSAGE):
        LOADERS[name](store)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.cases(4)
def test_who_wants_no_checks_reads_what_is_there(store: Store, name: str) -> None:
    changed, sound = LOADERS[name](store, check=False), tokens_of(CHAINS[0], INFO)[BLOCK].tolist()
    kept = [sound[start : start + 3] for start in (0, 2)] if "views" in name else [sound]
    assert not all(row in changed for row in kept)
    flip(store)
    mended = LOADERS[name](store)
    assert all(row in mended for row in kept)
    assert len(mended) == len(changed)


@pytest.mark.parametrize("at", range(INFO.block_bytes))
@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.cases(8)
def test_no_byte_of_a_block_goes_unchecked(tmp_path: Path, length: int, at: int) -> None:
    store = era_store(tmp_path)
    flip(store, 2 * INFO.block_bytes + at)
    with pytest.raises(DamagedError, match=MESSAGE):
        by_batches(store, sequence_length=length)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 40])
def test_all_before_the_damage_is_delivered(store: Store, batch_size: int) -> None:
    sequence = expected(shuffle=False)
    damaged = sequence.index(tokens_of(CHAINS[0], INFO)[BLOCK].tolist())
    found: list[list[int]] = []

    def read() -> None:
        for batch in open_batches(store, shuffle=False, batch_size=batch_size):
            found.extend(rows_of([batch]))

    with pytest.raises(DamagedError, match=MESSAGE):
        read()
    assert found == sequence[: damaged // batch_size * batch_size]


def test_after_a_repair_the_run_goes_on(store: Store, tmp_path: Path) -> None:
    """Also with the same Batches: a repaired file is another one, and is read."""
    batches = open_batches(store, shuffle=False)
    found: list[list[int]] = []

    def read() -> Iterator[list[int]]:
        for batch in batches:
            yield from rows_of([batch])

    with pytest.raises(DamagedError, match=MESSAGE):
        found.extend(read())
    broken = segment_of(store, 4).tokens
    data = bytearray(broken.read_bytes())
    data[23] ^= 4
    beside = tmp_path / "mended"
    beside.write_bytes(data)
    beside.rename(broken)
    delivered = batches.state_dict()["sample"]
    assert list(read()) == expected(shuffle=False)[delivered:]


def test_a_block_that_changes_after_it_was_read_is_refused_next_time(store: Store) -> None:
    flip(store)
    batches = open_batches(store)
    assert rows_of(batches) == expected()
    flip(store)
    with pytest.raises(DamagedError, match="block 6"):
        list(batches.rewind())


def test_damage_in_the_copy_alone_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is what was committed when it is looked at again: memory may be at fault."""
    flip(store)
    copied = Gathering.rows

    def spoilt(self: Gathering, start: int = 0, stop: int | None = None) -> Rows:
        found = copied(self, start, stop)
        found[-1, -1] ^= np.uint16(1)
        return found

    monkeypatch.setattr(Gathering, "rows", spoilt)
    with pytest.raises(DamagedError, match="was not what was committed when it was read, and is now"):
        list(open_batches(store))
