"""The service's real processes for tests: workers and mirrors on a real broker, and the reference's answer.

::

    settings = service_settings(broker, topic(2), tmp_path)
    send(settings, [Raw(b"some text"), Raw(b"more", partition=1)])
    with Service(settings, tmp_path) as service:
        service.mill(2)
        service.segment()
        service.wait_until_complete()
"""

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from aiokafka import TopicPartition

from tokenmill.app.kafka.clients import admin, consumer, offsets, producer, read_range
from tokenmill.app.kafka.topics import ensure_topics, partition_count
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.milling.reference import Reference, ReferenceBlock
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.reporting import HEARTBEAT_VARIABLE, counted
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.documents import Record
from tokenmill.errors import BrokerError, StoreError
from tokenmill.store import open_partition

from .commands import Command, command


class Beats:
    def __init__(self) -> None:
        self.status: Mapping[str, Any] = {}
        self.words: str | None = None
        """Why the worker says that it ends."""
        self._ours = -1
        self.heard = threading.Event()

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        self._ours, its = os.pipe()
        try:
            yield its
        finally:
            os.close(its)
            threading.Thread(target=self._listen, daemon=True).start()

    def counted(self, name: str) -> float:
        return counted((sample, value) for sample, _, value in self.status.get("metrics", ()))[name]

    def _listen(self) -> None:
        with os.fdopen(self._ours, "rb") as pipe:
            for line in pipe:
                beat = json.loads(line) if line.endswith(b"\n") else {}  # a killed worker may leave half a line
                if "ends" in beat:
                    self.words = str(beat["ends"])
                elif beat:
                    self.status = beat
        self.heard.set()


WAIT_SECONDS: Final = 90.0
"""How long a wait for the service may take: far longer than it should, on a machine that does other things as well."""
LOG_BYTES: Final = 4000

T = TypeVar("T")
Chain = tuple[str, int]


class Raw(NamedTuple):
    value: bytes | None
    partition: int = 0
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()


def service_settings(broker: Broker, raw_topic: str, directory: Path, **others: Any) -> Settings:
    """Return settings for one raw topic of the broker's, small enough for many blocks; its other topics are made."""
    small: dict[str, Any] = {"tokenizer": "bytes", "sequence_length": 63, "segment_blocks": 16, "message_bytes": 1024}
    small |= {"era_max_seconds": 1.0, "session_timeout": 6.0, "store": directory / "store"}
    small |= {"group": f"group-{raw_topic}", "raw_topics": (raw_topic,), "bootstrap_servers": broker.bootstrap_servers}
    settings = Settings(**small | others)
    in_own_loop(lambda: ensure_topics(settings))
    return settings


def send(settings: Settings, records: Iterable[Raw], topic: str | None = None) -> None:
    """Send records to a topic, the first raw topic if none is named; all are acknowledged on return."""
    name = topic or settings.raw_topics[0]

    async def run() -> None:
        async with producer(settings) as client:
            sent = []
            for raw in records:
                key = b"" if raw.key is None and raw.value is None else raw.key  # aiokafka wants one of the two
                sent.append(await client.send(name, raw.value, key, raw.partition, headers=list(raw.headers)))
            await asyncio.gather(*sent)

    in_own_loop(run)


class Worker:
    def __init__(
        self, role: str, settings: Settings, log: Path, environment: Mapping[str, str], entry: str = "tokenmill.app.cli"
    ) -> None:
        """Start ``tokenmill mill`` or ``tokenmill segment`` with exactly these settings; module ``entry`` is run."""
        self.role = role
        self.log_path = log
        self.beats = Beats()
        """What it tells a supervisor; the worker ends when we do, because its pipe does."""
        variables = {**os.environ, **settings.environment(), **environment}
        with self.beats.descriptor() as descriptor:
            self.process = Command(entry, [role], log, variables, inherited={HEARTBEAT_VARIABLE: descriptor})

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def partitions(self) -> Mapping[str, Mapping[str, Any]]:
        """The partitions that it owned at its last heartbeat, ``topic/number``, and where each is."""
        found: Mapping[str, Mapping[str, Any]] = self.beats.status.get("partitions", {})
        return found if self.running else {}

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()

    def stop(self, seconds: float = 20.0) -> int:
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class Service:
    """Workers that end, all of them and however the test ends, when the block does."""

    entry = "tokenmill.app.cli"
    """The module that a worker's process runs; a test may set one that breaks something first."""

    def __init__(self, settings: Settings, directory: Path, **environment: str) -> None:
        """Start nothing yet; logs go into ``directory``, ``environment`` is added to the workers'."""
        self.settings, self._directory, self._environment = settings, directory, environment
        self.workers: list[Worker] = []
        self.started = 0

    def mill(self, count: int = 1, environment: Mapping[str, str] | None = None) -> list[Worker]:
        return [self._start("mill", environment) for _ in range(count)]

    def segment(self, environment: Mapping[str, str] | None = None) -> Worker:
        return self._start("segment", environment)

    def sequencer(self) -> Worker:
        return self._start("sequencer", {"TMPDIR": str(self._directory)})

    def tend(self) -> None:
        """Do what a supervisor does: start each worker anew that ended in order to be started anew."""
        for worker in list(self.workers):
            if worker.process.poll() in (RESUME_CODE, BrokerError.exit_code):
                self.workers.remove(worker)
                self._start(worker.role, {"TMPDIR": str(self._directory)})

    def stop(self) -> None:
        for worker in self.workers:
            worker.resume()
            worker.process.terminate()
        for worker in self.workers:
            worker.stop()

    def wait_until_complete(self, *, skips: Collection[int] = ()) -> dict[Chain, list[ReferenceBlock]]:
        """Wait until the store holds every full block of what is in the raw topics now; return the reference's."""
        expected = reference_blocks(self.settings, skips)
        wanted = {chain: len(blocks) for chain, blocks in expected.items()}
        self.wait_until(lambda: stored_blocks(self.settings, wanted) == wanted)
        return expected

    def wait_until(self, condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Wait for a condition; fail with the ends of the logs when it does not come, or when all workers ended."""
        deadline = time.monotonic() + seconds
        while True:
            alive = any(worker.running for worker in self.workers)
            if condition():
                return
            if not alive or time.monotonic() > deadline:
                ends = (f"{w.role} (exit code {w.process.poll()}):\n{w.log[-LOG_BYTES:]}" for w in self.workers)
                raise AssertionError("\n".join(["it did not come to that; the workers said", *ends]))
            time.sleep(0.1)

    def wait_until_ended(self, worker: Worker) -> int:
        self.wait_until(lambda: not worker.running)
        worker.beats.heard.wait(5.0)
        return worker.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()

    def _start(self, role: str, environment: Mapping[str, str] | None = None) -> Worker:
        log = self._directory / f"{role}-{self.started}.log"
        self.started += 1
        self.workers.append(Worker(role, self.settings, log, {**self._environment, **(environment or {})}, self.entry))
        return self.workers[-1]


def reference_blocks(settings: Settings, skips: Collection[int] = ()) -> dict[Chain, list[ReferenceBlock]]:
    """Return every chain as it must become, from what the raw topics hold now; ``skips`` of any partition."""
    return {
        (stream.name, partition): list(Reference(recipe, plan.stages, partition, 0, skips).blocks(records))
        for raw_topic in settings.raw_topics
        for plan in (plan_topic(settings, raw_topic),)
        for partition, records in enumerate(raw_records(settings, raw_topic))
        for stream, recipe in plan.recipes.items()
    }


def raw_records(settings: Settings, raw_topic: str) -> list[list[Record]]:
    async def read() -> list[list[Record]]:
        count = await partition_count(settings, raw_topic)
        parts = []
        async with consumer(settings) as client:
            for number in range(count):
                partition = TopicPartition(raw_topic, number)
                span = (await offsets(client, [partition]))[partition]
                found = [r async for r in read_range(client, partition, *span)]
                parts.append([Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in found])
        return parts

    return in_own_loop(read)


def stored_blocks(settings: Settings, chains: Iterable[Chain]) -> dict[Chain, int]:
    found = {}
    for stream, partition in chains:
        try:
            found[stream, partition] = open_partition(settings.store, stream, partition).blocks
        except StoreError:
            found[stream, partition] = -1
    return found


async def make_anew(settings: Settings, topic: str) -> None:
    async with admin(settings) as client:
        await client.delete_topics([topic])
        while not (await client.describe_topics([topic]))[0]["error_code"]:  # noqa: ASYNC110 - Kafka tells nobody
            await asyncio.sleep(0.05)
    await ensure_topics(settings)


def in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end from anywhere, a coroutine test included."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result()


EQUAL: Final = ("*/*.bin", "*/*.docs", "*/*.json", "*/*.idx", "*/*.index", "eras.jsonl", "stream.json")
"""In a stream's directory; of segments, those that are sealed."""


class Mirroring:
    """``tokenmill mirror`` into a directory, killed at the end of the block."""

    def __init__(self, settings: Settings, store: Path, *arguments: str, port: int = 0) -> None:
        self.store = store
        self.log_path = store.with_name(f"{store.name}.log")
        names = [stream.name for stream in settings.streams()]
        environment = settings.model_copy(update={"store": store, "metrics_port": port}).environment()
        self.process = command(["mirror", *names, *arguments], self.log_path, environment)

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait(self) -> int:
        return self.process.wait(WAIT_SECONDS)

    def stop(self) -> int:
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        self.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def mirror_once(settings: Settings, store: Path, *arguments: str) -> tuple[int, str]:
    with Mirroring(settings, store, "--once", *arguments) as mirroring:
        return mirroring.wait(), mirroring.log


def equal_files(store: Path, stream: str, first: int = 0) -> dict[str, bytes]:
    """Return what must be equal in all stores that hold the same blocks, of each partition from block ``first`` on."""
    directory = store / stream
    found = {str(file.relative_to(directory)): file for pattern in EQUAL for file in directory.glob(pattern)}
    return {
        name: file.read_bytes()
        for name, file in found.items()
        if file.parent == directory or (file.name[:12].isdecimal() and int(file.name[:12]) >= first)
    }
