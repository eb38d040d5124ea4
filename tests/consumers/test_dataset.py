"""Samples and windows by index."""

import multiprocessing
import pickle
import shutil
from pathlib import Path
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler

from tests.consumers.scenes import CHAINS, ERAS, INFO, OPEN_ERAS, era_store, grow, other_chains, other_eras
from tests.store.chains import STREAM, fill, make_store, tokens_of, write_eras
from tokenmill.app.segments.retiring import retire
from tokenmill.consumers import EraDataset, Windows
from tokenmill.consumers.loading import Sample
from tokenmill.errors import InputError, StoreError
from tokenmill.store import Store


def rows_of(dataset: EraDataset, indices: list[int]) -> list[list[int]]:
    return [[*x.tolist(), int(y[-1])] for x, y in dataset.__getitems__(indices)]


@given(st.integers(0, 5), st.integers(1, 6), st.sampled_from([1, 2, 4]), st.data())
def test_samples_are_those_of_the_eras(store: Store, first: int, count: int, length: int, data: st.DataObject) -> None:
    eras = range(first, min(first + count, 6))
    dataset = EraDataset(store.path, STREAM, sequence_length=length, eras=eras)
    reached = {number: (part.first, part.first) for number, part in enumerate(ERAS[-1].ranges)}
    for number in range(3):
        blocks = [part for era in ERAS[first : eras.stop] for part in era.ranges[number : number + 1] if part.blocks]
        reached[number] = (blocks[0].first, blocks[-1].stop) if blocks else (0, 0)
    rows = [
        tokens_of(CHAINS[number], INFO)[block, start : start + length + 1].tolist()
        for number, (begin, stop) in reached.items()
        for block in range(begin, stop)
        for start in range(0, 4, length)
    ]
    assert len(dataset) == len(rows)
    assert rows_of(dataset, list(range(len(rows)))) == rows
    if rows:
        wanted = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), min_size=1, max_size=30))
        assert rows_of(dataset, wanted) == [rows[index] for index in wanted]
        for index in (-len(rows), -1, *wanted):
            x, y = dataset[index]
            assert [*x.tolist(), int(y[-1])] == rows[index]
    for wrong in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            dataset[wrong]


def test_a_dataset_is_frozen(tmp_path: Path) -> None:
    store = era_store(tmp_path, OPEN_ERAS[:2])
    write_eras(store, ERAS)
    fill(store, INFO, CHAINS[1], [9], partition=1)
    dataset = EraDataset(store.path, STREAM)
    assert (dataset.eras, len(dataset)) == (range(2), 9)
    rows = rows_of(dataset, list(range(9)))
    grow(store, ERAS)
    assert rows_of(dataset, list(range(9))) == rows
    assert EraDataset(store.path, STREAM).eras == range(6)


def test_eras_that_are_not_there_are_refused(tmp_path: Path) -> None:
    path = era_store(tmp_path / "store", OPEN_ERAS[:2]).path
    several = "one era or more"
    for wrong, words in ((range(3), "which has 2"), (range(2, 2), several), (range(0, 2, 2), several)):
        with pytest.raises(InputError, match=words):
            EraDataset(path, STREAM, eras=wrong)
    write_eras(Store.open(path), ERAS)
    with pytest.raises(InputError, match="not all blocks"):
        EraDataset(path, STREAM, eras=range(3))
    with pytest.raises(InputError, match=r"^nothing to read yet: the first era of"):
        EraDataset(make_store(tmp_path / "new", INFO).path, STREAM)
    with pytest.raises(StoreError):
        EraDataset(path, "other")


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded", "ignore:This DataLoader will create")
@pytest.mark.slow
@pytest.mark.cases(1)
def test_loaders_take_it_into_workers(store: Store, start: str) -> None:
    dataset = EraDataset(store.path, STREAM)
    assert len(dataset[0]) == 2  # its files are mapped
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(1)),
        multiprocessing_context=multiprocessing.get_context(start),
    )
    batches = list(loader)
    assert all(x.shape == y.shape == (4, 4) and x.dtype == torch.int64 for x, y in batches)
    found = [[*x, y[-1]] for xs, ys in batches for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
    assert sorted(found) == sorted(rows_of(dataset, list(range(40))))
    assert pickle.loads(pickle.dumps(dataset))[7][0].tolist() == dataset[7][0].tolist()  # noqa: S301 - our own


@runtime_checkable
class RandomAccessDataSource(Protocol):
    """What Grain demands of a source (grain 0.2, ``grain.sources``); it also pickles it, and tells it by its repr."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: SupportsIndex, /) -> Sample: ...


def test_a_dataset_is_a_source_for_grain(store: Store, tmp_path: Path) -> None:
    dataset = EraDataset(store.path, STREAM)
    source: RandomAccessDataSource = dataset
    assert isinstance(source, RandomAccessDataSource)
    for index in (np.int64(7), np.uint8(7), torch.tensor(7)):
        assert source[index][0].tolist() == dataset[7][0].tolist()
    copy = EraDataset(shutil.copytree(store.path, tmp_path / "copy"), STREAM, sequence_length=4)
    assert repr(copy) == repr(pickle.loads(pickle.dumps(dataset))) == repr(dataset)  # noqa: S301 - our own
    others = [EraDataset(store.path, STREAM, sequence_length=2), EraDataset(store.path, STREAM, eras=range(5))]
    assert len({repr(one) for one in [dataset, *others]}) == 3


def test_a_source_for_grain_knows_its_content(store: Store, tmp_path: Path) -> None:
    """A checkpoint of Grain is refused where the repr is another: so it is for other text of the same recipe."""
    for kept, same in ((0, False), (3, False), (4, True)):
        other = era_store(tmp_path / str(kept), other_eras(kept), other_chains(kept))
        datasets = [EraDataset(one.path, STREAM, sequence_length=4, eras=range(4)) for one in (store, other)]
        assert (repr(datasets[0]) == repr(datasets[1])) is same


@given(st.integers(1, 30), st.sampled_from([(0, 115), (1, 65), (2, 20)]), st.data())
def test_a_window_is_a_stretch_of_the_partition(
    store: Store, length: int, part: tuple[int, int], data: st.DataObject
) -> None:
    partition, tokens = part
    windows = Windows(store.path, STREAM, length)
    assert windows.partitions == [0, 1, 2]
    assert windows.indices(partition) == range(max(tokens - length, 0))
    flat = tokens_of(CHAINS[partition], INFO)[: tokens // 5].reshape(-1).tolist()
    if tokens > length:
        places = data.draw(st.lists(st.sampled_from(windows.indices(partition)), min_size=1, max_size=5))
        x, y = windows.at(partition, places)
        assert x.tolist() == [flat[place : place + length] for place in places]
        assert y.tolist() == [flat[place + 1 : place + 1 + length] for place in places]
        assert windows[partition, places[0]].y.tolist() == y[0].tolist()


def test_windows_that_are_not_there_are_refused(store: Store) -> None:
    windows = Windows(store.path, STREAM, 7)
    for wrong in (-1, 13, 100):
        with pytest.raises(InputError, match="tokens 0 to 12"):
            windows.at(2, [0, wrong])
    with pytest.raises(InputError, match=r"one of \[0, 1, 2\]"):
        windows.indices(3)
    with pytest.raises(InputError, match="1 or more"):
        Windows(store.path, STREAM, 0)


def test_windows_see_a_store_grow_and_retire(tmp_path: Path) -> None:
    store = era_store(tmp_path)
    windows = Windows(store.path, STREAM, 5)
    before = windows[0, 60]
    fill(store, INFO, CHAINS[0], [30])
    retire(store.path, STREAM, 0, 8)
    windows.refresh()
    assert windows.indices(0) == range(40, 145)
    assert windows[0, 60].x.tolist() == before.x.tolist()


def test_windows_have_numbers(store: Store) -> None:
    windows = Windows(store.path, STREAM, 9)
    places = [(partition, token) for partition in windows.partitions for token in windows.indices(partition)]
    assert len(windows) == len(places) == 115 + 65 + 20 - 27
    expected = [windows[place].x.tolist() for place in places]
    assert [x.tolist() for x, _ in windows] == expected
    numbers = [5, 170, -1, 106, 105, 0]
    assert [x.tolist() for x, _ in windows.__getitems__(numbers)] == [expected[number] for number in numbers]
    again = pickle.loads(pickle.dumps(windows))  # noqa: S301 - our own
    assert (len(again), again[-1].y.tolist()) == (173, windows[places[-1]].y.tolist())
    for wrong in (173, -174):
        with pytest.raises(IndexError, match="173 windows"):
            windows[wrong]
    none = Windows(store.path, STREAM, 10_000)
    assert (bool(none), len(none)) == (True, 0)
