"""Where a run stands, read back from the ends of the topic's partitions."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import SourceError

from ...kafka.clients import consumer, offsets, read_range
from ...settings import Settings
from .marks import HEADER, Floor, Mark, decode
from .order import State
from .register import NOTHING, Before, Begun, Settled

FIRST_TAIL: Final = 32
"""Records read at first from a partition's end: the last one has a mark, where nobody wrote behind the run."""
GROWTH: Final = 8
"""How many times as many are read next, where others have written behind the run."""


class Standing(NamedTuple):
    """What of a run is in the log."""

    floor: Floor
    """Where it can be taken up again."""
    sent: dict[int, int]
    """By partition: the last document that is there; those of the run that are behind the floor are all of up to it."""

    @classmethod
    def nothing(cls, sources: int, partitions: int, before: Before = NOTHING) -> "Standing":
        """Return where a new run stands, or a new part of one."""
        floor = Floor(before.number, State.start(sources), before.refused, before.broken)
        return cls(floor, dict.fromkeys(range(partitions), before.number - 1))


async def partition_ends(settings: Settings, topic: str, partitions: int) -> dict[int, int]:
    """Return the end of each partition, what is not committed yet included."""
    names = [TopicPartition(topic, number) for number in range(partitions)]
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        found = await offsets(client, names)
    return {name.partition: end for name, (_, end) in found.items()}


async def read_standing(settings: Settings, topic: str, run: str, begun: Begun, sources: int) -> Standing:
    """Return where a run stands that nobody writes for at this moment (`tokenmill.app.tools.produce.fence`).

    Raises:
        SourceError: the topic no longer has what would tell.

    """
    standing = Standing.nothing(sources, len(begun.offsets), begun.before)
    marks: dict[int, Mark] = {}
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        for number, start in begun.offsets.items():
            partition = TopicPartition(topic, number)
            mark = await _last_mark(client, partition, start, run=run, milliseconds=begun.milliseconds)
            if mark is not None:
                marks[number] = mark
    if not marks:
        return standing
    furthest = max((mark.floor for mark in marks.values()), key=lambda floor: floor.number)
    sent = {number: marks[number].number if number in marks else standing.sent[number] for number in begun.offsets}
    return Standing(furthest, sent)


async def is_settled(settings: Settings, topic: str, run: str, begun: Begun, settled: Settled) -> bool:
    """Tell whether all of a part is still there, of which that was noted: no partition lost its end, or was made anew.

    What retention has removed was there.
    """
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        for number, start in begun.offsets.items():
            partition, last, upper = TopicPartition(topic, number), settled.numbers[number], settled.ends[number]
            first, end = (await offsets(client, [partition]))[partition]
            if end < upper:
                return False
            if last < begun.before.number or first >= upper:
                continue
            try:
                mark = await _last_mark(client, partition, start, run=run, milliseconds=begun.milliseconds, upper=upper)
            except RetentionError:
                continue
            if mark is None or mark.number < last:
                return False
    return True


class RetentionError(SourceError):
    """A partition no longer holds what a run wrote there, if it wrote anything."""


async def _last_mark(
    client: AIOKafkaConsumer,
    partition: TopicPartition,
    begun: int,
    *,
    run: str,
    milliseconds: int,
    upper: int | None = None,
) -> Mark | None:
    """Look for the run's last mark from the end, or ``upper``, back to where the partition ended when the run began."""
    first, end = (await offsets(client, [partition]))[partition]
    advice = "begin anew with --restart, which sends all documents again"
    if end < begun:
        raise SourceError(f"{partition.topic} was made anew since this run began: {advice}")
    size = FIRST_TAIL
    upper = end if upper is None else min(end, upper)
    while upper > max(first, begun):
        lower = max(first, begun, upper - size)
        found = None
        async for record in read_range(client, partition, lower, upper):
            for name, value in record.headers:
                mark = decode(value or b"") if name == HEADER else None
                if mark is not None and (mark.run, mark.begun) == (run, milliseconds):
                    found = mark
        if found is not None:
            return found
        upper, size = lower, size * GROWTH
    if first > begun:
        raise RetentionError(
            f"{partition.topic}[{partition.partition}] no longer holds what this run wrote: its retention removed it, "
            f"so nobody knows which documents it had; {advice}"
        )
    return None


async def has_marks(settings: Settings, topic: str, ends: Mapping[int, int], run: str) -> bool:
    """Tell whether a run's marks are among the last records of a partition, whenever it began."""
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        for number, end in ends.items():
            partition = TopicPartition(topic, number)
            first = (await offsets(client, [partition]))[partition][0]
            async for record in read_range(client, partition, max(first, end - FIRST_TAIL), end):
                marks = (decode(value or b"") for name, value in record.headers if name == HEADER)
                if any(mark is not None and mark.run == run for mark in marks):
                    return True
    return False
