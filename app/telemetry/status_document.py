"""What ``/status`` answers, as one JSON object: of a supervisor with all its workers, or of a worker that runs alone.

Reasons are those of a closed set (`TokenMillError.brief`): nothing that a record says is shown here. The log, and
the live view of `tokenmill up`, say the rest.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import tokenmill

VERSION: Final = 1
"""Of the object's fields; another one where a field goes or means something else."""
SHOWN_HALTS: Final = 10
"""In one line for people; more are counted."""

Said = Mapping[str, Mapping[str, Any]]
"""What workers say of partitions, which are named ``topic/number``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSnapshot:
    """What a process knows of its work at one moment."""

    role: str
    """``serve`` for a supervisor, else what the worker is."""
    not_ready: str | None
    away_since: float | None
    """Since when no broker answers, in seconds since 1970; None while one does."""
    said: Said
    owners: Mapping[str, str]
    """The worker of each partition that has one."""
    ends: Mapping[str, int | None] = field(default_factory=dict)
    """The offset after the last record of each partition, where the brokers say."""
    workers: Iterable[Mapping[str, Any]] = ()
    eras: Mapping[str, int] = field(default_factory=dict)
    """Eras in the store, by stream."""
    era_halts: Mapping[str, str] = field(default_factory=dict)
    """Why no more eras of a stream are stored until a person acts."""

    @property
    def halted(self) -> dict[str, str]:
        """What is halted until a person acts, and why in short: partitions that somebody has, and streams' eras."""
        found = {name: self.said[name].get("halted_by") for name in sorted(self.owners.keys() & self.said.keys())}
        partitions = {name: reason for name, reason in found.items() if reason is not None}
        return partitions | {f"eras of {stream}": reason for stream, reason in sorted(self.era_halts.items())}

    def document(self) -> dict[str, Any]:
        """Return the object."""
        return {
            "version": VERSION,
            "tokenmill": tokenmill.__version__,
            "role": self.role,
            "at": time.time(),
            "ready": self.not_ready is None,
            "not_ready": self.not_ready,
            "away_since": self.away_since,
            "halted": self.halted,
            "workers": list(self.workers),
            "partitions": [self._partition(name) for name in sorted({*self.said, *self.ends}, key=_place)],
            "eras": dict(self.eras),
        }

    def _partition(self, name: str) -> dict[str, Any]:
        said, end, owner = self.said.get(name, {}), self.ends.get(name), self.owners.get(name)
        topic, number = _place(name)
        position = said.get("position")
        return {
            "topic": topic,
            "partition": number,
            "worker": owner,
            "state": _state(said) if owner is not None else "unowned",
            "halted": said.get("halted_by") if owner is not None else None,
            "position": position,
            "end": end,
            "lag": max(0, end - position) if end is not None and position is not None else None,
        }


def halted_words(halted: Mapping[str, str]) -> str | None:
    """Return what is halted, and why, in one line; None where nothing is."""
    if not halted:
        return None
    shown = [f"{name} ({reason})" for name, reason in list(halted.items())[:SHOWN_HALTS]]
    more = [f"{len(halted) - SHOWN_HALTS} more"] if len(halted) > SHOWN_HALTS else []
    return f"halted: {', '.join(shown + more)}"


def _state(said: Mapping[str, Any]) -> str:
    if said.get("halted"):
        return "halted"
    if said.get("waiting"):
        return "waiting"
    return "running" if said.get("position") is not None else "resuming"


def _place(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("/")
    return topic, int(number)
