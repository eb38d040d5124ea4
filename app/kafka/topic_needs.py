"""What the settings ask of Kafka's topics, and whether a topic as it is keeps the promises. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from tokenmill.packings import SEPARATE, Fit
from tokenmill.wire.pieces import PIECE
from tokenmill.wire.references import REFERENCE

from ..settings import Settings, TopicSettings, dead_letter_topic, produced_topic, rejected_topic

Kind = Literal["raw", "dead-letters", "rejected", "produced", "tokens", "control"]

LETTERS: Final[frozenset[Kind]] = frozenset({"dead-letters", "rejected"})
"""Topics of whole raw records with reasons; a record's partition there depends on how many partitions there were."""
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
"""Room beside each piece's row and meta, so that small changes of the format need no new topics."""
WIDEST_TOKEN_BYTES: Final = 4
"""uint32. The vocabulary decides the dtype, and this must hold before a tokenizer is loaded."""
CONTROL_MESSAGE_BYTES: Final = 1 << 20
"""A genesis holds the settings in full; its other records are small."""
PRODUCED_MESSAGE_BYTES: Final = 1 << 20
"""A part of what a run knows of its sources is smaller."""
PRODUCED_SEGMENT_BYTES: Final = 16 << 20
"""Kafka compacts no log's newest segment, and every call of produce reads all of it."""
UNLIMITED: Final = "-1"
BROKERS_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
TIMES: Final = ("message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
SIZES: Final = ("max.message.bytes", "segment.bytes", "compression.type")
CONFIGS: Final = ("cleanup.policy", "retention.ms", "retention.bytes", *SIZES, *TIMES)


class NeededTopic(NamedTuple):
    """A topic that the settings need, and what it needs to keep the promises."""

    name: str
    kind: Kind
    raw_topic: str
    """The raw topic that it belongs to (itself, of kind ``raw``), which sets the number of partitions."""
    max_message_bytes: int
    """The topic's ``max.message.bytes`` must be this or more."""

    @property
    def configs(self) -> dict[str, str]:
        """The topic's configuration when we create it; a raw topic's retention stays the brokers' default.

        Times of raw records are their producers', and `start` is looked up by them; those of ours are the brokers', who
        would refuse a worker's whose clock is wrong.
        """
        configs = {"cleanup.policy": "delete", "max.message.bytes": str(self.max_message_bytes)}
        if self.kind == "produced":
            configs |= {"cleanup.policy": "compact", "segment.bytes": str(PRODUCED_SEGMENT_BYTES)}
        if self.kind != "raw":
            configs |= {"retention.ms": UNLIMITED, "retention.bytes": UNLIMITED, **BROKERS_TIME}
        return configs


class Problem(NamedTuple):
    """Something about a topic that breaks a promise (``error``) or weakens one (``warning``)."""

    topic: str
    severity: Literal["error", "warning"]
    text: str
    """What is wrong, and what to do."""
    missing: bool = False
    """Whether it is that the topic is not there."""


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

    def named(self, *names: str) -> str:
        """Return some of its settings in words, those that the brokers tell."""
        return ", ".join(f"{name}={self.configs[name]}" for name in names if name in self.configs)


def worst_message_bytes(settings: Settings, own: TopicSettings) -> int:
    """Return the largest message that a mill worker sends to a token topic.

    A message is sent once it has ``message_bytes``, so it can be one block larger; the largest block is all one-token
    documents, each with the longest id and fields. With ``fit`` it refers to open blocks as well, at most one piece for
    each offset that these may be behind; and a carry may hold these blocks by value: one that is larger still, because
    their documents are tiny and have long ids, is not written so (`app.mill.open_blocks`).
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
    produced = [produced_need(name) for name in settings.raw_topics]
    streams: list[NeededTopic] = []
    for stream in settings.streams():
        largest = worst_message_bytes(settings, settings.for_topic(stream.raw_topic))
        streams.append(NeededTopic(stream.tokens_topic, "tokens", stream.raw_topic, largest))
        streams.append(NeededTopic(stream.control_topic, "control", stream.raw_topic, CONTROL_MESSAGE_BYTES))
    return raw + dead + produced + streams


def letter_bytes(settings: Settings, topic: Existing | None = None) -> int:
    """Return the largest letter that a topic of letters takes, and that clients with these settings send.

    Where it is not known what the topic takes, it is taken to be what the settings ask of it.
    """
    most = settings.max_record_bytes + HEADERS_BYTES
    return most if topic is None else min(most, topic.max_message_bytes)


def produced_need(raw_topic: str) -> NeededTopic:
    """Return the topic that runs of `produce` over a raw topic need."""
    return NeededTopic(produced_topic(raw_topic), "produced", raw_topic, PRODUCED_MESSAGE_BYTES)


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
    return [
        *_check_partitions(topic, found, raw),
        *_check_cleanup(topic, found),
        *_check_size(topic, found, raw),
    ]


def _check_partitions(topic: NeededTopic, found: Existing, raw: Existing | None) -> Iterable[Problem]:
    if topic.kind == "tokens" and raw is not None and found.partitions != raw.partitions:
        text = f"has {found.partitions} partitions, and {topic.raw_topic} has {raw.partitions}: "
        if found.partitions < raw.partitions:
            text += "a mill adds the missing ones, or `tokenmill topics create`"
            yield Problem(topic.name, "warning", text)
        else:
            yield Problem(topic.name, "error", text + "use a new stream_suffix")
    if topic.kind == "control" and found.partitions != 1:
        yield Problem(topic.name, "error", f"has {found.partitions} partitions, not 1: use a new stream_suffix")
    if topic.kind == "produced" and found.partitions != 1:
        yield Problem(topic.name, "warning", f"has {found.partitions} partitions; produce writes to the first alone")


def is_compacted(found: Existing) -> bool:
    """Return whether Kafka removes records from the middle of the topic's logs."""
    return "compact" in found.configs["cleanup.policy"]


def _check_cleanup(topic: NeededTopic, found: Existing) -> Iterable[Problem]:
    if topic.kind == "produced":
        if found.configs["cleanup.policy"] != "compact":
            text = "is not compacted, so it forgets runs of produce, or grows for ever: set cleanup.policy=compact"
            yield Problem(topic.name, "warning", text)
        return
    if is_compacted(found):
        text = "is compacted, so records vanish in between: set cleanup.policy=delete"
        yield Problem(topic.name, "error", text)
    limits = [f"{name}={found.configs[name]}" for name in ("retention.ms", "retention.bytes")]
    limits = [limit for limit in limits if not limit.endswith(f"={UNLIMITED}")]
    if limits and topic.kind in ("tokens", "control"):
        text = f"has limited retention ({', '.join(limits)}): new stores, mirrors and verify will not reach the start"
        yield Problem(topic.name, "error" if topic.kind == "control" else "warning", text)


def _check_size(topic: NeededTopic, found: Existing, raw: Existing | None) -> Iterable[Problem]:
    limit = found.max_message_bytes
    needed = topic.max_message_bytes
    if topic.kind == "raw":
        return
    if topic.kind in LETTERS and raw is not None:
        needed = raw.max_message_bytes + HEADERS_BYTES
    if limit < needed:
        text = f"takes messages of {limit} bytes, and the largest can have {needed}: set max.message.bytes={needed}"
        yield Problem(topic.name, "error", text)
