"""Where a run continues: the marks that its batches carry, and how they are read back from the topic.

A run numbers its documents from 0, in the order of `tokenmill.app.tools.produce.reading_order`. The number, or the key,
decides the partition, so each partition gets its documents in the order of their numbers. They are sent in batches,
and a batch is in the log as a whole or not at all; its last record carries the mark. So the last mark of a run in a
partition says: of this partition's documents, those up to ``number`` are here, and no other.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import SourceError

from ...kafka.clients import consumer, offsets, read_range
from ...settings import Settings
from .items import Place
from .reading_order import LaneState, State
from .run_notes import NOTHING, Before, Begun, Settled

HEADER: Final = "tokenmill.produce"


class Floor(NamedTuple):
    """A place between two chunks, and what came before it."""

    number: int
    """All documents with lower numbers are in the log, in all partitions."""
    state: State
    """The order just before the document with this number."""
    refused: int = 0
    """How much before it was no document; what was to be a dead letter is one."""
    broken: int = 0
    """How many of these are sources that could not be read to their end."""


class Mark(NamedTuple):
    """What a mark says."""

    run: str
    begun: int
    """When the run began, in Unix milliseconds: runs that were started again on purpose are told apart by it."""
    number: int
    """Of the document in the record that carries the mark."""
    floor: Floor
    """Where the run can be taken up again."""


def encode_mark(mark: Mark) -> bytes:
    """Return the header's value: JSON, which people can read, and short."""
    number, state, refused, broken = mark.floor
    lanes = [[lane.file, lane.place.entry, lane.place.byte] for lane in state.lanes]
    return orjson.dumps([mark.run, mark.begun, mark.number, number, state.turn, lanes, refused, broken])


def decode_mark(value: bytes) -> Mark | None:
    """Return the mark, or None if it is none: anybody may write headers of that name."""
    try:
        run, begun, number, behind, turn, lanes, refused, broken = orjson.loads(value)
        places = tuple(LaneState(_number(file), Place(_number(entry), _number(byte))) for file, entry, byte in lanes)
        floor = Floor(_number(behind), State(_number(turn), places), _number(refused), _number(broken))
        return Mark(str(run), _number(begun), _number(number), floor)
    except (orjson.JSONDecodeError, ValueError, TypeError):
        return None


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


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
    """Return where a run stands that nobody writes for at this moment (`tokenmill.app.tools.produce.sender`).

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
                mark = decode_mark(value or b"") if name == HEADER else None
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
                marks = (decode_mark(value or b"") for name, value in record.headers if name == HEADER)
                if any(mark is not None and mark.run == run for mark in marks):
                    return True
    return False
