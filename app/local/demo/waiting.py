"""Waiting for the service, not for ever."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from tokenmill.errors import TokenMillError

from ...supervisor import Status

LOOK_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 120.0
"""Without any progress. A restart of everything takes 20."""
SETTLED_SECONDS: Final = 1.5
"""Longer than from one heartbeat and one look at the brokers to the next."""


async def until_running(look: Callable[[], Status]) -> None:
    """Wait until every partition has a worker.

    Raises:
        TokenMillError: it does not come to that.

    """

    def running(status: Status) -> bool:
        return bool(status.partitions) and all(partition.worker for partition in status.partitions)

    await _until(look, running, 0.0)


async def until_settled(look: Callable[[], Status]) -> None:
    """Wait until all that the brokers hold is milled and stored; the last record of each partition is a flush.

    Raises:
        TokenMillError: it does not come to that.

    """
    await _until(look, lambda status: status.settled, SETTLED_SECONDS)


async def _until(look: Callable[[], Status], condition: Callable[[Status], bool], lasting: float) -> None:
    """Wait until the condition has held for ``lasting`` seconds; the patience begins anew with any progress."""
    progressed = time.monotonic()
    held_since: float | None = None
    seen: object = None
    while True:
        status, now = look(), time.monotonic()
        held_since = (held_since if held_since is not None else now) if condition(status) else None
        if held_since is not None and now - held_since >= lasting:
            return
        if (progress := (status.lag, status.stored)) != seen:
            progressed, seen = now, progress
        if now - progressed > LONGEST_SECONDS:
            raise TokenMillError(
                f"the service has made no progress for {LONGEST_SECONDS:.0f} s, {status.lag} records wait: "
                "its logs, in the state's folder logs/, say why"
            )
        await asyncio.sleep(LOOK_SECONDS)
