"""The gauges of a worker's partitions, and what a mill's meter makes of its chains."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from tests.mills import RECIPE, flush, make_source, text, tombstone
from tests.outages import Hands
from tests.scraping import Key, parse, total
from tokenmill.app.milling.partition_mill import PartitionMill
from tokenmill.app.telemetry.measuring import (
    STAGES,
    STILL_SECONDS,
    LagAge,
    MillMeter,
    PartitionProgress,
    Stage,
    StageClock,
    measure,
)
from tokenmill.app.telemetry.worker_metrics import STAGE_SECONDS, WORKER
from tokenmill.documents import Record
from tokenmill.wire.chain import Cursor


def spent() -> dict[str, float]:
    return {stage: STAGE_SECONDS.labels(stage)._value.get() for stage in STAGES}


def grown(before: Mapping[str, float]) -> dict[str, float]:
    return {stage: round(now - before[stage], 6) for stage, now in spent().items() if now != before[stage]}


def test_a_fetch_is_divided_among_its_stages() -> None:
    """What the steps do not claim is between them, and waiting is idle only if there is nothing to fetch."""
    before, hands = spent(), Hands()
    clock = StageClock(hands)
    clock.enter("resume")
    hands.turn(3)
    clock.wait()
    hands.turn(5)
    clock.look(behind=False)
    hands.turn(1)
    clock.look(behind=True)
    hands.turn(2)
    clock.enter("other")
    hands.turn(10)
    clock.look(behind=True)
    clock.divide({"decode": 2.0, "tokenize": 6.0, "pack": 1.5})
    clock.enter("publish")
    hands.turn(4)
    clock.stop()
    hands.turn(50)
    clock.enter("idle")
    hands.turn(50)
    clock.look(behind=False)
    assert grown(before) == {
        "resume": 3, "idle": 5, "fetch": 3, "decode": 2, "tokenize": 6, "pack": 1.5, "other": 0.5, "publish": 4
    }  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from([*STAGES, "look", "wait"]), st.floats(0, 100))))
def test_every_second_is_counted_once(history: list[tuple[Any, float]]) -> None:
    before, hands = spent(), Hands()
    clock = StageClock(hands)
    clock.enter("resume")
    for what, seconds in history:
        if what == "look":
            clock.look(behind=seconds > 50)
        elif what == "wait":
            clock.wait()
        else:
            stage: Stage = what
            clock.enter(stage)
        hands.now += seconds
    clock.stop()
    assert abs(sum(grown(before).values()) - (hands.now - 1000)) < 1e-3
    counted = {sample.labels["stage"] for metric in STAGE_SECONDS.collect() for sample in metric.samples}
    assert counted <= set(STAGES)


def fetch(first: int, last: int, timestamp: int, step: int) -> list[Record]:
    return [Record(offset, timestamp + step * (offset - first), None, None) for offset in range(first, last + 1)]


def test_age_is_that_of_the_record_at_the_offset() -> None:
    lag_age = LagAge()
    lag_age.passed(fetch(10, 19, 1_000_000, 1000))
    lag_age.passed(fetch(30, 39, 2_000_000, 1000))
    now = 2_010_000
    assert [lag_age.age(offset, now) for offset in (10, 15, 19, 20, 30, 34)] == [1010, 1005, 1001, 10, 10, 6]
    lag_age.forget(31)
    assert [lag_age.age(offset, now) for offset in (5, 31)] == [10, 9]


def test_a_record_that_nobody_saw_is_as_old_as_the_last_one_or_as_the_end_that_was_reached() -> None:
    """A backlog is old; what comes after a quiet night is not."""
    lag_age = LagAge()
    assert lag_age.age(0, 5_000_000) is None
    lag_age.begin(1_000_000)
    assert lag_age.age(7, 5_000_000) == 4000
    lag_age.passed(fetch(7, 9, 3_000_000, 0))
    assert lag_age.age(10, 5_000_000) == 2000
    lag_age.level(4_999_000)
    assert lag_age.age(10, 5_000_000) == 1
    lag_age.passed([Record(11, 9_000_000, None, None)])
    assert lag_age.age(11, 5_000_000) == 0  # a clock that is behind gives no negative age: producers' are not ours


LAG = "tokenmill_consumer_lag_records"
END = "tokenmill_end_offset"
AGE = "tokenmill_consumer_lag_seconds"


def at(position: int | None, timestamp: int = 0, **others: Any) -> Mock:
    """Return a partition that stands at a position."""
    lag_age = LagAge()
    lag_age.begin(timestamp)
    state: Any = "running" if position is not None else "resuming"
    where: dict[str, Any] = {"state": state, "position": position, "lag_age": lag_age, "clock": StageClock(), **others}
    return Mock(progress=lambda: PartitionProgress(**where))


def samples() -> Mapping[Key, float]:
    return parse(generate_latest(WORKER).decode())


def test_lag_is_told_of_partitions_that_run_and_are_ours() -> None:
    written = round((time.time() - 100) * 1000)
    ours = {TP("t", 0): at(5, written), TP("t", 1): at(None), TP("t", 2): at(7), TP("t", 3): at(9)}
    ends = {TP("t", 0): (8, 8), TP("t", 1): (8, 8), TP("t", 3): (9, 9)}
    measure(ours, ends)
    seen = samples()

    def by_partition(metric: str) -> dict[str, float]:
        return {dict(labels)["partition"]: value for (name, labels), value in seen.items() if name == metric}

    assert by_partition(LAG) == {"0": 3, "3": 0}
    assert by_partition(END) == {"0": 8, "1": 8, "3": 9}  # known before a partition has found its place
    assert 99 < total(seen, AGE, partition="0") < 160
    assert total(seen, AGE, partition="3") == 0
    assert total(seen, "tokenmill_partitions", topic="t", state="running") == 3
    assert total(seen, "tokenmill_partitions", topic="t", state="resuming") == 1
    measure({}, ends)
    assert not [key for key in samples() if key[0] in {LAG, AGE, END, "tokenmill_partitions"}]


def feed(meter: MillMeter, mill: PartitionMill, records: list[Record]) -> None:
    meter.begin(records)
    meter.fed(records, mill.feed(records).value_bytes)


def test_tokens_in_an_open_block_are_not_durable_until_it_is_flushed() -> None:
    """Where nothing waits, all that was milled is durable, however far back the last message's cursor is."""
    mill = make_source().mill()
    meter = MillMeter("meter-1")
    meter.resumed(mill.chains, 0)
    way = Mock(durable=Cursor(0, 0, 0), idle=True, pending_bytes=0)
    sending: Any = {"train": way}

    def durable() -> int | None:
        return meter.progress("running", mill.next_offset, sending).durable

    assert durable() == 0
    feed(meter, mill, [text(0, "abc"), text(1, "de")])  # a block of four, three tokens wait
    way.durable = Cursor(1, 0, 1)
    assert durable() == 1
    feed(meter, mill, [flush(2)])
    assert durable() == 3
    way.idle = False
    assert durable() == 1
    assert meter.progress("halted", 3, sending).durable is None


def test_a_meter_counts_what_it_saw_and_nothing_from_before() -> None:
    """Totals that a chain brings along were counted by those who milled them."""
    source = make_source()
    earlier = source.mill()
    first = [text(0, "abc"), text(1, "")]
    earlier.feed(first)
    meter = MillMeter("meter-2")
    meter.resumed(earlier.chains, 0)
    feed(meter, earlier, [text(2, "xyz"), text(3, " "), tombstone(4), flush(5)])
    seen = samples()
    expected = {
        "tokenmill_records_consumed_total": 4,
        "tokenmill_consumed_bytes_total": 4,
        "tokenmill_documents_total": 1,
        "tokenmill_tokens_produced_total": 4,
        "tokenmill_documents_filtered_total": 1,
        "tokenmill_records_without_document_total": 2,
    }
    assert {name: total(seen, name, topic="meter-2") for name in expected} == expected


def test_padding_and_what_rows_truncate_are_counted() -> None:
    mill = make_source(replace(RECIPE, packing="rows")).mill()
    meter = MillMeter("meter-3")
    meter.resumed(mill.chains, 0)
    feed(meter, mill, [text(0, "ab"), text(1, "abcdef")])  # rows of four: three tokens and the end of document
    for kind, tokens in {"padding": 1, "left_out": 3}.items():
        assert total(samples(), "tokenmill_packing_tokens_total", topic="meter-3", kind=kind) == tokens


@pytest.mark.parametrize("state", ["running", "resuming"])
def test_a_partition_that_has_work_and_gets_nowhere_is_named_with_its_stage(state: Any) -> None:
    """Whatever the cause. Not one without work: all is taken, or behind an open transaction; or no broker answers."""
    hands = Hands()
    clock = StageClock(hands)
    clock.enter("publish")
    position = 5 if state == "running" else None
    queued = at(position, queued_bytes=1, lag_age=LagAge(), clock=clock).progress()
    ends = {TP("t", 0): (9, 5)}

    def look(progress: PartitionProgress, *, reached: bool = True) -> str | None:
        hands.now += STILL_SECONDS - 1
        measure({TP("t", 0): Mock(progress=lambda: progress)}, ends, reached=reached)
        return clock.standstill

    assert [look(queued) for _ in range(3)] == [None, None, words := clock.standstill]
    assert words is not None
    assert "publish" in words
    assert look(queued, reached=False) is None
    if state == "running":
        assert look(replace(queued, position=6)) is None
        idle = replace(queued, queued_bytes=0)
        assert [look(idle) for _ in range(3)] == [None, None, None]
        ends = {TP("t", 0): (9, 9)}
        assert [look(idle) for _ in range(2)][1] is not None
    measure({}, {})


def test_lag_that_is_not_known_is_not_zero() -> None:
    partitions = {TP("t", 0): at(5)}
    measure(partitions, {TP("t", 0): (5, 5)})
    assert total(samples(), LAG, topic="t") == total(samples(), AGE, topic="t") == 0
    assert any(name == LAG for name, _ in samples())
    measure(partitions, {TP("t", 0): (5, 5)}, reached=False)
    assert [name for name, _ in samples() if "_lag_" in name] == []
    measure({}, {})
