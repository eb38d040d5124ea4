"""Records that the brokers refuse: where each was, its size, and what the topic's own settings say about it."""

import time
from bisect import bisect_left, insort
from typing import Final

from aiokafka.errors import InvalidTimestampError, KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from tokenmill.errors import BrokerError, MissingTopicError, SettingsError, TopicError

from ...kafka.clients import InvalidRecordError, admin
from ...kafka.security import refused_time
from ...kafka.topics import SIZES, TIMES, Existing, described, is_compacted
from ...settings import Settings
from ...sources.items import Refused, where_words
from .sender import SentDocument
from .summary import Refusals

SETTINGS_SECONDS: Final = 5.0
"""How old a topic's settings may be where they explain a refusal: a run that is refused every record asks seldom."""


class RefusedRecords:
    """Hands on what the brokers refuse to what the run does with everything that is no document."""

    def __init__(self, settings: Settings, topic: str, refusals: Refusals, earlier: int) -> None:
        self._settings = settings
        self._topic = topic
        self._refusals = refusals
        self._found: Existing | None = None
        self._asked = -SETTINGS_SECONDS
        self._numbers: list[int] = []
        self._lower = earlier
        self.count = earlier
        """How many there were, with those of earlier calls."""

    async def take(self, record: SentDocument, error: KafkaError, size: int) -> None:
        """Name the record; on return its dead letter is acknowledged, if that is wanted.

        Raises InputError where the policy is that it ends the run; and ClockError where the brokers do not take this
        machine's time, which no record can help.
        """
        if time.monotonic() - self._asked >= SETTINGS_SECONDS:
            self._found, self._asked = await topic_settings(self._settings, self._topic), time.monotonic()
        where = where_words(record.where)
        if isinstance(error, InvalidTimestampError):
            raise refused_time(self._topic, f"{where}; {_named(self._found, *TIMES)}") from error
        why = why_refused(self._topic, self._found, record, error, size)
        self.count += 1
        insort(self._numbers, record.number)
        await self._refusals.take(Refused(where, why, record.value, row=bool(record.where[1])))
        await self._refusals.settle()

    def before(self, number: int) -> int:
        """Return how many documents with lower numbers were refused; later calls have numbers as high or higher."""
        lower = bisect_left(self._numbers, number)
        del self._numbers[:lower]
        self._lower += lower
        return self._lower


def why_refused(topic: str, found: Existing | None, record: SentDocument, error: KafkaError, size: int) -> str:
    """Return in words why brokers refuse a record, of which a batch of so many bytes was sent."""
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
    """Return the topic as the brokers describe it; None where they do not describe it to this login, or are away."""
    try:
        return (await described(settings, [topic])).get(topic)
    except (TopicError, SettingsError, BrokerError):
        return None


async def require_leaders(settings: Settings, topic: str) -> None:
    """Check that the topic can be written to: brokers that answer, but take no record, say no more than "later".

    Raises:
        MissingTopicError: it is gone.
        TopicError: a partition has no leader, or too few replicas in sync.
        BrokerError: no broker answers.

    """
    async with admin(settings) as client:
        partitions = (await client.describe_topics([topic]))[0]["partitions"]
    if not partitions:
        raise MissingTopicError(f"topic {topic} is gone: somebody has deleted it")
    lacking = [found for found in partitions if found["leader"] < 0 or len(found["isr"]) < len(found["replicas"])]
    if lacking:
        names = ", ".join(f"{found['partition']} ({_replicas(found)})" for found in lacking)
        raise TopicError(
            f"topic {topic} takes no records: see partitions {names}. Start the brokers that are away, or lower "
            "min.insync.replicas; the same command goes on"
        )


def _replicas(found: dict[str, object]) -> str:
    leader = "no leader, " if found["leader"] == -1 else ""
    return f"{leader}in sync are brokers {found['isr']} of {found['replicas']}"
