"""The two logs of a chain on Kafka, for a worker that resumes (what it believes: `tokenmill.continuing`)."""

from collections.abc import AsyncIterator, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill import continuing
from tokenmill.continuing import Tail, find_tail
from tokenmill.errors import MovedError
from tokenmill.genesis import Genesis
from tokenmill.message import Message
from tokenmill.records import SourceRecord
from tokenmill.resume import ResumePoint

from ..clients.kafka import consumer, offsets, read_range
from ..clients.messages import message_of
from ..settings import Settings

log = structlog.get_logger(__name__)


class KafkaLogs:
    """A chain's token partition and raw partition, read with one client (`tokenmill.continuing.ChainLogs`)."""

    def __init__(self, client: AIOKafkaConsumer, tokens: TopicPartition, raw: TopicPartition) -> None:
        """Read with ``client``, which nobody else uses meanwhile."""
        self.tokens = f"{tokens.topic}[{tokens.partition}]"
        self.source = f"{raw.topic}[{raw.partition}]"
        self._client = client
        self._tokens = tokens
        self._raw = raw

    async def token_bounds(self) -> tuple[int, int]:
        """Return the first offset that the token partition holds, and the one after its last."""
        return (await offsets(self._client, [self._tokens]))[self._tokens]

    async def source_bounds(self) -> tuple[int, int]:
        """Return the same of the raw partition."""
        return (await offsets(self._client, [self._raw]))[self._raw]

    async def messages(self, start: int, end: int) -> AsyncIterator[Message]:
        """Yield the messages of the token partition at the offsets ``[start, end)``; raises as `ChainLogs` says."""
        async for record in read_range(self._client, self._tokens, start, end):
            yield message_of(record, self._tokens)

    async def record(self, offset: int) -> SourceRecord | None:
        """Return the raw partition's record at an offset; None where there is none."""
        async for record in read_range(self._client, self._raw, offset, offset + 1):
            return record
        return None


async def read_tail(client: AIOKafkaConsumer, genesis: Genesis, tokens: TopicPartition, raw: TopicPartition) -> Tail:
    """Find where the chain on a token partition continues; raises as `tokenmill.continuing.find_tail`.

    ``client`` is used by nobody else meanwhile.
    """
    tail = await find_tail(KafkaLogs(client, tokens, raw), genesis, raw.partition)
    if tail.gap is not None:
        log.warning("resuming after a gap that the source cannot fill", topic=tokens.topic, block=tail.gap[1])
    return tail


async def check_source(
    client: AIOKafkaConsumer, raw: TopicPartition, point: ResumePoint, source_first: int, source_end: int
) -> None:
    """Check that the record that a cursor remembers is there; raises as `tokenmill.continuing.check_source`."""
    await continuing.check_source(KafkaLogs(client, raw, raw), point, (source_first, source_end))


async def messages_between(
    settings: Settings, tokens: TopicPartition, start: int, end: int
) -> Sequence[tuple[int, Message]]:
    """Return what is left of a token partition at ``[start, end)``, with offsets; nothing where it ends before ``end``.

    Raises:
        DamagedError: what is there is none of TokenMill's.
        BrokerError: no broker answers.

    """
    async with consumer(settings) as client:
        first, _ = (await offsets(client, [tokens]))[tokens]
        try:
            records = read_range(client, tokens, max(first, start), end)
            return [(record.offset, message_of(record, tokens)) async for record in records]
        except MovedError:
            return ()
