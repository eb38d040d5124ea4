"""``make latency``: how soon a text is trainable: at low load, after a clean stop, and after a worker was killed.

At low load once more where the service leaves out near duplicates: a verdict on a document takes a way of its own.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Annotated, Final

import typer
from aiokafka import AIOKafkaProducer
from rich.console import Console
from rich.table import Table

from benchmarks.measuring import BenchmarkError
from benchmarks.workplace import RESULTS, about_this_run, gpt2_in, workplace, write_result
from tokenmill.app.kafka.clients import producer
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.supervisor.supervisor import Supervisor
from tokenmill.app.tasks import beside
from tokenmill.documents import FLUSH_HEADER
from tokenmill.store import open_partition

DIRECTORY: Final = Path(".tokenmill/latency")
PARTITIONS: Final = 2
"""One for each of two mill workers, so that the one that is killed leaves something to take over."""
PAUSE_SECONDS: Final = 0.3
"""Between two documents: low load."""
POLL_SECONDS: Final = 0.002
PATIENCE_SECONDS: Final = 60.0
LOW_LOAD: Final = "low load"

console = Console(width=140, highlight=False)


def main(
    *,
    documents: Annotated[int, typer.Option(help="Documents that are sent one by one.", min=2)] = 100,
    rounds: Annotated[int, typer.Option(help="Stops, and kills.", min=1)] = 5,
    directory: Annotated[Path, typer.Option(help="Where broker, logs and store go; emptied first.")] = DIRECTORY,
    output: Annotated[Path, typer.Option(help="Where latency.json goes.")] = RESULTS,
) -> None:
    """Measure, print a table, and write `latency.json`."""
    about = about_this_run()
    with workplace(directory, log_level="error"), Broker(directory / "broker") as broker:
        settings = Settings(
            bootstrap_servers=broker.bootstrap_servers,
            tokenizer=str(gpt2_in(directory)),
            store=directory / "store",
            splits={"all": 1000},
            workers=2,
        )
        found = asyncio.run(_measure(settings, directory, documents, rounds))
        judged = settings.model_copy(
            update={
                "raw_topics": ("judged",),
                "store": directory / "judged",
                "dedup": {"name": "near", "domain": "judged"},
            }
        )
        found[LOW_LOAD + ", near duplicates left out"] = asyncio.run(_at_low_load(judged, directory, documents))
    _print(found, settings.session_timeout)
    result = {
        **about,
        "session_timeout": settings.session_timeout,
        "seconds": {name: [round(seconds, 4) for seconds in times] for name, times in found.items()},
    }
    write_result(output, "latency.json", result)


async def _measure(settings: Settings, directory: Path, documents: int, rounds: int) -> dict[str, list[float]]:
    await ensure_topics(settings, partitions=PARTITIONS)
    found: dict[str, list[float]] = {LOW_LOAD: [], "after a clean stop": [], "after SIGKILL": []}
    async with producer(settings) as client:
        service = Service(settings, directory, client)
        async with service.running():
            found[LOW_LOAD] = await service.one_by_one(documents)
            for _ in range(rounds):
                await service.settled()
                service.kill_owner(0)
                found["after SIGKILL"].append(await service.trainable(0))
        for _ in range(rounds):
            await service.send(0)
            started = perf_counter()
            async with service.running():
                await service.wait(0)
                found["after a clean stop"].append(perf_counter() - started)
    return found


async def _at_low_load(settings: Settings, directory: Path, documents: int) -> list[float]:
    await ensure_topics(settings, partitions=PARTITIONS)
    async with producer(settings) as client:
        service = Service(settings, directory, client)
        async with service.running():
            return await service.one_by_one(documents)


@dataclass(slots=True)
class Service:
    """The whole service beside us, and the blocks that are in its store."""

    settings: Settings
    directory: Path
    client: AIOKafkaProducer
    supervisor: Supervisor | None = None
    sent: int = 0

    def running(self) -> AbstractAsyncContextManager[None]:
        """Run it while the block runs; when it ends, all workers have ended in order."""
        self.supervisor = Supervisor(self.settings, log_directory=self.directory)
        return beside(self.supervisor.run())

    async def send(self, partition: int) -> None:
        """Send a document, and a flush, so that it fills a block; both are acknowledged."""
        topic, self.sent = self.settings.raw_topics[0], self.sent + 1
        await self.client.send(topic, f"This is text number {self.sent}.".encode(), partition=partition)
        await self.client.send_and_wait(topic, None, b"flush", partition=partition, headers=[FLUSH_HEADER])

    async def wait(self, partition: int) -> None:
        """Wait until a reader of the store sees as many blocks as were sent."""
        (stream,) = self.settings.streams()
        deadline = perf_counter() + PATIENCE_SECONDS
        reader = None
        while reader is None or reader.refresh() < self.sent:
            if perf_counter() > deadline:
                raise BenchmarkError(f"block {self.sent} is not in the store; look into {self.directory}")
            await asyncio.sleep(POLL_SECONDS)
            if reader is None and (self.settings.store / stream.name / str(partition)).is_dir():
                reader = open_partition(self.settings.store, stream.name, partition)

    async def trainable(self, partition: int) -> float:
        """Return the seconds from before a document is sent until a reader of the store sees it."""
        started = perf_counter()
        await self.send(partition)
        await self.wait(partition)
        return perf_counter() - started

    async def one_by_one(self, documents: int) -> list[float]:
        """Return what each of so many documents took, at low load, behind one that is not counted."""
        await self.trainable(0)
        times = []
        for _ in range(documents):
            await asyncio.sleep(PAUSE_SECONDS)
            times.append(await self.trainable(0))
        return times

    async def settled(self) -> None:
        """Wait until each mill worker has a partition."""
        deadline = perf_counter() + PATIENCE_SECONDS
        while len({self._owner(partition) for partition in range(PARTITIONS)} - {None}) < PARTITIONS:
            if perf_counter() > deadline:
                raise BenchmarkError(f"the partitions are not shared; look into {self.directory}")
            await asyncio.sleep(POLL_SECONDS)

    def kill_owner(self, partition: int) -> None:
        """Kill the mill worker that has the partition."""
        os.kill(self._owner(partition) or 0, signal.SIGKILL)

    def _owner(self, partition: int) -> int | None:
        status = self.supervisor.status() if self.supervisor is not None else None
        name = f"{self.settings.raw_topics[0]}/{partition}"
        return next((w.pid for w in status.workers if name in w.partitions), None) if status is not None else None


def _print(found: dict[str, list[float]], session_timeout: float) -> None:
    table = Table(title="from sending a document until it can be trained on", title_justify="left", title_style="bold")
    for column in ("", "times", "median", "95 %", "slowest"):
        table.add_column(column, justify="right" if column else "left")
    for name, times in found.items():
        shown = f"{name} (session_timeout {session_timeout:g} s)" if "KILL" in name else name
        table.add_row(shown, str(len(times)), *(f"{seconds:.2f} s" for seconds in _summary(times)))
    console.print(table)


def _summary(times: Sequence[float]) -> tuple[float, float, float]:
    high = quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
    return median(times), high, max(times)


if __name__ == "__main__":
    typer.run(main)
