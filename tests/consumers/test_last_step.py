"""``drop_last=False``: the last step of an evaluation, which has what is left."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.consumers.packed import text_store
from tests.consumers.scenes import ERAS, OPEN_ERAS, era_store, expected, grow, open_batches, rows_of, together
from tests.store.chains import STREAM
from tokenmill.consumers import Batches, BucketSampler, Documents, EraSampler, Mixture, PaddedBatches, StepDataset
from tokenmill.errors import InputError, StoreError
from tokenmill.store import Store

WHOLE: dict[str, Any] = {"drop_last": False, "timeout": 0.0}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    path = text_store(tmp_path_factory.mktemp("texts"), [3, 9, 4, 6, 7] * 5, labels=["n", "y"])
    return Documents(path, STREAM, label_field="label", label_names=["n", "y"])


@given(
    world_size=st.integers(1, 9),
    batch_size=st.sampled_from([1, 2, 3, 7, 50, [(0, 3), (2, 5)], [(0, 1), (1, 64)]]),
    passes=st.integers(1, 2),
    length=st.sampled_from([2, 4, [(0, 2), (1, 4)]]),
    on_damage=st.sampled_from(["refuse", "skip"]),
)
def test_all_samples_are_delivered_and_all_ranks_make_as_many_steps(
    store: Store, *, world_size: int, batch_size: Any, passes: int, length: Any, on_damage: str
) -> None:
    """Whatever the last step has: its samples are divided to one, and nobody gets one that another has."""
    options: dict[str, Any] = {"batch_size": batch_size, "sequence_length": length, "passes": passes, **WHOLE}
    options["on_damage"] = on_damage
    ranks = [open_batches(store, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
    steps = list(zip(*ranks, strict=True))
    assert {len(rank) for rank in ranks} == {len(steps)}
    whole = expected(passes=passes, length=2 if length == 2 else 4)
    longest = [[*row[:2], *row[2:]] for row in whole]
    found = rows_of(batch for step in steps for batch in step)
    if isinstance(length, list):
        split = [row for step in steps for batch in step if batch.x.shape[1] == 2 for row in rows_of([batch])]
        joined = [[*first, *second[1:]] for first, second in zip(split[::2], split[1::2], strict=True)]
        assert joined + found[len(split) :] == longest
    else:
        assert found == longest
    for step in steps:
        sizes = [len(batch) for batch in step]
        assert max(sizes) - min(sizes) <= 4 // step[0].x.shape[1]
        assert len({json.dumps(batch.state) for batch in step}) == 1
    assert steps[-1][0].state["sample"] == len(whole) == ranks[-1].state_dict()["sample"]
    assert ranks[0].state_dict() == steps[-1][-1].state == ranks[0].state_after(len(steps) - 1)
    assert not list(ranks[0])


@given(
    first=st.tuples(st.integers(1, 4), st.integers(1, 9)),
    second=st.tuples(st.integers(1, 4), st.integers(1, 9)),
    steps=st.integers(0, 41),
)
@pytest.mark.needs("minutes")
def test_whatever_step_a_state_is_from_another_world_goes_on(
    store: Store, first: tuple[int, int], second: tuple[int, int], steps: int
) -> None:
    ranks = [
        open_batches(store, rank=rank, world_size=first[0], batch_size=first[1], **WHOLE) for rank in range(first[0])
    ]
    rows = together([list(islice(rank, steps)) for rank in ranks])
    state = json.loads(json.dumps(ranks[0].state_dict()))
    others = [
        open_batches(store, rank=rank, world_size=second[0], batch_size=second[1], **WHOLE) for rank in range(second[0])
    ]
    for rank in others:
        rank.load_state_dict(state)
        assert rank.step == min(steps, len(ranks[0]))
    assert rows + together(others) == expected()
    more = open_batches(store, batch_size=5, passes=2, **WHOLE)
    more.load_state_dict(others[0].state_dict())
    assert rows_of(more) == expected(passes=2)[40:]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [3, 7, 16, 50])
@pytest.mark.cases(4)
def test_any_number_of_workers_gives_the_same(store: Store, workers: int, batch_size: int) -> None:
    options = {"batch_size": batch_size, "sequence_length": 4, "seed": 1, **WHOLE}
    dataset = StepDataset(store.path, STREAM, **options)
    batches = list(DataLoader(dataset, batch_size=None, num_workers=workers))
    assert rows_of(batches) == expected()
    assert [batch.step for batch in batches] == list(range(len(dataset)))
    assert batches[-1].state["sample"] == dataset.state_dict()["sample"] == 40
    assert not list(DataLoader(dataset, batch_size=None, num_workers=workers))


@given(st.integers(1, 5), st.integers(1, 50), st.integers(0, 9))
def test_one_of_many_workers_has_the_last_step(store: Store, workers: int, batch_size: int, skipped: int) -> None:
    own = [open_batches(store, batch_size=batch_size, worker=(w, workers), **WHOLE) for w in range(workers)]
    parts = [list(worker.skip(skipped)) for worker in own]
    steps = sorted((batch for part in parts for batch in part), key=lambda batch: batch.step)
    assert rows_of(steps) == expected()[skipped * workers * batch_size :]
    assert [batch.step for batch in steps] == list(range(skipped * workers, skipped * workers + len(steps)))


def test_what_is_left_is_known_when_the_stream_has_ended(tmp_path: Path) -> None:
    store = era_store(tmp_path, OPEN_ERAS)
    batches = open_batches(store, batch_size=16, **WHOLE)
    rows: list[list[int]] = []
    with pytest.raises(StoreError, match="waiting for era 5"):
        rows.extend(row for batch in batches for row in rows_of([batch]))
    assert batches.step == 2
    grow(store, ERAS)
    rows = rows_of(open_batches(store, batch_size=16, **WHOLE))
    assert rows_of(batches) == expected()[32:] == rows[32:]
    assert batches.step == len(batches) == 3


def test_a_batch_without_samples_is_a_batch(store: Store) -> None:
    options: dict[str, Any] = {"batch_size": 37, "world_size": 1, "rank": 0, "mask_loss": True}
    batches = open_batches(store, **options | WHOLE)
    _, last = batches
    assert len(last) == 3
    ranks = [
        open_batches(store, **options | WHOLE | {"rank": rank, "world_size": 37, "batch_size": 1}) for rank in range(37)
    ]
    ends = [list(rank)[-1] for rank in ranks]
    assert sum(map(len, ends)) == 3
    empty = next(batch for batch in ends if not len(batch))
    assert (empty.x.shape, empty.y.shape, empty.x.dtype) == ((0, 4), (0, 4), torch.int64)
    assert empty.documents().document_ids.shape == (0, 4)
    assert empty.documents().cu_seqlens.tolist() == [0]
    assert empty.label_tokens == 0
    assert (empty.sources(), empty.streams, empty.step, empty.state["sample"]) == ([], (), 1, 40)
    assert open_batches(store, **options | WHOLE | {"rank": 0, "world_size": 37, "widen": False, "mask_loss": False})


@pytest.mark.parametrize("kind", [EraSampler, BucketSampler])
@pytest.mark.parametrize("world_size", [1, 2, 3, 30])
@pytest.mark.parametrize("batch_size", [1, 4, 30])
@pytest.mark.cases(8)
def test_all_documents_are_delivered(documents: Documents, kind: Any, world_size: int, batch_size: int) -> None:
    sampler = kind(documents)
    options: dict[str, Any] = {"world_size": world_size, "batch_size": batch_size, "drop_last": False}
    ranks = [PaddedBatches(documents, sampler, rank=rank, **options) for rank in range(world_size)]
    labels = [rank.label_distribution() for rank in ranks]
    assert {name: sum(one[name] for one in labels) for name in ("n", "y")} == documents.label_distribution()
    through = [[batch.indices.tolist() for batch in rank.loader()] for rank in ranks]
    steps = list(zip(*ranks, strict=True))
    assert {len(rank) for rank in ranks} == {len(steps)}
    assert [[batch.indices.tolist() for batch in rank] for rank in zip(*steps, strict=True)] == through
    assert [number for step in steps for batch in step for number in batch.indices.tolist()] == list(sampler)
    for step in steps:
        sizes = [len(batch["input_ids"]) for batch in step]
        assert max(sizes) - min(sizes) <= 1
        assert len({json.dumps(batch.state) for batch in step}) == 1
        again = PaddedBatches(documents, sampler, batch_size=2, drop_last=False, rank=0, world_size=1)
        again.load_state_dict(step[0].state)
        taken = step[0].state["sample"]
        assert [number for batch in again for number in batch.indices.tolist()] == list(kind(documents))[taken:]
    assert steps[-1][0].state["sample"] == len(documents)


def test_what_is_left_is_left_unless_it_is_asked_for(store: Store, documents: Documents) -> None:
    assert rows_of(open_batches(store, batch_size=16)) == expected()[:32]
    padded = PaddedBatches(documents, batch_size=10)
    assert [len(batch["labels"]) for batch in padded] == [10, 10]


def test_where_steps_belong_together_nothing_can_be_left(store: Store) -> None:
    with pytest.raises(InputError, match="drop_last is False and in_order True"):
        open_batches(store, in_order=True, **WHOLE)
    streams = {"a": Batches(store.path, STREAM, batch_size=2, sequence_length=4, **WHOLE)}
    with pytest.raises(InputError, match="stream 'a' has drop_last=False"):
        Mixture(streams, {"a": 1})
