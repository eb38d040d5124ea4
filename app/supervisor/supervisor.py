"""The supervisor: mill workers, a segment worker, and a sequencer if need be, as children of this process."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import structlog

from tokenmill.errors import StoreError
from tokenmill.store import Store

from ..broker_contact import CONTACT, OutageLog
from ..kafka.control_topic import NAMED_VARIABLE
from ..settings import Settings
from ..tasks import beside
from ..telemetry.reporting import Role
from ..telemetry.server import serving
from ..worker.cluster import Cluster
from ..worker.in_flight import DEATHS_VARIABLE, Deaths, nameless_file
from ..worker.watchdog import PartitionsSeen, Watchdog, WatchLimits
from .export import Export
from .status import Status, WorkerLedger, partition_statuses
from .worker_slot import Child, WorkerSlot

log = structlog.get_logger(__name__)
Listener = Callable[["Event"], None]

LOOK_SECONDS: Final = 1.0
"""How often partitions without progress are looked for, and the supervisor's own numbers are taken."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a worker, for people who watch."""

    kind: Literal["started", "not started", "ended", "took over", "moved", "not served"]
    worker: str
    pid: int
    """0 where there is none."""
    text: str
    """All of it in one line."""


class Supervisor:
    """`run` keeps the service up; `status` says how it is. All in one event loop, in the process's main thread."""

    def __init__(
        self,
        settings: Settings,
        *,
        only: Role | None = None,
        limits: WatchLimits | None = None,
        log_directory: Path | None = None,
        on_event: Listener | None = None,
        origins: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; `run` starts the workers.

        Those of ``only`` one role run here, or of all roles; others may run elsewhere. Workers log to files in
        ``log_directory``, or where we do. ``origins`` says where settings came from, in words, for people who ask.
        """
        self._settings = settings
        self._origins = origins or {}
        self._limits = limits or WatchLimits()
        self._on_event: Listener = on_event or (lambda _: None)
        self._ledger = WorkerLedger()
        tokens = [stream.tokens_topic for stream in settings.streams()]
        signatures = [domain.signatures_topic for domain in settings.domains()]
        self._topics = {"mill": set(settings.raw_topics), "segment": set(tokens), "sequencer": set(signatures)}
        self._cluster = Cluster(settings, [*settings.raw_topics, *tokens, *signatures])
        self._watchdogs = {role: Watchdog(self._limits) for role in self._topics}
        shared = {variable: nameless_file() for variable in (NAMED_VARIABLE, DEATHS_VARIABLE)}
        self._deaths = Deaths(shared[DEATHS_VARIABLE])
        names: dict[str, Role] = {f"mill-{number + 1}": "mill" for number in range(settings.workers)}
        names["segment"] = "segment"
        if signatures:
            names["sequencer"] = "sequencer"
        self._slots = {
            name: WorkerSlot(
                role,
                name,
                self,
                settings=settings,
                limits=self._limits,
                shared=shared,
                log=log_directory / f"{name}.log" if log_directory else None,
            )
            for name, role in names.items()
            if only in {role, None}
        }
        self._export = Export(settings, self._slots, self._cluster, self._ledger)

    async def run(self) -> None:
        """Keep all workers running until cancelled; on return, however it comes, every one of them has ended.

        Raises TokenMillError, with the worker's exit code, where one ended with what a new start cannot repair; all
        others are ended too.
        """
        keepers = [slot.keep() for slot in self._slots.values()]
        export = self._export
        with serving(self._settings, export.collectors, export.probes, export.document, self._origins) as why_not:
            if why_not is not None:
                self._on_event(Event("not served", "supervisor", os.getpid(), why_not))
            async with beside(*keepers, self._cluster.watch(), self._guard(), self._report()):
                await asyncio.Event().wait()

    def status(self) -> Status:
        """Return what is known now."""
        known, export = self._export.look(), self._export
        counts, partitions = export.fleet.counts(), partition_statuses(known)
        return Status(counts, export.workers(), partitions, known.away_since, known.eras)

    def kill(self, worker: str, reason: str) -> int | None:
        """Kill a worker's process with SIGKILL and return its id; None where none runs. It is started again."""
        slot = self._slots[worker]
        pid = slot.child.pid if slot.child else None
        if slot.child is not None:
            slot.child.board.pardon()
        slot.kill(reason)
        return pid

    async def _report(self) -> None:
        """Show that the event loop turns, and say whether brokers answer: once for all workers."""
        outage = OutageLog(self._settings.bootstrap_servers)
        while True:
            CONTACT.turn()
            outage.look()
            self._export.turn()
            await asyncio.sleep(LOOK_SECONDS)

    async def _guard(self) -> None:
        """Look for partitions without an owner or without progress, while the brokers answer."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for role, watchdog in self._watchdogs.items():
                stable_ends = self._cluster.stable_ends
                ends = {name: end for name, end in stable_ends.items() if _topic(name) in self._topics[role]}
                running = {slot.name: slot.child for slot in self._slots.values() if slot.role == role and slot.child}
                ready = tuple(name for name, child in running.items() if child.status.get("ready"))
                elsewhere: set[str] = set()
                if ready and not ends.keys() <= self._ledger.owners.keys():
                    ours = {child.status.get("member", "") for child in running.values()}
                    elsewhere = await self._cluster.owned_by_others(self._group(role), ours)
                seen = PartitionsSeen(ends, self._ledger.owners, self._ledger.partitions, elsewhere)
                for fault in watchdog.look(time.monotonic(), seen, ready):
                    log.error("fault", reason=fault.reason, workers=fault.workers)
                    for worker in fault.workers:
                        self.kill(worker, fault.reason)
            now = time.monotonic()
            self._export.unowned = [name for watchdog in self._watchdogs.values() for name in watchdog.unowned(now)]

    def _group(self, role: str) -> str:
        if role != "segment":
            return self._settings.group if role == "mill" else f"{self._settings.group}-sequencer"
        try:
            return f"{self._settings.group}-store-{Store.open(self._settings.store).id}"
        except (StoreError, OSError):  # the worker has not made it yet, or will say what is wrong with it
            return self._settings.group

    def started(self, slot: WorkerSlot, child: Child) -> None:
        """Take note that a process runs."""
        log.info("worker started", worker=slot.name, pid=child.pid, starts=slot.starts)
        self._on_event(Event("started", slot.name, child.pid, f"{slot.name} started, process {child.pid}"))

    def heard(self, slot: WorkerSlot, child: Child) -> None:
        """Take note of a new status."""
        self._export.heard(slot.name, child)
        moves = self._ledger.heard(slot.name, child.status)
        for before, orphan in sorted({(move.before, move.orphan) for move in moves}):
            names = ", ".join(move.partition for move in moves if (move.before, move.orphan) == (before, orphan))
            log.info("partitions moved", worker=slot.name, before=before, partitions=names, took_over=orphan)
            text = f"{slot.name} took over {names} from {before}" if orphan else f"{slot.name} now mills {names}"
            self._on_event(Event("took over" if orphan else "moved", slot.name, child.pid, text))

    def ended(self, slot: WorkerSlot, child: Child, reason: str, pause: float | None) -> None:
        """Take note that a process ended."""
        self._export.ended(slot.name, child)
        try:
            self._deaths.add(child.board.records_in_flight())  # none of a worker that ended over something else
        except OSError as error:
            text = (
                f"the records that {slot.name} died over cannot be noted ({error!r}): check the disk of temporary files"
            )
            log.error("death not noted", reason=text)  # noqa: TRY400 - it says all
        child.board.close()
        self._ledger.ended(slot.name)
        say = log.info if slot.stopping else log.warning
        say("worker ended", worker=slot.name, pid=child.pid, reason=reason, restart_in=pause)
        if not slot.stopping:
            again = f"; the next one starts in {pause:.0f} s" if pause is not None else ""
            text = f"{slot.name}, process {child.pid}, ended ({reason}){again}"
            self._on_event(Event("ended", slot.name, child.pid, text))

    def not_started(self, slot: WorkerSlot, reason: str, pause: float) -> None:
        """Take note that the system refused to start a process."""
        log.error("worker cannot be started", worker=slot.name, reason=reason, retry_in=pause)
        text = f"{slot.name} cannot be started ({reason}); the next attempt is in {pause:.0f} s"
        self._on_event(Event("not started", slot.name, 0, text))


def _topic(name: str) -> str:
    return name.rpartition("/")[0]
