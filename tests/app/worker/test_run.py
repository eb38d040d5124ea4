"""A worker's process: what is prepared, what it reports, and what ends it."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
from faust.types import TP

from tests.app.broken import ENTRY, VARIABLE
from tests.conftest import TopicFactory
from tests.service import Raw, Service, send, service_settings
from tokenmill.app.kafka import fastpath
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.worker import ending, run
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.app.worker.run import StreamWorker
from tokenmill.app.worker.transport import BatchApp
from tokenmill.errors import SettingsError


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Return for what the process would have ended; nothing is asked of brokers."""
    found: list[BaseException] = []
    monkeypatch.setattr(ending, "end_for", found.append)
    for name in ("require_ready", "require_group"):
        monkeypatch.setattr(run, name, AsyncMock())
    return found


class Panic(BaseException):
    """Stands for a panic of native code, which is no `Exception`."""


@pytest.mark.parametrize("error", [RuntimeError("a bug"), Panic(), SystemExit(3)], ids=repr)
async def test_any_error_ends_the_process(error: BaseException, ended: list[BaseException]) -> None:
    """A panic as well: code that catches errors lets it through, and a task would keep it to itself."""
    await ending.or_end(AsyncMock(side_effect=error)())
    assert ended == [error]


async def test_work_that_is_cancelled_or_closed_does_not_end_the_process(ended: list[BaseException]) -> None:
    """A partition that is revoked while it resumes, and a coroutine that nobody finishes when its loop is gone."""
    task = asyncio.create_task(ending.or_end(asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    waits = ending.or_end(asyncio.sleep(60)).__await__()
    next(waits)
    waits.close()
    assert ended == []


def test_a_worker_that_cannot_stop_in_order_ends_all_the_same(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Before a container engine or a supervisor would lose patience, with the code of an orderly end."""
    with Service(service_settings(broker, topic(), tmp_path), tmp_path, **{VARIABLE: "stubborn"}) as service:
        service.entry = ENTRY
        (mill,) = service.mill()
        service.wait_until(lambda: bool(mill.partitions))
        assert mill.stop() == 0
        assert "did not stop in order in 8 s" in mill.log


def test_a_worker_that_crashed_does_not_end_as_if_it_were_asked_to(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Whoever starts failed workers anew sees by the code that this one failed."""
    with Service(service_settings(broker, topic(), tmp_path), tmp_path, **{VARIABLE: "crashing"}) as service:
        service.entry = ENTRY
        (mill,) = service.mill()
        assert service.wait_until_ended(mill) == RESUME_CODE
        assert "did not stop in order in 8 s" in mill.log


@pytest.mark.parametrize(("said", "expected"), [(None, "3"), ("5", "5")])
def test_a_tokenizer_has_the_threads_of_the_settings(
    said: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the environment says otherwise; it is set before the first text is encoded."""
    seen = []

    def started(_: object) -> None:
        seen.append(os.environ.get("RAYON_NUM_THREADS"))
        raise SystemExit

    monkeypatch.setattr(run.Worker, "execute_from_commandline", started)
    monkeypatch.setattr(run, "keep_loaded", lambda: None)
    monkeypatch.setattr(fastpath, "install", lambda: False)  # it would stay for other tests
    monkeypatch.setenv("RAYON_NUM_THREADS", "")
    monkeypatch.delenv("RAYON_NUM_THREADS")
    if said is not None:
        monkeypatch.setenv("RAYON_NUM_THREADS", said)
    with pytest.raises(SystemExit):
        run.run_worker(BatchApp("threads", broker="kafka://127.0.0.1:1"), Settings(tokenizer_threads=3))
    assert seen == [expected]


def test_a_worker_whose_clock_is_ahead_mills_all_the_same(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """The brokers set the time of what it sends to topics that we made: messages, dead letters, genesis, and eras."""
    settings = service_settings(broker, topic(1), tmp_path, splits={"all": 1000})
    with Service(settings, tmp_path, **{VARIABLE: "clock_ahead"}) as service:
        service.entry = ENTRY
        (mill,) = service.mill()
        service.segment()
        send(settings, [*(Raw(b"document %d" % number * 9) for number in range(40)), Raw(b"\xff no text")])
        service.wait_until_complete()
        assert mill.running
        assert "not acknowledged" not in mill.log


class Worker(StreamWorker[Any]):
    """Is prepared as ``error`` says; its partitions do nothing."""

    error: Exception | None = None

    async def _prepare(self) -> None:
        if self.error is not None:
            raise self.error

    def _open(self, _: TP) -> Any:
        return Mock(resume=AsyncMock(), status=lambda: {"position": 3})


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    consumer = SimpleNamespace(ends=lambda: {TP("raw", 0): (5, 5)}, durable={})
    app: Any = SimpleNamespace(
        batch_consumer=consumer, conf=SimpleNamespace(id="group"), member="me",
        why_not_ready=lambda *, prepared: None if prepared else "it is not prepared",
    )  # fmt: skip
    made = Worker("mill", Settings(), cast("BatchApp", app), ["raw"])
    for part in (made._reporter, made._watchdog):
        monkeypatch.setattr(part, "start", lambda: None)
    return made


async def test_an_error_that_nobody_awaits_ends_the_process(worker: Worker, ended: list[BaseException]) -> None:
    """A task beside the partitions must not end in silence: what it does would just not be done any more."""
    error = RuntimeError("nobody expected it")
    worker._keep(AsyncMock(side_effect=error)(), "fails")
    await asyncio.wait(worker._tasks)
    assert ended == [error]


async def test_a_worker_that_cannot_be_prepared_ends(worker: Worker, ended: list[BaseException]) -> None:
    worker.error = SettingsError("set it")
    await worker.prepare()
    assert ended == [worker.error]
    assert worker._why_not_ready() == "it is not prepared"


async def test_a_prepared_worker_says_where_its_partitions_are(worker: Worker, ended: list[BaseException]) -> None:
    known = {"role": "mill", "member": "me", "open_since": {}}
    assert worker.status() == {**known, "ready": False, "partitions": {}}
    await worker.prepare()
    assert (ended, worker._why_not_ready()) == ([], None)
    await worker.partitions.assigned({TP("raw", 0), TP("raw", 1)})
    partitions = {"raw/0": {"position": 3, "end": 5}, "raw/1": {"position": 3, "end": None}}
    assert worker.status() == {**known, "ready": True, "partitions": partitions}
    worker.partitions.revoked()
    assert worker.status()["partitions"] == {}
