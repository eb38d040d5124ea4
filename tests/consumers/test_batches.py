"""Batches of a stream."""

import json
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.scenes import (
    CHAINS,
    ERAS,
    INFO,
    OPEN_ERAS,
    era_store,
    expected,
    grow,
    open_batches,
    open_ranks,
    rows_of,
    together,
)
from tests.store.chains import fill, flip, segment_of, tokens_of, write_eras
from tokenmill.consumers import Batches, Mixture, transfer
from tokenmill.consumers import prefetch as reading_ahead
from tokenmill.consumers.sample_lookup import Rows
from tokenmill.consumers.transfer import HostStaging, Sent, Staged
from tokenmill.errors import InputError, StoreError
from tokenmill.store import Store


def test_tokens_stay_narrow_when_told_to(store: Store) -> None:
    batches = list(open_batches(store, widen=False))
    assert {tensor.dtype for batch in batches for tensor in batch} == {torch.uint16}
    assert rows_of(batches) == [row for batch in batches for row in batch.rows.tolist()] == expected()
    wide = next(iter(open_batches(store)))
    with pytest.raises(InputError, match="widen=False"):
        _ = wide.rows
    x, y = wide
    assert (x is wide.x, y is wide.y, x.dtype, y.dtype) == (True, True, torch.int64, torch.int64)
    assert (x.tolist(), y.tolist()) == ([row[:-1] for row in expected()[:2]], [row[1:] for row in expected()[:2]])


worlds = [(world, batch) for world in (1, 2, 3, 4, 8) for batch in (1, 2, 3, 5, 7) if world * batch <= 24]
"""How many ranks there are, and the batch size of each: a step has no more samples than any eras below."""


@given(
    legs=st.lists(st.tuples(st.sampled_from(worlds), st.integers(0, 9) | st.just(1000)), min_size=1, max_size=5),
    ahead=st.integers(0, 4),
    prefetch=st.integers(0, 3),
    worth_waiting=st.sampled_from([0, 100, 1 << 20]),
    options=st.fixed_dictionaries(
        {
            "passes": st.integers(1, 3),
            "sequence_length": st.sampled_from([1, 2, 4]),
            "shuffle": st.booleans(),
            "eras": st.sampled_from([None, range(6), range(1, 4), range(2, 99)]),
            "drop_last": st.booleans(),
            # nothing, all eras by sample, small ones whole, all whole
            "read_ahead": st.sampled_from([0, 1, 200, 1 << 30]),
        }
    ),
)
@pytest.mark.slow
def test_a_run_goes_on_after_any_of_its_batches(
    store: Store,
    *,
    legs: list[tuple[tuple[int, int], int]],
    ahead: int,
    prefetch: int,
    worth_waiting: int,
    options: dict[str, Any],
) -> None:
    """The sequence is the same for any ranks and sizes, from the state of the last batch that was used.

    A finite run has as many steps as it says.
    """
    eras, passes = options["eras"], options["passes"]
    rows: list[list[int]] = []
    states: list[Any] = []
    state = open_batches(store, **options).state_dict()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading_ahead, "_WORTH_WAITING", worth_waiting)
        for (world_size, batch_size), steps in [*legs, ((1, 1), 1000)]:
            ranks = open_ranks(store, world_size, batch_size=batch_size, state=state, **options)
            first, length = ranks[0].step, len(ranks[0])
            for rank in ranks:
                rank._prefetch = prefetch
                assert rank.state_dict()["sample"] == len(rows)
            taken = [list(islice(rank, steps + ahead)) for rank in ranks]
            assert {(rank.step, len(rank)) for rank in ranks} == {(first + len(taken[0]), length)}
            assert len(taken[0]) == steps + ahead or ranks[0].step == length
            used = [batches[:steps] for batches in taken]
            rows += together(used)
            for step in zip(*used, strict=True):
                state = json.loads(json.dumps(step[0].state))
                assert all(batch.state == state for batch in step)
                assert ranks[0].state_after(step[0].step) == state
                states.append(state)
            if not ahead:
                state = json.loads(json.dumps(ranks[0].state_dict()))
                assert all(rank.state_dict() == state for rank in ranks)
            assert state["sample"] == len(rows)
    named = [era for era in OPEN_ERAS if eras is None or era.number in eras]
    length, shuffle = options["sequence_length"], options["shuffle"]
    whole = expected(named, length=length, shuffle=shuffle, passes=passes + 1)
    assert rows == whole[: len(whole) // (passes + 1) * passes]
    more = open_batches(store, state=state, **options | {"passes": passes + 1, "batch_size": 5, "drop_last": False})
    assert rows_of(more) == whole[len(rows) :]
    for number in range(0, len(states), 1 + len(states) // 8):
        again = open_batches(store, batch_size=1, state=more.state_after(number), **options)
        assert (again.step, again.state_dict()["sample"]) == (number + 1, states[number]["sample"])
        assert rows_of(islice(again, 1)) == rows[states[number]["sample"] :][:1]


def test_named_eras_are_gone_through_again_however_far_the_store_has_grown(tmp_path: Path) -> None:
    """As for each validation: always the same batches."""
    store, wanted = era_store(tmp_path, OPEN_ERAS[:3]), expected(ERAS[1:3])[:10]
    batches = open_batches(store, eras=range(1, 3))
    assert rows_of(batches) == wanted
    assert rows_of(batches) == []
    assert rows_of(islice(batches.rewind(), 2)) == wanted[:4]
    for count in range(3, len(OPEN_ERAS) + 1):
        grow(store, OPEN_ERAS[:count])
        assert rows_of(batches.rewind()) == rows_of(open_batches(store, eras=range(1, 3))) == wanted
    assert rows_of(open_batches(store, eras=range(4, 5), passes=3)) == expected(ERAS[4:5], passes=3)


def test_two_places_at_once_are_refused(store: Store) -> None:
    batches = open_batches(store)
    for disturb in (lambda: batches.load_state_dict(batches.state_dict()), batches.rewind, lambda: next(iter(batches))):
        loop = iter(batches)
        next(loop)
        disturb()
        with pytest.raises(InputError, match="another place meanwhile"):
            next(loop)


def test_a_state_behind_the_end_is_refused(store: Store) -> None:
    batches = open_batches(store)
    rows_of(islice(batches, 15))
    fewer = open_batches(store, eras=range(3), state=batches.state_dict())
    with pytest.raises(InputError, match=r"sample 30, but these eras of .* have 16"):
        next(iter(fewer))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"batch_size": 41}, r"batch_size is 41 and world_size 1, so a step takes 41 samples.* have 40 samples: give"),
        ({"batch_size": 21, "world_size": 2}, r"batch_size is 21 and world_size 2, so a step takes 42 samples"),
        ({"batch_size": 9, "eras": range(1)}, r"9 samples, but eras=range\(0, 1\) of raw-text.train have 5 samples:"),
        ({"batch_size": 11, "eras": range(1), "passes": 2}, r"have 5 samples|have 10 samples in 2 passes"),
        ({"eras": range(98, 99)}, r"eras=range\(98, 99\) of raw-text.train have 0 samples, and no more will come"),
        ({"batch_size": 41, "worker": (1, 2)}, "a step takes 41 samples"),
    ],
)
def test_a_run_of_not_one_step_says_why(store: Store, options: dict[str, Any], told: str) -> None:
    batches = open_batches(store, **options)
    for _ in range(2):
        with pytest.raises(InputError, match=told):
            list(batches)


def test_a_run_that_made_its_steps_ends_quietly(store: Store) -> None:
    batches = open_batches(store, batch_size=20)
    assert len(list(batches)) == 2
    larger = open_batches(store, batch_size=64, state=batches.state_dict())
    assert list(larger) == list(batches) == []
    assert [len(list(open_batches(store, batch_size=40, worker=(n, 2)))) for n in range(2)] == [1, 0]
    assert list(open_batches(store, batch_size=99, stop=lambda: True)) == []


@pytest.mark.parametrize("steps", [21, 1 << 60])
def test_a_skip_beyond_the_end_is_refused(store: Store, steps: int) -> None:
    with pytest.raises(InputError, match=rf"stands at sample {2 * steps}, .* have 40 in all .* skip fewer"):
        list(open_batches(store).skip(steps))
    assert list(open_batches(store).skip(20)) == []


def test_a_state_ahead_of_the_store_waits_for_it(tmp_path: Path, store: Store) -> None:
    ahead = open_batches(store)
    rows_of(islice(ahead, 12))
    behind = era_store(tmp_path, OPEN_ERAS[:2])
    batches = open_batches(behind, timeout=0.01, poll_seconds=0.001, state=ahead.state_dict())
    with pytest.raises(StoreError, match=r"era 2 of raw-text\.train"):
        next(iter(batches))
    write_eras(behind, ERAS)
    with pytest.raises(StoreError, match=r"era 3 of raw-text\.train"):
        next(iter(batches))
    grow(behind, ERAS)
    assert rows_of(batches) == rows_of(ahead)


def test_a_store_may_grow_meanwhile(tmp_path: Path) -> None:
    store = era_store(tmp_path, [])
    ranks = open_ranks(store, 2, timeout=60, poll_seconds=0.001)
    found: list[list[list[list[int]]]] = [[], []]

    def train(rank: int) -> None:
        found[rank] = [rows_of([batch]) for batch in ranks[rank]]

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for count in range(1, len(ERAS) + 1):
        if count % 2:
            write_eras(store, ERAS[:count])  # visible before their blocks are there
        for partition, part in enumerate(ERAS[count - 1].ranges):
            for stop in range(part.first, part.stop, 3):
                fill(store, INFO, CHAINS[partition], [stop + 1], partition=partition)
        grow(store, ERAS[:count])
    for thread in threads:
        thread.join()
    assert [row for step in zip(*found, strict=True) for rows in step for row in rows] == expected()
    assert all(rank.metrics.store_wait_seconds > 0 for rank in ranks)


def test_nothing_depends_on_what_is_trainable_when(tmp_path: Path) -> None:
    """A batch may need two eras: it waits for the second, and has samples of both."""
    store = era_store(tmp_path, OPEN_ERAS[:1])
    batches: Batches = open_batches(
        store, batch_size=3, stop=lambda: batches.metrics.store_wait_seconds > 0, poll_seconds=0.001
    )
    assert rows_of(batches) == expected(ERAS[:1])[:3]
    grow(store, ERAS)
    batches.load_state_dict(batches.state_dict())
    batches._stop = lambda: False
    assert rows_of(batches) == expected()[3:39]


def test_waiting_is_counted_said_and_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenmill.consumers.waiting._SAY_AFTER", 0.0)
    store = era_store(tmp_path, [])
    options: dict[str, Any] = {"timeout": 0.02, "poll_seconds": 0.001}
    with caplog.at_level(logging.WARNING), pytest.raises(StoreError, match=r"first era .* eras\.jsonl and eras\.index"):
        next(iter(open_batches(store, **options)))
    assert "waiting for the first era of raw-text.train" in caplog.text
    grow(store, ERAS[:1])
    batches = open_batches(store, **options)
    with pytest.raises(StoreError, match=r"era 1 .*`tokenmill close`.*wait longer"):
        list(batches)
    assert 0 < batches.metrics.store_wait_seconds <= batches.metrics.wait_seconds
    assert batches.state_dict()["sample"] == 4
    assert list(open_batches(store, stop=lambda: True)) == []


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, which passes where a loop sleeps and nowhere else."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("tokenmill.consumers.waiting.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


def test_the_first_wait_is_said_at_once_and_later_ones_when_they_last(
    tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who named what does not come hears of it at once, and what to do when it lasts; between two eras it is quiet."""
    growing = era_store(tmp_path, [])

    def look() -> bool:
        if now[0] == 1.0:
            grow(growing, ERAS[:1])
        return now[0] >= 70

    loop = iter(open_batches(growing, poll_seconds=0.5, stop=look))
    told: list[tuple[float, str]] = []
    monkeypatch.setattr(
        "tokenmill.consumers.waiting.log.warning", lambda text, *parts: told.append((now[0], text % parts))
    )
    next(loop)
    (first,) = told
    assert first == (0.0, f"waiting for the first era of {INFO.name} in {growing.path}")
    assert len(list(loop)) == 1
    assert [(at, "check that" in text) for at, text in told] == [(0.0, False), (6.0, True), (66.0, True)]


def test_patience_begins_anew_with_each_batch(tmp_path: Path, now: list[float]) -> None:
    store = era_store(tmp_path, [])
    with pytest.raises(StoreError, match=r"nothing came within 10\.0 seconds"):
        list(open_batches(store, timeout=10.0, poll_seconds=4.0))
    assert now[0] == 10, "the last sleep ends with the timeout"

    now[0] = 0.0
    batches = open_batches(store, timeout=10.0, poll_seconds=1.0, stop=lambda: now[0] >= 6)
    assert list(batches) == []
    assert batches.metrics.store_wait_seconds == 6

    grow(store, ERAS[:1])
    now[0] += 100
    batches._stop = lambda: False
    with pytest.raises(StoreError, match=r"nothing came within 10\.0 seconds"):
        list(batches)
    assert batches.state_dict()["sample"] == 4
    assert batches.metrics.store_wait_seconds == 16


def test_a_batch_that_was_let_go_is_gone_while_the_next_is_made(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory can be the next one's."""
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    send = transfer.HostStaging.send

    def watched(self: HostStaging, stretch: Rows) -> Iterator[Sent]:
        sent = send(self, stretch)
        while True:
            alive.append(sum(tensor() is not None for tensor in made))
            batch = next(sent, None)
            if not isinstance(batch, Staged):
                return
            made.append(weakref.ref(batch.x))
            yield batch
            del batch

    monkeypatch.setattr(transfer.HostStaging, "send", watched)
    steps = list(map(attrgetter("step"), open_batches(store)))
    assert len(steps) == len(made)
    assert not any(alive)


def test_damaged_blocks_are_left_out_when_told_to(tmp_path: Path) -> None:
    store, rows = era_store(tmp_path), expected(shuffle=False)
    assert rows[:5] == tokens_of(CHAINS[0], INFO)[:5].tolist()
    for block in (0, 2, 3, 5):
        flip(segment_of(store, block - block % 4).tokens, block % 4 * INFO.block_bytes)
    gone = tokens_of(CHAINS[0], INFO)[[0, 2, 3, 5]].tolist()
    batches = open_batches(store, on_damage="skip", shuffle=False)
    found = list(batches)
    assert [(batch.step, len(batch.x)) for batch in found] == [
        (step, 2 - sum(row in gone for row in rows[2 * step : 2 * step + 2])) for step in range(20) if step != 1
    ]
    assert rows_of(found) == [row for row in rows if row not in gone]
    assert (batches.metrics.batches, batches.metrics.samples, batches.skipped) == (19, 36, 4)
    assert all(len(batch.samples.blocks) == len(batch.x) for batch in found)


@pytest.mark.parametrize("mixed", [False, True])
def test_with_ends_threads_and_lets_files_go(store: Store, monkeypatch: pytest.MonkeyPatch, *, mixed: bool) -> None:
    monkeypatch.setattr(transfer, "LONG_SECONDS", -1.0)  # the next batches are made by a thread
    others = set(threading.enumerate())
    batches = open_batches(store)
    with Mixture({"one": batches}, {"one": 1}) if mixed else batches as loop:
        loop._most_samples = 2  # a step a look
        first, second = islice(loop, 2)
        names = {thread.name for thread in threading.enumerate() if thread not in others}
        assert names == {"copies_0", "read-ahead"}
    deadline = time.monotonic() + 20
    while set(threading.enumerate()) - others and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - others
    assert not batches._trainable.readers
    assert first.documents().document_ids.shape == (2, 4)
    assert second.state == loop.state_dict()
    loop.close()
    with pytest.raises(InputError, match="was closed: open it again"):
        next(iter(loop))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
@pytest.mark.parametrize("options", [{}, {"widen": False}, {"mask_loss": True}, {"prefetch": 0}, {"as_dict": True}])
def test_batches_on_a_gpu_are_those_of_the_cpu(store: Store, options: dict[str, Any]) -> None:

    def all_of(batches: Iterator[Any], device: str) -> list[Any]:
        found = []
        for batch in batches:
            named: dict[str, torch.Tensor] = dict(batch) if isinstance(batch, dict) else {"x": batch.x, "y": batch.y}
            named |= {"weights": batch.loss_weights, "labels": batch.label_tokens}
            if not isinstance(batch, dict):
                known = batch.documents()
                named |= {"ids": known.document_ids, "places": known.position_ids, "mask": known.loss_mask}
            assert {tensor.device.type for tensor in named.values()} == {device}
            found.append((batch.state, {name: tensor.tolist() for name, tensor in named.items()}))
        return found

    there = all_of(iter(open_batches(store, **options)), "cpu")
    batches = open_batches(store, device="cuda", **options)
    assert all_of(islice(iter(batches), 7), "cuda") == there[:7]
    again = open_batches(store, device="cuda", **options, state=batches.state_dict())
    assert all_of(iter(again), "cuda") == there[7:]
