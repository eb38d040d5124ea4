"""What the workers have said, over all their lives: counts that never fall, and where each partition is."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

RISING: Final = ("block", "documents", "bytes", "tokens")
"""What only grows in a chain, whoever owns it."""


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
        """The last that was heard of each partition, kept while nobody owns it."""
        self.eras: dict[str, int] = {}
        """Eras in the store, by stream, as the worker said last that brings them."""
        self.era_halts: dict[str, str] = {}
        """Why no more eras of a stream are stored, as that worker said last."""
        self._last_owners: dict[str, str] = {}
        self._orphans: set[str] = set()
        self._ended: Counter[str] = Counter()
        self._running: dict[str, Mapping[str, float]] = {}

    def heard(self, worker: str, status: Mapping[str, Any]) -> list[Move]:
        """Take a heartbeat of ``worker``, and return the partitions that it has from another."""
        self._running[worker] = status.get("counters", {})
        self.eras |= status.get("eras", {})
        self.era_halts = dict(status.get("era_halts", self.era_halts))
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
        """Take note that the process of ``worker`` has ended; the next one counts from 0."""
        self._orphans |= {name for name, owner in self.owners.items() if owner == worker}
        self._release(worker, {})
        self._ended.update(self._running.pop(worker, {}))

    def counters_of(self, worker: str) -> Mapping[str, float]:
        """Return what the running process of a worker has counted; nothing where none runs."""
        return self._running.get(worker, {})

    def counters(self) -> dict[str, float]:
        """Return each counter's sum over all processes that ever ran; it never falls."""
        total = Counter(self._ended)
        for counts in self._running.values():
            total.update(counts)
        return dict(total)

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
