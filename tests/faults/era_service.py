"""Services that close eras all the time, mills that die or stand while they do, and a reader who watches."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.faults.failpoints import VARIABLE, Failpoint
from tests.faults.oracle import (
    eras_are_complete,
    eras_of,
    judge,
    new_reader,
    read_topic,
    store_is_complete,
    stored_eras,
)
from tests.faults.trial import Trial
from tests.service import Service, Worker, in_own_loop, service_settings
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

SOON = 0.25
"""Seconds after which an era is closed: many of them in a short test."""


class Watcher:
    """Reads the eras on the control topics again and again, beside a test: they are added to, and nothing else."""

    def __init__(self, settings: Settings) -> None:
        """Have seen nothing."""
        self.looks = 0
        self._settings = settings
        self._seen: dict[str, list[bytes]] = {}
        self._client = new_reader(settings.bootstrap_servers)
        self._enough = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> None:
        """Look once."""
        for stream in self._settings.streams():
            before, now = self._seen.get(stream.name, []), eras_of(self._settings, stream, self._client)
            assert now[: len(before)] == before, f"{stream.name}: eras changed"
            self._seen[stream.name] = now
        self.looks += 1

    def _run(self) -> None:
        try:
            while not self._enough.wait(0.3):
                self.look()
        except BaseException as error:
            self._error = error
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enough.set()
        self._thread.join()
        if error is None:
            assert self._error is None, f"the reader of eras failed: {self._error!r}"
            self.look()
        self._client.close()


def era_settings(broker: Broker, raw_topic: str, directory: Path) -> Settings:
    """Return settings with which eras are closed all the time."""
    return service_settings(
        broker, raw_topic, directory, splits={"train": 1000}, session_timeout=1.5, era_max_seconds=SOON
    )


def start_segment(service: Service, settings: Settings) -> Worker:
    """Start a segment worker with other settings than the service's."""
    own, service.settings = service.settings, settings
    worker = service.segment()
    service.settings = own
    return worker


def start_mill(service: Service, settings: Settings, point: Failpoint | None = None) -> Worker:
    """Start a mill, which dies or stands at a failpoint if it gets one."""
    own, entry = service.settings, service.entry
    service.settings, service.entry = settings, "tests.faults.failpoints" if point else entry
    (mill,) = service.mill(environment={VARIABLE: str(point)} if point else None)
    service.settings, service.entry = own, entry
    return mill


def is_stopped(worker: Worker) -> bool:
    """Return whether a process stands still (`proc(5)`)."""
    return Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def ignored(settings: Settings) -> int:
    """Return how many era records on the control topics are no eras."""
    return sum(
        sum(record.key == b"era" for record in read_topic(settings, stream.control_topic, 0))
        - len(eras_of(settings, stream))
        for stream in settings.streams()
    )


def has_eras(settings: Settings, more_than: int) -> Callable[[], bool]:
    """Return whether there are more eras than so many, as a condition to wait for."""
    return lambda: sum(len(eras_of(settings, stream)) for stream in settings.streams()) > more_than


def judge_both(service: Service, other: Settings, trial: Trial) -> None:
    """Judge; then the second store must come to have the same eras, byte for byte."""
    _, chains = judge(service, trial)
    service.wait_until(lambda: store_is_complete(other, chains) and eras_are_complete(other, chains))
    for stream in other.streams():
        assert stored_eras(other, stream) == stored_eras(service.settings, stream)


def make_anew(settings: Settings, topic: str) -> None:
    """Delete a topic and make it again as the service does: kept for ever."""

    async def run() -> None:
        async with admin(settings) as client:
            await client.delete_topics([topic])
            while not (await client.describe_topics([topic]))[0]["error_code"]:  # noqa: ASYNC110 - Kafka tells nobody
                await asyncio.sleep(0.05)
        await ensure_topics(settings)

    in_own_loop(run)


def have(settings: Settings, count: int) -> bool:
    """Return whether each stream has so many eras, and the store all of them."""
    found = {stream: eras_of(settings, stream) for stream in settings.streams()}
    return all(len(eras) >= count and stored_eras(settings, stream) == eras for stream, eras in found.items())
