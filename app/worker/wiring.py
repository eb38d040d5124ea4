"""What a mill worker and a segment worker have in common around their partitions: preparing, tasks, reports, status."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from typing import Any, Generic, Literal, Protocol, TypeVar

from faust.types import TP

from ..broker_contact import CONTACT
from ..kafka.clients import require_group
from ..kafka.settled_streams import require_ready
from ..settings import Settings
from ..telemetry.measuring import Measured, measure
from ..telemetry.reporting import WorkerReporter
from .ending import end_for
from .ownership import OwnedPartition, Partitions
from .transport import BatchApp


class ReportedPartition(OwnedPartition, Measured, Protocol):
    """A partition that a worker owns, measures and describes."""

    def status(self) -> Mapping[str, Any]:
        """Return where the partition is, for the supervisor and for people."""
        ...


P = TypeVar("P", bound=ReportedPartition)


class StreamWorker(ABC, Generic[P]):
    """One worker process: `prepare` starts it, and `partitions` are what it owns, from assignment to revocation."""

    def __init__(self, role: Literal["mill", "segment"], settings: Settings, app: BatchApp) -> None:
        """Make ``app`` prepare this worker when it starts, and give it its partitions."""
        self.partitions: Partitions[P] = Partitions(self._open)
        self._role = role
        self._settings = settings
        self._app = app
        self._ready = False
        self._tasks: list[asyncio.Task[None]] = []
        self._reporter = WorkerReporter(
            role, settings, status=self.status, measure=self._measure, not_ready=self._why_not_ready
        )
        app.handler = self.partitions
        app.prepare = self.prepare

    @abstractmethod
    async def _prepare(self) -> None:
        """Do all that must be done before a partition is opened; what this raises ends the process."""

    @abstractmethod
    def _open(self, tp: TP) -> P:
        """Return a partition that was assigned."""

    async def prepare(self) -> None:
        """Return when the worker may take partitions; where it must not, the process ends."""
        self._reporter.start()
        try:
            await require_ready(self._settings)
            await require_group(self._settings, self._app.conf.id)
            await self._prepare()
            self._ready = True
        except Exception as error:  # noqa: BLE001 - Faust would turn it into a traceback and one exit code for all
            end_for(error)

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run ``work`` beside the partitions. Nobody awaits it, so an error in it ends the process."""
        self._tasks.append(asyncio.create_task(_or_end(work), name=name))

    async def _start_partition(self, tp: TP, offset: int) -> int | None:
        return await self._app.batch_consumer.start_partition(tp, offset)

    def _set_durable(self, tp: TP, offset: int) -> None:
        self._app.batch_consumer.durable[tp] = offset

    def _ends(self) -> Mapping[TP, int]:
        """Return the known ends of owned partitions; none before the first one is owned."""
        return self._app.batch_consumer.end_offsets() if self.partitions.owned else {}

    def _measure(self) -> None:
        measure(self.partitions.owned, self._ends(), reached=CONTACT.away_since is None)

    def _why_not_ready(self) -> str | None:
        return self._app.why_not_ready(prepared=self._ready)

    def status(self) -> dict[str, Any]:
        """Return where each partition is."""
        ends = self._ends()
        return {
            "role": self._role,
            "ready": self._ready,
            "partitions": {
                f"{tp.topic}/{tp.partition}": {**partition.status(), "end": ends.get(tp)}
                for tp, partition in self.partitions.owned.items()
            },
        }


async def _or_end(work: Coroutine[Any, Any, None]) -> None:
    """Await; an error ends the process, so that it is not lost with the task."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - whatever it is
        end_for(error)
