"""What the supervisor knows at one moment, for a view or a pipe."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from ..broker_contact import transaction_words
from ..settings import Stream
from ..telemetry.status_document import StatusSnapshot

State = Literal["starting", "running", "cut off", "silent", "ended"]
"""``cut off``: it runs, and no broker answers it."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One place for a worker, and the process in it."""

    name: str
    role: Literal["mill", "segment"]
    state: State
    pid: int | None
    restarts: int
    restart_in: float | None
    """Seconds until the next process is started, where there is none."""
    partitions: tuple[str, ...]
    """What it owns, as ``topic/number``."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """Work done by its process since that began (`app.telemetry.reporting`); the next one begins at 0."""

    def row(self) -> dict[str, Any]:
        """Return it as ``/api/status`` answers."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DeadLetterStatus:
    """A record that was dead-lettered."""

    partition: str
    """Of the raw topic, as ``topic/number``."""
    offset: int
    reason: str
    at: float
    """When it was sent, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """One chain: a stream's blocks of one partition."""

    stream: str
    blocks: int
    """Blocks on the token topic."""
    stored: int
    """Blocks in the store."""
    segments: int
    """Sealed segments in the store."""
    open_tokens: int
    """Tokens that wait for their block to be full."""
    messages: int
    """Messages of the token topic that the store has yet to take."""
    documents: int
    bytes: int
    """Size of the documents' records."""
    tokens: int
    """Tokens of the documents, those around their texts included."""
    note: str | None
    """Why it is halted or waits in the store, or None."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of a raw topic."""

    topic: str
    number: int
    worker: str | None
    end: int | None
    """The offset after its last record; None: the brokers have not said."""
    position: int
    """The offset up to which it is milled."""
    chains: tuple[ChainStatus, ...]
    """One of each split, in the order of the settings."""
    halted: str | None
    """Why it is halted or waits, or None."""
    dead_letter: DeadLetterStatus | None = None
    """The newest one of the partition, of those that workers of this supervisor sent."""

    @property
    def lag(self) -> int | None:
        """Records that wait to be milled; None while the brokers do not say where the partition ends."""
        return None if self.end is None else max(0, self.end - self.position)


@dataclass(frozen=True, slots=True)
class Status:
    """All of it."""

    counters: Mapping[str, float]
    """Work done by all processes since the supervisor began (`app.telemetry.reporting`); never falls."""
    workers: tuple[WorkerStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    away_since: float | None = None
    """Since when no broker answers, in seconds since 1970; None while one does."""
    eras: Mapping[str, int] = field(default_factory=dict)
    """Eras in the store, by stream."""

    @property
    def lag(self) -> int | None:
        """Records that wait to be milled, in all partitions; None while that is not known of one of them."""
        lags = [partition.lag for partition in self.partitions if partition.lag is not None]
        return sum(lags) if self.partitions and len(lags) == len(self.partitions) else None

    @property
    def chains(self) -> dict[str, ChainStatus]:
        """Return all chains, by ``stream/partition``."""
        return {
            f"{chain.stream}/{partition.number}": chain for partition in self.partitions for chain in partition.chains
        }

    @property
    def dead_letters(self) -> int:
        """Records that were dead-lettered since the supervisor began, repeats after a restart included."""
        return int(self.counters.get("dead_letters", 0))

    @property
    def newest_dead_letter(self) -> DeadLetterStatus | None:
        """The last of them."""
        found = [partition.dead_letter for partition in self.partitions if partition.dead_letter is not None]
        return max(found, key=lambda letter: letter.at, default=None)

    @property
    def stored(self) -> int:
        """Blocks in the store."""
        return sum(chain.stored for chain in self.chains.values())

    @property
    def settled(self) -> bool:
        """Whether all that the brokers hold is milled and stored, as far as one look can see.

        That needs full blocks: a flush record at the end of each partition. A message may be on its way,
        unseen; two looks a second apart are safe.
        """
        chains = self.chains.values()
        return bool(chains) and not (
            any(partition.end is None or partition.lag or partition.worker is None for partition in self.partitions)
            or any(chain.open_tokens or chain.messages or chain.blocks != chain.stored for chain in chains)
        )


def partition_statuses(known: StatusSnapshot) -> tuple[PartitionStatus, ...]:
    """Return the status of every raw partition that is known."""
    return tuple(
        _partition(known, topic, number)
        for topic in known.settings.raw_topics
        for number in sorted(_numbers(topic, {*known.ends, *known.said}))
    )


def _numbers(topic: str, names: Iterable[str]) -> Iterator[int]:
    for name in names:
        of, _, number = name.rpartition("/")
        if of == topic:
            yield int(number)


def _note(known: StatusSnapshot, name: str) -> str | None:
    """Return in words why a partition is halted or waits; None where it does neither."""
    said = known.said.get(name, {})
    waits: str | None = said.get("halted") or said.get("waiting")
    if waits is None and name in known.open_since:
        return transaction_words(known.open_since[name])
    return waits or said.get("still")


def _partition(known: StatusSnapshot, topic: str, number: int) -> PartitionStatus:
    key = f"{topic}/{number}"
    said = known.said.get(key, {})
    segment_blocks = known.settings.for_topic(topic).segment_blocks
    streams = [stream for stream in known.settings.streams() if stream.raw_topic == topic]
    return PartitionStatus(
        topic,
        number,
        known.owners.get(key),
        known.ends.get(key),
        said.get("position") or 0,
        tuple(_chain(stream, f"{stream.tokens_topic}/{number}", said, known, segment_blocks) for stream in streams),
        _note(known, key),
        DeadLetterStatus(key, **letter) if (letter := said.get("dead_letter")) else None,
    )


def _chain(
    stream: Stream, key: str, mill: Mapping[str, Any], known: StatusSnapshot, segment_blocks: int
) -> ChainStatus:
    milled = mill.get("chains", {}).get(stream.split, {})
    stored = known.said.get(key, {})
    blocks = stored.get("block") or 0
    return ChainStatus(
        stream.name,
        max(milled.get("block", 0), blocks),  # a block may be stored before its acknowledgement is heard of
        blocks,
        blocks // segment_blocks,
        milled.get("open_tokens", 0),
        max(0, (known.ends.get(key) or 0) - (stored.get("position") or 0)),
        milled.get("documents", 0),
        milled.get("bytes", 0),
        milled.get("tokens", 0),
        _note(known, key),
    )


RISING: Final = ("block", "documents", "bytes", "tokens")
"""What only grows in a chain, also when its owner changes."""


@dataclass(frozen=True, slots=True)
class Move:
    """A partition came to another worker than the one that had it last."""

    partition: str
    worker: str
    before: str
    orphan: bool
    """Whether that one has ended since."""


class WorkerLedger:
    """Takes every heartbeat and every end of a process. Partitions are named ``topic/number``."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        """The worker of each partition that has one."""
        self.partitions: dict[str, Mapping[str, Any]] = {}
        """The last that was heard of each partition, kept while it has no owner."""
        self.eras: dict[str, int] = {}
        """Eras in the store, by stream, as the worker said last that brings them."""
        self._stops: dict[str, dict[str, dict[str, str]]] = {"halts": {}, "waits": {}}
        """What other than a partition is halted or waits, and why in short, as each worker said last."""
        self._last_owners: dict[str, str] = {}
        self._orphans: set[str] = set()

    def heard(self, worker: str, status: Mapping[str, Any]) -> list[Move]:
        """Take a heartbeat of ``worker``, and return the partitions that it has from another."""
        self.eras |= status.get("eras", {})
        self._stops["halts"][worker] = status.get("halts", {})
        self._stops["waits"][worker] = status.get("waits", {})
        partitions: Mapping[str, Mapping[str, Any]] = status.get("partitions", {})
        self._release(worker, partitions)
        moves = []
        for name, partition in partitions.items():
            before = self._last_owners.get(name)
            if before is not None and before != worker:
                moves.append(Move(name, worker, before, name in self._orphans))
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
