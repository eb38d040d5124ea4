"""Partitions that are not worked on, by what brokers and workers say: without an owner, or without progress.

A supervisor looks at all its workers together. A worker without one watches itself, for what only a new start repairs:
it ends with a code that says so, and what runs it (systemd, a container engine) starts it again.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import KafkaError

from tokenmill.errors import BrokerError

from ..broker_contact import CONTACT
from ..kafka.clients import OPEN_SECONDS, admin, ask_repeatedly, begun
from ..kafka.cluster import all_metadata, ends_of
from ..kafka.topics import needed_topics
from ..settings import Settings
from ..telemetry.reporting import HEARTBEAT_VARIABLE
from .ending import end_process, or_end

if TYPE_CHECKING:  # a supervisor has no Faust
    from .transport import BatchApp


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLimits:
    """All times are seconds."""

    heartbeat: float = 20.0
    """A worker that says nothing for as long is killed. Above Kafka's session time-out, after which another owns its
    partitions anyway, and above what a busy machine may take for one turn of an event loop."""
    start: float = 120.0
    """The same until a worker is ready: it loads a tokenizer, from the network perhaps."""
    grace: float = 15.0
    """Between SIGTERM and SIGKILL. Workers end in about a second; what is not durable then is done again."""
    first_backoff: float = 1.0
    """Before a worker that ended is started again; doubled each time ..."""
    longest_backoff: float = 10.0
    """... up to this: when what it waits for is back, it waits no longer than that. A start, and Kafka's session
    time-out of the worker before, come on top; blocks are to flow again within 30 s."""
    healthy: float = 60.0
    """A worker that lived as long gets the first backoff again."""
    unowned: float = 30.0
    """A partition that exists and that no member of the group owns for as long is a fault. Above the time that a group
    takes to notice a dead member."""
    still: float = 60.0
    """A partition with records to take and no progress for as long is a fault. Above the time for one fetch."""
    resume: float = 600.0
    """The same while a partition resumes: it may have to read a whole token partition."""


UNOWNED_SECONDS: Final = 10.0
"""A partition without an owner for so long is reported: a rebalance takes less."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that only a new start of these workers repairs."""

    workers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionsSeen:
    """The partitions at one moment; they are named ``topic/number``."""

    ends: Mapping[str, int]
    """The end of each partition that somebody of ours should work on."""
    owners: Mapping[str, str]
    partitions: Mapping[str, Mapping[str, Any]]
    elsewhere: AbstractSet[str]
    """Partitions that members of the group which are not ours own."""


class Watchdog:
    """Compares what it sees at each `look` with the looks before, and names faults; the caller brings the clock."""

    def __init__(self, limits: WatchLimits) -> None:
        self._limits = limits
        self._unowned: dict[str, float] = {}
        self._still: dict[str, tuple[object, float]] = {}

    def look(self, now: float, seen: PartitionsSeen, ready: tuple[str, ...]) -> list[Fault]:
        """Return the faults at ``now``, each once in its time; ``ready`` are the workers that could own partitions."""
        faults = [*self._look_for_unowned(now, seen, ready), *self._look_for_still(now, seen)]
        for name in [name for name in self._still if name not in seen.owners or name not in seen.ends]:
            del self._still[name]  # while no broker answers the ends are unknown, and no worker is to blame
        return faults

    def unowned(self, now: float) -> list[str]:
        """Return the partitions without an owner for `UNOWNED_SECONDS`, though a worker could own them."""
        return [name for name, since in self._unowned.items() if now - since >= UNOWNED_SECONDS]

    def _look_for_unowned(self, now: float, seen: PartitionsSeen, ready: tuple[str, ...]) -> list[Fault]:
        unowned = [name for name in seen.ends if name not in seen.owners and name not in seen.elsewhere]
        self._unowned = {name: self._unowned.get(name, now) for name in unowned if ready}
        overdue = [name for name, since in self._unowned.items() if now - since > self._limits.unowned]
        if not overdue:
            return []
        self._unowned.clear()
        return [Fault(ready, f"nobody has owned {', '.join(overdue)} for {self._limits.unowned:.0f} s")]

    def _look_for_still(self, now: float, seen: PartitionsSeen) -> list[Fault]:
        faults = []
        for name, end in seen.ends.items():
            worker = seen.owners.get(name)
            if worker is None:
                continue
            said = seen.partitions.get(name, {})
            resuming = said.get("end") is None
            behind = resuming or (said.get("position") or 0) < end
            if said.get("halted") or said.get("waiting") or not behind:
                self._still.pop(name, None)
                continue
            mark = (worker, said.get("position"))
            known, since = self._still.get(name, (None, now))
            since = since if known == mark else now
            self._still[name] = (mark, since)
            limit = self._limits.resume if resuming else self._limits.still
            if now - since > limit:
                del self._still[name]
                faults.append(Fault((worker,), f"{name} makes no progress at {said.get('position')} of {end}"))
        return faults


LIMITS: Final = WatchLimits()
LOOK_SECONDS: Final = 5.0
"""How often it looks: workers that share a group all ask the brokers who is in it, and limits are half a minute."""
ME: Final = "this worker"


class SelfWatchdog:
    """Looks, from `start` to the end of the process, whether the worker and its group do their work."""

    def __init__(
        self, settings: Settings, app: "BatchApp", topics: Sequence[str], status: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._settings = settings
        self._app = app
        self._cluster = Cluster(settings, topics)
        self._status = status
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def open_since(self) -> Mapping[str, float]:
        """In which partitions a transaction stays open, and since when; none while a supervisor watches."""
        return self._cluster.open_since

    def start(self) -> None:
        """Watch from now on, unless a supervisor does; called once."""
        if HEARTBEAT_VARIABLE not in os.environ:
            work = (self._cluster.watch(), self._watch())
            self._tasks = [asyncio.create_task(or_end(each), name="watch") for each in work]

    async def _watch(self) -> None:
        watchdog = Watchdog(LIMITS)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            ends = self._cluster.stable_ends
            owned = ends.keys() <= self._status()["partitions"].keys()
            others = set() if owned else await self._cluster.owned_by_others(self._app.conf.id, {self._app.member})
            said = self._status()["partitions"]
            seen = PartitionsSeen(ends, dict.fromkeys(said, ME), said, others)
            for fault in watchdog.look(time.monotonic(), seen, (ME,)):
                end_process(fault.reason)


ENDS_SECONDS: Final = 1.0
"""How often ends are asked for: a view's lag is as old."""
NO_ENDS: Final = "the brokers do not say where partitions end"
GONE: Final = "it was deleted, or we may not see it"
COUNT_SECONDS: Final = 30.0

log = structlog.get_logger(__name__)


class Cluster:
    """Keeps `ends` and `open_since` fresh while `watch` runs; partitions are named ``topic/number``."""

    def __init__(self, settings: Settings, topics: Sequence[str]) -> None:
        self._ends: dict[str, tuple[int, int]] = {}
        self._open: dict[tuple[TopicPartition, int], float] = {}
        """The first records of transactions that were open at the last look, and when they were first looked at."""
        self._begun: dict[tuple[TopicPartition, int], float] = {}
        self._settings = settings
        self._topics = topics
        self._needed = [topic.name for topic in needed_topics(settings) if topic.kind != "produced"]
        self.gone: dict[str, str] = {}
        """Topics that are needed and not there, and why that is so, for people."""

    @property
    def ends(self) -> dict[str, int]:
        """The offset after the last record of each partition; empty while no broker answers."""
        return {name: end for name, (end, _) in self._known().items()}

    @property
    def stable_ends(self) -> dict[str, int]:
        """The same, but where a transaction is open the offset of its first record, where readers stop now."""
        return {name: stable for name, (_, stable) in self._known().items()}

    @property
    def open_since(self) -> dict[str, float]:
        """Partitions in which a transaction has been open for `OPEN_SECONDS`, and since when, in seconds since 1970."""
        return {_name(tp): at for (tp, _), at in self._begun.items()} if CONTACT.away_since is None else {}

    def _known(self) -> dict[str, tuple[int, int]]:
        return self._ends if CONTACT.away_since is None else {}

    async def watch(self) -> None:
        """Ask again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        partitions: list[TopicPartition] = []
        counted = -COUNT_SECONDS

        async def ask(client: AIOKafkaConsumer) -> None:
            nonlocal partitions, counted
            try:
                if loop.time() - counted >= COUNT_SECONDS or not partitions:
                    partitions, counted = await self._partitions(client), loop.time()
                ends = await ends_of(client, partitions) if partitions else {}
            except Exception:
                self._ends, self._begun, partitions = {}, {}, []
                raise
            self._ends = {_name(tp): end for tp, end in ends.items()}
            await self._look_for_open({tp: stable for tp, (end, stable) in ends.items() if stable < end}, loop.time())

        await ask_repeatedly(self._settings, ask, ENDS_SECONDS, NO_ENDS, (OSError,))

    async def _look_for_open(self, stable: Mapping[TopicPartition, int], now: float) -> None:
        """Ask once when a transaction began that is open for longer than most are."""
        self._open = {place: self._open.get(place, now) for place in stable.items()}
        old = {place for place, since in self._open.items() if now - since >= OPEN_SECONDS}
        self._begun = {place: at for place, at in self._begun.items() if place in old}
        found = await begun(self._settings, dict(old - self._begun.keys()))
        self._begun |= {(tp, stable[tp]): at for tp, at in found.items()}

    async def _partitions(self, client: AIOKafkaConsumer) -> list[TopicPartition]:
        # Of all topics, though these few are meant: what is missing, or what we may not see, is left out. So is a
        # partition without a leader, for whose end a client would wait in vain.
        metadata = await all_metadata(client)
        self.gone = {f"topic {name}": GONE for name in self._needed if not metadata.partitions_for_topic(name)}
        return [
            TopicPartition(topic, number)
            for topic in self._topics
            for number in sorted(metadata.partitions_for_topic(topic) or ())
        ]

    async def owned_by_others(self, group: str, ours: Collection[str]) -> set[str]:
        """Return what members of a group own whose ids are not among ``ours``; nothing while no broker answers."""
        owned: set[str] = set()
        with suppress(BrokerError, KafkaError):
            async with admin(self._settings) as client:
                for answer in await client.describe_consumer_groups([group]):
                    members = [member for described in answer.groups for member in described[5]]
                    owned.update(name for member in members if member[0] not in ours for name in _assigned(member))
        return owned


def _name(tp: TopicPartition) -> str:
    return f"{tp.topic}/{tp.partition}"


def _assigned(member: Sequence[Any]) -> set[str]:
    """Return the partitions of a member (Kafka's consumer protocol, version 0 up)."""
    given = ConsumerProtocol.ASSIGNMENT.decode(member[4]).assignment if member[4] else ()  # between two assignments
    return {f"{topic}/{number}" for topic, numbers in given for number in numbers}
