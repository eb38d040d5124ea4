"""What ``/api/status`` answers, one JSON object: of a supervisor with its workers, or of a worker that runs alone.

Reasons are those of a closed set (`TokenMillError.brief`), with nothing that a record says; the log says the rest.
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import tokenmill

from ..broker_contact import transaction_words
from ..settings import Settings

VERSION: Final = 2
"""Of the object's fields; another one where a field goes or means something else."""
SHOWN_STOPS: Final = 10
"""Of each kind, in one line for people; more are counted."""
UNOWNED: Final = "no worker has it"
ELSEWHERE: Final = "a member of the group that is not ours has it"
"""A worker on another host, mostly. It is a fault where it is another program, or mills streams of another suffix."""

IDENTITY: Final = ("bootstrap_servers", "store", "group", "raw_topics", "stream_suffix")
"""Settings by which the services of one host are told apart; a mirror has only the first two."""

Said = Mapping[str, Mapping[str, Any]]
"""What workers say of partitions, which are named ``topic/number``."""


def identity(settings: Settings, role: str) -> dict[str, Any]:
    """Return by which settings a service says whose it is."""
    names = IDENTITY[:2] if role == "mirror" else IDENTITY
    values = settings.model_dump(mode="json", include={*names})
    values["store"] = str(settings.store.absolute())
    values["bootstrap_servers"] = sorted(server.strip() for server in settings.bootstrap_servers.split(","))
    return {name: values[name] for name in names}


State = Literal["starting", "running", "cut off", "silent", "ended"]
"""``cut off``: it runs, and no broker answers it."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One place for a worker, and the process in it."""

    name: str
    role: str
    state: State
    pid: int | None
    restarts: int
    restart_in: float | None
    """Seconds until the next process is started, where there is none."""
    partitions: tuple[str, ...]
    counters: Mapping[str, float] = field(default_factory=dict)
    """Work done by its process since that began (`app.telemetry.reporting`); the next one begins at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSnapshot:
    """What a process knows of its work at one moment."""

    role: str
    """``serve`` for a supervisor, else what the worker is."""
    settings: Settings
    not_ready: str | None
    away_since: float | None
    """Since when no broker answers, in seconds since 1970; None while one does."""
    said: Said
    owners: Mapping[str, str]
    ends: Mapping[str, int | None] = field(default_factory=dict)
    """The offset after the last record of each partition, where the brokers say."""
    workers: Collection[WorkerStatus] = ()
    eras: Mapping[str, int] = field(default_factory=dict)
    halts: Mapping[str, str] = field(default_factory=dict)
    """What other than a partition is halted, such as a stream's eras, and why in short."""
    waits: Mapping[str, str] = field(default_factory=dict)
    """What other than a partition makes no progress now, and why in short."""
    open_since: Mapping[str, float] = field(default_factory=dict)
    """Partitions in which a transaction stays open, and since when, in seconds since 1970."""
    unowned: Collection[str] = ()
    """Partitions that a worker of ours should have, and that no worker anywhere has."""
    elsewhere: Collection[str] = ()
    """Those that members of our consumer groups have who are no workers of ours."""

    @property
    def halted(self) -> dict[str, str]:
        """What is halted until a person acts, and why in short: partitions that somebody has, and streams' eras."""
        found = {name: self._said(name).get("halted_by") for name in self._names}
        return {name: reason for name, reason in found.items() if reason is not None} | dict(sorted(self.halts.items()))

    @property
    def waiting(self) -> dict[str, str]:
        """What makes no progress now, and may go on by itself, and why in short."""
        found = {name: self._waits_for(name) for name in self._names}
        return {name: reason for name, reason in found.items() if reason is not None} | dict(sorted(self.waits.items()))

    @property
    def stopped(self) -> str | None:
        """All of both in one line for people; None where there is nothing."""
        return stopped_words(self.halted, self.waiting)

    def document(self) -> dict[str, Any]:
        """Return the object."""
        service = {"role": self.role, "service": identity(self.settings, self.role), "at": time.time()}
        ready = {"ready": self.not_ready is None, "not_ready": self.not_ready, "away_since": self.away_since}
        return {
            "version": VERSION,
            "tokenmill": tokenmill.__version__,
            **service,
            **ready,
            "halted": self.halted,
            "waiting": self.waiting,
            "workers": [asdict(worker) for worker in self.workers],
            "partitions": list(self.partitions().values()),
            "eras": dict(self.eras),
        }

    def partitions(self) -> dict[str, dict[str, Any]]:
        """Return a row for each partition, by its name, in the order of topics and numbers."""
        return {name: self._partition(name) for name in self._names}

    @property
    def _names(self) -> list[str]:
        return sorted({*self.said, *self.ends}, key=_place)

    def _said(self, name: str) -> Mapping[str, Any]:
        return self.said.get(name, {}) if name in self.owners else {}

    def _waits_for(self, name: str) -> str | None:
        said = self._said(name)
        if said.get("halted"):
            return None
        if name in self.open_since and not said.get("waiting"):
            return transaction_words(self.open_since[name])
        waits: str | None = said.get("waiting_by") or said.get("still")
        return waits or (UNOWNED if name in self.unowned else None)

    def _partition(self, name: str) -> dict[str, Any]:
        said, end, owner = self.said.get(name, {}), self.ends.get(name), self.owners.get(name)
        topic, number = _place(name)
        position, halted_by, waits_for = said.get("position"), self._said(name).get("halted_by"), self._waits_for(name)
        says = "halted" if said.get("halted") else "running" if position is not None else "resuming"
        state = "unowned" if owner is None else "waiting" if waits_for else says
        return {
            "topic": topic,
            "partition": number,
            "worker": owner,
            "state": state,
            "halted": halted_by,
            "why": halted_by or waits_for or (ELSEWHERE if owner is None and name in self.elsewhere else None),
            "position": position,
            "block": said.get("block"),
            "chains": said.get("chains", {}),
            "dead_letter": said.get("dead_letter"),
            "end": end,
            "lag": max(0, end - position) if end is not None and position is not None else None,
        }


def stopped_words(halted: Mapping[str, str], waiting: Mapping[str, str]) -> str | None:
    """Return what is halted, and what waits, and why, in one line; None where nothing does."""
    parts = [f"{what}: {_listed(found)}" for what, found in (("halted", halted), ("waiting", waiting)) if found]
    return "; ".join(parts) or None


def _listed(found: Mapping[str, str]) -> str:
    shown = [f"{name} ({reason})" for name, reason in list(found.items())[:SHOWN_STOPS]]
    return ", ".join([*shown, *([f"{len(found) - SHOWN_STOPS} more"] if len(found) > SHOWN_STOPS else [])])


def _place(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("/")
    return topic, int(number)
