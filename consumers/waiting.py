"""Waiting for what is not in the store yet: counted, said aloud, and ended by a timeout."""

import logging
import math
import time
from pathlib import Path
from typing import Final

from tokenmill.errors import StoreError
from tokenmill.store import EraReader

_SAY_AFTER: Final = 5.0
"""Seconds of waiting after which it is said, but for the first time, which is said at once: who waits for what does not
come should not wonder; who has caught up with a stream that flows waits a little for each era, and need not hear it."""
_SAY_EVERY: Final = 60.0

log = logging.getLogger(__name__)


def awaited_era(stream: str, store: Path, number: int, eras: EraReader) -> str:
    """Return what is missing where an era is waited for, behind those that are known, and what to do."""
    known, place = eras.eras, f"of {stream} in {store}"
    if eras.ahead and number >= known:
        return (
            f"era {number} {place}: eras.index has it and eras.jsonl does not, as while a store is copied; copy both "
            "again, or have the copy checked (`tokenmill verify`)"
        )
    if not known:
        return (
            f"the first era {place}: mill workers write eras and the segment worker brings them; check that both "
            "run and are of this version, copy eras.jsonl and eras.index to a store that is a copy"
        )
    return (
        f"era {number} {place}: check that mill and segment worker run and that text flows, close the stream "
        "(`tokenmill close`), name eras that are there"
    )


class StoreWait:
    """How long a reader has waited since it got something."""

    def __init__(self, timeout: float | None, poll_seconds: float) -> None:
        self.waited_seconds = 0.0
        """Time spent waiting, all together."""
        self._timeout = timeout
        self._poll_seconds = poll_seconds
        self._since: float | None = None
        self._said = 0.0
        self._is_new = True
        """Whether it never waited."""

    def end(self) -> None:
        """Note that something came."""
        self._since = None

    def wait(self, what: str) -> None:
        """Sleep until the next look, or until the timeout if that is sooner.

        Raises:
            StoreError: this has been going on for as long as the timeout; with one of 0, there is no sleep at all.

        """
        begun = time.monotonic()
        if self._since is None:
            self._since = begun
            self._said = begun - _SAY_EVERY + (0.0 if self._is_new else _SAY_AFTER)
            self._is_new = False
        left = math.inf if self._timeout is None else self._since + self._timeout - begun
        if left <= 0:
            raise StoreError(
                f"nothing came within {self._timeout} seconds of waiting for {what}, or wait longer (timeout)"
            )
        if begun - self._said >= _SAY_EVERY:
            log.warning("waiting for %s (%.0f seconds so far)", what, begun - self._since)
            self._said = begun
        time.sleep(min(self._poll_seconds, left))
        self.waited_seconds += time.monotonic() - begun
