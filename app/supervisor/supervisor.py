"""The supervisor: the workers of a service as children of this process, and what it knows and shows of them."""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tokenmill.errors import StoreError
from tokenmill.store import Store

from ..broker_contact import CONTACT, OutageLog, no_answer, transaction_words
from ..kafka.clients import FAILING
from ..kafka.control_topic import NAMED_VARIABLE
from ..settings import Settings, Stream
from ..tasks import beside
from ..telemetry.reporting import QUIET_TURNS, SHOWN, Fleet, Role, taken
from ..telemetry.server import Probes, serving
from ..telemetry.status_document import StatusSnapshot, WorkerStatus
from ..telemetry.worker_metrics import BROKER, PROCESS
from ..worker.in_flight import DEATHS_VARIABLE, Deaths, nameless_file
from ..worker.watchdog import NO_ENDS, Cluster, PartitionsSeen, Watchdog, WatchLimits
from .worker_slot import Child, WorkerSlot

Row = Mapping[str, Any]
"""What is known of a partition or a chain, by the names of ``/api/status``."""
RISING: Final = ("block", "documents", "bytes", "tokens")
"""What only grows in a chain, also when its owner changes."""


@dataclass(frozen=True, slots=True)
class Status:
    """What a view shows."""

    counters: Mapping[str, float]
    """Work done by all processes since the supervisor began (`app.telemetry.reporting`); never falls."""
    workers: tuple[WorkerStatus, ...]
    partitions: tuple[Row, ...]
    """Those of raw topics, and of signatures, which have no chains, as `partition_statuses` returns them."""
    away_since: float | None = None
    """Since when no broker answers, in seconds since 1970; None while one does."""
    eras: Mapping[str, int] = field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        """Records that wait to be milled, in all partitions; None while that is not known of one of them."""
        lags = [row["lag"] for row in self.partitions if row["chains"]]
        return None if not lags or None in lags else sum(lags)

    @property
    def chains(self) -> list[Row]:
        """All chains of all partitions."""
        return [chain for row in self.partitions for chain in row["chains"]]

    @property
    def dead_letters(self) -> int:
        """Records that were dead-lettered since the supervisor began, repeats after a restart included."""
        return int(self.counters.get("dead_letters", 0))

    @property
    def stored(self) -> int:
        """Blocks in the store."""
        return sum(chain["stored"] for chain in self.chains)

    @property
    def settled(self) -> bool:
        """Whether all is milled, in full blocks, and stored, by one look: two looks a second apart are safe."""
        at_rest = (chain["block"] == chain["stored"] for chain in self.chains)
        on_the_way = (chain["open_tokens"] or chain["messages"] for chain in self.chains)
        milled = (row["lag"] == 0 and row["worker"] is not None for row in self.partitions)
        return bool(self.chains) and all(milled) and all(at_rest) and not any(on_the_way)


def partition_statuses(known: StatusSnapshot) -> tuple[Row, ...]:
    """Return the row of every raw partition that is known, with its ``chains``, one of each split; then of signatures.

    ``note`` says in full why a partition or a chain is halted or waits; ``why`` is what everybody may see.
    """
    rows = {name: {**row, "note": _note(known, name)} for name, row in known.partitions().items()}
    streams = known.settings.streams()
    topics = [*known.settings.raw_topics, *(domain.signatures_topic for domain in known.settings.domains())]
    return tuple(
        {**row, "chains": [_chain(stream, row, rows, known) for stream in streams if stream.raw_topic == topic]}
        for topic in topics
        for row in rows.values()
        if row["topic"] == topic
    )


def _note(known: StatusSnapshot, name: str) -> str | None:
    said = known.said.get(name, {})
    waits: str | None = said.get("halted") or said.get("waiting")
    if waits is None and name in known.open_since:
        return transaction_words(known.open_since[name])
    return waits or said.get("still")


def _chain(stream: Stream, raw: Row, rows: Mapping[str, Row], known: StatusSnapshot) -> Row:
    """Return what its mill says of a chain, and what is stored; ``messages``: those that the store has yet to take."""
    milled: dict[str, int] = dict.fromkeys((*RISING, "open_tokens"), 0) | raw["chains"].get(stream.split, {})
    taken = rows.get(f"{stream.tokens_topic}/{raw['partition']}", {})
    stored = taken.get("block") or 0
    return {
        **milled,
        "stream": stream.name,
        "block": max(milled["block"], stored),  # a block may be stored before its acknowledgement is heard of
        "stored": stored,
        "segments": stored // known.settings.for_topic(stream.raw_topic).segment_blocks,
        "messages": max(0, (taken.get("end") or 0) - (taken.get("position") or 0)),
        "note": taken.get("note"),
    }


class WorkerLedger:
    """Takes every heartbeat and every end of a process. Partitions are named ``topic/number``."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.partitions: dict[str, Mapping[str, Any]] = {}
        """The last that was heard of each partition, kept while it has no owner."""
        self.eras: dict[str, int] = {}
        self._stops: dict[str, dict[str, dict[str, str]]] = {"halts": {}, "waits": {}}
        """What other than a partition is halted or waits, and why in short, as each worker said last."""
        self._last_owners: dict[str, str] = {}
        self._orphans: set[str] = set()

    def heard(self, worker: str, status: Mapping[str, Any]) -> dict[tuple[str, bool], list[str]]:
        """Take a heartbeat, and return what it has from others: by who had it last, and whether that one has ended."""
        self.eras |= status.get("eras", {})
        self._stops["halts"][worker] = status.get("halts", {})
        self._stops["waits"][worker] = status.get("waits", {})
        partitions: Mapping[str, Mapping[str, Any]] = status.get("partitions", {})
        self._release(worker, partitions)
        moves: dict[tuple[str, bool], list[str]] = {}
        for name, partition in partitions.items():
            before = self._last_owners.get(name)
            if before is not None and before != worker:
                moves.setdefault((before, name in self._orphans), []).append(name)
            self._orphans.discard(name)
            self.owners[name] = self._last_owners[name] = worker
            self.partitions[name] = _further(self.partitions.get(name, {}), partition)
        return moves

    def ended(self, worker: str) -> None:
        """Take note that the process of ``worker`` has ended."""
        self._orphans |= {name for name, owner in self.owners.items() if owner == worker}
        self._release(worker, {})
        for found in self._stops.values():
            found.pop(worker, None)

    def stops(self, kind: Literal["halts", "waits"]) -> dict[str, str]:
        """Return what other than a partition is halted or waits, and why in short, as running workers said last."""
        return {name: why for found in self._stops[kind].values() for name, why in found.items()}

    def _release(self, worker: str, kept: Mapping[str, Any]) -> None:
        for name in [name for name, owner in self.owners.items() if owner == worker and name not in kept]:
            del self.owners[name]


def _further(known: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was said, and what was known where it is more: a new owner begins again a little before the last."""
    further = dict(said)
    if "chains" in said:
        chains: Mapping[str, Mapping[str, int]] = {**known.get("chains", {}), **said["chains"]}
        further["chains"] = {split: _furthest(known, split, chain) for split, chain in chains.items()}
    if known.get("dead_letter") and not said.get("dead_letter"):
        further["dead_letter"] = known["dead_letter"]
    if known.get("block"):
        further["block"] = max(known["block"], said.get("block") or 0)
    return further


def _furthest(known: Mapping[str, Any], split: str, chain: Mapping[str, int]) -> dict[str, int]:
    before: Mapping[str, int] = known.get("chains", {}).get(split, {})
    return {name: max(value, before.get(name, 0)) if name in RISING else value for name, value in chain.items()}


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
        self.elsewhere: Collection[str] = ()
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
            self.fleet.heard("supervisor", os.getpid(), taken(PROCESS, BROKER))
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
            waits={**ledger.stops("waits"), **FAILING, **self._cluster.gone},
            open_since=self._cluster.open_since,
            unowned=self.unowned,
            elsewhere=self.elsewhere,
        )

    def _not_ready(self) -> str | None:
        if (since := CONTACT.away_since) is not None:
            return no_answer(self._settings.bootstrap_servers, since)
        if waiting := [name for name, slot in self._slots.items() if not slot.ready]:
            return f"not ready: {', '.join(waiting)}"
        if failing := [slot.failing for slot in self._slots.values() if slot.failing]:
            return "; ".join(failing)
        if cut_off := [name for name, slot in self._slots.items() if slot.state == "cut off"]:
            return f"no broker answers {', '.join(cut_off)}"
        return None if self._cluster.ends else FAILING.get(NO_ENDS, NO_ENDS)


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
        """Prepare; `run` starts the workers: those of ``only`` one role, or of all.

        They log to files in ``log_directory``, or where we do. ``origins`` says where settings came from, in words.
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

        Raises TokenMillError, with the worker's exit code, where one ended with what a new start cannot repair.
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
        if (child := slot.child) is not None:
            child.board.pardon()
        slot.kill(reason)
        return child.pid if child else None

    async def _report(self) -> None:
        """Show that the event loop turns, and say whether brokers answer: once for all workers."""
        outage = OutageLog(self._settings.bootstrap_servers)
        while True:
            CONTACT.turn()
            outage.look()
            self._export.turn()
            await asyncio.sleep(LOOK_SECONDS)

    async def _guard(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            others = set[str]()
            for role, watchdog in self._watchdogs.items():
                stable_ends = self._cluster.stable_ends
                ends = {name: end for name, end in stable_ends.items() if name.rpartition("/")[0] in self._topics[role]}
                running = {slot.name: slot.child for slot in self._slots.values() if slot.role == role and slot.child}
                ready = tuple(name for name, child in running.items() if child.status.get("ready"))
                elsewhere: set[str] = set()
                if ready and not ends.keys() <= self._ledger.owners.keys():
                    ours = {child.status.get("member", "") for child in running.values()}
                    elsewhere = await self._cluster.owned_by_others(self._group(role), ours)
                others |= elsewhere
                seen = PartitionsSeen(ends, self._ledger.owners, self._ledger.partitions, elsewhere)
                for fault in watchdog.look(time.monotonic(), seen, ready):
                    log.error("fault", reason=fault.reason, workers=fault.workers)
                    for worker in fault.workers:
                        self.kill(worker, fault.reason)
            now, self._export.elsewhere = time.monotonic(), others
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
        for (before, orphan), moved in sorted(self._ledger.heard(slot.name, child.status).items()):
            names = ", ".join(moved)
            log.info("partitions moved", worker=slot.name, before=before, partitions=names, took_over=orphan)
            text = f"{slot.name} took over {names} from {before}" if orphan else f"{slot.name} now mills {names}"
            self._on_event(Event("took over" if orphan else "moved", slot.name, child.pid, text))

    def ended(self, slot: WorkerSlot, child: Child, reason: str, pause: float | None) -> None:
        """Take note that a process ended."""
        self._export.ended(slot.name, child)
        try:
            self._deaths.add(child.board.records_in_flight())  # none of a worker that ended over something else
        except OSError as error:
            why = f"the records that {slot.name} died over cannot be noted ({error!r})"
            log.error("death not noted", reason=f"{why}: check the disk of temporary files")  # noqa: TRY400 - it says all
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
