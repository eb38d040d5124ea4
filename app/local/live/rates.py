"""Rates over the last few seconds."""

from collections import deque
from collections.abc import Mapping
from typing import Final, Literal

WINDOW_SECONDS: Final = 5.0
"""Long enough that a number can be read, short enough that a stop is seen."""

Counted = Literal["documents", "bytes", "tokens", "blocks"]
Counts = Mapping[str, Mapping[str, float]]
"""What the running process of each worker has counted since it began."""


class Rates:
    """Remembers what workers had counted; knows no clock."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._seen: deque[tuple[float, Counts]] = deque()

    def add(self, now: float, counts: Counts) -> None:
        """Take the state at ``now``, in seconds on a clock that only rises."""
        self._seen.append((now, counts))
        while len(self._seen) > 2 and now - self._seen[1][0] >= WINDOW_SECONDS:  # noqa: PLR2004 - two make a rate
            self._seen.popleft()

    def per_second(self, name: Counted, worker: str | None = None) -> float:
        """Return how fast a worker, or all together, counted lately; 0 before there were two looks.

        Counts begin at 0 with a worker's process, so all that a new one has counted is work of these seconds: a run
        that is over before the second look has a rate as well.
        """
        if not self._seen:
            return 0.0
        (first, before), (last, now) = self._seen[0], self._seen[-1]
        workers = now if worker is None else [worker]
        grown = sum(_grown(before.get(w, {}).get(name, 0), now.get(w, {}).get(name, 0)) for w in workers)
        return grown / (last - first) if last > first else 0.0


def _grown(before: float, now: float) -> float:
    """Return by how much a count grew; one that fell is that of another process, which began at 0."""
    return now if now < before else now - before
