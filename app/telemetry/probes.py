"""Whether a process lives, and whether it can do its work: for those who restart it, and for those who wait for it."""

import time
from collections.abc import Callable, Mapping
from typing import Final

from .status_document import halted_words

STALLED_SECONDS: Final = 20.0
"""An event loop that has not turned for as long is stuck: the same patience as the supervisor's with a worker."""


class Probes:
    """Answers from any thread; each answer is what is wrong, or None."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Be healthy from now on, and not ready."""
        self._not_ready: str | None = "the process has just started"
        self._halted: str | None = None
        self._now = now
        self._turned = now()

    def turn(self, not_ready: str | None, halted: Mapping[str, str] | None = None) -> None:
        """Take note that the event loop turns, and why no work can be done now; call this in it, again and again.

        ``halted`` is what stands until a person acts, and why.
        """
        self._not_ready = not_ready
        self._halted = halted_words(halted or {})
        self._turned = self._now()

    def unhealthy(self) -> str | None:
        """Return what is wrong with the process itself, if anything: only a new start can mend it."""
        still = self._now() - self._turned
        return f"the event loop has stood still for {still:.0f} s" if still > STALLED_SECONDS else None

    def not_ready(self, *, strict: bool = False) -> str | None:
        """Return why no work can be done now, if so; it may pass. If ``strict``, also which part of it stands."""
        return self.unhealthy() or self._not_ready or (self._halted if strict else None)
