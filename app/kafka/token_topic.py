"""Reading token topics: records as messages, offering them to a chain, finding a block, and the last messages.

Also what any topic has: the ranges of its partitions, and single records.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.documents import SourceRecord
from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, InputError, MovedError, StrayError
from tokenmill.reading import FIRST_TAIL, Acceptor, Dropped, Gap, Tail, Taken, find_tail, place_below
from tokenmill.wire.chain import roll
from tokenmill.wire.message import HEADER_NAME, Message, decode_message

from ..settings import Settings
from .clients import OPEN_SECONDS, consumer, offsets, read_batches, read_range
from .cluster import ends_of
from .control_log import IgnoreList
from .control_topic import Settled, require_topic

TOKENS_PREFIX: Final = "tokens."
REFUSALS: Final = (DamagedError, DifferenceError, FingerprintError)
"""What a reader raises over a message that it can never take."""


def message_of(record: SourceRecord, tokens: TopicPartition) -> Message:
    """Return the message in a record of the token partition ``tokens``; raises StrayError where it holds none."""
    try:
        return _decoded(record)
    except DamagedError as error:
        raise refused(error, tokens, record.offset) from error


def readable(record: SourceRecord, fingerprint: bytes | None = None) -> Message | None:
    """Return the message that a record is, None if it is none, or another stream's than the one of ``fingerprint``."""
    try:
        message = _decoded(record)
    except DamagedError:
        return None
    return message if fingerprint in {None, message.fingerprint} else None


def _decoded(record: SourceRecord) -> Message:
    return decode_message(dict(record.headers).get(HEADER_NAME) or b"", record.value)


def refused(error: Exception, tokens: TopicPartition, offset: int) -> Exception:
    """Return a `StrayError`, or again a `DifferenceError`, that says as well at which offset, and what to do."""
    place = f"{tokens.topic} {tokens.partition} {offset}"
    what = str(error).rstrip(".")
    text = (
        f"offset {offset} of {tokens.topic}[{tokens.partition}]: {what}. What is there can be seen with "
        f"`tokenmill inspect message {place}`; if it is not the mill's, `tokenmill ignore {place}` lets all readers "
        'pass it over, and they go on by themselves (docs/reliability.md, "Foreign messages")'
    )
    return DifferenceError(text) if isinstance(error, DifferenceError) else StrayError(text)


def offered(
    acceptor: Acceptor, record: SourceRecord, tokens: TopicPartition, ignored: IgnoreList
) -> tuple[Message, Taken | Dropped | Gap] | None:
    """Offer a record to a chain; return its message and the verdict, None for one that is passed over (`ignored`).

    The chain is asked first, and the list only about what it does not take: so no list changes which blocks are taken.
    Raises StrayError or DifferenceError where the chain can never take it; names the offset.
    """
    try:
        message = _decoded(record)
        verdict = acceptor.offer(message)
    except REFUSALS as error:
        if ignored.names(tokens.partition, record):
            return None
        raise refused(error, tokens, record.offset) from error
    if isinstance(verdict, Gap) and ignored.names(tokens.partition, record):
        return None
    return message, verdict


async def record_at(client: AIOKafkaConsumer, tokens: TopicPartition, start: int, end: int) -> SourceRecord | None:
    """Return the first record at or after ``start``; None where there is none before ``end``."""
    return await anext(read_range(client, tokens, start, end), None)


async def message_at(
    client: AIOKafkaConsumer, tokens: TopicPartition, fingerprint: bytes, span: tuple[int, int]
) -> Message | None:
    """Return the first message within ``span`` of the stream with this fingerprint; None where there is none."""
    async for record in read_range(client, tokens, *span):
        if (message := readable(record, fingerprint)) is not None:
            return message
    return None


async def offset_before(
    client: AIOKafkaConsumer, tokens: TopicPartition, fingerprint: bytes, block: int, span: tuple[int, int]
) -> int:
    """Return an offset of ``span`` from which on to read for a block: its message is not below it.

    That holds where numbers rise with offsets, as they nearly always do: where writers wrote blocks again, who misses
    the block reads from the start of ``span``.
    """
    return await place_below(span, block, lambda offset: message_at(client, tokens, fingerprint, (offset, span[1])))


async def message_with(
    client: AIOKafkaConsumer, tokens: TopicPartition, fingerprint: bytes, block: int, span: tuple[int, int]
) -> SourceRecord | None:
    """Return the message of ``span`` with a block: searched by number; where these do not rise, by reading all."""
    first, end = span
    low = await offset_before(client, tokens, fingerprint, block, span)
    for start, stop in ((low, min(low + 1, end)), (first, end)):
        async for record in read_range(client, tokens, start, stop):
            message = readable(record, fingerprint)
            if message is not None and message.first <= block < message.end:
                return record
    return None


async def chain_after(
    client: AIOKafkaConsumer, tokens: TopicPartition, fingerprint: bytes, block: int, span: tuple[int, int]
) -> bytes | None:
    """Return the chain hash after a block, by the message of ``span`` that holds it; None where none does."""
    record = await message_with(client, tokens, fingerprint, block, span)
    if record is None:
        return None
    message = message_of(record, tokens)
    return roll(message.before, message.tokens, message.entries)[block - message.first]


async def last_messages(
    client: AIOKafkaConsumer, tokens: TopicPartition, settled: Settled | None = None
) -> list[Message]:
    """Return a partition's last messages, at most `FIRST_TAIL`, no foreign or ignored ones; alone with ``client``."""
    first, end = (await offsets(client, [tokens]))[tokens]
    fingerprint = None if settled is None else settled.genesis.recipe.fingerprint
    ignored, size = IgnoreList() if settled is None else settled.control.ignored, FIRST_TAIL
    while True:
        start = max(first, end - size)
        found = [
            message
            async for record in read_range(client, tokens, start, end)
            if not ignored.names(tokens.partition, record) and (message := readable(record, fingerprint)) is not None
        ]
        if found or start == first:
            return found[-FIRST_TAIL:]
        size *= 8  # none of the last ones is a message of ours


def furthest(messages: Sequence[Message]) -> Message | None:
    """Return the message with the furthest cursor; None where there is none."""
    return max(messages, key=lambda message: message.cursor.place, default=None)


async def published_head(
    client: AIOKafkaConsumer, tokens: TopicPartition, settled: Settled | None = None
) -> Message | None:
    """Return the message with the furthest cursor among the `last_messages` on a token partition."""
    return furthest(await last_messages(client, tokens, settled))


log = structlog.get_logger(__name__)


class KafkaLogs:
    """A chain's token partition and raw partition, read with one client (`tokenmill.reading.ChainLogs`)."""

    def __init__(
        self, client: AIOKafkaConsumer, tokens: TopicPartition, raw: TopicPartition, ignored: IgnoreList | None = None
    ) -> None:
        """Read with ``client``, which only this reader uses meanwhile; messages that are ``ignored`` are left out."""
        self.last_offset = -1
        """Of the message that was read last, for refusals of it."""
        self.tokens = f"{tokens.topic}[{tokens.partition}]"
        self.source = f"{raw.topic}[{raw.partition}]"
        self._client, self._tokens, self._raw = client, tokens, raw
        self._ignored = IgnoreList() if ignored is None else ignored

    async def token_bounds(self) -> tuple[int, int]:
        """Return the first offset that the token partition holds, and the one after its last."""
        return (await offsets(self._client, [self._tokens]))[self._tokens]

    async def source_bounds(self) -> tuple[int, int]:
        """Return the same of the raw partition."""
        return (await offsets(self._client, [self._raw]))[self._raw]

    async def messages(self, start: int, end: int) -> AsyncIterator[Message]:
        """Yield the messages of the token partition at the offsets ``[start, end)``; raises as `ChainLogs` says."""
        async for record in read_range(self._client, self._tokens, start, end):
            if not self._ignored.names(self._tokens.partition, record):
                self.last_offset = record.offset
                yield message_of(record, self._tokens)

    async def record(self, offset: int) -> SourceRecord | None:
        """Return the raw partition's record at an offset; None where there is none."""
        return await record_at(self._client, self._raw, offset, offset + 1)

    def records(self, start: int, end: int) -> AsyncIterator[Sequence[SourceRecord]]:
        """Yield the raw partition's records at the offsets ``[start, end)``; raises as `ChainLogs` says."""
        return read_batches(self._client, self._raw, start, end)


async def read_tail(client: AIOKafkaConsumer, settled: Settled, tokens: TopicPartition, raw: TopicPartition) -> Tail:
    """Find where a chain continues, as `find_tail`, without ignored messages; alone with ``client`` meanwhile."""
    logs = KafkaLogs(client, tokens, raw, settled.control.ignored)
    try:
        tail = await find_tail(logs, settled.genesis, raw.partition)
    except REFUSALS as error:
        if isinstance(error.__cause__, REFUSALS):  # the message names the place already
            raise
        raise refused(error, tokens, logs.last_offset) from error
    if tail.gap is not None:
        log.warning("resuming after a gap that the source cannot fill", topic=tokens.topic, block=tail.gap[1])
    return tail


def _ours(record: SourceRecord, tokens: TopicPartition, fingerprint: bytes) -> Message:
    message = message_of(record, tokens)
    if message.fingerprint != fingerprint:
        raise refused(StrayError("it is a message of another stream"), tokens, record.offset)
    return message


async def messages_between(
    settings: Settings,
    tokens: TopicPartition,
    settled: Settled,
    start: int,
    end: int,
    *,
    wait: Callable[[StrayError | None], None],
) -> Sequence[tuple[int, Message]]:
    """Return what is left of a token partition at ``[start, end)``, with offsets; nothing where it ends before ``end``.

    A transaction that somebody has open there is waited for: ``wait`` is called with it, and with None after that.
    Raises StrayError: what is there is no message of the stream's, and BrokerError where no broker answers.
    """
    async with consumer(settings) as client:
        log_end, stable = (await ends_of(client, [tokens]))[tokens]
        while stable < end <= log_end:
            text = (
                f"a transaction that is not the mill's is open at offset {stable} of {tokens.topic}[{tokens.partition}]"
                ": this partition goes on when it ends or is ended (`kafka-transactions.sh`), at the latest after its "
                "time-out; let only mills write to that topic"
            )
            wait(StrayError(text))
            await asyncio.sleep(OPEN_SECONDS)
            log_end, stable = (await ends_of(client, [tokens]))[tokens]
        wait(None)
        first, _ = (await offsets(client, [tokens]))[tokens]
        try:
            return [
                (record.offset, _ours(record, tokens, settled.genesis.recipe.fingerprint))
                async for record in read_range(client, tokens, max(first, start), end)
                if not settled.control.ignored.names(tokens.partition, record)
            ]
        except MovedError:
            return ()


async def topic_ranges(client: AIOKafkaConsumer, *topics: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return, for each partition of topics, the offset of its first record and the one after its last."""
    counts = {topic: await require_topic(client, topic) for topic in topics}
    return await offsets(client, [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)])


async def record_of(client: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> SourceRecord | None:
    """Return the record at an offset; None where the topic holds none there (any more)."""
    try:
        record = await record_at(client, partition, offset, offset + 1)
    except MovedError:
        return None
    return record if record is None or record.offset == offset else None


async def require_offset(client: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> None:
    """Check that an offset is within what a partition holds; raises InputError where it is not, or has none."""
    topic, number = partition
    spans = await topic_ranges(client, topic)
    if partition not in spans:
        raise InputError(f"{topic} has the partitions 0 to {len(spans) - 1}, not {number}")
    first, end = spans[partition]
    if not first <= offset < end:
        raise InputError(f"{topic}[{number}] holds no record at offset {offset}; it reaches from {first} to {end - 1}")


async def require_record(client: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> SourceRecord:
    """Return the record at an offset. Raises as `require_offset`, also where a transaction's marker is there."""
    await require_offset(client, partition, offset)
    record = await record_of(client, partition, offset)
    if record is None:
        raise InputError(f"{partition.topic}[{partition.partition}] holds no record at offset {offset}")
    return record
