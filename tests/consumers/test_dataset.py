"""Samples by index."""

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
from tests.store.chains import STREAM, fill, make_store, tokens_of
from tests.store.eras import write_eras
from tokenmill.consumers import EraDataset
from tokenmill.consumers.loading import Sample
from tokenmill.errors import InputError, StoreError
from tokenmill.store import Store


def rows_of(dataset: EraDataset, indices: list[int]) -> list[list[int]]:
    return [[*x.tolist(), int(y[-1])] for x, y in dataset.__getitems__(indices)]


@given(st.integers(0, 5), st.integers(1, 6), st.sampled_from([1, 2, 4]))
def test_samples_are_those_of_the_eras(store: Store, first: int, count: int, length: int) -> None:
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
    for index in (0, len(rows) - 1):
        if rows:
            x, y = dataset[index - len(rows)]
            assert [*x.tolist(), int(y[-1])] == rows[index]
    for wrong in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            dataset[wrong]


def test_a_dataset_is_frozen(tmp_path: Path) -> None:
    store = era_store(tmp_path, OPEN_ERAS[:2])
    write_eras(store, ERAS)
    fill(store, INFO, CHAINS[1], [9], partition=1)
    dataset = EraDataset(store.path, STREAM, sequence_length=4)
    assert (dataset.eras, len(dataset)) == (range(2), 9)
    rows = rows_of(dataset, list(range(9)))
    grow(store, ERAS)
    assert rows_of(dataset, list(range(9))) == rows
    assert EraDataset(store.path, STREAM, sequence_length=4).eras == range(6)


def test_eras_that_are_not_there_are_refused(tmp_path: Path) -> None:
    store = era_store(tmp_path / "store", OPEN_ERAS[:2])
    several = "one era or more"
    for wrong, words in ((range(3), "which has 2"), (range(2, 2), several), (range(0, 2, 2), several)):
        with pytest.raises(InputError, match=words):
            EraDataset(store.path, STREAM, sequence_length=4, eras=wrong)
    write_eras(store, ERAS)
    with pytest.raises(InputError, match="not all blocks"):
        EraDataset(store.path, STREAM, sequence_length=4, eras=range(3))
    with pytest.raises(InputError, match=r"^nothing to read yet: the first era of"):
        EraDataset(make_store(tmp_path / "new", INFO).path, STREAM, sequence_length=4)
    with pytest.raises(StoreError):
        EraDataset(store.path, "other", sequence_length=4)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded", "ignore:This DataLoader will create")
@pytest.mark.slow
@pytest.mark.cases(1)
def test_loaders_take_it_into_workers(store: Store, start: str) -> None:
    dataset = EraDataset(store.path, STREAM, sequence_length=4)
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
    dataset = EraDataset(store.path, STREAM, sequence_length=4)
    source: RandomAccessDataSource = dataset
    assert isinstance(source, RandomAccessDataSource)
    for index in (np.int64(7), np.uint8(7), torch.tensor(7)):
        assert source[index][0].tolist() == dataset[7][0].tolist()
    copy = EraDataset(shutil.copytree(store.path, tmp_path / "copy"), STREAM, sequence_length=4)
    assert repr(copy) == repr(pickle.loads(pickle.dumps(dataset))) == repr(dataset)  # noqa: S301 - our own
    others = [
        EraDataset(store.path, STREAM, sequence_length=2),
        EraDataset(store.path, STREAM, sequence_length=4, eras=range(5)),
    ]
    assert len({repr(one) for one in [dataset, *others]}) == 3


def test_a_source_for_grain_knows_its_content(store: Store, tmp_path: Path) -> None:
    """A checkpoint of Grain is refused where the repr is another: so it is for other text of the same recipe."""
    for kept, same in ((0, False), (3, False), (4, True)):
        other = era_store(tmp_path / str(kept), other_eras(kept), other_chains(kept))
        datasets = [EraDataset(one.path, STREAM, sequence_length=4, eras=range(4)) for one in (store, other)]
        assert (repr(datasets[0]) == repr(datasets[1])) is same
