"""Reading the end of a token partition, to know where its chain continues (the pure part is `tokenmill.resume`)."""

from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.acceptance import Acceptor
from tokenmill.chain import genesis_hash
from tokenmill.cursor import NO_RECORD, record_crc
from tokenmill.errors import DamagedError, GapError, SourceError
from tokenmill.genesis import Genesis
from tokenmill.message import HEADER_NAME, Message, decode_message
from tokenmill.milling import genesis_point
from tokenmill.recipe import Recipe
from tokenmill.resume import ResumePoint, Run, RunFinder

from .kafka import offsets, read_range

FIRST_TAIL: Final = 8
"""Messages read at first: more than writers have in flight, so that a zombie's last words do not hide the run."""
LONGEST_TAIL: Final = 128
"""Messages after which the whole partition is read instead: 32 MiB of the usual 256 KiB."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Tail:
    """Where a chain continues, and the end of the token partition when this was found out."""

    point: ResumePoint
    end_offset: int
    """Every later acknowledgement must lie at or above it; below means that the topic lost its tail."""


def message_of(record: object) -> Message:
    """Return the message that a Kafka record on a token topic is.

    Raises:
        DamagedError: it is none of TokenMill's; names topic, partition and offset.

    """
    headers = dict(getattr(record, "headers", ()))
    try:
        return decode_message(headers.get(HEADER_NAME, b""), getattr(record, "value", None))
    except DamagedError as error:
        where = f"{getattr(record, 'topic', '?')}[{getattr(record, 'partition', '?')}]"
        raise DamagedError(f"offset {getattr(record, 'offset', '?')} of {where}: {error}") from error


async def read_tail(client: AIOKafkaConsumer, genesis: Genesis, tokens: TopicPartition, raw: TopicPartition) -> Tail:
    """Find where the chain on a token partition continues.

    Takes the furthest cursor of the contiguous run at the end; where the source no longer reaches it, the run after
    a gap. Reads more, in the end everything, where the last messages do not settle it. ``client`` is used by nobody
    else meanwhile.

    Raises:
        GapError: blocks are missing and the source no longer holds their text.
        SourceError: the source is not the one that the chain was made of, or no longer reaches the cursor.
        DifferenceError, DamagedError, FingerprintError: the token topic contradicts itself or the stream.

    """
    first, end = (await offsets(client, [tokens]))[tokens]
    source_first, source_end = (await offsets(client, [raw]))[raw]
    found, whole = await _runs(client, genesis.recipe, tokens, first, end)
    if not found or (whole and found[0].first):  # the chain's beginning was never here: later blocks do not tell it
        start = genesis.start(raw.partition)
        point = genesis_point(start, genesis_hash(genesis.recipe.fingerprint, raw.partition))
        found = [Run(point, 0), *found]
    for run in found:
        if source_first <= run.point.cursor.next_offset:
            if run is not found[0]:
                log.warning("resuming after a gap that the source cannot fill", topic=tokens.topic, block=run.first)
            await check_source(client, raw, run.point, source_first, source_end)
            return Tail(run.point, end)
    wanted = found[-1].point.cursor.next_offset
    if len(found) > 1:
        gap = f"{found[0].point.cursor.block} to {found[1].first - 1}"
        raise GapError(
            f"{tokens.topic}[{tokens.partition}] lacks blocks {gap}, and {raw.topic} starts at {source_first}: their "
            "text is gone; begin a new stream with stream_suffix"
        )
    raise SourceError(
        f"{raw.topic}[{raw.partition}] starts at offset {source_first}, the chain needs {wanted}: records {wanted} to "
        f"{source_first - 1} were removed before they were milled; raise the topic's retention, and begin a new stream "
        "with stream_suffix"
    )


async def _runs(
    client: AIOKafkaConsumer, recipe: Recipe, tokens: TopicPartition, first: int, end: int
) -> tuple[list[Run], bool]:
    """Read ever more of the tail until it is one run; with the whole partition read, return what runs there are.

    Tells as well whether what was read is all that the partition ever held.
    """
    new_acceptor = partial(_acceptor, recipe, tokens.partition)
    size = FIRST_TAIL
    while True:
        start = max(first, end - size) if size <= LONGEST_TAIL else first
        whole = start == first == 0
        finder = RunFinder(new_acceptor, whole=whole)
        async for record in read_range(client, tokens, start, end):
            finder.add(message_of(record))
        found = finder.runs()
        if start == first or len(found) == 1:
            return found, whole
        size *= 2


def _acceptor(recipe: Recipe, partition: int, block: int, chain: bytes | None) -> Acceptor:
    return Acceptor(recipe.fingerprint, partition, recipe.block_bytes, block=block, chain=chain)


async def check_source(
    client: AIOKafkaConsumer, raw: TopicPartition, point: ResumePoint, source_first: int, source_end: int
) -> None:
    """Check that the record that the cursor remembers is still there, unchanged, if the log still reaches it.

    ``source_first`` and ``source_end`` are the range of offsets that the log holds.

    Raises:
        SourceError: it is not, or the log ends before the cursor.

    """
    cursor = point.cursor
    where = f"{raw.topic}[{raw.partition}]"
    advice = "the topic was deleted, recreated or rewritten; begin a new stream with stream_suffix"
    if source_end < cursor.next_offset:
        raise SourceError(f"{where} ends at offset {source_end}, the chain has passed {cursor.next_offset}: {advice}")
    if cursor.last_offset == NO_RECORD or cursor.last_offset < source_first:
        return
    async for record in read_range(client, raw, cursor.last_offset, cursor.last_offset + 1):
        if record_crc(record.key, record.value) == cursor.last_crc and record.timestamp == cursor.last_timestamp:
            return
    raise SourceError(f"{where} no longer holds at offset {cursor.last_offset} what the chain was made of: {advice}")
