"""`tokenmill`, killed at a step: ``FAILPOINT="tokens:after:3:KILL" python -m tests.faults.failpoints mill``.

With ``STOP`` instead it stands there until somebody sends it SIGCONT. With ``STALL=file`` its messages of blocks wait
while the file exists, and its fetches are small: a few are little beside a backlog that a test can afford.

Messages to Kafka share their system calls with heartbeats, so nothing outside the process can tell them apart. Here
the functions that take the steps are wrapped before anything runs. Production code has nothing of this.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import isasyncgenfunction
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from tokenmill.app.cli import main
from tokenmill.app.mill import era_closing as closing
from tokenmill.app.mill import raw_partition
from tokenmill.app.mill.era_closing import Extents
from tokenmill.app.milling.partition_mill import PartitionMill
from tokenmill.app.worker import transport

VARIABLE: Final = "FAILPOINT"
STALL: Final = "STALL"
FETCH_BYTES: Final = 1 << 20  # the most that a fetch of a stalled process brings of a partition
SETTLING: Final = ("genesis", "tokenizer")  # what happens once in a stream's life
RESUMING: Final = ("read tail", "start")  # what happens once for each partition that a worker gets
MILLING: Final = ("mill", "dead letter", "tokens", "carry", "commit")
"""What happens again and again: the steps that a message takes, and the offset that is committed for people."""
SKIPPING: Final = ("skip",)  # what happens where a person puts a record on the skip list
CLOSING: Final = ("eras", "extents", "era")
"""What closing an era takes: the eras are read, then how far the blocks reach; then the era is written."""
SIDES: Final = ("before", "after")


class Failpoint(NamedTuple):
    step: str
    side: str
    nth: int  # how often the step is begun until then
    signal: str = "KILL"  # what happens then; the other is ``STOP``

    def __str__(self) -> str:
        return ":".join(map(str, self))


Done = Callable[[], None]
Step = Callable[[str], Done]  # told that a step begins; what it returns is to be called when the step is done


def counted(point: Failpoint) -> Step:
    """Return what sends this process the signal when the point is reached."""
    left = point.nth

    def end() -> None:
        os.kill(os.getpid(), getattr(signal, f"SIG{point.signal}"))
        while point.signal == "KILL":  # it is on its way, perhaps to another thread
            pass

    def begin(step: str) -> Done:
        nonlocal left
        if step == point.step:
            left -= 1
            if not left and point.side == "after":
                return end
            if not left:
                end()
        return lambda: None

    return begin


def step_of(topic: str, value: bytes | None, key: bytes | None) -> str:
    if topic.startswith("control."):
        return (key or b"").partition(b"/")[0].decode()
    if topic.endswith(".dead-letters"):
        return "dead letter"
    return "tokens" if value else "carry"


def arm(begin: Step) -> None:
    send = AIOKafkaProducer.send

    @wraps(send)
    async def counted_send(self: Any, topic: str, value: Any = None, key: Any = None, *rest: Any, **named: Any) -> Any:
        done = begin(step_of(topic, value, key))
        acknowledged = await send(self, topic, value, key, *rest, **named)
        acknowledged.add_done_callback(lambda _: done())  # the first to hear of it
        return acknowledged

    AIOKafkaProducer.send = counted_send
    _wrap(AIOKafkaConsumer, "commit", "commit", begin)
    _wrap(raw_partition, "read_tail", "read tail", begin)
    _wrap(transport.BatchConsumer, "start_partition", "start", begin)
    _wrap(closing, "read_eras", "eras", begin)
    _wrap(Extents, "look", "extents", begin)
    feed = PartitionMill.feed

    @wraps(feed)
    def counted_feed(self: PartitionMill, records: Sequence[Any], looked: Any = None) -> Any:
        done = begin("mill")
        milled = feed(self, records, looked)
        done()
        return milled

    PartitionMill.feed = counted_feed  # type: ignore[method-assign]


def _wrap(owner: Any, name: str, step: str, begin: Step) -> None:
    """Count the calls of a coroutine function, or of an asynchronous generator: its step is to come to the end."""
    function = getattr(owner, name)

    @wraps(function)
    async def awaited(*args: Any, **named: Any) -> Any:
        done = begin(step)
        answer = await function(*args, **named)
        done()
        return answer

    @wraps(function)
    async def iterated(*args: Any, **named: Any) -> Any:
        done = begin(step)
        async for item in function(*args, **named):
            yield item
        done()

    setattr(owner, name, iterated if isasyncgenfunction(function) else awaited)


def fetch_little(partitions: int) -> int:
    return FETCH_BYTES


def stall(while_exists: Path) -> None:
    send = AIOKafkaProducer.send

    @wraps(send)
    async def stalled(self: Any, topic: str, *rest: Any, **named: Any) -> Any:
        while topic.startswith("tokens.") and while_exists.exists():  # noqa: ASYNC110, ASYNC240 - a test's switch
            await asyncio.sleep(0.1)
        return await send(self, topic, *rest, **named)

    AIOKafkaProducer.send = stalled
    transport.fetch_share = fetch_little


if __name__ == "__main__":
    if VARIABLE in os.environ:
        step, side, nth, what = os.environ[VARIABLE].split(":")
        arm(counted(Failpoint(step, side, int(nth), what)))
    if STALL in os.environ:
        stall(Path(os.environ[STALL]))
    main()
