"""`tokenmill`, killed at a step: ``FAILPOINT="tokens:after:3:KILL" python -m tests.faults.failpoints mill``.

With ``STOP`` instead it stands there until somebody sends it SIGCONT.

Messages to Kafka share their system calls with heartbeats, so nothing outside the process can tell them apart. Here
the functions that take the steps are wrapped before anything runs. Production code has nothing of this.
"""

import os
import signal
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import isasyncgenfunction
from typing import Any, Final, NamedTuple, NoReturn

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tokenmill.app.cli import main
from tokenmill.app.mill import era_closing as closing
from tokenmill.app.mill import raw_partition
from tokenmill.app.mill.era_closing import Extents
from tokenmill.app.milling.partition_mill import PartitionMill
from tokenmill.app.worker import transport

VARIABLE: Final = "FAILPOINT"
SETTLING: Final = ("genesis", "tokenizer")
"""What happens once in a stream's life."""
RESUMING: Final = ("read tail", "start")
"""What happens once for each partition that a worker gets."""
MILLING: Final = ("mill", "dead letter", "tokens", "carry", "commit")
"""What happens again and again: the steps that a message takes, and the offset that is committed for people."""
SKIPPING: Final = ("skip",)
"""What happens where a person puts a record on the skip list."""
CLOSING: Final = ("eras", "extents", "era")
"""What closing an era takes: the eras are read, then how far the blocks reach; then the era is written."""
SIDES: Final = ("before", "after")


class Failpoint(NamedTuple):
    """A moment in a process's life."""

    step: str
    side: str
    nth: int
    """How often the step is begun until then."""
    signal: str = "KILL"
    """What happens then; the other is ``STOP``."""

    def __str__(self) -> str:
        return ":".join(map(str, self))


class _Countdown:
    """Kills this process when a step is taken for the nth time."""

    def __init__(self, point: Failpoint) -> None:
        self._point = point
        self._left = point.nth

    def step(self, name: str) -> Callable[[], None]:
        """Count a step that begins, and die before it if need be; call what is returned when it is done."""
        if name != self._point.step:
            return _nothing
        self._left -= 1
        if self._left:
            return _nothing
        end = _die if self._point.signal == "KILL" else _stop
        if self._point.side == "after":
            return end
        end()
        return _nothing


def _nothing() -> None:
    """Live on."""


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    while True:  # the signal is on its way, perhaps to another thread
        pass


def _stop() -> None:
    """Stand still until somebody lets us go on."""
    os.kill(os.getpid(), signal.SIGSTOP)


def step_of(topic: str, value: bytes | None, key: bytes | None) -> str:
    """Return which step it is to send this record."""
    if topic.startswith("control."):
        return (key or b"").partition(b"/")[0].decode()
    if topic.endswith(".dead-letters"):
        return "dead letter"
    return "tokens" if value else "carry"


def arm(point: Failpoint) -> None:
    """Wrap what takes the steps."""
    countdown = _Countdown(point)
    send = AIOKafkaProducer.send

    @wraps(send)
    async def counted_send(self: Any, topic: str, value: Any = None, key: Any = None, *rest: Any, **named: Any) -> Any:
        done = countdown.step(step_of(topic, value, key))
        acknowledged = await send(self, topic, value, key, *rest, **named)
        acknowledged.add_done_callback(lambda _: done())  # the first to hear of it
        return acknowledged

    AIOKafkaProducer.send = counted_send
    _wrap(AIOKafkaConsumer, "commit", "commit", countdown)
    _wrap(raw_partition, "read_tail", "read tail", countdown)
    _wrap(transport.BatchConsumer, "start_partition", "start", countdown)
    _wrap(closing, "read_eras", "eras", countdown)
    _wrap(Extents, "look", "extents", countdown)
    feed = PartitionMill.feed

    @wraps(feed)
    def counted_feed(self: PartitionMill, records: Sequence[Any], looked: Any = None) -> Any:
        done = countdown.step("mill")
        milled = feed(self, records, looked)
        done()
        return milled

    PartitionMill.feed = counted_feed  # type: ignore[method-assign]


def _wrap(owner: Any, name: str, step: str, countdown: _Countdown) -> None:
    """Count the calls of a coroutine function, or of an asynchronous generator: its step is to come to the end."""
    function = getattr(owner, name)

    @wraps(function)
    async def counted(*args: Any, **named: Any) -> Any:
        done = countdown.step(step)
        answer = await function(*args, **named)
        done()
        return answer

    @wraps(function)
    async def counted_items(*args: Any, **named: Any) -> Any:
        done = countdown.step(step)
        async for item in function(*args, **named):
            yield item
        done()

    setattr(owner, name, counted_items if isasyncgenfunction(function) else counted)


if __name__ == "__main__":
    if VARIABLE in os.environ:
        step, side, nth, what = os.environ[VARIABLE].split(":")
        arm(Failpoint(step, side, int(nth), what))
    main()
