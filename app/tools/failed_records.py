"""Records that fail: dead letters, the skip list of records that mills leave out, and the ignore list of messages.

A dead letter is read, and its record sent back once it is repaired. A resent record has the key and the headers of the
original, goes to its partition, and says in the header `RESENT` where it came from; what `produce` refused goes to a
partition that its place decides. A record without a value on the dead-letter topic notes that; killed with SIGKILL in
between, it may be sent twice. A letter that was cut is sent with a value that a person gives, and without a key where
that was cut.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tokenmill.documents import SourceRecord
from tokenmill.errors import DifferenceError, InputError
from tokenmill.reading import LONGEST_TAIL, Acceptor, Gap
from tokenmill.wire.chain import Cursor
from tokenmill.wire.message import Message

from ..kafka import token_topic
from ..kafka.clients import consumer, offsets, producer, read_range, sending_to
from ..kafka.control_log import ignore_record, record_hash, skip_request_record
from ..kafka.control_topic import Settled, require_topic, settled_stream, settled_streams, write_control
from ..kafka.dead_letters import NOTE, DeadLetter, Place, RecordPlace, decode_dead_letter, letter_partition, parse_place
from ..kafka.token_topic import REFUSALS, TOKENS_PREFIX, message_of, offered, published_head, readable, topic_ranges
from ..mill.topic_changes import has_passed
from ..milling.decoding.framed_values import schema_number
from ..settings import Settings, dead_letter_topic
from ..tasks import to_the_end
from .inspect.packed import packed_letters

RESENT: Final = "tokenmill.resent-from"
"""Header of a record that was sent back: the place that it had, as text (`Place`)."""


class DeadLetterCounts(NamedTuple):
    """The dead letters of a raw topic, each place counted once."""

    reasons: Counter[str]
    """Records by reason; of one that was dead-lettered for several, by different streams, the first."""
    letters: int
    """Messages on the topic: a worker that resumes may write one again."""
    resent: int


async def read_dead_letters(settings: Settings, raw_topic: str) -> AsyncGenerator[DeadLetter | Place, None]:
    """Yield letters of ``raw_topic``, some more than once, and places of records sent back; of a pack, from files."""
    if (packed := packed_letters(settings, raw_topic)) is not None:
        for one in packed:
            yield one
        return
    topic = dead_letter_topic(raw_topic)
    async with consumer(settings) as client:
        for partition, span in (await topic_ranges(client, topic)).items():
            async for record in read_range(client, partition, *span):
                letter = decode_dead_letter(record)
                note = parse_place((dict(record.headers).get(NOTE) or b"").decode(errors="replace"))
                if letter is not None:
                    yield letter
                elif note is not None:
                    yield note


async def count_dead_letters(settings: Settings, raw_topic: str) -> DeadLetterCounts:
    """Return how many records were dead-lettered, by reason."""
    reasons, resent, letters = dict[Place, str](), set[Place](), 0
    async for found in read_dead_letters(settings, raw_topic):
        if isinstance(found, DeadLetter):
            letters += 1
            reasons.setdefault(found.place, found.reason)
        else:
            resent.add(found)
    return DeadLetterCounts(Counter(reasons.values()), letters, len(resent))


async def find_dead_letter(settings: Settings, place: Place) -> DeadLetter:
    """Return the dead letter of one place; raises InputError where there is none."""
    async for found in read_dead_letters(settings, place.topic):
        if isinstance(found, DeadLetter) and found.place == place:
            return found
    raise _none_of(place)


def _none_of(place: Place) -> InputError:
    return InputError(
        f"{dead_letter_topic(place.topic)} holds no dead letter of {place}: "
        f"`tokenmill dead-letters list {place.topic}` shows which there are"
    )


@dataclass(frozen=True, slots=True)
class ResendRequest:
    """What to send back."""

    raw_topic: str
    reasons: Collection[str] = ()
    """All records of these reasons; none: those of `places` alone."""
    places: Collection[Place] = ()
    values: Mapping[Place, bytes] = field(default_factory=dict)
    again: bool = False


@dataclass(slots=True)
class ResendOutcome:
    """What became of it."""

    sent: int = 0
    bytes: int = 0
    before: int = 0
    without_value: int = 0
    """Those of which there is nothing to send, or whose value was cut."""


async def resend(
    settings: Settings,
    request: ResendRequest,
    done: ResendOutcome | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> ResendOutcome:
    """Send records back to their raw topic, each once; on return all are acknowledged, or with ``dry_run`` counted.

    What was done so far is in ``done`` whenever ``progress`` is called, and after a cancellation, which waits until the
    record on its way is noted as sent: another call sends the others.

    Raises InputError where a place that was asked for has no dead letter, or nothing that could be sent, or was packed;
    and TopicError where a topic is missing, or the raw topic does not take a record.
    """
    if packed_letters(settings, request.raw_topic) is not None:
        raise InputError(
            f"{request.raw_topic} in {settings.store} was packed from files: correct what these hold, and pack them "
            "into another store"
        )
    sent_before = {
        found async for found in read_dead_letters(settings, request.raw_topic) if not isinstance(found, DeadLetter)
    }
    done, seen = ResendOutcome() if done is None else done, set[Place]()
    dead_letters = dead_letter_topic(request.raw_topic)
    async with producer(settings) as client:
        partitions = len(await client.partitions_for(request.raw_topic))
        note_partitions = len(await client.partitions_for(dead_letters))
        async for found in read_dead_letters(settings, request.raw_topic):
            if not isinstance(found, DeadLetter) or found.place in seen:
                continue
            if found.reason not in request.reasons and found.place not in request.places:
                continue
            seen.add(found.place)
            if found.place in sent_before and not request.again:
                done.before += 1
                continue
            value = request.values.get(found.place, found.value)
            if not found.has_value and found.place not in request.values:
                done.without_value += 1
                continue
            done.sent += 1
            done.bytes += len(value or b"")
            if not dry_run:
                was = found.place  # where a record goes back to, if it was anywhere
                partition = was.partition if isinstance(was, RecordPlace) else letter_partition(was, partitions)
                await to_the_end(_send(client, found, value, partition, letter_partition(was, note_partitions)))
            progress()
    if missing := set(request.places) - seen:
        raise _none_of(min(missing, key=str))
    if request.places and done.without_value:
        name = str(min(request.places, key=str))
        raise InputError(f"the dead letter of {name} has no value, or its beginning alone: give one, with --value FILE")
    return done


async def _send(
    client: AIOKafkaProducer, letter: DeadLetter, value: bytes | None, partition: int, note_partition: int
) -> None:
    """Send a record back, and note that: a cancellation between them would have it sent once more."""
    raw_topic, place = letter.place.topic, str(letter.place).encode(errors="replace")
    headers = [*(header for header in letter.headers if header[0] != RESENT), (RESENT, place)]
    key = letter.key if letter.whole_key is None else None
    with sending_to(raw_topic):
        await client.send_and_wait(raw_topic, value, key, partition, headers=headers)
    dead_letters = dead_letter_topic(raw_topic)
    with sending_to(dead_letters):
        await client.send_and_wait(dead_letters, None, b"", note_partition, headers=[(NOTE, place)])


async def skip(settings: Settings, raw_topic: str, partition: int, offset: int) -> tuple[list[str], list[str]]:
    """Ask the mills of a raw topic to skip a record; the request is durable when this returns.

    Returns the streams that are asked, and those that have passed the record, which keep it as it is. The worker that
    owns the partition sees it within seconds, ends, and puts the record on the skip list when it resumes, unless it has
    published past it by then. The streams of one mill are changed together or not at all: their blocks behind the
    record become others. Raises InputError where there is no such record, or every mill has passed it.
    """
    found = await settled_streams(settings.model_copy(update={"raw_topics": (raw_topic,)}))
    async with consumer(settings) as client:
        await token_topic.require_offset(client, TopicPartition(raw_topic, partition), offset)
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
    return names, [s.stream.name for s in found if s.stream.name not in names]


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
            records = read_range(client, where, low, end)
            named = [record.offset async for record in records if schema_number(record.value or b"") == number]
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
        mills.setdefault(settled.genesis.recipe.division, []).append(settled)
    return list(mills.values())


async def _ask(settings: Settings, streams: Sequence[Settled], partition: int, wanted: Sequence[int]) -> None:
    for settled in streams:
        there = settled.control.skips.get(partition, ())
        if requests := [skip_request_record(partition, offset) for offset in wanted if offset not in there]:
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
        record = await token_topic.require_record(client, tokens, offset)
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
    low = await token_topic.offset_before(client, tokens, message.fingerprint, message.first, span)
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
