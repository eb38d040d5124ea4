"""Samplers over documents, and padded batches: plain answers, states, ranks, workers."""

import copy
import json
import logging
import pickle
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.packed import given_documents, pack, packed_info, packed_store
from tests.store.chains import STREAM
from tokenmill.consumers import BucketSampler, Documents, EraSampler, PaddedBatch, PaddedBatches, StratifiedSampler
from tokenmill.consumers.samplers import bucket_order, describe_strata, era_order, strata_of, stratified_order
from tokenmill.errors import InputError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

LENGTHS = [3, 12, 5, 1, 10, 4, 7, 2, 5, 9, 6, 3, 21, 1, 2, 8, 30, 2, 2, 3]


def make(path: Path, shift: int = 0) -> Path:
    info = packed_info()
    blocks = {
        n: pack(given_documents(LENGTHS, labels=["bad", "good", "good"], first=shift + n), "concat", 5) for n in (0, 1)
    }
    stops = [{0: 9, 1: 4}, {1: 20}, {0: len(blocks[0]), 1: len(blocks[1])}]
    return packed_store(path, info, blocks, stops).path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def documents(path: Path) -> Documents:
    return Documents(path, STREAM, label_field="label", label_names=["bad", "good"])


def samplers(documents: Documents) -> list[EraSampler | BucketSampler | StratifiedSampler]:
    return [
        EraSampler(documents, seed=3, passes=3),
        EraSampler(documents, shuffle=False, passes=3),
        BucketSampler(documents, bucket_size=4, window=16, passes=3),
        StratifiedSampler(documents, num_samples=21, num_strata=3, seed=1, passes=3),
    ]


lengths_of = st.lists(st.integers(1, 30), max_size=60).map(lambda some: np.array(some, np.int32))


@given(st.lists(st.integers(0, 5), max_size=300), st.integers(0, 2), st.integers(0, 2))
def test_eras_come_in_their_order(eras: list[int], seed: int, passed: int) -> None:
    found = era_order(np.array(eras, np.int64), seed=seed, passed=passed, shuffle=True).tolist()
    assert [eras[number] for number in found] == sorted(eras)
    assert sorted(found) == list(range(len(eras)))
    plain = era_order(np.array(eras, np.int64), seed=seed, passed=passed, shuffle=False).tolist()
    assert plain == sorted(range(len(eras)), key=lambda number: (eras[number], number))


@given(lengths_of, st.integers(1, 9), st.integers(0, 9))
def test_buckets_hold_what_is_about_as_long(lengths: np.ndarray[Any, Any], bucket: int, more: int) -> None:
    window = bucket + more
    order = np.arange(len(lengths))[::-1].copy()
    found = bucket_order(order, lengths, window=window, bucket=bucket, seed=1, passed=0)
    for start in range(0, len(order), window):
        mine = found[start : start + window].tolist()
        assert sorted(mine) == sorted(order[start : start + window].tolist())
        ranks = sorted(lengths[mine].tolist())
        runs = [ranks[at : at + bucket] for at in range(0, len(ranks), bucket)]
        assert sorted(sorted(lengths[mine[at : at + bucket]].tolist()) for at in range(0, len(mine), bucket)) == sorted(
            runs
        )


@given(lengths_of, st.integers(1, 40), st.integers(1, 6), st.integers(0, 3))
def test_strata_give_equal_shares(lengths: np.ndarray[Any, Any], samples: int, count: int, passed: int) -> None:
    owners = strata_of(lengths, count)
    strata = describe_strata(lengths, owners, samples=samples, strata=count)
    assert sum(one.share for one in strata) == samples
    assert max(one.share for one in strata) - min(one.share for one in strata) <= 1
    assert all(a <= b for a, b in zip(owners[np.argsort(lengths)], owners[np.argsort(lengths)][1:], strict=False))
    found = stratified_order(owners, strata, seed=2, passed=passed).tolist()
    assert len(set(found)) == len(found)
    drawn = Counter(owners[found].tolist())
    for number, one in enumerate(strata):
        mine = lengths[owners == number].tolist()
        assert (one.documents, drawn[number]) == (len(mine), min(len(mine), one.share))
        assert (one.shortest, one.longest) == ((min(mine), max(mine)) if mine else (0, 0))


def test_strata_of_different_lengths_are_equal_parts() -> None:
    lengths = np.random.default_rng(0).permutation(100).astype(np.int32)
    assert np.bincount(strata_of(lengths, 4)).tolist() == [25] * 4


def test_a_stratum_that_is_too_small_is_said(documents: Documents, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sampler = StratifiedSampler(documents, num_samples=60, num_strata=3)
    assert "3 of 3 strata have fewer documents than their share, 40 documents are drawn and not 60" in caplog.text
    assert sorted(sampler) == list(range(40))


def test_eras_of_documents_are_those_of_their_last_blocks(documents: Documents, path: Path) -> None:
    eras = documents._era_of_each().tolist()
    known = {n: {one.offset + 100 * one.partition for one in Documents(path, STREAM, eras=range(n))} for n in (1, 2, 3)}
    for one, era in zip(documents, eras, strict=True):
        key = one.offset + 100 * one.partition
        assert era <= min([n - 1 for n, keys in known.items() if key in keys])
        assert all(key in keys for n, keys in known.items() if n > era + 1)
    assert sorted(set(eras)) == [0, 1, 2]


@given(st.integers(0, 3), st.integers(0, 70), st.integers(0, 70))
def test_samplers_resume_where_they_were(documents: Documents, kind: int, first: int, more: int) -> None:
    whole = list(samplers(documents)[kind])
    sampler = samplers(documents)[kind]
    numbers = iter(sampler)
    seen = list(islice(numbers, first))
    other = samplers(documents)[kind]
    other.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    seen += islice(other, more)
    assert seen == whole[: first + more]
    size = len(whole) // 3
    passes = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert [len(set(one)) for one in passes] == [size] * 3
    assert kind == 1 or len({tuple(one) for one in passes}) == 3


def plain(documents: Documents, numbers: list[int], most: int | None, width: int | None) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"input_ids": [], "attention_mask": [], "labels": []}
    rows = [documents[number].tokens.tolist()[:most] for number in numbers]
    wide = width or max(map(len, rows))
    for number, row in zip(numbers, rows, strict=True):
        found["input_ids"].append(row + [0] * (wide - len(row)))
        found["attention_mask"].append([1] * len(row) + [0] * (wide - len(row)))
        found["labels"].append(documents[number].label)
    return found


def lists(batch: PaddedBatch) -> dict[str, list[Any]]:
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    return {name: tensor.tolist() for name, tensor in batch.items()}


def numbers_of(batches: Iterable[PaddedBatch]) -> list[list[int]]:
    return [batch.indices.tolist() for batch in batches]


@pytest.mark.parametrize(("most", "fixed"), [(None, False), (6, False), (6, True), (40, True)])
def test_batches_are_padded_documents(documents: Documents, most: int | None, *, fixed: bool) -> None:
    for sampler in samplers(documents):
        padding: Any = "max_length" if fixed else "longest"
        batches = PaddedBatches(documents, sampler, batch_size=4, max_length=most, padding=padding)
        numbers = list(sampler)
        found = list(batches)
        assert len(found) == len(batches) == len(numbers) // 4
        for at, batch in enumerate(found):
            mine = numbers[4 * at : 4 * at + 4]
            assert (batch.step, batch.indices.tolist()) == (at, mine)
            assert lists(batch) == plain(documents, mine, most, most if fixed else None)


def test_without_labels_the_ids_are_what_is_learned(path: Path) -> None:
    documents = Documents(path, STREAM)
    batch = next(iter(PaddedBatches(documents, batch_size=5, padding_id=77)))
    mask = batch["attention_mask"].bool()
    assert torch.equal(batch["labels"], torch.where(mask, batch["input_ids"], -100))
    assert set(batch["input_ids"][~mask].tolist()) == {77}
    assert batch.indices.tolist() == EraSampler(documents)._between(0, 5).tolist()


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=4),
)
def test_any_ranks_resume_exactly(documents: Documents, kind: int, legs: list[tuple[int, int, int]]) -> None:
    whole = list(samplers(documents)[kind])
    seen: list[int] = []
    state: dict[str, Any] | None = None
    steps = 0
    for world_size, batch_size, count in legs:
        ranks = []
        for rank in range(world_size):
            options: dict[str, Any] = {"batch_size": batch_size, "rank": rank, "world_size": world_size}
            batches = PaddedBatches(documents, samplers(documents)[kind], **options)
            if state is not None:
                batches.load_state_dict(state)
            ranks.append(list(islice(batches, count)))
        for step in zip(*ranks, strict=True):
            assert len({json.dumps(batch.state) for batch in step}) == 1
            assert {batch.step for batch in step} == {steps}
            seen += [number for batch in step for number in batch.indices.tolist()]
            state = json.loads(json.dumps(step[0].state))
            steps += 1
    assert seen == whole[: len(seen)]
    assert state is None or (state["sample"], state["step"]) == (len(seen), steps)


def test_a_loop_goes_on_where_it_was_left(documents: Documents) -> None:
    batches = PaddedBatches(documents, batch_size=3)
    first = numbers_of(islice(batches, 4))
    assert batches.state_dict()["sample"] == 12
    rest = numbers_of(batches)
    assert [number for some in first + rest for number in some] == EraSampler(documents)._between(0, 39).tolist()
    assert numbers_of(batches.rewind()) == first + rest
    assert list(batches) == []
    running = iter(batches.rewind())
    next(running)
    batches.rewind()
    with pytest.raises(InputError, match="set to another place"):
        next(running)


@pytest.mark.parametrize("kind", [EraSampler, BucketSampler])
@pytest.mark.parametrize("world_size", [1, 2, 3, 30])
@pytest.mark.parametrize("batch_size", [1, 4, 30])
@pytest.mark.cases(8)
def test_all_documents_come_where_asked_for(documents: Documents, kind: Any, world_size: int, batch_size: int) -> None:
    sampler = kind(documents)
    options: dict[str, Any] = {"world_size": world_size, "batch_size": batch_size, "drop_last": False}
    ranks = [PaddedBatches(documents, sampler, rank=rank, **options) for rank in range(world_size)]
    labels = [rank.label_distribution() for rank in ranks]
    assert {name: sum(one[name] for one in labels) for name in ("bad", "good")} == documents.label_distribution()
    through = [numbers_of(rank.loader()) for rank in ranks]
    steps = list(zip(*ranks, strict=True))
    assert {len(rank) for rank in ranks} == {len(steps)}
    assert [numbers_of(rank) for rank in zip(*steps, strict=True)] == through
    assert [number for step in steps for numbers in numbers_of(step) for number in numbers] == list(sampler)
    for step in steps:
        sizes = [len(batch["input_ids"]) for batch in step]
        assert max(sizes) - min(sizes) <= 1
        assert len({json.dumps(batch.state) for batch in step}) == 1
        again = PaddedBatches(documents, sampler, batch_size=2, drop_last=False, rank=0, world_size=1)
        again.load_state_dict(step[0].state)
        rest = list(kind(documents))[step[0].state["sample"] :]
        assert [number for numbers in numbers_of(again) for number in numbers] == rest
    assert steps[-1][0].state["sample"] == len(documents)
    assert [len(batch["labels"]) for batch in PaddedBatches(documents, batch_size=15)] == [15, 15]


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_give_the_same_batches(documents: Documents, workers: int) -> None:
    whole = list(PaddedBatches(documents, samplers(documents)[2], batch_size=4, max_length=8))
    batches = PaddedBatches(documents, samplers(documents)[2], batch_size=4, max_length=8)
    options: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
    loader = batches.loader(num_workers=workers, **options)
    assert len(loader) == len(whole)
    found = list(islice(loader, 7))
    assert [lists(batch) for batch in found] == [lists(batch) for batch in whole[:7]]
    assert [batch.state for batch in found] == [batch.state for batch in whole[:7]]
    batches.load_state_dict(found[4].state)
    assert [lists(batch) for batch in loader] == [lists(batch) for batch in whole[5:]]


def test_a_batch_keeps_what_it_knows(documents: Documents) -> None:
    batch = next(iter(PaddedBatches(documents, batch_size=4)))
    for same in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), batch.to("meta"), batch.to("cpu")):  # noqa: S301 - our own
        assert isinstance(same, PaddedBatch)
        assert (same.step, same.state, same.indices.tolist()) == (batch.step, batch.state, batch.indices.tolist())
    assert batch.to("meta")["labels"].device == torch.device("meta")
    assert "step=0, input_ids [4, " in repr(batch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_batches_go_to_a_gpu(documents: Documents) -> None:
    plain_ones = [lists(batch) for batch in PaddedBatches(documents, batch_size=4)]
    batches = list(PaddedBatches(documents, batch_size=4, device="cuda"))
    assert {tensor.device.type for batch in batches for tensor in batch.values()} == {"cuda"}
    assert [lists(batch) for batch in batches] == plain_ones
    pinned = next(iter(PaddedBatches(documents, batch_size=4).loader(pin_memory=True)))
    assert all(tensor.is_pinned() for tensor in pinned.values())
    assert pinned.state["step"] == 1


def test_labels_are_counted_for_each_rank(documents: Documents) -> None:
    together: Counter[Any] = Counter()
    for rank in range(3):
        batches = PaddedBatches(documents, samplers(documents)[0], batch_size=2, rank=rank, world_size=3)
        told = batches.label_distribution()
        seen = Counter(["bad", "good"][label] for batch in batches for label in batch["labels"].tolist())
        assert told == dict(seen)
        together += seen
    assert together.total() == 120


def refused(call: Any, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_states_of_other_sequences_are_refused(documents: Documents, path: Path, tmp_path: Path) -> None:
    for one, other in permutations(samplers(documents), 2):
        refused(partial(one.load_state_dict, other.state_dict()), "another sequence")
    state = next(iter(PaddedBatches(documents, batch_size=2))).state
    seeded = PaddedBatches(documents, EraSampler(documents, seed=1), batch_size=2)
    some = PaddedBatches(Documents(path, STREAM, eras=range(2)), batch_size=2)
    foreign = PaddedBatches(Documents(make(tmp_path, shift=50), STREAM), batch_size=2)
    refused(partial(seeded.load_state_dict, state), "seed")
    refused(partial(some.load_state_dict, state), "eras", "content")
    refused(partial(foreign.load_state_dict, state), "content")
    PaddedBatches(Documents(path, STREAM), batch_size=2).load_state_dict(state)
    longer = PaddedBatches(documents, EraSampler(documents, passes=2), batch_size=50)
    second = next(iter(longer)).state  # 50 of 80
    once = PaddedBatches(documents, batch_size=2)
    refused(partial(once.load_state_dict, second), "behind document 50", "have 40")
    longer.load_state_dict(second)


def test_what_cannot_be_is_refused(documents: Documents, path: Path) -> None:
    opening = partial(PaddedBatches, documents)
    refused(partial(opening, batch_size=41), "a step takes 41 documents", "40 in all")
    refused(partial(opening, batch_size=1, padding="max_length"), "without a max_length")
    refused(partial(opening, EraSampler(Documents(path, STREAM)), batch_size=1), "other documents")
    refused(partial(opening(batch_size=1).loader, shuffle=True), "shuffle is True: give none")
    refused(partial(BucketSampler, documents, bucket_size=9, window=8), "over the window of 8")
    with pytest.raises(TypeError, match="loader"):
        next(iter(torch.utils.data.DataLoader(opening(batch_size=1), batch_size=None)))  # type: ignore[arg-type]
