"""What the supervisor knows at one moment, for a view or a pipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ..broker_contact import transaction_words
from ..settings import Stream
from ..telemetry.status_document import StatusSnapshot, WorkerStatus

Row = Mapping[str, Any]
"""What is known of a partition or a chain, by the names of ``/api/status``."""
RISING: Final = ("block", "documents", "bytes", "tokens")
"""What only grows in a chain, also when its owner changes."""


@dataclass(frozen=True, slots=True)
class Status:
    """All of it."""

    counters: Mapping[str, float]
    """Work done by all processes since the supervisor began (`app.telemetry.reporting`); never falls."""
    workers: tuple[WorkerStatus, ...]
    partitions: tuple[Row, ...]
    """Those of raw topics, and of signatures, which have no chains, as `partition_statuses` returns them."""
    away_since: float | None = None
    """Since when no broker answers, in seconds since 1970; None while one does."""
    eras: Mapping[str, int] = field(default_factory=dict)
    """Eras in the store, by stream."""

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
        """Whether all that the brokers hold is milled and stored, as far as one look can see.

        That needs full blocks: a flush record at the end of each partition. A message may be on its way,
        unseen; two looks a second apart are safe.
        """
        at_rest = (chain["block"] == chain["stored"] for chain in self.chains)
        on_the_way = (chain["open_tokens"] or chain["messages"] for chain in self.chains)
        milled = (row["lag"] == 0 and row["worker"] is not None for row in self.partitions)
        return bool(self.chains) and all(milled) and all(at_rest) and not any(on_the_way)


def partition_statuses(known: StatusSnapshot) -> tuple[Row, ...]:
    """Return the row of every raw partition that is known; its ``chains`` are one of each split, in their order.

    Those of signatures are behind them. ``note`` says in full why a partition or a chain is halted or waits; ``why`` is
    what everybody may see.
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
    """Return in words why a partition is halted or waits; None where it does neither."""
    said = known.said.get(name, {})
    waits: str | None = said.get("halted") or said.get("waiting")
    if waits is None and name in known.open_since:
        return transaction_words(known.open_since[name])
    return waits or said.get("still")


def _chain(stream: Stream, raw: Row, rows: Mapping[str, Row], known: StatusSnapshot) -> Row:
    """Return what is known of a chain, a stream's blocks of one partition: what its mill says, and what is stored.

    ``messages`` are those of the token topic that the store has yet to take.
    """
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
