"""Where the time of one partition goes."""

import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

from .worker_metrics import STAGE_SECONDS

Stage = Literal[
    "resume",
    "halted",
    "idle",
    "fetch",
    "decode",
    "tokenize",
    "pack",
    "dead_letters",
    "publish",
    "append",
    "sync",
    "other",
]
STAGES: Final[Mapping[Stage, str]] = {
    "resume": "finding the place to continue at, or waiting for a directory's lock or a missing block",
    "halted": "standing until a person acts",
    "idle": "nothing to do: all that there is has been taken",
    "fetch": "waiting for records that are there",
    "decode": "records become documents: decoding, splits, steps",
    "tokenize": "documents become ids",
    "pack": "ids become blocks, with their hashes, and messages",
    "dead_letters": "waiting until dead letters are acknowledged",
    "publish": "waiting for room in the queue of messages: Kafka is slower than the mill",
    "append": "checking messages and writing their blocks to segments, sealing full ones",
    "sync": "making a commit durable",
    "other": "between these: waiting for a thread, and bookkeeping",
}
"""All stages, with what happens in them."""


class StageClock:
    """Counts every moment of a partition under one stage, from the first `enter` to `stop`."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Count nothing yet; ``now`` is a clock in seconds."""
        self._now = now
        self._stage: Stage | None = None
        self._since = 0.0
        self._wait: Stage = "fetch"
        self._stopped = False

    def enter(self, stage: Stage) -> None:
        """Count what has passed for the stage until now, and begin another."""
        self._count(self._passed())
        self._stage = None if self._stopped else stage

    def wait(self) -> None:
        """Enter ``fetch`` or ``idle``, as the last `look` found it."""
        self.enter(self._wait)

    def look(self, *, behind: bool) -> None:
        """Count what has passed in this stage, and stay; ``behind``: there are records that were not taken yet.

        In ``other`` nothing is counted yet, for `divide` may still say better where that time went.
        """
        self._wait = "fetch" if behind else "idle"
        if self._stage in {"fetch", "idle"}:
            self._stage = self._wait
        if self._stage != "other":
            self._count(self._passed())

    def divide(self, seconds: Mapping[Stage, float]) -> None:
        """Count ``seconds`` of what has passed in this stage for others, the rest for this one."""
        passed = self._passed()
        if not self._stopped:
            for stage, part in seconds.items():
                STAGE_SECONDS.labels(stage).inc(part)
            self._count(max(0.0, passed - sum(seconds.values())))

    def stop(self) -> None:
        """Count what has passed, and nothing more, whatever is entered later."""
        self._stopped = True
        self._count(self._passed())
        self._stage = None

    def _passed(self) -> float:
        now = self._now()
        passed, self._since = now - self._since, now
        return passed

    def _count(self, seconds: float) -> None:
        if self._stage is not None:
            STAGE_SECONDS.labels(self._stage).inc(seconds)
