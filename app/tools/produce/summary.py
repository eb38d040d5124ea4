"""What a run did, or would do, and what becomes of what is no document: skipped, a dead letter, or the end.

So with records that the brokers refuse: where each was, its size, and what the topic's own settings say about it.
"""

import asyncio
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import xxhash
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidTimestampError, KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from tokenmill.errors import BrokerError, InputError, MissingTopicError, SettingsError, TopicError

from ...kafka.clients import InvalidRecordError, admin, sending_to
from ...kafka.dead_letters import LetterTopic, SourcePlace, cut_letter, encode_dead_letter, letter_partition
from ...kafka.security import refused_time
from ...kafka.topics import SIZES, TIMES, Existing, described, is_compacted, letter_bytes, partition_count
from ...settings import Settings, dead_letter_topic
from ...sources.datasets import DatasetInfo, DatasetSource
from ...sources.items import DocumentSource, Item, Refused, Unmet, where_words
from ...sources.reading_order import OrderState, ReadingOrder, ShuffleBuffer
from ...sources.source_changes import SourceChange
from .sender import Acknowledged, SentDocument

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

    def take(self, items: Iterable[Item | Refused], shuffle: ShuffleBuffer[Item] | None = None) -> None:
        """Count documents in the order in which they are sent, up to the limit; InputError where a run would end."""
        most = 3 if self.plan.limit is None else min(self.plan.limit, 20)
        for item in items:
            if isinstance(item, Refused):
                if self.plan.on_error == "fail":
                    raise InputError(f"{item.where}: {item.why}. A run ends there, with what came before it sent")
                self.refuse(item, ends=not self.documents and self.plan.on_error == "skip")
            elif (out := item if shuffle is None else shuffle.exchange(item)) is not None:
                if self.is_full:
                    return
                self.documents += 1
                self.bytes += len(out.value)
                self.samples += [out] if len(self.samples) < most else []


async def dry_run(sources: Sequence[DocumentSource], topic: str, plan: ReadingPlan) -> DryRunResult:
    """Read the sources as a run does, up to its limit; return what it would send. Raises InputError as it would."""
    known = [source.known() for source in sources if isinstance(source, DatasetSource)]
    found = DryRunResult(topic, plan, known=known)
    shuffle: ShuffleBuffer[Item] | None = ShuffleBuffer(plan.shuffle, plan.seed) if plan.shuffle else None
    with ReadingOrder(sources, OrderState.start(len(sources))) as reading:
        async for turn in reading.turns():
            if turn is not None:
                found.count_unmet(turn.chunk.unmet)
                found.take((item for item, _ in turn.chunk.placed()), shuffle)
                if found.is_full:
                    break
    if shuffle is not None:
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

    async def take_record(self, record: SentDocument, error: KafkaError, size: int) -> None:
        """Name a record that the brokers refuse, as `take`; ClockError where they do not take this machine's time."""
        if time.monotonic() - self._asked >= SETTINGS_SECONDS:
            self._found, self._asked = await topic_settings(self.settings, self.summary.topic), time.monotonic()
        where = where_words(record.where)
        if isinstance(error, InvalidTimestampError):
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


def _why_refused(topic: str, found: Existing | None, record: SentDocument, error: KafkaError, size: int) -> str:
    refuses = f"topic {topic} refuses the record of {len(record.value)} bytes, {size} as it was sent"
    if isinstance(error, RecordListTooLargeError):
        return f"too_large: {refuses} ({_named(found, *SIZES)}): raise its segment.bytes"
    if isinstance(error, MessageSizeTooLargeError):
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
    lacking = [found for found in partitions if found["leader"] < 0 or len(found["isr"]) < len(found["replicas"])]
    if lacking:
        names = ", ".join(
            f"{found['partition']} ({'no leader, ' if found['leader'] == -1 else ''}"
            f"in sync are brokers {found['isr']} of {found['replicas']})"
            for found in lacking
        )
        raise TopicError(
            f"topic {topic} takes no records: see partitions {names}. Start the brokers that are away, or lower "
            "min.insync.replicas; the same command goes on"
        )
