"""Rates over the last few seconds."""

from collections import deque
from collections.abc import Mapping
from typing import Final, Literal

from ..supervisor import ChainStatus

WINDOW_SECONDS: Final = 5.0
"""Long enough that a number can be read, short enough that a stop is seen."""


class Rates:
    """Remembers how far chains were; knows no clock."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._seen: deque[tuple[float, Mapping[str, ChainStatus]]] = deque()

    def add(self, now: float, chains: Mapping[str, ChainStatus]) -> None:
        """Take the state at ``now``, in seconds on a clock that only rises."""
        self._seen.append((now, chains))
        while len(self._seen) > 2 and now - self._seen[1][0] >= WINDOW_SECONDS:  # noqa: PLR2004 - two make a rate
            self._seen.popleft()

    def per_second(self, name: Literal["documents", "bytes", "tokens"]) -> float:
        """Return how fast the chains' sum grew lately; what a chain had when it was first heard of does not count."""
        if not self._seen:
            return 0.0
        (first, before), (last, now) = self._seen[0], self._seen[-1]
        # A chain that nobody has spoken of yet has no documents: it would seem to make them all at once.
        known = [key for key, chain in before.items() if chain.documents]
        grown: int = sum(getattr(now[key], name) - getattr(before[key], name) for key in known if key in now)
        return grown / (last - first) if last > first else 0.0
