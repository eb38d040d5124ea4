"""What mill and segment worker have in common: preparing, tasks beside the partitions, and what is reported."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from faust.types import TP

from tokenmill.app.kafka.fetched_batches import FetchedBatch
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.measuring import LagAge, PartitionProgress, StageClock
from tokenmill.app.worker import ending
from tokenmill.app.worker import run as wiring
from tokenmill.app.worker.run import StreamWorker
from tokenmill.app.worker.transport import BatchApp
from tokenmill.errors import SettingsError


class Still:
    async def resume(self) -> None:
        """Be there."""

    def may_go_on(self) -> bool:
        return False

    async def feed(self, batch: FetchedBatch) -> None:
        """Take it."""

    def stop(self) -> None:
        """Be gone."""

    def progress(self) -> PartitionProgress:
        return PartitionProgress(state="running", position=3, lag_age=LagAge(), clock=StageClock())

    def status(self) -> Mapping[str, Any]:
        return {"position": 3}


class Worker(StreamWorker[Still]):
    error: Exception | None = None

    async def _prepare(self) -> None:
        if self.error is not None:
            raise self.error

    def _open(self, tp: TP) -> Still:
        del tp
        return Still()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Return for what the process would have ended; nothing is asked of brokers."""
    found: list[BaseException] = []

    async def ready(*_: Any) -> None:
        """Say that all is there."""

    monkeypatch.setattr(ending, "end_for", found.append)
    monkeypatch.setattr(wiring, "require_ready", ready)
    monkeypatch.setattr(wiring, "require_group", ready)
    return found


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

    async def fails() -> None:
        raise error

    worker._keep(fails(), "fails")
    await asyncio.wait(worker._tasks)
    assert ended == [error]


async def test_a_worker_that_cannot_be_prepared_ends(worker: Worker, ended: list[BaseException]) -> None:
    """With its reason, which says the exit code; until then, and after, it is not ready."""
    worker.error = SettingsError("set it")
    await worker.prepare()
    assert ended == [worker.error]
    assert worker._why_not_ready() == "it is not prepared"


async def test_a_prepared_worker_says_where_its_partitions_are(worker: Worker, ended: list[BaseException]) -> None:
    assert worker.status() == {"role": "mill", "ready": False, "member": "me", "open_since": {}, "partitions": {}}
    await worker.prepare()
    assert (ended, worker._why_not_ready()) == ([], None)
    await worker.partitions.assigned({TP("raw", 0), TP("raw", 1)})
    assert worker.status() == {
        "role": "mill",
        "ready": True,
        "member": "me",
        "open_since": {},
        "partitions": {"raw/0": {"position": 3, "end": 5}, "raw/1": {"position": 3, "end": None}},
    }
    worker.partitions.revoked()
    assert worker.status()["partitions"] == {}
