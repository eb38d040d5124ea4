"""Records that do harm: to a user's step, to native code, to their worker; and the skip list, which gets past them."""

import json
import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from aiokafka import TopicPartition

from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tests.commands import run
from tests.eras.judging import stops_of
from tests.faults.conftest import Configured
from tests.faults.deadly_stages import HARMLESS, STAGES
from tests.faults.failpoints import SIDES, SKIPPING, Failpoint
from tests.faults.feeding import TEXT, document, flush_all
from tests.faults.harmful_step import HANGS, HOLDS, KILLS, RAISES
from tests.faults.oracle import about, eras_of, judge, read_control, read_letters
from tests.faults.serving import Serving, Supervised, halted, working
from tests.faults.test_step_kills import Breakable
from tests.faults.trial import Trial
from tests.scraping import ask
from tests.service import Raw, Service, in_own_loop, send
from tokenmill.app.kafka.clients import consumer
from tokenmill.app.kafka.control_log import skip_request_record
from tokenmill.app.kafka.control_topic import write_control
from tokenmill.app.kafka.token_topic import published_head
from tokenmill.app.mill.topic_changes import has_passed
from tokenmill.app.settings import Settings
from tokenmill.app.tools.failed_records import skip
from tokenmill.app.tools.verify import verify
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.app.worker.in_flight import MOST_DEATHS
from tokenmill.app.worker.watchdog import WatchLimits
from tokenmill.errors import InputError
from tokenmill.wire.chain import Cursor

FUNCTION: Final = "tests.faults.harmful_step:harmful"
BURST = 800  # records of a partition that come at once, and take a mill seconds


def texts(*harmful: str) -> list[bytes]:
    return [TEXT] * 20 + [text.encode() for text in harmful] + [TEXT] * 20


def obey(settings: Settings, said: str) -> None:
    found = re.search(r"`tokenmill (skip \S+ \d+ \d+)`", said)
    assert found, said
    ended = run(found[1].split(), settings.store.parent / "command.log", settings.environment())
    assert ended.code == 0, ended.said


def in_force(settings: Settings, partition: int) -> list[set[int]]:
    return [read_control(settings, stream).skips.get(partition, set()) for stream in settings.streams()]


@pytest.mark.fault("step-fails")
@pytest.mark.needs("minutes")
def test_hanging_step_stops_its_partition_until_its_record_is_skipped(configured: Configured, trial: Trial) -> None:
    """The record and the command are named, the other partition goes on; one that raises is a dead letter by itself."""
    settings = configured(2, function=FUNCTION, session_timeout=2.0, carry_seconds=1.0)
    (raw_topic,) = settings.raw_topics
    send(settings, [*map(Raw, texts(RAISES, HANGS)), *[Raw(TEXT, 1)] * 20])
    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until(lambda: "hung" in halted(mill, f"{raw_topic}/0"))
        reason = halted(mill, f"{raw_topic}/0")
        assert reason in mill.log
        assert f"offset 21 of {raw_topic}[0]" in reason
        trial.fired("step hung")
        send(settings, [Raw(TEXT, 1)] * 20)
        service.wait_until(lambda: mill.partitions[f"{raw_topic}/1"]["position"] == 40)
        service.wait_until(lambda: any(stops_of(eras_of(settings, s))[1:] > [0] for s in settings.streams()))
        trial.fired("era closed by an owner whose chain stands")
        assert mill.stop() == RESUME_CODE, "it ends at once, though a thread of it hangs"
        (mill,) = service.mill()
        service.wait_until(lambda: f"{raw_topic}/0" in mill.partitions)
        obey(settings, reason)
        assert service.wait_until_ended(mill) == RESUME_CODE
        assert "offset 21" in (mill.beats.words or "")
        service.mill()
        service.wait_until(lambda: in_force(settings, 0) == [{21}] * len(settings.streams()))
        flush_all(settings)
        _, chains = judge(service, trial)
        assert chains[0].dead == {20: "function_failed", 21: "skipped"}
        letters = map(about, read_letters(settings, raw_topic))
        failed = {said["detail"] for said in letters if said["reason"] == b"function_failed"}
        assert failed == {b"ValueError: the step's own words"}
        trial.held("loud")
        trial.fired("step raised")


@pytest.mark.fault("step-fails")
@pytest.mark.needs("minutes")
def test_request_that_comes_too_late_changes_nothing(configured: Configured, trial: Trial) -> None:
    """A worker passed the record after `tokenmill skip` had looked: it stays milled, for workers and for verify."""
    settings = configured(session_timeout=2.0)
    send(settings, [Raw(TEXT)] * 20)
    flush_all(settings)
    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until_complete()
        for stream in settings.streams():
            in_own_loop(lambda: write_control(settings, stream.control_topic, [skip_request_record(0, 7)]))  # noqa: B023
        trial.fired("request behind the cursor")
        mill.kill()
        (mill,) = service.mill()
        send(settings, [Raw(TEXT)] * 20)
        flush_all(settings)
        _, chains = judge(service, trial)
        assert mill.running
        assert not any(chain.dead for chain in chains)
        assert verify(settings, store=settings.store, processes=1).ok


@pytest.mark.fault("step-fails")
@pytest.mark.needs("minutes")
def test_skips_race_with_mills(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Records are skipped while mills run past them: each is skipped by all, or milled by all."""
    # Small messages: one of a chain is in flight at a time, so that publishing takes seconds.
    settings = configured(2, session_timeout=2.0, splits={"train": 900, "dev": 100}, message_bytes=200)
    (raw_topic,) = settings.raw_topics

    async def head_of(tokens_topic: str, partition: int) -> Cursor | None:
        async with consumer(settings) as client:
            head = await published_head(client, TopicPartition(tokens_topic, partition))
        return head.cursor if head is not None else None

    def is_decided() -> bool:
        """Return whether each request is in force or lies behind all chains."""
        service.tend()
        for stream in settings.streams():
            control = read_control(settings, stream)
            for partition, offsets in control.skip_requests.items():
                left = offsets - control.skips.get(partition, set())
                cursor = in_own_loop(partial(head_of, stream.tokens_topic, partition))
                if any(cursor is None or not has_passed(cursor, offset) for offset in left):
                    return False
        return True

    with Service(settings, tmp_path) as service:
        service.segment()
        service.mill(2)
        for number in range(trial.rounds(1, 30)):
            service.wait_until(lambda: len([w for w in service.workers if w.role == "mill" and w.partitions]) == 2)
            send(settings, [Raw(document(trial.rng), partition) for _ in range(BURST) for partition in (0, 1)])
            for _ in range(3):
                partition, offset = trial.rng.randrange(2), number * BURST + trial.rng.randrange(BURST)
                try:
                    in_own_loop(partial(skip, settings, raw_topic, partition, offset))
                except InputError as error:
                    assert "is settled" in str(error)  # noqa: PT017 - either answer is right
                else:
                    trial.fired("record skipped while it was milled")
            service.wait_until(is_decided)
        flush_all(settings)
        _, chains = judge(service, trial)
        trial.held(skipped=sum(list(chain.dead.values()).count("skipped") for chain in chains))


@pytest.mark.fault("step-fails", "step-killed")
@pytest.mark.needs("minutes")
def test_mill_killed_while_it_takes_over_a_skip(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """The record stands on the skip list of none of its streams, of one, or of both: it is skipped in both."""
    points = [Failpoint(SKIPPING[0], side, nth) for side in SIDES for nth in (1, 2)]
    for number, point in enumerate(trial.rng.sample(points, trial.rounds(1, 4))):
        directory = tmp_path / str(number)
        directory.mkdir()
        settings = configured(
            store=directory / "store", session_timeout=1.5, splits={"train": 500, "dev": 500}, function=FUNCTION
        )
        with Breakable(settings, directory) as service:
            service.segment()
            (mill,) = service.mill()
            service.wait_until(lambda: bool(mill.partitions))  # noqa: B023
            mill.kill()
            send(settings, map(Raw, texts(KILLS)))
            flush_all(settings)
            in_own_loop(lambda: skip(settings, settings.raw_topics[0], 0, 20))  # noqa: B023
            service.mill_until(point)
            trial.fired(f"mill SIGKILL {point}")
            service.mill()
            service.wait_until(lambda: in_force(settings, 0) == [{20}] * 2)  # noqa: B023
            _, chains = judge(service, trial)
            assert all(chain.dead == {20: "skipped"} for chain in chains)


@pytest.mark.fault("engine-panics")
def test_text_on_which_the_tokenizer_panics_is_a_dead_letter(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """No worker ends over it, the records around it and the other partition are milled, and `verify` says the same."""
    (tmp_path / "tokenizer.json").write_bytes(panicking())
    settings = configured(2, tokenizer=str(tmp_path / "tokenizer.json"), session_timeout=2.0)
    send(settings, [*map(Raw, texts(HARMFUL, f"and {HARMFUL}")), *[Raw(TEXT, 1)] * 20])
    flush_all(settings)
    with working(settings) as service:
        mill, _ = service.workers
        _, chains = judge(service, trial)
        assert mill.running
        trial.fired("tokenizer panicked", mill.log.count("retry-limit-in-match"))
    failed = {20: "tokenizer_failed", 21: "tokenizer_failed"}
    assert [chain.dead for chain in chains if chain.partition == 0] == [failed] * len(settings.splits)
    letters = [about(letter) for letter in read_letters(settings, settings.raw_topics[0])]
    assert all(b"retry-limit-in-match" in said["detail"] for said in letters)
    assert {said["exception"] for said in letters} == {b"PanicException"}
    assert verify(settings, store=settings.store, reference=True, processes=1).ok


@pytest.mark.fault("engine-panics")
@pytest.mark.needs("minutes")
def test_record_over_which_native_code_holds_the_interpreter_is_named_and_skipped(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """No heart beats then, so the supervisor kills the worker; what it noted tells which record."""
    settings = configured(2, function=FUNCTION, session_timeout=2.0, workers=1)
    (raw_topic,) = settings.raw_topics
    send(settings, [*map(Raw, texts(HOLDS)), *[Raw(TEXT, 1)] * 20])
    flush_all(settings)
    with Supervised(settings, tmp_path, WatchLimits(heartbeat=4.0)) as service:
        service.wait_until(lambda: any("skip" in str(one["note"]) for one in service.supervisor.status().partitions))
        (said,) = [one["note"] for one in service.supervisor.status().partitions if one["note"]]
        assert f"offset 20 of {raw_topic}[0] (`tokenmill skip {raw_topic} 0 20`)" in said
        killed = sum("no heartbeat for" in event for event in service.events)
        trial.fired("killed without a heartbeat", killed)
        assert killed == MOST_DEATHS
        obey(settings, said)
        service.wait_until(lambda: in_force(settings, 0) == [{20}] * len(settings.streams()))
        _, chains = judge(service, trial)
        assert chains[0].dead == {20: "skipped"}
        trial.held("loud")


@pytest.mark.fault("record-kills")
@pytest.mark.needs("minutes")
@pytest.mark.parametrize("name", [name for name in STAGES if name != "learn"])
def test_third_death_halts_one_partition_until_its_record_is_skipped(
    configured: Configured, tmp_path: Path, trial: Trial, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It is named with the command; the others go on; where a skip spares it nothing, a new start with more means.

    Schemas need a registry: `tests.app.mill.test_raw_partition` tries that stage, too.
    """
    settings = configured(3, function="tests.faults.deadly_stages:step", session_timeout=2.0, workers=2)
    (raw_topic,), stage = settings.raw_topics, STAGES[name]
    send(settings, [Raw(TEXT)] * 20)
    send(settings, [Raw(stage.value)])  # a batch of its own: what dies of unpacking one names all of its records
    send(settings, [Raw(TEXT, at) for _ in range(20) for at in range(3)])
    with Serving(settings, tmp_path) as service:
        service.wait_until(lambda: "tokenmill skip" in ask(service.port, "/readyz?strict").text)
        said = ask(service.port, "/readyz?strict").text
        assert f"offset {20} of {raw_topic}[0] (`tokenmill skip {raw_topic} 0 {20}`)" in said
        began = time.monotonic()
        send(settings, [Raw(TEXT, at) for _ in range(20) for at in range(3)])

        def others_went_on() -> bool:
            status = json.loads(ask(service.port, "/api/status").text)
            rows = [row for row in status["partitions"] if row["topic"] == raw_topic]
            assert (rows[0]["state"], rows[0]["position"], rows[0]["why"] in said) == ("halted", 20, True)
            return all(row["position"] == 2 * 20 for row in rows[1:])

        service.wait_until(others_went_on)
        trial.lived(time.monotonic() - began)
        trial.fired(f"{name} killed its worker", service.log.count("killed by SIGKILL"))
        assert service.log.count("killed by SIGKILL") == MOST_DEATHS
        ended = run(["status", "--url", f"http://127.0.0.1:{service.port}"], tmp_path / "status.log", os.environ)
        assert (ended.code, said.strip().partition(": ")[2] in ended.said) == (1, True)
        flush_all(settings)
        if stage.passed:
            obey(settings, said)
            service.wait_until(lambda: in_force(settings, 0) == [{20}] * len(settings.streams()))
            judge(service, trial)
            assert service.log.count("killed by SIGKILL") == MOST_DEATHS
    if not stage.passed:
        monkeypatch.setenv(HARMLESS, "1")
        with Serving(settings, tmp_path) as service:
            judge(service, trial)
    assert verify(settings, store=settings.store, reference=True, processes=1).ok
    trial.held("loud")
