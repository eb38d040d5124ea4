"""Connecting to brokers that are away: with pauses that grow, and leaving nothing behind.

aiokafka tries again as soon as somebody wants something, several times a second for each client of a process. Where
connections are refused, that costs little. Where they are accepted and reset at once, as by a proxy or a balancer whose
brokers are away, each costs two sockets, and memory: the error holds the frames that it passed, these hold the
connection with its buffer, and the connection holds the error. Python frees such a cycle when it looks for some, and
here it looks seldom (`tokenmill.app.process`).
"""

import asyncio
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aiokafka.client
from aiokafka.conn import AIOKafkaConnection, create_conn
from aiokafka.errors import KafkaConnectionError

FIRST_PAUSE: Final = 0.1
"""Seconds between the first attempt that failed at an address and the next; doubled each time ..."""
LONGEST_PAUSE: Final = 2.0
"""... up to this: a broker that is back is noticed soon."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Attempts at one address, of which the last failed."""

    attempts: int
    until: float
    """Nobody tries again before."""
    reason: str


class Pauses:
    """Which addresses are left alone for the moment; of all clients of a process together, in any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Leave none alone."""
        self._clock = clock
        self._failed: dict[tuple[str, int], Failed] = {}

    def left(self, host: str, port: int) -> tuple[float, str]:
        """Return for how many seconds an address is still left alone, and why; 0 where it may be tried."""
        failed = self._failed.get((host, port))
        return (max(0.0, failed.until - self._clock()), failed.reason) if failed is not None else (0.0, "")

    def failed(self, host: str, port: int, reason: str) -> None:
        """Take note that an attempt failed. One that began before the last pause did makes it no longer."""
        before = self._failed.get((host, port))
        if before is not None and before.until > self._clock():
            return
        attempts = before.attempts + 1 if before is not None else 1
        pause = min(FIRST_PAUSE * 2 ** min(attempts - 1, 10), LONGEST_PAUSE)
        self._failed[host, port] = Failed(attempts, self._clock() + pause, reason)

    def connected(self, host: str, port: int) -> None:
        """Take note that a broker has answered there."""
        self._failed.pop((host, port), None)


PAUSES: Final = Pauses()


async def connect(host: str, port: int, **options: Any) -> AIOKafkaConnection:
    """Return a connection on which a broker has answered; stands for aiokafka's ``create_conn``.

    While an address is left alone, a client that starts waits, and one that has several brokers to talk to is refused
    at once: it may reach another one.

    Raises:
        OSError, KafkaError: as aiokafka's; what they hold of the attempt is freed.

    """
    pause, reason = PAUSES.left(host, port)
    if pause and options.get("on_close") is not None:
        raise KafkaConnectionError(f"{host}:{port} is not tried for {pause:.1f} s: {reason}")
    await asyncio.sleep(pause)
    try:
        connection = await create_conn(host, port, **options)
    except Exception as error:
        PAUSES.failed(host, port, str(error) or type(error).__name__)
        release(error)
        raise
    PAUSES.connected(host, port)
    return connection


def release(error: BaseException) -> None:
    """Let an error, and those that caused it, hold nothing of the places where they were raised."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


def connect_calmly() -> None:
    """Let all clients of this process connect so."""
    aiokafka.client.create_conn = connect
