"""What workers tell, alone and summed up on one page."""

import asyncio
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count, product
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from docs.generators.metrics_page import described
from tests.app.commands import invoke
from tests.app.kafka.test_control_topic import settled
from tests.commands import command
from tests.conftest import TopicFactory, topics_on
from tests.faults.feeding import flush_all
from tests.marked import until
from tests.registry_servers import small_registry
from tests.scraping import Key, ask, free_port, page_of, parse, rising, scrape, total
from tests.service import Raw, in_own_loop, reference_blocks, send, service_settings
from tokenmill.app.kafka.clients import producer
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry import reporting
from tokenmill.app.telemetry.measuring import STAGES
from tokenmill.app.telemetry.reporting import HEARTBEAT_VARIABLE, Fleet, Sample, WorkerReporter, taken
from tokenmill.app.telemetry.worker_metrics import COMMIT_SECONDS, STEP_RESULTS, WORKER, mill_at_zero, steps_at_zero
from tokenmill.errors import RegistryError, StrayError

SECONDS = 60.0
HOUR = 3600
OF_SUPERVISORS = {"tokenmill_worker_up", "tokenmill_worker_restarts_total"}
DOCUMENTS = [*(b"document %d " % number * 9 for number in range(300)), b"", b" ", b"\xff no text", None]
"""300 documents, two that are empty, one that is no text, and a tombstone."""


async def test_a_worker_that_has_nothing_to_tell_measures_at_every_fifth_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, workers = os.pipe()
    monkeypatch.setenv(HEARTBEAT_VARIABLE, str(workers))
    monkeypatch.setattr(reporting, "QUIET_SECONDS", 0.001)
    monkeypatch.setattr(reporting, "INTERVAL_SECONDS", 0.001)
    turns = count()
    status, nothing = (lambda: {"changes": next(turns) // 12}), (lambda: None)
    reporter = WorkerReporter("mill", Settings(), status=status, measure=nothing, not_ready=nothing)
    reporter.start()
    with os.fdopen(ours) as lines:
        told = [json.loads(await asyncio.to_thread(lines.readline)) for _ in range(24)]
        reporter.stop()
        os.close(workers)
    assert [beat["changes"] for beat in told] == [0] * 12 + [1] * 12
    assert [number for number, beat in enumerate(told) if "metrics" in beat] == [0, 5, 10, 12, 17, 22]


class Lone(NamedTuple):
    """A worker without a supervisor."""

    port: int

    @property
    def samples(self) -> Mapping[Key, float]:
        return scrape(self.port)


@contextmanager
def lone(role: str, settings: Settings, directory: Path) -> Iterator[Lone]:
    worker = Lone(free_port())
    own = settings.model_copy(update={"metrics_port": worker.port})
    process = command([role], directory / f"{role}.log", own.environment())
    try:
        yield worker
    finally:
        process.kill()
        process.wait()


def send_written(settings: Settings, values: list[bytes | None], seconds_ago: float) -> None:
    written = round((time.time() - seconds_ago) * 1000)

    async def run() -> None:
        async with producer(settings) as client:
            for value in values:
                await client.send(settings.raw_topics[0], value, key=b"k", partition=0, timestamp_ms=written)
            await client.flush()

    in_own_loop(run)


@pytest.fixture
def settings(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Settings:
    own = {"splits": {"train": 1000}, "carry_seconds": 600.0, "era_max_seconds": 1.0}
    return service_settings(broker, topic(1), tmp_path, **own)


@pytest.mark.needs("minutes")
@pytest.mark.slow
def test_lone_workers_tell_what_they_did_and_what_waits(settings: Settings, tmp_path: Path) -> None:
    topic, stream = settings.raw_topics[0], f"{settings.raw_topics[0]}.train"
    with ExitStack() as stack:
        segment = stack.enter_context(lone("segment", settings, tmp_path))
        assert until(lambda: ask(segment.port, "/healthz").code == 200, SECONDS)
        assert ask(segment.port, "/readyz").code == 503
        mill = stack.enter_context(lone("mill", settings, tmp_path))
        assert until(lambda: ask(mill.port, "/readyz").code == 200, SECONDS)
        assert until(lambda: ask(segment.port, "/readyz").code == 200, SECONDS)

        send_written(settings, DOCUMENTS, HOUR)
        assert until(lambda: total(mill.samples, "tokenmill_records_consumed_total", topic=topic) == 304, SECONDS)
        assert until(lambda: 0 < total(mill.samples, "tokenmill_durable_lag_records", topic=topic) < 304, SECONDS)
        waits = mill.samples
        flush_all(settings)
        blocks = len(reference_blocks(settings)[stream, 0])
        assert until(lambda: total(segment.samples, "tokenmill_blocks_total", stream=stream) == blocks, SECONDS)
        assert until(lambda: total(mill.samples, "tokenmill_durable_lag_records", topic=topic) == 0, SECONDS)
        assert until(lambda: total(mill.samples, "tokenmill_eras_total", stream=stream) >= 1, SECONDS)
        milled, stored = mill.samples, segment.samples

    # the open block's oldest record was written an hour ago, and has not been milled for long
    assert total(waits, "tokenmill_consumer_lag_records", topic=topic) == 0
    assert total(waits, "tokenmill_consumer_lag_seconds", topic=topic) == 0
    assert HOUR <= total(waits, "tokenmill_durable_lag_seconds", topic=topic) < HOUR + 2 * SECONDS
    exported = {name for name, _ in milled.keys() | stored.keys()}
    every = {name for metric in described() for name in metric.sample_names}
    # no steps beyond the short forms, no TLS, no producer
    elsewhere = tuple(f"tokenmill_{what}_" for what in ("mirror", "step", "certificate", "produced"))
    assert exported == {name for name in every if not name.startswith(elsewhere)} - OF_SUPERVISORS
    check_the_mill(milled, topic, stream, blocks)
    check_the_store(stored, stream)


def check_the_mill(samples: Mapping[Key, float], topic: str, stream: str, blocks: int) -> None:
    kept = [value for value in DOCUMENTS if value and b"document" in value]
    expected = {
        ("tokenmill_records_consumed_total", ""): 305,
        ("tokenmill_consumed_bytes_total", ""): sum(len(value or b"") for value in DOCUMENTS),
        ("tokenmill_documents_total", ""): 300,
        ("tokenmill_tokens_produced_total", ""): sum(len(value) + 1 for value in kept),
        ("tokenmill_documents_filtered_total", ""): 2,
        ("tokenmill_dead_letters_total", "invalid_utf8"): 1,
        ("tokenmill_records_without_document_total", "tombstone"): 1,
        ("tokenmill_records_without_document_total", "flush"): 1,
        ("tokenmill_blocks_total", "topic"): blocks,
        ("tokenmill_message_bytes_sum", ""): blocks * 64,
        ("tokenmill_consumer_lag_records", topic): 0,
        ("tokenmill_consumer_lag_seconds", topic): 0,
        ("tokenmill_durable_lag_seconds", topic): 0,
        ("tokenmill_partitions", "running"): 1,
        ("tokenmill_queue_bytes", ""): 0,
        ("tokenmill_engine_info", "bytes"): 1,
    }
    for (name, label), value in expected.items():
        of_name = [(labels, found) for (metric, labels), found in samples.items() if metric == name]
        assert sum(found for labels, found in of_name if not label or label in dict(labels).values()) == value, name
    assert {dict(labels).get("worker") for name, labels in samples if name != "tokenmill_build_info"} == {"mill"}
    messages = total(samples, "tokenmill_message_bytes_count", topic=f"tokens.{stream}")
    assert 0 < messages == total(samples, "tokenmill_produce_duration_seconds_count", topic=f"tokens.{stream}")
    assert total(samples, "process_resident_memory_bytes") > 1 << 20
    check_stages(samples, {"decode", "tokenize", "pack", "dead_letters"})


def check_the_store(samples: Mapping[Key, float], stream: str) -> None:
    assert total(samples, "tokenmill_consumer_lag_records", topic=f"tokens.{stream}") == 0
    assert total(samples, "tokenmill_consumer_lag_seconds", topic=f"tokens.{stream}") == 0
    newest = total(samples, "tokenmill_newest_token_timestamp_seconds", stream=stream, partition="0")
    assert time.time() - 2 * SECONDS < newest <= time.time()  # the flush record's
    latency = total(samples, "tokenmill_end_to_end_latency_seconds_sum", stream=stream)
    messages = total(samples, "tokenmill_end_to_end_latency_seconds_count", stream=stream)
    assert messages > 1
    assert (messages - 1) * HOUR <= latency < messages * (HOUR + 2 * SECONDS)
    commits = total(samples, "tokenmill_commits_total")
    assert 0 < commits == total(samples, "tokenmill_commit_duration_seconds_count")
    check_stages(samples, {"append", "sync"})


def check_stages(samples: Mapping[Key, float], worked: set[str]) -> None:
    """Check that time was spent in these stages, and that one partition spent no more than there was."""
    spent: dict[str, float] = {stage: total(samples, "tokenmill_stage_seconds_total", stage=stage) for stage in STAGES}
    assert all(spent[stage] > 0 for stage in worked)
    alive = time.time() - total(samples, "process_start_time_seconds")
    assert 0 < sum(spent.values()) < alive


@pytest.mark.slow
def test_the_age_of_a_backlog_is_that_of_its_oldest_record(settings: Settings, tmp_path: Path) -> None:
    topic = settings.raw_topics[0]
    send_written(settings, DOCUMENTS, HOUR)
    slow = settings.model_copy(update={"function": "tests.app.own_functions:slow"})
    with lone("mill", slow, tmp_path) as mill:
        seen: list[Mapping[Key, float]] = []

        def waits() -> bool:
            seen.append(mill.samples)
            return total(seen[-1], "tokenmill_consumer_lag_records", topic=topic) > 0

        assert until(waits, SECONDS)
        assert until(lambda: not waits() and total(seen[-1], "tokenmill_records_consumed_total") == 304, SECONDS)
    ages = [
        total(samples, "tokenmill_consumer_lag_seconds", topic=topic)
        for samples in seen
        if total(samples, "tokenmill_consumer_lag_records", topic=topic) > 0
    ]
    assert ages
    assert all(HOUR <= age < HOUR + 2 * SECONDS for age in ages)
    assert total(seen[-1], "tokenmill_consumer_lag_seconds", topic=topic) == 0


def status_tells(worker: Lone, words: str) -> bool:
    """Return whether `status` says that something stands still, and why: not while a rebalance takes it away."""
    told = invoke("status", "--url", f"http://127.0.0.1:{worker.port}")
    return told.code == 1 and words in told.out + told.err


@pytest.mark.slow
def test_a_halted_partition_is_told_and_makes_nothing_unready(settings: Settings, tmp_path: Path) -> None:
    """What only a person can mend is a number and a line in the log; a restart by a health check would not help."""
    settled(settings)
    (damaged,) = settings.streams()
    send(settings, [Raw(b"no message of blocks")], topic=damaged.tokens_topic)
    with lone("segment", settings, tmp_path) as segment:
        assert until(lambda: total(segment.samples, "tokenmill_partitions", state="halted") == 1, SECONDS)
        assert ask(segment.port, "/readyz").code == ask(segment.port, "/healthz").code == 200
        words = f"halted: {damaged.tokens_topic}/0 ({StrayError.brief})\n"
        assert until(lambda: ask(segment.port, "/readyz?strict") == (503, words), SECONDS)
        assert until(lambda: status_tells(segment, words.strip()), SECONDS)
        assert until(lambda: total(segment.samples, "tokenmill_partitions") == 1, SECONDS)
        before = total(segment.samples, "tokenmill_stage_seconds_total", stage="halted")
        assert until(lambda: total(segment.samples, "tokenmill_stage_seconds_total", stage="halted") > before, SECONDS)


@pytest.mark.slow
def test_what_waits_behind_an_open_transaction_is_lag_with_a_reason(settings: Settings, tmp_path: Path) -> None:
    topic = settings.raw_topics[0]
    options = {"transactional_id": f"stays-open-{topic}", "transaction_timeout_ms": 300_000}

    async def run() -> None:
        stuck = AIOKafkaProducer(bootstrap_servers=settings.bootstrap_servers, **options)
        async with stuck, producer(settings) as plain:
            await stuck.begin_transaction()
            await stuck.send_and_wait(topic, b"In a transaction that stays open.", partition=0)
            for number in range(50):
                await plain.send_and_wait(topic, b"Behind it: %d." % number, partition=0)
            await asyncio.to_thread(look, "a transaction is open (its first record is of ", 51)
            words = ["flush", topic, "--bootstrap-servers", settings.bootstrap_servers, "--raw-topics", topic]
            flushed = await asyncio.to_thread(invoke, *words)
            assert f"{topic}[0]: a transaction is open" in flushed.out + flushed.err
            await stuck.commit_transaction()

    def look(why: str, lag: int) -> None:
        assert until(lambda: why in ask(mill.port, "/readyz?strict").text, SECONDS)
        assert ask(mill.port, "/readyz").code == 200
        told = invoke("status", "--json", "--url", f"http://127.0.0.1:{mill.port}", code=1)
        (row,) = json.loads(told.out.splitlines()[0])["partitions"]
        assert (row["lag"], row["state"]) == (lag, "waiting")
        assert row["why"].startswith(why)
        assert total(mill.samples, "tokenmill_consumer_lag_records", topic=topic) == lag

    with lone("mill", settings, tmp_path) as mill:
        assert until(lambda: ask(mill.port, "/readyz").code == 200, SECONDS)
        in_own_loop(run)
        assert until(lambda: ask(mill.port, "/readyz?strict").code == 200, SECONDS)
        assert until(lambda: total(mill.samples, "tokenmill_records_consumed_total", topic=topic) == 52, SECONDS)


@pytest.mark.slow
def test_a_partition_that_waits_for_a_schema_says_so_everywhere(settings: Settings, tmp_path: Path) -> None:
    with small_registry() as registry:
        own = settings.model_copy(update={"decode": "avro", "schema_registry_url": registry.url})
        send(settings, [Raw(b"\0" + (7).to_bytes(4, "big") + b"\x02a")])
        with lone("mill", own, tmp_path) as mill:
            words = f"waiting: {settings.raw_topics[0]}/0 ({RegistryError.brief})\n"
            assert until(lambda: ask(mill.port, "/readyz?strict") == (503, words), SECONDS)
            assert ask(mill.port, "/readyz").code == 200
            assert until(lambda: status_tells(mill, words.strip()), SECONDS)


@pytest.mark.needs("minutes")
@pytest.mark.slow
def test_a_worker_is_not_ready_while_its_broker_is_gone(tmp_path: Path) -> None:
    with Broker(tmp_path / "broker") as broker:
        settings = service_settings(broker, topics_on(broker, "gone")(1), tmp_path)
        with lone("mill", settings, tmp_path) as mill:
            assert until(lambda: ask(mill.port, "/readyz").code == 200, SECONDS)
            assert until(lambda: any("_lag_" in name for name, _ in mill.samples), SECONDS)
            assert total(mill.samples, "tokenmill_broker_up") == 1
            broker.kill()
            killed = time.time()
            assert until(lambda: "no broker answers" in ask(mill.port, "/readyz").text, 10)
            samples = mill.samples
            assert total(samples, "tokenmill_broker_up") == 0
            assert abs(total(samples, "tokenmill_broker_last_answer_timestamp_seconds") - killed) < 5
            assert {name for name, _ in samples if "_lag_" in name} == set()


RECORDS = "tokenmill_records_consumed_total"
LAG = "tokenmill_consumer_lag_records"
BUCKET = "tokenmill_commit_duration_seconds_bucket"


def said(records: int, lag: int = 0) -> list[Sample]:
    lags = (LAG, {"topic": "t", "partition": "0"}, lag)
    return [(RECORDS, {"topic": "t"}, records), (BUCKET, {"le": "0.001"}, records), lags]


WORKS = st.tuples(st.sampled_from(["mill-1", "mill-2"]), st.sampled_from(["works", "ends", "anew"]), st.integers(0, 9))


@given(st.lists(WORKS))
def test_counters_never_fall_and_nothing_is_counted_twice(history: list[tuple[str, str, int]]) -> None:
    fleet = Fleet()
    counts, totals, pids = ({"mill-1": first, "mill-2": first} for first in (0, 0, 1))
    before: dict[Key, float] = {}
    for worker, what, number in history:
        if what == "ends":
            fleet.ended(worker)
        if what != "works":
            pids[worker] += 1
            counts[worker] = 0
        if what != "ends":
            counts[worker] += number
            totals[worker] += number
            fleet.heard(worker, pids[worker], said(counts[worker]))
        now = page_of(fleet)
        assert fleet.counts().get("records", 0) == sum(totals.values())
        assert {w: fleet.counts(w).get("records", 0) for w in counts} == counts
        for name in (RECORDS, BUCKET):
            assert {w: total(now, name, worker=w) for w in totals} == totals
        assert all(now.get(key, -1.0) >= value for key, value in rising(before).items())
        before = now


def test_gauges_are_those_of_living_processes() -> None:
    fleet = Fleet()
    fleet.heard("mill-1", 1, said(5, lag=7))
    fleet.heard("mill-2", 2, said(1, lag=3))
    assert total(page_of(fleet), LAG, worker="mill-1") == 7
    fleet.ended("mill-1")
    assert {dict(labels)["worker"] for name, labels in page_of(fleet) if name == LAG} == {"mill-2"}
    fleet.heard("mill-1", 3, said(1, lag=2))
    assert total(page_of(fleet), LAG, worker="mill-1") == 2
    assert total(page_of(fleet), RECORDS, worker="mill-1") == 6


def test_a_worker_s_own_metrics_arrive_whole() -> None:
    """What a registry holds is the same after it has travelled as JSON, but for the label and the moment of making."""
    COMMIT_SECONDS.observe(0.003)
    fleet = Fleet()
    fleet.heard("segment", 1, json.loads(json.dumps(taken(WORKER))))
    mine = parse(generate_latest(WORKER).decode())
    expected = {
        (name, tuple(sorted({**dict(labels), "worker": "segment"}.items()))): value
        for (name, labels), value in mine.items()
        if not name.endswith("_created")
    }
    assert page_of(fleet) == expected
    assert total(expected, "tokenmill_commit_duration_seconds_bucket", le="+Inf") >= 1


def test_a_mill_shows_each_step_of_its_streams_at_zero() -> None:
    """A counter that appears with its first document has no rate for it."""
    mill_at_zero(streams := Settings(raw_topics=("at-zero",), splits={"train": 900, "dev": 100}).streams())
    steps_at_zero(streams, ("regex", "regex_2"))
    names = ("tokenmill_step_documents_total", "tokenmill_step_text_bytes_total")
    for name, split, step, result in product(names, ("train", "dev"), ("regex", "regex_2"), STEP_RESULTS):
        place = {"topic": "at-zero", "split": split, "step": step, "result": result}
        assert WORKER.get_sample_value(name, place) == 0
    assert len(STEP_RESULTS) == 3
