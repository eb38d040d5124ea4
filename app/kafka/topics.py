"""The topics that the settings need: what they must be, made where they are missing, checked where they are there."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tokenmill.errors import MissingTopicError, TopicError
from tokenmill.packings import SEPARATE, Fit
from tokenmill.wire.pieces import PIECE, REFERENCE

from ..settings import Settings, TopicSettings, dead_letter_topic, produced_topic, rejected_topic
from .clients import admin, retry

Kind = Literal["raw", "dead-letters", "rejected", "produced", "tokens", "control", "signatures", "slices", "verdicts"]
Severity = Literal["error", "warning"]
Wrong: TypeAlias = Iterator[tuple[Severity, str]]

LETTERS: Final[frozenset[Kind]] = frozenset({"dead-letters", "rejected"})
"""Topics of whole raw records with reasons; a record's partition there depends on how many partitions there were."""
GROWN: Final[frozenset[Kind]] = frozenset({"tokens", "verdicts"})
"""Topics whose partitions are their raw topic's, by number."""
SINGLE: Final[frozenset[Kind]] = frozenset({"control", "produced", "signatures", "slices"})
"""Topics of one partition, whose order is what counts."""
LIMITED: Final[Mapping[Kind, tuple[Severity, str]]] = {
    "tokens": ("warning", "new stores, mirrors and verify will not reach the start"),
    "control": ("error", "new stores, mirrors and verify will not reach the start"),
    "signatures": ("warning", "it must hold the window of the newest documents, and verify needs all of it"),
    "slices": ("error", "a sequencer will not find where the window begins"),
    "verdicts": ("warning", "what is milled or verified again needs them, as long as its raw records are there"),
}
"""Of a topic that Kafka may remove records from: how bad it is, and for whom."""
HEADERS_BYTES: Final = 4096
"""Room for a message's fixed header, its totals and Kafka's framing, and for a dead letter's headers."""
REASONS_BYTES: Final = 4096
"""Room for the totals' counts of the reasons of a user's own decoder, at most 64 of 32 characters."""
STEP_BYTES: Final = 8192
"""Room for what the totals say of one step: 32 reasons of 65 characters, each counted twice, with numbers as large as
they get. No step of ours has as many under its defaults; counts have fewer digits in any log that there is."""
FIGURES_BYTES: Final = 24 * 1024
"""Room for the rest of the figures of steps: the short forms, lengths in powers of two, and 200 languages."""
ENTRY_BYTES: Final = 64
"""Room in addition to each piece's row and meta, so that small changes of the format need no new topics."""
WIDEST_TOKEN_BYTES: Final = 4
"""uint32. The vocabulary decides the dtype, and this must hold before a tokenizer is loaded."""
SMALL_MESSAGE_BYTES: Final = 1 << 20
"""A genesis holds the settings in full. Other records of control topics, those of slices, and a part of what a run of
`produce` knows of its sources are smaller."""
DEDUP_MESSAGE_BYTES: Final = 2 << 20
"""A message has at most 1 MiB of offsets and hashes, 16 bytes a document or more; a verdict has up to 25."""
JOINED_BYTES: Final = 16 << 20
"""Most bytes of messages that a mill sends as one, where brokers take long to acknowledge."""
REQUEST_BYTES: Final = 96 << 20
"""Of messages in one request: a client sends those for all partitions of a broker together, and brokers take 100 MiB by
default (``socket.request.max.bytes``)."""
UNLIMITED: Final = "-1"
RETENTION: Final = ("retention.ms", "retention.bytes")
TIMES: Final = ("message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
SIZES: Final = ("max.message.bytes", "segment.bytes", "compression.type")
CONFIGS: Final = ("cleanup.policy", *RETENTION, *SIZES, *TIMES)


class NeededTopic(NamedTuple):
    """A topic that the settings need, and what it needs to keep the promises."""

    name: str
    kind: Kind
    raw_topic: str
    """The raw topic that it belongs to (itself, of kind ``raw``), which sets the number of partitions."""
    max_message_bytes: int

    @property
    def configs(self) -> dict[str, str]:
        """The topic's configuration when we create it; our records have the brokers' time: a worker's may be wrong."""
        largest = max(self.max_message_bytes, JOINED_BYTES if self.kind == "tokens" else 0)
        configs = {"cleanup.policy": "delete", "max.message.bytes": str(largest)}
        if self.kind == "produced":
            configs |= {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
        if self.kind != "raw":
            configs |= {**dict.fromkeys(RETENTION, UNLIMITED), "message.timestamp.type": "LogAppendTime"}
        return configs


class Problem(NamedTuple):
    """Something about a topic that breaks a promise (``error``) or weakens one (``warning``)."""

    topic: str
    severity: Severity
    text: str
    missing: bool = False


class Existing(NamedTuple):
    """A topic as the brokers describe it."""

    partitions: int
    configs: Mapping[str, str]

    @property
    def retention_seconds(self) -> float | None:
        """How long records are kept; None where time removes nothing."""
        value = self.configs.get("retention.ms", UNLIMITED)
        return None if value == UNLIMITED else int(value) / 1000

    @property
    def max_message_bytes(self) -> int:
        """The largest batch that the topic takes."""
        return int(self.configs["max.message.bytes"])

    def joined_bytes(self, chains: int) -> int:
        """Return how large messages may be that are sent as one, by a worker that may own so many ``chains``."""
        return min(JOINED_BYTES, self.max_message_bytes, REQUEST_BYTES // chains)

    def named(self, *names: str) -> str:
        """Return some of its settings in words, those that the brokers tell."""
        return ", ".join(f"{name}={self.configs[name]}" for name in names if name in self.configs)


def worst_message_bytes(settings: Settings, own: TopicSettings) -> int:
    """Return the largest message that a mill worker sends to a token topic.

    That is one block more than ``message_bytes``, all of one-token documents with the longest ids and fields. With
    ``fit`` it refers to open blocks as well, a piece for each offset that these may be behind at most; or a carry holds
    them by value.
    """
    piece = PIECE.itemsize + own.limits.max_meta_bytes + ENTRY_BYTES
    pieces = 2 if own.packing_name in SEPARATE else own.block_tokens  # a document and padding, or a document a token
    reasons = REASONS_BYTES if ":" in own.decode else 0
    figures = len(own.steps) * STEP_BYTES + FIGURES_BYTES if own.steps else 0
    block, opened, packing = own.block_tokens * WIDEST_TOKEN_BYTES + pieces * piece, 0, own.packing_values
    largest = settings.message_bytes + block
    if isinstance(packing, Fit):
        tokens = packing.open_blocks * own.block_tokens
        held = min(packing.max_age_offsets + 1, tokens)
        opened = (packing.open_blocks + held) * REFERENCE.itemsize
        largest = max(largest, tokens * WIDEST_TOKEN_BYTES + held * (PIECE.itemsize + ENTRY_BYTES))
    return largest + opened + HEADERS_BYTES + reasons + figures


def needed_topics(settings: Settings) -> list[NeededTopic]:
    """Return every topic that the settings need, raw topics first."""
    raw = [NeededTopic(name, "raw", name, settings.max_record_bytes) for name in settings.raw_topics]
    letters = letter_bytes(settings)
    dead = [NeededTopic(dead_letter_topic(name), "dead-letters", name, letters) for name in settings.raw_topics]
    if settings.rejects == "topic":
        dead += [NeededTopic(rejected_topic(name), "rejected", name, letters) for name in settings.raw_topics]
    needed = raw + dead + [produced_need(name) for name in settings.raw_topics]
    for stream in settings.streams():
        largest = worst_message_bytes(settings, settings.for_topic(stream.raw_topic))
        needed.append(NeededTopic(stream.tokens_topic, "tokens", stream.raw_topic, largest))
        needed.append(NeededTopic(stream.control_topic, "control", stream.raw_topic, SMALL_MESSAGE_BYTES))
    for domain in settings.domains():
        first = domain.raw_topics[0]
        needed.append(NeededTopic(domain.signatures_topic, "signatures", first, DEDUP_MESSAGE_BYTES))
        needed.append(NeededTopic(domain.slices_topic, "slices", first, SMALL_MESSAGE_BYTES))
        needed += [
            NeededTopic(domain.verdicts_topic(raw_topic), "verdicts", raw_topic, DEDUP_MESSAGE_BYTES)
            for raw_topic in domain.raw_topics
        ]
    return needed


def letter_bytes(settings: Settings, topic: Existing | None = None) -> int:
    """Return the largest letter that a topic of letters takes, or is asked to take, and that these clients send."""
    most = settings.max_record_bytes + HEADERS_BYTES
    return most if topic is None else min(most, topic.max_message_bytes)


def produced_need(raw_topic: str) -> NeededTopic:
    """Return the topic that runs of `produce` over a raw topic need."""
    return NeededTopic(produced_topic(raw_topic), "produced", raw_topic, SMALL_MESSAGE_BYTES)


def missing_raw(name: str) -> str:
    """Return what is wrong with a raw topic that is not there, and what to do."""
    return f"does not exist: create it with `tokenmill topics create --raw-topics {name} --partitions 4`"


def find_problems(topic: NeededTopic, existing: Mapping[str, Existing]) -> list[Problem]:
    """Return what is wrong with one topic; ``existing`` holds it, if it exists, and its raw topic."""
    found = existing.get(topic.name)
    if found is None:
        text = missing_raw(topic.name) if topic.kind == "raw" else "is missing: run `tokenmill topics create`"
        if topic.kind == "produced":  # no worker needs it
            return [Problem(topic.name, "warning", "is missing: the first `tokenmill produce` makes it", missing=True)]
        return [Problem(topic.name, "error", text, missing=True)]
    raw = existing.get(topic.raw_topic)
    wrong = (*_about_partitions(topic, found, raw), *_about_cleanup(topic, found), *_about_size(topic, found, raw))
    return [Problem(topic.name, severity, text) for severity, text in wrong]


def _about_partitions(topic: NeededTopic, found: Existing, raw: Existing | None) -> Wrong:
    has = f"has {found.partitions} partitions"
    if topic.kind in GROWN and raw is not None and found.partitions < raw.partitions:
        more = "a mill adds the missing ones, or `tokenmill topics create`"
        yield "warning", f"{has}, and {topic.raw_topic} has {raw.partitions}: {more}"
    if topic.kind in GROWN and raw is not None and found.partitions > raw.partitions:
        yield "error", f"{has}, and {topic.raw_topic} has {raw.partitions}: use a new stream_suffix"
    if topic.kind == "produced" and found.partitions != 1:
        yield "warning", f"{has}; produce writes to the first alone"
    elif topic.kind in SINGLE and found.partitions != 1:
        yield "error", f"{has}, not 1: use a new stream_suffix"


def is_compacted(found: Existing) -> bool:
    """Return whether Kafka removes records from the middle of the topic's logs."""
    return "compact" in found.configs["cleanup.policy"]


def _about_cleanup(topic: NeededTopic, found: Existing) -> Wrong:
    if topic.kind == "produced":
        if found.configs["cleanup.policy"] != "compact":
            forgets = "is not compacted, so it forgets runs of produce, or grows for ever"
            yield "warning", f"{forgets}: set cleanup.policy=compact"
        return
    if is_compacted(found):
        yield "error", "is compacted, so records vanish in between: set cleanup.policy=delete"
    limits = [f"{name}={found.configs[name]}" for name in RETENTION if found.configs[name] != UNLIMITED]
    if limits and topic.kind in LIMITED:
        severity, why = LIMITED[topic.kind]
        yield severity, f"has limited retention ({', '.join(limits)}): {why}"


def _about_size(topic: NeededTopic, found: Existing, raw: Existing | None) -> Wrong:
    limit, needed = found.max_message_bytes, topic.max_message_bytes
    if topic.kind in LETTERS and raw is not None:
        needed = raw.max_message_bytes + HEADERS_BYTES
    if topic.kind != "raw" and limit < needed:
        text = f"takes messages of {limit} bytes, and the largest can have {needed}: set max.message.bytes={needed}"
        yield "error", text


VISIBLE_SECONDS: Final = 15.0
"""How long a new topic may take until the brokers say that it has leaders; takes milliseconds."""


async def ensure_topics(settings: Settings, *, partitions: int | None = None) -> list[str]:
    """Create what is missing, and return the names of the topics that were created or given more partitions.

    On return every needed topic can be used. A raw topic is created only where ``partitions`` is given; token topics
    and those of verdicts grow with their raw topic. What exists is changed in no other way. Waits as `retry` does.
    Raises MissingTopicError where a raw topic is missing.
    """
    needed = needed_topics(settings)

    async def ensure() -> list[str]:
        async with admin(settings) as client:
            existing = await describe_topics(client, [topic.name for topic in needed])
            there = {name: found.partitions for name, found in existing.items()}
            counts = {name: there.get(name, partitions) for name in settings.raw_topics}
            missing = [name for name, count in counts.items() if count is None]
            if missing:
                raise MissingTopicError(f"topic {missing[0]} {missing_raw(missing[0])}")
            wanted = {topic.name: 1 if topic.kind in SINGLE else counts[topic.raw_topic] or 0 for topic in needed}
            new = [topic for topic in needed if topic.name not in existing]
            growing = [topic.name for topic in needed if topic.kind not in LETTERS and topic.name in there]
            grown = {name: wanted[name] for name in growing if there[name] < wanted[name]}
            await _create(client, settings, new, wanted)
            for name, count in grown.items():
                await _grow(client, name, count)
            await _until_visible(client, {name: wanted[name] for name in [*grown, *(topic.name for topic in new)]})
            return [topic.name for topic in new] + list(grown)

    return await retry(settings, ensure)


async def ensure_produced(settings: Settings, raw_topic: str) -> None:
    """Create the topic on which runs of `produce` over a raw topic are noted, if it is missing; then it can be used."""
    needed = produced_need(raw_topic)

    async def ensure() -> None:
        async with admin(settings) as client:
            if needed.name in await _counts(client, [needed.name]):
                return
            await _create(client, settings, [needed], {needed.name: 1})
            await _until_visible(client, {needed.name: 1})

    try:
        await retry(settings, ensure)
    except TopicError as error:
        raise TopicError(
            f"{error}; let somebody run `tokenmill topics create` who may, or do without: --no-resume"
        ) from error


async def check_topics(settings: Settings, needed: Sequence[NeededTopic] | None = None) -> list[Problem]:
    """Return what is wrong with the topics that the settings need, or those ``needed``; nothing is changed."""
    needed = needed_topics(settings) if needed is None else needed
    existing = await described(settings, [topic.name for topic in needed])
    return [problem for topic in needed for problem in find_problems(topic, existing)]


async def require_topics(settings: Settings) -> list[Problem]:
    """Return the warnings about what workers need, waiting as `retry`; raises TopicError for what breaks a promise."""
    needed = [topic for topic in needed_topics(settings) if topic.kind != "produced"]

    async def look() -> list[Problem]:
        problems = await check_topics(settings, needed)
        found = [problem for problem in problems if problem.severity == "error"]
        if found:
            more = f" (and {len(found) - 1} more: see `tokenmill topics check`)" if len(found) > 1 else ""
            kind = MissingTopicError if all(problem.missing for problem in found) else TopicError
            raise kind(f"topic {found[0].topic} {found[0].text}{more}")
        return problems

    return await retry(settings, look)


async def described(settings: Settings, topics: Iterable[str]) -> dict[str, Existing]:
    """Return those of the topics that exist, as the brokers describe them."""
    async with admin(settings) as client:
        return await describe_topics(client, topics)


async def partition_count(settings: Settings, topic: str) -> int:
    """Return the number of partitions of a topic, waiting as `retry`; raises MissingTopicError without one."""

    async def look() -> int:
        async with admin(settings) as client:
            (found,) = await client.describe_topics([topic])
        if not found["partitions"]:
            raise MissingTopicError(f"topic {topic} {missing_raw(topic)}")
        return len(found["partitions"])

    return await retry(settings, look)


async def describe_topics(client: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, Existing]:
    """Return those of the topics that exist, with the configuration values that matter here (`CONFIGS`)."""
    counts = await _counts(client, names)
    if not counts:
        return {}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(CONFIGS)) for name in counts]
    configs: dict[str, dict[str, str]] = {}
    for answer in await client.describe_configs(resources):
        for code, message, _, name, entries in answer.resources:
            if code:
                why = message or errors.for_code(code).__name__
                raise TopicError(f"the brokers do not describe topic {name}: {why}")
            configs[name] = {entry[0]: entry[1] for entry in entries}
    return {name: Existing(count, configs[name]) for name, count in counts.items()}


async def _counts(client: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, int]:
    """Return the number of partitions, with a leader each, of those of the topics that exist."""
    answers = await client.describe_topics(list(names))
    unknown = errors.UnknownTopicOrPartitionError.errno
    return {one["topic"]: len(one["partitions"]) for one in answers if one["error_code"] != unknown}


async def _create(
    client: AIOKafkaAdminClient, settings: Settings, topics: list[NeededTopic], partitions: Mapping[str, int]
) -> None:
    if not topics:
        return
    factor = settings.replication_factor
    # An empty assignment is what lets NewTopic pass with the brokers' default factor, -1.
    assignments: dict[int, list[int]] | None = {} if factor == -1 else None
    answer = await client.create_topics(
        [NewTopic(topic.name, partitions[topic.name], factor, assignments, topic.configs) for topic in topics]
    )
    for name, code, message in answer.topic_errors:
        # Somebody else may have been faster, another worker for example: that is as good.
        if code and code != errors.TopicAlreadyExistsError.errno:
            raise TopicError(f"the brokers refuse topic {name}: {message or errors.for_code(code).__name__}")


async def _grow(client: AIOKafkaAdminClient, topic: str, partitions: int) -> None:
    try:
        await client.create_partitions({topic: NewPartitions(partitions)})
    except errors.InvalidPartitionsError:
        return  # somebody else was faster; whether they are there is looked at next
    except errors.TopicAuthorizationFailedError as error:
        raise TopicError(
            f"topic {topic} lacks partitions, and the brokers do not let us add them: grant Alter on it, or run "
            "`tokenmill topics create` as somebody who may"
        ) from error


async def _until_visible(client: AIOKafkaAdminClient, wanted: Mapping[str, int]) -> None:
    if not wanted:
        return
    try:
        async with asyncio.timeout(VISIBLE_SECONDS):
            while True:
                counts = await _counts(client, wanted)
                if all(counts.get(name, 0) >= count for name, count in wanted.items()):
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TopicError(
            f"the new topics {', '.join(wanted)} have no leaders after {VISIBLE_SECONDS:.0f} s: see the brokers' logs"
        ) from None
