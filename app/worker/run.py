"""A Faust worker as this process, and what all roles of a service share: preparing, tasks, reports, status."""

import asyncio
import faulthandler
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

import faust
from faust.types import TP

from ..broker_contact import CONTACT
from ..kafka import fastpath
from ..kafka.clients import require_group, retry
from ..kafka.control_topic import require_ready
from ..logs import set_up_logging
from ..processes import allow_more_files, keep_loaded
from ..settings import Settings
from ..telemetry.measuring import Measured, measure
from ..telemetry.reporting import Role, WorkerReporter
from .ending import RESUME_CODE, end_process, or_end
from .in_flight import Board
from .transport import BatchApp, OwnedPartition, Partitions
from .watchdog import SelfWatchdog


class ReportedPartition(OwnedPartition, Measured, Protocol):
    """A partition that a worker owns, measures and describes."""

    def status(self) -> Mapping[str, Any]:
        """Return where the partition is, for the supervisor and for people."""


P = TypeVar("P", bound=ReportedPartition)


class StreamWorker(ABC, Generic[P]):
    """One worker process: `prepare` starts it, and `partitions` are what it owns, from assignment to revocation."""

    def __init__(self, role: Role, settings: Settings, app: BatchApp, topics: Sequence[str]) -> None:
        """Make ``app`` prepare this worker when it starts, and give it its partitions, which are of ``topics``."""
        self.partitions: Partitions[P] = Partitions(self._open)
        self._role = role
        self._settings = settings
        self._app = app
        self._ready = False
        self._tasks: list[asyncio.Task[None]] = []
        self._watchdog = SelfWatchdog(settings, app, topics, self.status)
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
        await or_end(self._become_ready())  # Faust would make a traceback and one exit code of every error

    async def _become_ready(self) -> None:
        await require_ready(self._settings)
        await retry(self._settings, partial(require_group, self._settings, self._app.conf.id))
        await self._prepare()
        self._watchdog.start()
        self._ready = True

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run ``work`` while partitions are worked on. It is not awaited, so an error in it ends the process."""
        self._tasks.append(asyncio.create_task(or_end(work), name=name))

    def _ends(self) -> Mapping[TP, tuple[int, int]]:
        return self._app.batch_consumer.ends() if self.partitions.owned else {}

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
            "member": self._app.member,
            "open_since": self._watchdog.open_since,
            "partitions": {
                f"{tp.topic}/{tp.partition}": {**partition.status(), "end": ends.get(tp, (None, None))[0]}
                for tp, partition in self.partitions.owned.items()
            },
        }


STOP_SECONDS: Final = 8.0
"""How long a worker may take to end in order while brokers answer; it takes about one. `docker stop` waits for 10, a
supervisor for 15."""
LOOK_SECONDS: Final = 0.25


class Worker(faust.Worker):
    """A Faust worker that ends within `STOP_SECONDS` of being asked to: Faust can wait for ever.

    The signal may come while a rebalance waits for the very thread that is to be stopped. To end in order is a courtesy
    to the group and to the readers of the log; what is not durable then is done again.
    """

    def _on_sigusr1(self) -> None:
        """Write where all threads are, without local variables, as Faust would: those hold passwords and records."""
        faulthandler.dump_traceback()

    _on_sigusr2 = _on_sigusr1  # Faust would start a debugger, without a terminal

    async def stop(self) -> None:
        """Stop in order, or else at once; with code 0 if it was asked to, and nothing of Faust's had crashed."""
        code = RESUME_CODE if self.crashed else 0
        Board.inherited().pardon()
        threading.Thread(target=_end_in_time, args=[code], name="end", daemon=True).start()
        await super().stop()


def _end_in_time(code: int) -> None:
    began = time.monotonic()
    while (waited := time.monotonic() - began) < STOP_SECONDS:
        time.sleep(LOOK_SECONDS)
        if CONTACT.is_deaf(waited):
            end_process("it was told to end while no broker answers, so it leaves its group without a word", code=code)
    end_process(f"it did not stop in order in {STOP_SECONDS:.0f} s", code=code)


def run_worker(app: BatchApp, settings: Settings) -> NoReturn:
    """Run the app until SIGTERM or SIGINT, or until it ends itself (`app.worker.ending`); does not return."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(settings.tokenizer_threads))  # read at the first batch
    set_up_logging(settings.log_format, settings.log_level)
    allow_more_files()
    fastpath.install()
    worker = Worker(app, quiet=True, override_logging=False, redirect_stdouts=False, loglevel=settings.log_level)
    keep_loaded()
    worker.spinner = None  # it writes to the terminal unasked
    worker.execute_from_commandline()
