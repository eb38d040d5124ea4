"""Mixtures: one order whatever happens, shares that are never off by a sample, nothing twice and nothing left out."""

import json
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.consumers.mixtures import (
    NAMES,
    Row,
    alone,
    bring,
    drawn,
    given_rows,
    in_order,
    open_mixture,
    open_streams,
    places_of,
    rows_of,
    stores_of,
    stream_store,
    worst_share,
)
from tests.consumers.scenes import era_store, halves
from tokenmill.consumers import Mixture, transfer
from tokenmill.errors import InputError, StoreError
from tokenmill.samples.sequence import rotation
from tokenmill.samples.tracing import MixtureTracer

WEIGHTS: dict[str, Any] = {"web": 0.6, "code": "3/10", "books": Fraction(1, 10)}
EXACT = {name: Fraction(str(weight)) for name, weight in WEIGHTS.items()}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return stores_of(tmp_path_factory.mktemp("stores"), {"books": 3, "code": 6, "web": 12})


@pytest.fixture
def two(stores: dict[str, Path]) -> dict[str, Path]:
    return {name: stores[name] for name in ("code", "web")}


def read_into(rows: list[Row], mixture: Mixture) -> None:
    for batch in mixture:
        rows += rows_of([batch])


def test_each_sample_is_of_the_stream_that_is_due_first(stores: dict[str, Path]) -> None:
    mixture = open_mixture(stores, WEIGHTS)
    assert len(mixture) == 80
    rows = rows_of(mixture)
    assert rows == in_order(drawn([(0, 0, EXACT)], 160), alone(stores))
    assert worst_share([name for name, _ in rows], [(0, 0, EXACT)]) < 1
    shares = mixture.shares()
    assert {name: share.delivered for name, share in shares.items()} == {"books": 16, "code": 48, "web": 96}
    assert [shares["web"].share, shares["web"].passes, shares["books"].passes] == [Fraction(3, 5), 1, 0]
    assert shares["web"].newest == 11  # as the last era of 12 says


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("weights", [(1, 1), (2, 1), (1, 1, 1), (3, 2, 1), (9, 1), (5, 5, 2)])
@pytest.mark.cases(20)
def test_every_rank_gets_all_streams_by_their_weights(world_size: int, batch_size: int, weights: tuple[int]) -> None:
    shares = dict(zip("abc", weights, strict=False))
    names = drawn([(0, 0, {name: Fraction(share) for name, share in shares.items()})], 120 * world_size * batch_size)
    global_batch = world_size * batch_size
    found = [Counter[str]() for _ in range(world_size)]
    for step in range(120):
        places = places_of(step, global_batch)
        assert sorted(places) == list(range(global_batch))
        for row, place in enumerate(places):
            found[row // batch_size][names[step * global_batch + place]] += 1
        assert rotation(np.array([step]), global_batch) == places[0]
    for rank in found:
        for name, share in shares.items():
            wanted = 120 * batch_size * share / sum(weights)
            assert abs(rank[name] - wanted) <= 4 * batch_size, (rank, name, wanted)


def test_states_of_mixtures_whose_rows_were_not_rotated_go_on_as_they_were(stores: dict[str, Path]) -> None:
    """Older versions gave rank r the r-th slice of a step; what follows such a state stays that, and says so."""
    options: dict[str, Any] = {"weights": WEIGHTS, "world_size": 2, "batch_size": 3}
    ranks = [open_mixture(stores, rank=rank, **options) for rank in range(2)]
    state = ranks[0].skip(2).state_dict()
    assert state["settings"][0].pop("rotate") is True
    for rank in ranks:
        rank.load_state_dict(state)
    rows = [row for step in zip(*ranks, strict=True) for row in given_rows(step)]
    assert rows == in_order(drawn([(0, 0, EXACT)], 12 + len(rows)), alone(stores))[12:]
    assert len(rows) > 100
    later = ranks[1].state_dict()
    assert later["settings"] == state["settings"]
    again = open_mixture(stores, rank=1, **options, state=ranks[1].state_after(9))
    assert given_rows(again) == [row for at, row in enumerate(rows[48:]) if at % 6 >= 3]


def test_streams_that_leave_give_their_weight_to_the_others(stores: dict[str, Path]) -> None:
    own = alone(stores)
    ends = {name: len(rows) for name, rows in own.items()}
    mixture = open_mixture(stores, WEIGHTS, {"at_end": "leave"})
    assert len(mixture) == 84
    rows = rows_of(mixture)
    assert rows == in_order(drawn([(0, 0, EXACT)], 168, ends), own)
    assert all(share.left and share.share == 0 for share in mixture.shares().values())
    for step in (70, 79, 82):
        again = open_mixture(stores, WEIGHTS, {"at_end": "leave"}, state=mixture.state_after(step))
        assert rows_of(again) == rows[2 * (step + 1) :]
        assert again.state_dict() == mixture.state_dict()


def test_a_stream_that_repeats_is_shuffled_anew(stores: dict[str, Path]) -> None:
    streams = open_streams({name: stores[name] for name in ("books", "web")}, passes={"books": 3})
    mixture = Mixture(streams, {"books": 1, "web": 1}, at_end={"books": "repeat"})
    given = [row for name, row in rows_of(mixture) if name == "books"]
    assert len(given) == 72
    assert Counter(given[:24]) == Counter(given[24:48]) == Counter(given[48:])
    assert given[:24] != given[24:48]
    assert mixture.shares()["books"].passes == 3


def test_whole_batches_are_of_one_stream(stores: dict[str, Path]) -> None:
    mixed = {"interleave": "batch"}
    mixture = open_mixture(stores, WEIGHTS, mixed)
    batches = list(islice(mixture, 20))
    assert [batch.streams[0] for batch in batches] == drawn([(0, 0, EXACT)], 20)
    assert all(len(set(batch.streams)) == 1 for batch in batches)
    options: dict[str, Any] = {"world_size": 3, "state": mixture.state_dict()}
    ranks = [open_mixture(stores, WEIGHTS, mixed, rank=rank, **options) for rank in range(3)]
    steps = [given_rows(step) for step in zip(*(islice(rank, 10) for rank in ranks), strict=True)]
    assert [rows[0][0] for rows in steps] == drawn([(0, 0, EXACT)], 30)[20:]
    rows = given_rows(batches) + [row for step in steps for row in step]
    assert rows == in_order([name for name, _ in rows], alone(stores))
    for step in (0, 7, 19, 25):
        open_mixture(stores, WEIGHTS, mixed, state=ranks[0].state_after(step))
        assert ranks[0].state_after(step)["sample"] == sum(2 if made < 20 else 6 for made in range(step + 1))


def test_weights_change_steadily_between_the_points_of_a_linear_schedule(two: dict[str, Path]) -> None:
    points = [(0, {"web": 1}), (80, {"code": 1})]
    mixture = open_mixture(two, points, {"linear": True})
    rows = rows_of(islice(mixture, 40))
    assert mixture.shares()["code"].wanted == 40
    assert abs(sum(name == "code" for name, _ in rows) - 40) < 1
    assert [name for name, _ in rows[:10]].count("web") >= 9
    ours = [(n, 0, {"web": 1 - Fraction(2 * n + 1, 160), "code": Fraction(2 * n + 1, 160)}) for n in range(80)]
    assert [name for name, _ in rows] == drawn([*ours, (80, 0, {"code": Fraction(1)})], 80)
    assert worst_share([name for name, _ in rows], ours) < 1


def test_weights_by_step_begin_with_the_step(two: dict[str, Path]) -> None:
    """With other ranks, steps that come begin at other samples."""
    points = [(0, {"web": 1}), (4, {"code": 1})]
    mixture = open_mixture(two, points, {"unit": "step"})
    assert [name for name, _ in rows_of(islice(mixture, 6))] == ["web"] * 8 + ["code"] * 4
    larger = open_mixture(two, points, {"unit": "step"}, batch_size=6, state=mixture.state_after(1))
    assert [name for name, _ in rows_of(islice(larger, 3))] == ["web"] * 12 + ["code"] * 6


def test_weights_by_tokens_count_what_is_no_padding(stores: dict[str, Path]) -> None:
    """By the padding of the first era of each stream, which is the same on all hosts."""
    mixture = open_mixture(stores, WEIGHTS, {"by": "tokens"})
    fill = {name: Fraction(part) for name, part in mixture.state_dict()["schedule"][0]["fill"].items()}
    assert all(0 < part <= 1 for part in fill.values())
    assert len(set(fill.values())) > 1
    weights = {name: weight / fill[name] for name, weight in EXACT.items()}
    total = sum(weights.values())
    rows = rows_of(islice(mixture, 30))
    assert [name for name, _ in rows] == drawn([(0, 0, {n: w / total for n, w in weights.items()})], 60)


def test_where_a_stream_has_nothing_yet_the_mixture_waits(tmp_path: Path) -> None:
    there = {name: stream_store(tmp_path / name, seed, 6, there=2) for seed, name in enumerate(NAMES)}
    paths = {name: store.path for name, store in there.items()}
    mixture = open_mixture(paths, WEIGHTS)
    rows: list[Row] = []
    with pytest.raises(StoreError, match=r"waiting for 'web' in a mixture: era 2 of raw-text\.train"):
        read_into(rows, mixture)
    assert len(rows) == 26  # 16 of web
    for seed, name in enumerate(NAMES):
        bring(there[name], seed, 6, 6, end=True)
    rows += rows_of(mixture)
    assert rows == in_order(drawn([(0, 0, EXACT)], len(rows)), alone(paths))


def test_a_stream_leaves_only_when_its_end_is_marked(tmp_path: Path) -> None:
    """Until then its last sample is held back, since nobody can know what comes behind it."""
    paths = {name: stream_store(tmp_path / name, seed, 6).path for seed, name in enumerate(("code", "web"))}
    open_end = stream_store(tmp_path / "books", 2, 2, there=2)
    paths = {"books": open_end.path} | paths
    weights = {"books": 1, "code": 1, "web": 1}
    mixture = open_mixture(paths, weights, {"at_end": {"books": "leave"}}, batch_size=1)
    rows: list[Row] = []
    with pytest.raises(StoreError, match="waiting for 'books' in a mixture"):
        read_into(rows, mixture)
    assert sum(name == "books" for name, _ in rows) == 15
    bring(open_end, 2, 2, 2, end=True)
    rows += rows_of(mixture)
    own = alone(paths)
    assert rows == in_order(drawn([(0, 0, {n: Fraction(1) for n in weights})], len(rows), {"books": 16}), own)
    assert len(rows) == 16 + 48 + 48


def test_batches_know_the_documents_and_sources_of_all_streams(stores: dict[str, Path]) -> None:
    mixture = open_mixture(stores, WEIGHTS, batch_size=4)
    own = {name: iter(batches) for name, batches in open_streams(stores, batch_size=1).items()}
    for batch in islice(mixture, 8):
        places = places_of(batch.step, 4)
        in_turn = {place: next(own[batch.streams[row]]) for row, place in sorted(enumerate(places), key=lambda p: p[1])}
        ones = [in_turn[place] for place in places]
        assert batch.sources() == [source for one in ones for source in one.sources()]
        ids = [row for one in ones for row in one.documents().document_ids.tolist()]
        assert batch.documents().document_ids.tolist() == ids
        assert [place[row] for row in range(4) for place in batch.samples] == [
            int(place[0]) for one in ones for place in one.samples
        ]


@pytest.mark.parametrize("interleave", ["sample", "batch"])
def test_steps_are_traced_to_their_records(tmp_path: Path, interleave: str) -> None:
    store = era_store(tmp_path).path
    options = halves(store) | {"weights": {"early": 2, "late": 1}, "interleave": interleave}
    mixture = Mixture.open(**options)
    batches = list(islice(mixture, 4))
    mixture.set_weights({"early": 1, "late": 2}, from_step=5)
    batches += islice(mixture, 3)
    larger = Mixture.open(**options | {"batch_size": 3})
    larger.load_state_dict(mixture.state_dict())
    batches += islice(larger, 2)
    tracer = MixtureTracer(store, json.loads(json.dumps(larger.state_dict())))
    assert not tracer.doubts
    for step, batch in enumerate(batches):
        found = list(tracer.step(step))
        assert [name for name, _ in found] == list(batch.streams)
        assert [traced.sources for _, traced in found] == batch.sources()
        assert [(traced.use.step, traced.use.row) for _, traced in found] == [(step, row) for row in range(len(batch))]
    with pytest.raises(InputError, match="step 9 was not made"):
        list(tracer.step(9))


@pytest.mark.parametrize("open_one", [open_mixture, lambda stores, _: open_streams(stores)["web"]])
def test_what_is_looked_for_beside_the_loop_changes_nothing(
    stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch, open_one: Callable[..., Any]
) -> None:
    def told(is_beside: bool) -> list[Any]:  # noqa: FBT001 - of this test
        monkeypatch.setattr(transfer, "LONG_SECONDS", -1.0 if is_beside else 1e9)
        loop = open_one(stores, WEIGHTS)
        loop._most_samples = 6  # three steps a look
        found = []
        for batch in loop:
            found.append((rows_of([batch]), batch.state, batch.sources(), batch.documents().document_ids.tolist()))
            if batch.step == 20:
                state = loop.state_dict()
                assert state == batch.state
                loop.load_state_dict(state)
                break
        return [*found, *((rows_of([batch]), loop.state_dict(), loop.skipped, len(loop)) for batch in loop)]

    assert told(is_beside=True) == told(is_beside=False)


def test_a_running_loop_takes_new_weights_at_the_next_step(stores: dict[str, Path]) -> None:
    mixture = open_mixture(stores, {"web": 1, "code": 0.001, "books": "1/1000"})
    names: list[str] = []
    for batch in mixture:
        names += batch.streams
        if batch.step == 3:
            mixture.set_weights({"code": 1})
        if batch.step == 9:
            break
    assert names[:8].count("web") >= 7
    assert names[10:] == ["code"] * 10


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"weights": {"web": 0.5, "code": 0.4, "books": 0.1}}, "another mixture or schedule: its mixture is"),
        ({"mixed": {"interleave": "batch"}}, "another mixture or schedule: its settings is"),
        ({"mixed": {"at_end": "leave"}}, "another mixture or schedule: its settings is"),
        (
            {"stores": {"web": "web", "code": "code", "more": "books"}, "weights": {"web": 6, "code": 3, "more": 1}},
            "a mixture with the stream 'books', which is not given",
        ),
        ({"seed": 2}, "stream 'books': .* another sequence of samples: seed 1"),
        ({"stores": {"books": "web", "code": "code", "web": "books"}}, "another sequence|other content"),
    ],
)
def test_states_of_other_mixtures_are_refused(stores: dict[str, Path], change: dict[str, Any], told: str) -> None:
    state = open_mixture(stores, WEIGHTS).state_after(20)
    names = change.get("stores", {name: name for name in NAMES})
    options = {"weights": WEIGHTS, **change, "stores": {name: stores[of] for name, of in names.items()}}
    with pytest.raises(InputError, match=told):
        open_mixture(**options, state=state)


def test_a_state_of_batches_is_refused_by_name(stores: dict[str, Path]) -> None:
    mixture, streams = open_mixture(stores, WEIGHTS), open_streams(stores)
    with pytest.raises(InputError, match="no state of this"):
        mixture.load_state_dict(streams["web"].state_dict())
    with pytest.raises(InputError, match="no state of Batches"):
        streams["web"].load_state_dict(mixture.state_dict())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_a_mixture_on_a_gpu_is_that_of_the_cpu(stores: dict[str, Path]) -> None:
    there = rows_of(open_mixture(stores, WEIGHTS))
    mixture = open_mixture(stores, WEIGHTS, device="cuda")
    found = rows_of(islice(mixture, 30))
    again = open_mixture(stores, WEIGHTS, device="cuda", state=mixture.state_dict())
    assert found + rows_of(again) == there
