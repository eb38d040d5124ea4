"""Partitions that nobody works on: those without an owner, and those whose owner stands still."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from .limits import Limits


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that only a new start mends."""

    workers: tuple[str, ...]
    """The workers to start again."""
    reason: str


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is to be seen at one moment; partitions are named ``topic/number``."""

    ends: Mapping[str, int]
    """The end of each partition that somebody of ours should work on."""
    owners: Mapping[str, str]
    """Its worker, where it has one."""
    partitions: Mapping[str, Mapping[str, Any]]
    """What its worker last said of it."""
    elsewhere: AbstractSet[str]
    """Partitions that members of the group which are not ours own."""


class Watchdog:
    """Looks again and again, and names faults; knows no clock."""

    def __init__(self, limits: Limits) -> None:
        """Have seen nothing yet."""
        self._limits = limits
        self._unowned: dict[str, float] = {}
        self._still: dict[str, tuple[object, float]] = {}

    def look(self, now: float, scene: Scene, ready: tuple[str, ...]) -> list[Fault]:
        """Return the faults at ``now`` (seconds on any clock that only rises).

        ``ready`` are the workers that could own these partitions. Where there is none, no partition is blamed on
        anyone. A fault is named once; its time then begins anew.
        """
        faults = [*self._look_for_unowned(now, scene, ready), *self._look_for_still(now, scene)]
        for name in [name for name in self._still if name not in scene.owners or name not in scene.ends]:
            del self._still[name]  # while no broker answers there are no ends, and nobody is to blame
        return faults

    def _look_for_unowned(self, now: float, scene: Scene, ready: tuple[str, ...]) -> list[Fault]:
        unowned = [name for name in scene.ends if name not in scene.owners and name not in scene.elsewhere]
        self._unowned = {name: self._unowned.get(name, now) for name in unowned if ready}
        overdue = [name for name, since in self._unowned.items() if now - since > self._limits.unowned]
        if not overdue:
            return []
        self._unowned.clear()
        return [Fault(ready, f"nobody has owned {', '.join(overdue)} for {self._limits.unowned:.0f} s")]

    def _look_for_still(self, now: float, scene: Scene) -> list[Fault]:
        faults = []
        for name, end in scene.ends.items():
            worker = scene.owners.get(name)
            if worker is None:
                continue
            said = scene.partitions.get(name, {})
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
                faults.append(Fault((worker,), f"{name} stands still at {said.get('position')} of {end}"))
        return faults
