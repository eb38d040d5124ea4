"""The skip list and the ignore list: records that mills leave out, messages that readers do, once a person says so."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.documents import SourceRecord
from tokenmill.errors import DifferenceError, InputError
from tokenmill.reading.acceptance import Acceptor, Gap
from tokenmill.reading.continuing import LONGEST_TAIL
from tokenmill.wire.chain import Cursor
from tokenmill.wire.message import Message

from ..kafka.clients import consumer, offsets, read_range
from ..kafka.control_log import ignore_record, record_hash, skip_request_record
from ..kafka.control_topic import Settled, require_topic, settled_stream, settled_streams, write_control
from ..kafka.token_topic import REFUSALS, message_of, offered, offset_before, published_head, readable
from ..mill.topic_changes import has_passed
from ..milling.decoding.framed_values import schema_number
from ..settings import Settings
from .kafka_reading import TOKENS_PREFIX, require_offset, require_record, topic_ranges


class SkipOutcome(NamedTuple):
    """What became of a request to skip a record."""

    streams: Sequence[str]
    passed: Sequence[str]
    """Streams that were made with other settings and have passed the record: they keep it as it is."""


async def skip(settings: Settings, raw_topic: str, partition: int, offset: int) -> SkipOutcome:
    """Ask the mills of a raw topic to skip a record; the request is durable when this returns.

    The worker that owns the partition sees it within seconds, ends, and puts the record on the skip list when it
    resumes, unless it has published past it by then. The streams of one mill are changed together or not at all: their
    blocks behind the record become others. Raises InputError where there is no such record, or every mill has passed
    it.
    """
    found = await settled_streams(settings.model_copy(update={"raw_topics": (raw_topic,)}))
    async with consumer(settings) as client:
        await require_offset(client, TopicPartition(raw_topic, partition), offset)
        cursors = {s.stream.name: await _published(client, s, partition) for s in found}
    passed = {name: cursor for name, cursor in cursors.items() if cursor is not None and has_passed(cursor, offset)}
    open_mills = [streams for streams in _mills(found) if not any(s.stream.name in passed for s in streams)]
    if not open_mills:
        stream, cursor = next(iter(passed.items()))
        raise InputError(
            f"stream {stream} has published tokens of offset {offset} of {raw_topic}[{partition}], or is past it (its "
            f"cursor is at {cursor.next_offset}): what became of that record is settled; to leave it out, begin new "
            "streams with stream_suffix"
        )
    written = [settled for streams in open_mills for settled in streams]
    await _ask(settings, written, partition, [offset])
    names = [settled.stream.name for settled in written]
    return SkipOutcome(names, [s.stream.name for s in found if s.stream.name not in names])


async def skip_schema(settings: Settings, raw_topic: str, number: int, partition: int | None = None) -> dict[int, int]:
    """Ask the mills to skip the records that name this schema, of one partition or all, as far as none has passed them.

    Those that are there when this is called; returns how many, by partition. Durable as `skip`. Raises InputError where
    there is none; and TopicError where the raw topic is missing, or none of its streams is settled yet.
    """
    found = await settled_streams(settings.model_copy(update={"raw_topics": (raw_topic,)}))
    asked: dict[int, int] = {}
    async with consumer(settings) as client:
        for where, (first, end) in (await topic_ranges(client, raw_topic)).items():
            place = where.partition
            if partition not in (None, place):
                continue
            cursors = {s.stream.name: await _published(client, s, place) for s in found}
            low = max(first, min(cursor.next_offset if cursor is not None else 0 for cursor in cursors.values()))
            named = [
                r.offset async for r in read_range(client, where, low, end) if schema_number(r.value or b"") == number
            ]
            for streams in _mills(found):
                past = [cursor for s in streams if (cursor := cursors[s.stream.name]) is not None]
                skipped = frozenset.intersection(*(frozenset(s.control.skips.get(place, ())) for s in streams))
                wanted = [o for o in named if o not in skipped and not any(has_passed(cursor, o) for cursor in past)]
                await _ask(settings, streams, place, wanted)
                asked[place] = max(asked.get(place, 0), len(wanted))
    if not any(asked.values()):
        place_name = raw_topic if partition is None else f"{raw_topic}[{partition}]"
        raise InputError(f"{place_name} holds no record of schema {number} that is still to be milled")
    return {place: count for place, count in asked.items() if count}


def _mills(found: Sequence[Settled]) -> list[list[Settled]]:
    """Return the streams by mill: those that one mill makes are changed together, or not at all."""
    mills: dict[bytes, list[Settled]] = {}
    for settled in found:
        mills.setdefault(replace(settled.genesis.recipe, split="").fingerprint, []).append(settled)
    return list(mills.values())


async def _ask(settings: Settings, streams: Sequence[Settled], partition: int, wanted: Sequence[int]) -> None:
    for settled in streams:
        there = settled.control.skips.get(partition, ())
        requests = [skip_request_record(partition, offset) for offset in wanted if offset not in there]
        if requests:
            await write_control(settings, settled.stream.control_topic, requests)


async def _published(client: AIOKafkaConsumer, settled: Settled, partition: int) -> Cursor | None:
    tokens = TopicPartition(settled.stream.tokens_topic, partition)
    if partition >= await require_topic(client, tokens.topic):
        return None
    head = await published_head(client, tokens, settled)
    return None if head is None else head.cursor


async def ignore(settings: Settings, topic: str, partition: int, offset: int) -> tuple[str, str]:
    """Put a message of a token topic on its stream's ignore list; it is there durably when this returns.

    Returns the stream, and why no reader takes the message; readers that halted over it go on within seconds. Raises
    InputError where there is no such message, or readers take it, or may yet take it; and TopicError where the topic is
    no token topic of a stream that was settled.
    """
    if not topic.startswith(TOKENS_PREFIX):
        raise InputError(f"{topic!r} is no token topic: their names begin with {TOKENS_PREFIX!r}")
    settled = await settled_stream(settings, topic.removeprefix(TOKENS_PREFIX))
    tokens = TopicPartition(topic, partition)
    async with consumer(settings) as client:
        record = await require_record(client, tokens, offset)
        reason = await _why_refused(client, settled, tokens, record)
    if not settled.control.ignored.names(partition, record):
        said = ignore_record(partition, offset, record_hash(record))
        await write_control(settings, settled.stream.control_topic, [said])
    return settled.stream.name, reason


async def _why_refused(client: AIOKafkaConsumer, settled: Settled, tokens: TopicPartition, record: SourceRecord) -> str:
    """Return why no reader takes a message; InputError where they do, or may once the blocks before it are there."""
    try:
        message = message_of(record, tokens)
        _acceptor_at(settled, tokens, message).offer(message)
    except REFUSALS as error:  # by itself, wherever the chain is
        return str(error.__cause__ or error)
    try:
        gap, seen = await _offered_in_place(client, settled, tokens, record, message)
    except DifferenceError as error:
        return str(error.__cause__ or error)
    listed = f"{', '.join(map(str, seen[:8]))}{' and more' if len(seen) > 8 else ''}"  # noqa: PLR2004 - enough
    others = f"; what they do not take is at offset {listed}" if seen else ""
    what = "continues the chain: readers take it, and nothing can make them ignore it"
    if gap:
        what = (
            f"begins with block {message.first}, and blocks before it are missing: the next mill of the partition "
            "writes them, and readers may then take it"
        )
    raise InputError(f"offset {record.offset} of {tokens.topic}[{tokens.partition}] {what}{others}")


async def _offered_in_place(
    client: AIOKafkaConsumer, settled: Settled, tokens: TopicPartition, record: SourceRecord, message: Message
) -> tuple[bool, list[int]]:
    """Read up to a message as a reader does; return whether it is behind a gap, and at which offsets others refused."""
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
