"""What a worker reports of itself: to its supervisor if it has one, else to whoever asks for its metrics."""

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final, Literal

from ..broker_contact import CONTACT, OutageLog, no_answer
from ..settings import Settings
from .heartbeat import Heartbeat
from .samples import Fleet, Sample, taken
from .server import Probes, serving
from .status_document import StatusSnapshot
from .worker_metrics import BROKER, PROCESS, WORKER

INTERVAL_SECONDS: Final = 0.5
"""How often partitions are measured: numbers are as old."""


class WorkerReporter:
    """Measures again and again while the event loop turns, and reports from `start` to the end of the process."""

    def __init__(
        self,
        role: Literal["mill", "segment", "mirror"],
        settings: Settings,
        *,
        status: Callable[[], dict[str, Any]],
        measure: Callable[[], None],
        not_ready: Callable[[], str | None],
    ) -> None:
        """Prepare; `start` begins to report.

        ``measure`` sets the gauges, ``status`` and ``not_ready`` say how the worker is.
        """
        self._role = role
        self._settings = settings
        self._status = status
        self._measure = measure
        self._fleet = Fleet()
        self._probes = Probes()
        self._not_ready = not_ready
        self._heart = Heartbeat()
        self._task: asyncio.Task[None] | None = None
        self._open = ExitStack()

    def start(self) -> None:
        """Report from now on; under a supervisor, which serves the numbers of all its workers, nothing is served."""
        if self._task is None:
            self._look = self._looked({})
            if not self._heart.heard:
                self._open.enter_context(serving(self._settings, [self._fleet], self._probes, self._document))
            self._task = asyncio.get_running_loop().create_task(self._run(), name="report")

    def stop(self) -> None:
        """Report nothing more, and serve nothing: a server that still runs would keep the interpreter from ending."""
        if self._task is not None:
            self._task.cancel()
        self._open.close()

    async def _run(self) -> None:
        outage = OutageLog(self._settings.bootstrap_servers)
        while True:
            CONTACT.turn()
            if not self._heart.heard:  # else the supervisor says so, once for all
                outage.look()
            status = self._status()
            self._look = self._looked(status)
            self._probes.turn(self._look.not_ready, self._look.halted)
            self._measure()
            samples: list[Sample] = taken(WORKER, PROCESS, BROKER)
            self._fleet.heard(self._role, os.getpid(), samples)
            self._heart.beat({**status, "away_since": CONTACT.away_since}, samples)
            await asyncio.sleep(INTERVAL_SECONDS)

    def _document(self) -> Mapping[str, Any]:
        return self._look.document()

    def _looked(self, status: Mapping[str, Any]) -> StatusSnapshot:
        said: Mapping[str, Mapping[str, Any]] = status.get("partitions", {})
        not_ready, away_since = self._why_not(), CONTACT.away_since
        state = "starting" if not_ready else "running"
        worker = {
            "name": self._role,
            "role": self._role,
            "state": "cut off" if away_since is not None else state,
            "pid": os.getpid(),
            "restarts": 0,
            "restart_in": None,
            "partitions": sorted(said),
        }
        return StatusSnapshot(
            role=self._role,
            not_ready=not_ready,
            away_since=away_since,
            said=said,
            owners=dict.fromkeys(said, self._role),
            ends={name: partition.get("end") for name, partition in said.items()},
            workers=[worker],
            eras=status.get("eras", {}),
            era_halts=status.get("era_halts", {}),
        )

    def _why_not(self) -> str | None:
        since = CONTACT.away_since
        return self._not_ready() if since is None else no_answer(self._settings.bootstrap_servers, since)
