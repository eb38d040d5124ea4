"""The ignore list: a message on a token topic that no reader takes is passed over, once a person says so."""

from collections.abc import Sequence
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import DifferenceError, InputError, MovedError
from tokenmill.reading.acceptance import Acceptor, Gap
from tokenmill.reading.continuing import LONGEST_TAIL
from tokenmill.records import SourceRecord
from tokenmill.wire.ignoring import ignore_record, record_hash
from tokenmill.wire.message import Message

from ..kafka.clients import consumer, offsets, read_range
from ..kafka.control_topic import Settled, require_topic, write_control
from ..kafka.settled_streams import settled_stream
from ..kafka.token_topic import REFUSALS, message_of, offered, offset_before, readable
from ..settings import Settings

TOKENS_PREFIX = "tokens."


@dataclass(frozen=True, slots=True)
class Ignored:
    """What became of a wish to ignore a message."""

    stream: str
    reason: str
    """Why no reader takes it."""


async def ignore(settings: Settings, topic: str, partition: int, offset: int) -> Ignored:
    """Put a message of a token topic on its stream's ignore list; it stands there durably when this returns.

    Readers that halted over it go on within seconds, and no other reader halts there. A message that they would take is
    refused; it would be taken all the same (`tokenmill.wire.ignoring`).

    Raises:
        InputError: there is no such message, or readers take it, or may yet take it.
        TopicError: the topic is no token topic of a stream that was settled.

    """
    if not topic.startswith(TOKENS_PREFIX):
        raise InputError(f"{topic!r} is no token topic: their names begin with {TOKENS_PREFIX!r}")
    settled = await settled_stream(settings, topic.removeprefix(TOKENS_PREFIX))
    tokens = TopicPartition(topic, partition)
    async with consumer(settings) as client:
        record = await _require_record(client, tokens, offset)
        reason = await _why_refused(client, settled, tokens, record)
    if not settled.control.ignored.names(partition, record):
        said = ignore_record(partition, offset, record_hash(record))
        await write_control(settings, settled.stream.control_topic, [said])
    return Ignored(settled.stream.name, reason)


async def _require_record(client: AIOKafkaConsumer, tokens: TopicPartition, offset: int) -> SourceRecord:
    count = await require_topic(client, tokens.topic)
    if not 0 <= tokens.partition < count:
        raise InputError(f"{tokens.topic} has the partitions 0 to {count - 1}, not {tokens.partition}")
    first, end = (await offsets(client, [tokens]))[tokens]
    found = None
    if first <= offset < end:
        try:
            found = await anext(read_range(client, tokens, offset, offset + 1), None)
        except MovedError:
            found = None
    if found is None:
        raise InputError(
            f"{tokens.topic}[{tokens.partition}] holds no message at offset {offset}: it reaches from {first} to "
            f"{end - 1}"
        )
    return found


async def _why_refused(client: AIOKafkaConsumer, settled: Settled, tokens: TopicPartition, record: SourceRecord) -> str:
    """Return why no reader takes a message.

    Raises:
        InputError: they do, or may once the blocks before it are there.

    """
    try:
        message = message_of(record, tokens)
        _acceptor_at(settled, tokens, message).offer(message)
    except REFUSALS as error:  # by itself, wherever the chain stands
        return str(error.__cause__ or error)
    try:
        gap, seen = await _offered_in_place(client, settled, tokens, record, message)
    except DifferenceError as error:
        return str(error.__cause__ or error)
    others = f"; what they do not take is at {_listed(seen)}" if seen else ""
    if gap:
        raise InputError(
            f"offset {record.offset} of {tokens.topic}[{tokens.partition}] begins with block {message.first}, and "
            f"blocks before it are missing: the next mill of the partition writes them, and readers may then "
            f"take it{others}"
        )
    raise InputError(
        f"offset {record.offset} of {tokens.topic}[{tokens.partition}] continues the chain: readers take it, and "
        f"nothing can make them ignore it{others}"
    )


async def _offered_in_place(
    client: AIOKafkaConsumer,
    settled: Settled,
    tokens: TopicPartition,
    record: SourceRecord,
    message: Message,
) -> tuple[bool, list[int]]:
    """Read up to a message as a reader does; return whether it lies behind a gap, and at which offsets others refused.

    Raises:
        DifferenceError: the chain does not take it.

    """
    span = (await offsets(client, [tokens]))[tokens]
    low = await offset_before(client, tokens, message.fingerprint, message.first, span)
    low = max(span[0], min(low, record.offset - LONGEST_TAIL))
    recipe, ignored = settled.genesis.recipe, settled.control.ignored
    acceptor = None if low else Acceptor(recipe.fingerprint, tokens.partition, recipe.block_bytes)
    seen: list[int] = []
    async for before in read_range(client, tokens, low, record.offset):
        found = readable(before)
        if ignored.names(tokens.partition, before) or found is None:
            continue
        acceptor = acceptor or _acceptor_at(settled, tokens, found)
        try:
            offered(acceptor, before, tokens, ignored)
        except REFUSALS:
            seen.append(before.offset)
    acceptor = acceptor or _acceptor_at(settled, tokens, message)
    return isinstance(acceptor.offer(message), Gap), seen


def _acceptor_at(settled: Settled, tokens: TopicPartition, message: Message) -> Acceptor:
    recipe = settled.genesis.recipe
    return Acceptor(recipe.fingerprint, tokens.partition, recipe.block_bytes, block=message.first, chain=message.before)


def _listed(found: Sequence[int]) -> str:
    return f"offset {', '.join(map(str, found[:8]))}{' and more' if len(found) > 8 else ''}"  # noqa: PLR2004 - enough
