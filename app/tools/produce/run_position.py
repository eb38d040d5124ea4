"""Where a run continues: the marks that its batches carry, and how they are read back from the topic.

A run numbers its documents from 0, in the order of `app.sources.reading_order`. The number, or the key,
decides the partition, so each partition gets its documents in the order of their numbers. They are sent in batches,
and a batch is in the log as a whole or not at all; its last record carries the mark. So the last mark of a run in a
partition says: of this partition's documents, those up to ``number`` are here, or were refused, and no other.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import SourceError

from ...kafka.clients import consumer, offsets, read_range
from ...settings import Settings
from ...sources.items import Place
from ...sources.reading_order import LaneState, OrderState
from .run_notes import NOTHING_BEFORE, RunEnd, RunStart, SentBefore

MARK_HEADER: Final = "tokenmill.produce"
FIRST_TAIL: Final = 32
"""Records read at first from a partition's end: the last one has a mark, unless others wrote after the run."""
GROWTH: Final = 8
"""How many times as many are read next, where others have written after the run."""


class RunCheckpoint(NamedTuple):
    """A place between two chunks from which a run can continue, and what came before it."""

    number: int
    """All documents with lower numbers are in the log, in all partitions, or refused by the brokers."""
    state: OrderState
    """The order just before the document with this number."""
    refused: int = 0
    """Refusals before it; their dead letters, if wanted, are acknowledged."""
    broken: int = 0
    """How many of these are sources that could not be read to their end."""
    declined: int = 0
    """How many of these are documents that the brokers refused."""


class BatchMark(NamedTuple):
    """The mark of a batch."""

    run: str
    started_ms: int
    """When the part of the run began, in Unix milliseconds: a run that is sent again on purpose has another one."""
    number: int
    """Of the document in the record that carries the mark."""
    checkpoint: RunCheckpoint
    """Where the run can continue."""


def encode_mark(mark: BatchMark) -> bytes:
    """Return the header's value: JSON, which people can read, and short."""
    number, state, *counts, declined = mark.checkpoint
    lanes = [[lane.file, lane.place.entry, lane.place.byte] for lane in state.lanes]
    counts += [declined] if declined else []  # earlier versions do not know it
    return orjson.dumps([mark.run, mark.started_ms, mark.number, number, state.turn, lanes, *counts])


def decode_mark(value: bytes) -> BatchMark | None:
    """Return the mark, or None if it is none: others may write headers of that name."""
    try:
        run, started_ms, number, behind, turn, lanes, refused, broken, *declined = orjson.loads(value)
        places = tuple(LaneState(_number(file), Place(_number(entry), _number(byte))) for file, entry, byte in lanes)
        counts = map(_number, (refused, broken, *declined))
        checkpoint = RunCheckpoint(_number(behind), OrderState(_number(turn), places), *counts)
        return BatchMark(str(run), _number(started_ms), _number(number), checkpoint)
    except (orjson.JSONDecodeError, ValueError, TypeError):
        return None


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


class RunPosition(NamedTuple):
    """What of a run is in the log."""

    checkpoint: RunCheckpoint
    """Where it can continue."""
    sent: dict[int, int]
    """By partition: number of its last document that is in the log; those before it are there, too, or were refused."""

    @classmethod
    def nothing(cls, sources: int, partitions: int, before: SentBefore = NOTHING_BEFORE) -> "RunPosition":
        """Return the position of a new run, or of a new part: nothing of it is in the log."""
        checkpoint = RunCheckpoint(before.number, OrderState.start(sources), *before[1:])
        return cls(checkpoint, dict.fromkeys(range(partitions), before.number - 1))


async def partition_ends(settings: Settings, topic: str, partitions: int) -> dict[int, int]:
    """Return the end of each partition, what is not committed yet included."""
    names = [TopicPartition(topic, number) for number in range(partitions)]
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        found = await offsets(client, names)
    return {name.partition: end for name, (_, end) in found.items()}


async def read_position(settings: Settings, topic: str, run: str, run_start: RunStart, sources: int) -> RunPosition:
    """Return the position of a run to which no other producer can write (`fenced_producer`).

    Raises:
        SourceError: the topic no longer holds what the run wrote, or was created again.

    """
    position = RunPosition.nothing(sources, len(run_start.offsets), run_start.before)
    marks: dict[int, BatchMark] = {}
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        for number, start in run_start.offsets.items():
            partition = TopicPartition(topic, number)
            mark = await _last_mark(client, partition, start, run=run, started_ms=run_start.started_ms)
            if mark is not None:
                marks[number] = mark
    if not marks:
        return position
    furthest = max((mark.checkpoint for mark in marks.values()), key=lambda checkpoint: checkpoint.number)
    sent = {number: marks[number].number if number in marks else position.sent[number] for number in run_start.offsets}
    return RunPosition(furthest, sent)


async def is_complete(settings: Settings, topic: str, run: str, run_start: RunStart, run_end: RunEnd) -> bool:
    """Return whether all of a part that was noted as complete is still there: no partition lost its end.

    What retention has removed counts as there.
    """
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        for number, start in run_start.offsets.items():
            partition, last, upper = TopicPartition(topic, number), run_end.numbers[number], run_end.ends[number]
            first, end = (await offsets(client, [partition]))[partition]
            if end < upper:
                return False
            if last < run_start.before.number or first >= upper:
                continue
            try:
                mark = await _last_mark(client, partition, start, run=run, started_ms=run_start.started_ms, upper=upper)
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
    start: int,
    *,
    run: str,
    started_ms: int,
    upper: int | None = None,
) -> BatchMark | None:
    """Look for the run's last mark from the end, or ``upper``, back to where the partition ended when the run began."""
    first, end = (await offsets(client, [partition]))[partition]
    advice = "start again with --restart, which sends all documents again"
    if end < start:
        raise SourceError(f"{partition.topic} was created again since this run began: {advice}")
    size = FIRST_TAIL
    upper = end if upper is None else min(end, upper)
    while upper > max(first, start):
        lower = max(first, start, upper - size)
        found = None
        async for record in read_range(client, partition, lower, upper):
            for name, value in record.headers:
                mark = decode_mark(value or b"") if name == MARK_HEADER else None
                if mark is not None and (mark.run, mark.started_ms) == (run, started_ms):
                    found = mark
        if found is not None:
            return found
        upper, size = lower, size * GROWTH
    if first > start:
        raise RetentionError(
            f"{partition.topic}[{partition.partition}] no longer holds what this run wrote: its retention removed it, "
            f"so it cannot be known which documents it had; {advice}"
        )
    return None


async def has_marks(settings: Settings, topic: str, ends: Mapping[int, int], run: str) -> bool:
    """Return whether marks of a run, whenever it began, are among the last records of a partition."""
    async with consumer(settings, isolation_level="read_uncommitted") as client:
        for number, end in ends.items():
            partition = TopicPartition(topic, number)
            first = (await offsets(client, [partition]))[partition][0]
            async for record in read_range(client, partition, max(first, end - FIRST_TAIL), end):
                marks = (decode_mark(value or b"") for name, value in record.headers if name == MARK_HEADER)
                if any(mark is not None and mark.run == run for mark in marks):
                    return True
    return False
