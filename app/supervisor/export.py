"""What the supervisor shows on its ``/metrics``: all workers' numbers, its own process, and how workers ended."""

import os
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..broker_contact import CONTACT, no_answer
from ..kafka.retry import FAILING
from ..settings import Settings
from ..telemetry.reporting import QUIET_TURNS, SHOWN, Fleet, taken
from ..telemetry.server import Probes
from ..telemetry.status_document import StatusSnapshot, WorkerStatus
from ..telemetry.worker_metrics import BROKER, PROCESS
from ..worker.cluster import NO_ENDS, Cluster
from .status import WorkerLedger
from .worker_slot import Child, WorkerSlot

SUPERVISOR: Final = "supervisor"
"""The label ``worker`` of this process's own numbers."""


class WorkersCollector(Collector):
    """Says of each worker whether it works, and how often it had to be started again."""

    def __init__(self, slots: Mapping[str, WorkerSlot]) -> None:
        self._slots = slots

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, without samples where there are no slots."""
        up = GaugeMetricFamily(
            "tokenmill_worker_up",
            "1 while the worker runs, is ready and hears from a broker, else 0 (supervisor only).",
            labels=["worker"],
        )
        restarts = CounterMetricFamily(
            "tokenmill_worker_restarts",
            "Times that the worker ended and was started again (supervisor only).",
            labels=["worker", "reason"],
        )
        for name, slot in self._slots.items():
            up.add_metric([name], float(slot.state == "running"))
            for cause, count in slot.restarts.items():
                restarts.add_metric([name, cause], count)
        yield up
        yield restarts


class Export:
    """Collects what the worker slots report, ready for a server in another thread."""

    def __init__(
        self, settings: Settings, slots: Mapping[str, WorkerSlot], cluster: Cluster, ledger: WorkerLedger
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self.probes = Probes()
        self._slots = slots
        self._cluster = cluster
        self.fleet = Fleet()
        self.unowned: Collection[str] = ()
        """Partitions that one of our workers should have, and that no member of their group has had for a while."""
        self._turns = 0
        self._looked = self.look()

    @property
    def collectors(self) -> list[Collector]:
        """All that is to be shown."""
        return [self.fleet, WorkersCollector(self._slots)]

    def workers(self) -> tuple[WorkerStatus, ...]:
        """Return how each slot and the process at it are now."""
        owners = self._ledger.owners
        return tuple(
            WorkerStatus(
                slot.name,
                slot.role,
                slot.state,
                slot.child.pid if slot.child else None,
                max(0, slot.starts - 1),
                max(0.0, slot.next_start - time.monotonic()) if slot.next_start is not None else None,
                tuple(sorted(name for name, owner in owners.items() if owner == slot.name)),
                self.fleet.counts(slot.name),
            )
            for slot in self._slots.values()
        )

    def turn(self) -> None:
        """Take note that the event loop turns, of where all stands, and of this process's numbers."""
        before, self._looked = self._looked.away_since, self.look()
        self.probes.turn(self._looked.not_ready, self._looked.stopped)
        if self._turns % QUIET_TURNS == 0 or self._looked.away_since != before:
            self.fleet.heard(SUPERVISOR, os.getpid(), taken(PROCESS, BROKER))
        self._turns += 1

    def heard(self, worker: str, child: Child) -> None:
        """Take the last metrics that a process told."""
        if "metrics" in child.status:
            self.fleet.heard(worker, child.pid, child.status["metrics"])

    def ended(self, worker: str, child: Child) -> None:
        """Take the last metrics of a process that has ended, and keep what it counted."""
        self.heard(worker, child)
        self.fleet.ended(worker)

    def document(self) -> Mapping[str, Any]:
        """Return what ``/api/status`` answers, as of the last `turn`; in any thread."""
        return self._looked.document() | {"counted": self.fleet.sums(SHOWN)}

    def look(self) -> StatusSnapshot:
        """Return what is known now."""
        ledger = self._ledger
        return StatusSnapshot(
            role="serve",
            settings=self._settings,
            not_ready=self._not_ready(),
            away_since=CONTACT.away_since,
            said=dict(ledger.partitions),
            owners=dict(ledger.owners),
            ends=dict(self._cluster.ends),
            workers=self.workers(),
            eras=dict(ledger.eras),
            halts=ledger.stops("halts"),
            waits={**ledger.stops("waits"), **FAILING},
            open_since=self._cluster.open_since,
            unowned=self.unowned,
        )

    def _not_ready(self) -> str | None:
        if (since := CONTACT.away_since) is not None:
            return no_answer(self._settings.bootstrap_servers, since)
        waiting = [name for name, slot in self._slots.items() if not slot.ready]
        if waiting:
            return f"not ready: {', '.join(waiting)}"
        failing = [slot.failing for slot in self._slots.values() if slot.failing]
        if failing:
            return "; ".join(failing)
        cut_off = [name for name, slot in self._slots.items() if slot.state == "cut off"]
        if cut_off:
            return f"no broker answers {', '.join(cut_off)}"
        return None if self._cluster.ends else FAILING.get(NO_ENDS, NO_ENDS)
