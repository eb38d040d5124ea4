"""Records on their way to a topic: one producer at a time for a run, batches, what was acknowledged, and refused.

What becomes of what is no document, or the brokers refuse: it is skipped, a dead letter, or the end. A refused record
is named with where it was, its size, and what the topic's own settings say about it.
"""

import asyncio
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import xxhash
from aiokafka import AIOKafkaProducer, TopicPartition, errors

from tokenmill.errors import BrokerError, InputError, MissingTopicError, SettingsError, TopicError

from ...kafka.clients import AGAIN, REFUSALS, InvalidRecordError, admin, producer, sending_to
from ...kafka.dead_letters import LetterTopic, SourcePlace, cut_letter, encode_dead_letter, letter_partition
from ...kafka.security import refused_time
from ...kafka.topics import SIZES, TIMES, Existing, described, is_compacted, letter_bytes, partition_count
from ...settings import Settings, dead_letter_topic
from ...sources.datasets import DatasetInfo, DatasetSource
from ...sources.items import DocumentSource, Item, Placed, Refused, Unmet, Where, where_words
from ...sources.reading_order import OrderState, ReadingOrder, ShuffleBuffer
from ...sources.source_changes import SourceChange
from .run_notes import MARK_HEADER

BATCH_BYTES: Final = 256 * 1024
"""Bytes of a partition's batch: where a broker's speed stops growing, and below a topic's default limit of 1 MiB."""
OPEN_BYTES: Final = 64 << 20
"""Bytes of all partitions' open batches together: a thousand partitions get smaller batches."""
RECORD_BYTES: Final = 32
"""Bytes of a record beside key, value and headers, at most (KIP-98: lengths, deltas, attributes)."""
MARK_BYTES: Final = 1024
FRAME_BYTES: Final = 61 + MARK_BYTES
"""Bytes of a batch beside its records: its head (KIP-98), and the mark."""
SILENCE_SECONDS: Final = 60.0
"""How long no acknowledgement may arrive, a broker's restart included, before the run gives up."""


@dataclass(slots=True)
class Acknowledged:
    """What was acknowledged in one partition: documents, and bytes of their values."""

    documents: int = 0
    bytes: int = 0


def batch_bytes(partitions: int, topic: Existing | None = None) -> int:
    """Return the size of a batch in bytes, which the topic takes, where it is known; one record may be larger."""
    most = BATCH_BYTES if topic is None else max(topic.max_message_bytes - FRAME_BYTES, 1)
    return min(BATCH_BYTES, OPEN_BYTES // partitions, most)


class SentDocument(NamedTuple):
    """A document on its way."""

    key: bytes | None
    value: bytes
    number: int
    where: Where


@dataclass(slots=True)
class _Batch:
    records: list[SentDocument]
    size: int = 0


_HandedOver: TypeAlias = tuple["asyncio.Future[Any]", int]
Refuse = Callable[[SentDocument, errors.KafkaError, int], Awaitable[None]]
"""Takes a record that the brokers refuse, their error, and its bytes as it was sent; raises if the run is to end."""


@dataclass(slots=True)
class Sender:
    """Sends numbered documents in batches, in order in each partition, and counts what is acknowledged.

    One batch is under way to a partition. One that is refused as a whole is sent again in halves, and these in theirs,
    until what is refused is one record. The brokers have taken nothing of it, so the producer's sequence goes back to
    where it was: should they have taken it unnoticed, they refuse its parts, and no record is there twice. The client's
    ``max_batch_size`` is at least ``batch_bytes`` and `MARK_BYTES` more.
    """

    client: AIOKafkaProducer
    topic: str
    batch_bytes: int
    sent: dict[int, Acknowledged]
    """By partition; grows as acknowledgements arrive."""
    mark: Callable[[int, int], bytes] | None = None
    """Gives a batch's mark, by the number of its last document and the lowest unacknowledged one; None: no marks."""
    refuse: Refuse | None = None
    """None: what is refused ends the run."""
    last: dict[int, int] = field(default_factory=dict)
    """By partition: number of the last document that was acknowledged."""
    _open: dict[int, _Batch] = field(default_factory=dict)
    _under_way: dict[int, tuple[int, "asyncio.Task[None]"]] = field(default_factory=dict)
    """By partition: number of the first document of what is under way there, and what waits for the answer."""
    _errors: dict[int, BaseException] = field(default_factory=dict)
    """By partition, in which nothing is sent any more; the first error is first."""
    _heard: float = 0.0

    def put(self, partition: int, record: SentDocument) -> bool:
        """Add a document to its partition's batch; return False if the batch is full: `send` it, and try again."""
        batch = self._open.get(partition)
        size = len(record.value) + RECORD_BYTES + (len(record.key) if record.key else 0)
        if batch is None:
            self._open[partition] = _Batch([record], size)
        elif batch.size + size > self.batch_bytes:
            return False
        else:
            batch.records.append(record)
            batch.size += size
        return True

    async def send(self, partition: int) -> None:
        """Hand the partition's open batch to the client, if there is one, once the one before has its answer.

        Raises TopicError where the brokers refused an earlier batch, KafkaTimeoutError where they do not answer, and
        ProducerFenced where another producer of the same run has taken over.
        """
        self._raise_error()
        await self._send(partition)
        self._raise_error()

    async def _send(self, partition: int) -> None:
        while partition in self._under_way:
            await self._wait()
        if partition in self._open and partition not in self._errors:
            records = self._open[partition].records
            sent = await self._hand_over(partition, records)
            del self._open[partition]
            delivery = asyncio.create_task(self._delivered(partition, records, sent))
            self._under_way[partition] = records[0].number, delivery
            delivery.add_done_callback(partial(self._ended, partition))

    async def send_open(self) -> None:
        """Hand all open batches to the client; on return they are not acknowledged yet. Raises as `send` does."""
        for partition in list(self._open):
            await self.send(partition)

    async def settle(self) -> None:
        """Send all open batches and wait; on return every document that was put is acknowledged, or refused.

        Where a partition refused what ends the run, the others have got what was put. Raises as `send` does.
        """
        for partition in list(self._open):
            await self._send(partition)
        while self._under_way:
            await self._wait()
        self._raise_error()

    async def _wait(self) -> None:
        """Wait for an answer to what is under way; KafkaTimeoutError where none comes for `SILENCE_SECONDS`."""
        began, deliveries = time.monotonic(), [delivery for _, delivery in self._under_way.values()]
        while not (await asyncio.wait(deliveries, timeout=SILENCE_SECONDS, return_when=asyncio.FIRST_COMPLETED))[0]:
            if time.monotonic() - max(self._heard, began) >= SILENCE_SECONDS:
                raise errors.KafkaTimeoutError

    async def _hand_over(self, partition: int, records: Sequence[SentDocument]) -> _HandedOver:
        """Give a batch to the client, to which no other is under way; return its answer, and its bytes."""
        builder = self.client.create_batch()
        append, now = builder.append, time.time_ns() // 1_000_000
        *before, last = records
        fits = True
        for record in before:
            fits = append(timestamp=now, key=record.key, value=record.value) is not None and fits
        firsts = [batch.records[0].number for batch in self._open.values()]
        unsettled = min([*firsts, *(first for first, _ in self._under_way.values())], default=1 << 63)
        headers = [] if self.mark is None else [(MARK_HEADER, self.mark(last.number, unsettled))]
        if append(timestamp=now, key=last.key, value=last.value, headers=headers) is None or not fits:
            raise ValueError(f"a batch of {len(records)} records does not fit max_batch_size")
        builder.close()
        size = builder.size()
        return await self.client.send_batch(builder, self.topic, partition=partition), size

    def _ended(self, partition: int, delivery: "asyncio.Task[None]") -> None:
        del self._under_way[partition]
        if not delivery.cancelled() and (error := delivery.exception()) is not None:
            self._errors[partition] = error

    async def _delivered(
        self, partition: int, records: Sequence[SentDocument], sent: _HandedOver, *, again: bool = False
    ) -> None:
        """Wait for the answer; send what is refused as a whole again: as it is, if that may help, or in halves."""
        answer, size = sent
        try:
            await answer
        except REFUSALS as error:
            if self.refuse is None:
                raise
            manager = self.client._txn_manager  # noqa: SLF001 - see `Sender`
            manager.increment_sequence_number(TopicPartition(self.topic, partition), -len(records))
            half = len(records) // 2
            if isinstance(error, AGAIN) and not again:
                parts, again = [records], True
            elif half and not isinstance(error, errors.InvalidTimestampError):  # the time is no record's own
                parts = [records[:half], records[half:]]
            else:
                parts = []
                await self.refuse(records[0], error, size)
            for part in parts:
                await self._delivered(partition, part, await self._hand_over(partition, part), again=again)
        else:
            total = self.sent[partition]
            total.documents += len(records)
            total.bytes += sum(len(record.value) for record in records)
            self.last[partition] = records[-1].number
        finally:
            self._heard = time.monotonic()

    def _raise_error(self) -> None:
        for error in self._errors.values():
            with sending_to(self.topic):
                raise error


@asynccontextmanager
async def fenced_producer(
    settings: Settings, name: str, partitions: Mapping[str, int], **options: Any
) -> AsyncIterator[AIOKafkaProducer]:
    """Yield an idempotent producer, as `app.kafka.clients.producer` does; fences earlier ones of this name.

    ``partitions`` names the topics, with the number of their partitions: there they can write nothing any more.

    A killed process may have left batches on their way, in sockets and in the brokers' queues. If they were written
    after its successor has looked where the run is, documents would come twice. So a run has a transactional id. Its
    next owner asks for it, which raises the producer epoch, and aborts an empty transaction over all partitions: the
    brokers put a marker into each, and from then on refuse whatever an earlier owner sends (KIP-98). When the id is
    granted once more, the markers are in the logs of all replicas. Records are then sent outside of any transaction: no
    reader waits for a commit, or is held up when this process dies.

    aiokafka offers no transaction without records, and no way back from transactions. So two of its private parts are
    used here and in `_end_earlier`, and a third where a `Sender` sends what was refused again; its version is pinned.
    Raises BrokerError where no broker answers; and InputError where the brokers do not allow the name; or, in the
    block, a later one took over.
    """
    try:
        await _end_earlier(settings, name, partitions)
        async with producer(settings, transactional_id=name, **options) as client:
            client._txn_manager.transactional_id = None  # noqa: SLF001 - see `fenced_producer`
            yield client
    except errors.TransactionalIdAuthorizationFailed as error:
        raise InputError(
            f"the brokers do not allow the transactional id {name}: allow it, or do without: --no-resume"
        ) from error
    except errors.ProducerFenced as error:
        raise InputError(
            "another tokenmill produce with the same command has taken over, so this one ends; let that one go on"
        ) from error


async def _end_earlier(settings: Settings, name: str, partitions: Mapping[str, int]) -> None:
    """Take the name over, and put a marker into each partition; they are there when it is granted again."""
    try:
        # Brokers end the transaction of a process that was killed in it after this time: so long, readers wait.
        client_of = producer(settings, transactional_id=name, transaction_timeout_ms=10_000)
        async with asyncio.timeout(60.0), client_of as client:  # whatever the name was used for
            await client.begin_transaction()
            manager = client._txn_manager  # noqa: SLF001 - see `fenced_producer`
            for topic, count in partitions.items():
                for partition in range(count):
                    manager.maybe_add_partition_to_txn(TopicPartition(topic, partition))
            await client.abort_transaction()
    except TimeoutError as error:
        raise BrokerError(
            f"the brokers do not serve the transactional id {name}: see their logs for __transaction_state (a single "
            f"broker needs transaction.state.log.replication.factor=1), and whether {', '.join(partitions)} take its "
            "end (max.message.bytes, message.timestamp.before.max.ms); or do without: --no-resume"
        ) from error


OnError = Literal["skip", "dead-letter", "fail"]
PROGRESS_SECONDS: Final = 0.2
EXAMPLES: Final = 20
"""Refusals that are remembered with their text; all are counted."""
ALL_REFUSED: Final = 1000
"""Rows after which a run ends that has nothing else: the wrong field, or a function that always raises."""
UNDER_WAY: Final = 1000
"""Dead letters that may be sent and not acknowledged: enough not to slow the run down."""
REASON: Final = "not_produced"
COUNTED: Final = ("refused", "broken", "unmet", "without_field")
"""What of `PassedOver` is told as JSON, and noted by a pack."""
GOES_ON: Final = (
    "The same command with --on-error skip (or dead-letter) goes on from there; send what you corrected from a file of "
    "its own, for a run whose files have changed cannot go on"
)
SENDS_ALL_AGAIN: Final = (
    "What came before it is sent: send it, corrected, and what follows from a file of their own, or all of it again "
    "with --on-error skip (or dead-letter)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingPlan:
    """The options of a run that say what is read, and in which order."""

    limit: int | None = None
    """Documents of the whole run, with those that an earlier call sent or packed; None: all."""
    on_error: OnError = "skip"
    shuffle: int = 0
    seed: int = 0
    identity: str | None = None
    """The run, if another call may continue it; None: it carries no marks, and another call begins again."""


@dataclass(slots=True, kw_only=True)
class PassedOver:
    """What was no document."""

    refused: int = 0
    rows_refused: int = 0
    """How many of them this call read that are rows."""
    broken: int = 0
    over: Counter[str] = field(default_factory=Counter)
    """By the setting: what this call refused because it is longer than that."""
    examples: list[Refused] = field(default_factory=list)
    unmet: int = 0
    """Documents that did not meet the conditions, as far as this call read them."""
    without_field: int = 0
    unnamed: int = 0

    def count_unmet(self, unmet: Unmet) -> None:
        """Count documents that are not as was asked for."""
        self.unmet += unmet.documents
        self.without_field += unmet.without_field
        self.unnamed += unmet.unnamed

    def refuse(self, refused: Refused, *, ends: bool = False) -> None:
        """Count something that is no document; InputError if it is the last of too many rows and nothing else."""
        self.refused += 1
        self.rows_refused += refused.row
        self.broken += refused.broken
        self.over.update([refused.limit] if refused.limit else [])
        if len(self.examples) < EXAMPLES:
            self.examples.append(refused._replace(data=b""))
        if ends and self.rows_refused >= ALL_REFUSED:
            raise InputError(
                f"the first {ALL_REFUSED:,} rows were all refused, so this ends, and nothing is kept. "
                f"{self.examples[0].where}: {self.examples[0].why}. Correct that, or what is asked for (--field, "
                "--map), and give the command again; with --on-error dead-letter it goes on over them"
            )


@dataclass(slots=True)
class Summary(PassedOver):
    """What a run did so far; what it passed over includes what earlier calls of the run did."""

    topic: str
    partitions: dict[int, Acknowledged]
    before: int = 0
    """From earlier calls; after a kill, with those that brokers refused since the last checkpoint."""
    left_out: list[SourceChange] = field(default_factory=list)
    """How sources have changed since they were sent: they are not sent again."""
    broken_before: int = 0
    """How many of the broken sources this call did not read again."""
    seconds: float = 0.0
    told: int = 0
    """How many of `examples` were shown while it ran."""
    limit: int | None = None
    bytes_read: int = 0
    """Bytes of the sources on disk, with those that earlier calls read."""
    bytes_total: int = 0
    """Of all sources whose size is known; 0: of none."""

    @property
    def documents(self) -> int:
        """Acknowledged documents."""
        return sum(sent.documents for sent in self.partitions.values())

    @property
    def bytes(self) -> int:
        """Bytes of the acknowledged records' values."""
        return sum(sent.bytes for sent in self.partitions.values())


Progress = Callable[[Summary], None]


@asynccontextmanager
async def reporting(summary: Summary, progress: Progress) -> AsyncIterator[None]:
    """Say a few times a second how far the block is, and once more at its end, whatever ends it; count its seconds."""
    started = time.monotonic()

    def report() -> None:
        summary.seconds = time.monotonic() - started
        progress(summary)

    async def tick() -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            report()

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
        report()


@dataclass(slots=True)
class DryRunResult(PassedOver):
    """What a run would send."""

    topic: str
    plan: ReadingPlan
    documents: int = 0
    bytes: int = 0
    samples: list[Item] = field(default_factory=list)
    known: list[DatasetInfo] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return self.plan.limit is not None and self.documents >= self.plan.limit

    def take(self, items: Iterable[Placed]) -> None:
        """Count documents in the order in which they are sent, up to the limit; InputError where a run would end."""
        most = 3 if self.plan.limit is None else min(self.plan.limit, 20)
        for item, _ in items:
            if isinstance(item, Refused):
                if self.plan.on_error == "fail":
                    raise InputError(f"{item.where}: {item.why}. A run ends there, with what came before it sent")
                self.refuse(item, ends=not self.documents and self.plan.on_error == "skip")
                continue
            if self.is_full:
                return
            self.documents += 1
            self.bytes += len(item.value)
            self.samples += [item] if len(self.samples) < most else []


async def dry_run(sources: Sequence[DocumentSource], topic: str, plan: ReadingPlan) -> DryRunResult:
    """Read the sources as a run does, up to its limit; return what it would send. Raises InputError as it would."""
    found = DryRunResult(topic, plan, known=[source.known() for source in sources if isinstance(source, DatasetSource)])
    shuffle = ShuffleBuffer(plan.shuffle, plan.seed)
    with ReadingOrder(sources, OrderState.start(len(sources))) as reading:
        async for turn in reading.turns():
            if turn is not None:
                found.count_unmet(turn.chunk.unmet)
                found.take(shuffle.released(turn.chunk.placed()))
                if found.is_full:
                    break
    found.take(shuffle.rest())
    return found


SETTINGS_SECONDS: Final = 5.0
"""How old a topic's settings may be where they explain a refusal: a run that is refused every record asks seldom."""


@dataclass
class Refusals:
    """Counts what of a run is no document, or is refused by the brokers, and does with it what ``on_error`` says."""

    settings: Settings
    client: AIOKafkaProducer
    summary: Summary
    plan: ReadingPlan
    letters: LetterTopic | None
    """Where dead letters are sent, if they are."""
    started_ms: int | None
    """When the part of the run began; None: no other call can continue it."""
    declined: int
    """Documents that the brokers refused, in earlier calls and this one."""
    _under_way: set[asyncio.Future[Any]] = field(default_factory=set)
    _found: Existing | None = None
    _asked: float = -SETTINGS_SECONDS
    _numbers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        run = f"{self.plan.identity or ''} {self.started_ms or time.time_ns()}"
        self._run = xxhash.xxh32_hexdigest(run.encode())  # so that the dead letters of this run differ from all others
        self._lower = self.declined

    async def take(self, refused: Refused, *, first: bool = False) -> None:
        """Count the refusal, and send its dead letter, or end the run (InputError); ``first``: without documents."""
        if self.plan.on_error == "fail":
            how = SENDS_ALL_AGAIN if self.started_ms is None else GOES_ON
            raise InputError(f"{refused.where}: {refused.why}. {how}")
        self.summary.refuse(refused, ends=first and self.plan.on_error == "skip")
        if self.letters is not None:
            await self._send(refused, self.letters)

    async def settle(self) -> None:
        """On return all dead letters are acknowledged. Raises as `Sender.settle`."""
        waiting = list(self._under_way)  # more may come meanwhile
        with sending_to(dead_letter_topic(self.summary.topic)):
            await asyncio.gather(*waiting)
        self._under_way.difference_update(waiting)

    async def _send(self, refused: Refused, topic: LetterTopic) -> None:
        """Send its data, with a dead letter's headers; without an offset, for it was never in the raw topic."""
        place = SourcePlace(self.summary.topic, self._run, refused.where)
        now = time.time_ns() // 1_000_000
        headers = encode_dead_letter(place, reason=REASON, detail=refused.why, timestamp=now)
        letter = cut_letter(None, refused.data, headers, topic.most_bytes)
        partition = letter_partition(place, topic.partitions)
        if len(self._under_way) >= UNDER_WAY:
            await self.settle()
        sent = await self.client.send(topic.name, value=letter.value, partition=partition, headers=letter.headers)
        self._under_way.add(sent)

    async def take_record(self, record: SentDocument, error: errors.KafkaError, size: int) -> None:
        """Name a record that the brokers refuse, as `take`; ClockError where they do not take this machine's time."""
        if time.monotonic() - self._asked >= SETTINGS_SECONDS:
            self._found, self._asked = await topic_settings(self.settings, self.summary.topic), time.monotonic()
        where = where_words(record.where)
        if isinstance(error, errors.InvalidTimestampError):
            raise refused_time(self.summary.topic, f"{where}; {_named(self._found, *TIMES)}") from error
        why = _why_refused(self.summary.topic, self._found, record, error, size)
        self.declined += 1
        insort(self._numbers, record.number)
        await self.take(Refused(where, why, record.value, row=bool(record.where[1])))
        await self.settle()

    def declined_before(self, number: int) -> int:
        """Return how many documents with lower numbers were refused; later calls have numbers as high or higher."""
        lower = bisect_left(self._numbers, number)
        del self._numbers[:lower]
        self._lower += lower
        return self._lower


async def require_dead_letters(settings: Settings, topic: str) -> LetterTopic:
    """Return the topic for dead letters. Raises TopicError where there is none; says how to make it."""
    name = dead_letter_topic(topic)
    try:
        count = await partition_count(settings, name)
    except TopicError as error:
        raise TopicError(f"{error}; `tokenmill topics create` makes it with the others that {topic} needs") from error
    try:
        found = (await described(settings, [name])).get(name)
    except TopicError:  # a login that may write need not see what is configured
        found = None
    return LetterTopic(name, count, letter_bytes(settings, found))


def _why_refused(topic: str, found: Existing | None, record: SentDocument, error: errors.KafkaError, size: int) -> str:
    refuses = f"topic {topic} refuses the record of {len(record.value)} bytes, {size} as it was sent"
    if isinstance(error, errors.RecordListTooLargeError):
        return f"too_large: {refuses} ({_named(found, *SIZES)}): raise its segment.bytes"
    if isinstance(error, errors.MessageSizeTooLargeError):
        return f"too_large: {refuses} ({_named(found, *SIZES)}): raise its max.message.bytes, or lower max_record_bytes"
    if isinstance(error, InvalidRecordError) and record.key is None and found is not None and is_compacted(found):
        return f"no_key: {refuses} ({_named(found, 'cleanup.policy')}): set cleanup.policy=delete, or --key"
    return f"refused: {refuses}: {type(error).__name__.strip('_')} ({_named(found, 'cleanup.policy', *SIZES, *TIMES)})"


def _named(found: Existing | None, *names: str) -> str:
    return "this login may not see the topic's settings" if found is None else f"the topic has {found.named(*names)}"


async def topic_settings(settings: Settings, topic: str) -> Existing | None:
    """Return the topic as the brokers describe it; None where they do not to this login, or are away."""
    try:
        return (await described(settings, [topic])).get(topic)
    except (TopicError, SettingsError, BrokerError):
        return None


async def require_leaders(settings: Settings, topic: str) -> None:
    """Check that the topic can be written to: brokers that answer, but take no record, say no more than "later".

    Raises MissingTopicError where it is gone, TopicError where a partition has no leader, or too few replicas.
    """
    async with admin(settings) as client:
        partitions = (await client.describe_topics([topic]))[0]["partitions"]
    if not partitions:
        raise MissingTopicError(f"topic {topic} is gone: somebody has deleted it")
    if lacking := [found for found in partitions if found["leader"] < 0 or len(found["isr"]) < len(found["replicas"])]:
        names = ", ".join(
            f"{found['partition']} ({'no leader, ' if found['leader'] == -1 else ''}"
            f"in sync are brokers {found['isr']} of {found['replicas']})"
            for found in lacking
        )
        raise TopicError(
            f"topic {topic} takes no records: see partitions {names}. Start the brokers that are away, or lower "
            "min.insync.replicas; the same command goes on"
        )
