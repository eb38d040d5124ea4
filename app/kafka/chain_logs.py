"""The two logs of a chain on Kafka, for a worker that resumes (`tokenmill.reading.continuing` decides where)."""

from collections.abc import AsyncIterator, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import MovedError
from tokenmill.reading import continuing
from tokenmill.reading.continuing import Tail, find_tail
from tokenmill.reading.resume import ResumePoint
from tokenmill.records import SourceRecord
from tokenmill.wire.ignoring import IgnoreList
from tokenmill.wire.message import Message

from ..settings import Settings
from .clients import consumer, offsets, read_range
from .control_topic import Settled
from .token_topic import REFUSALS, message_of, refused

log = structlog.get_logger(__name__)


class KafkaLogs:
    """A chain's token partition and raw partition, read with one client (`tokenmill.reading.continuing.ChainLogs`)."""

    def __init__(
        self,
        client: AIOKafkaConsumer,
        tokens: TopicPartition,
        raw: TopicPartition,
        ignored: IgnoreList | None = None,
    ) -> None:
        """Read with ``client``, which nobody else uses meanwhile; messages that are ``ignored`` are left out."""
        self.last_offset = -1
        """Of the message that was read last, for whoever refuses it."""
        self.tokens = f"{tokens.topic}[{tokens.partition}]"
        self.source = f"{raw.topic}[{raw.partition}]"
        self._client = client
        self._tokens = tokens
        self._raw = raw
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
        async for record in read_range(self._client, self._raw, offset, offset + 1):
            return record
        return None


async def read_tail(client: AIOKafkaConsumer, settled: Settled, tokens: TopicPartition, raw: TopicPartition) -> Tail:
    """Find where the chain on a token partition continues; raises as `tokenmill.reading.continuing.find_tail`.

    Messages on the stream's ignore list are left out: a chain that is continued further back gives the same blocks.

    ``client`` is used by nobody else meanwhile.
    """
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


async def check_source(
    client: AIOKafkaConsumer, raw: TopicPartition, point: ResumePoint, source_first: int, source_end: int
) -> None:
    """Check that the record that a cursor remembers is there; raises as `tokenmill.reading.continuing.check_source`."""
    await continuing.check_source(KafkaLogs(client, raw, raw), point, (source_first, source_end))


async def messages_between(
    settings: Settings, tokens: TopicPartition, ignored: IgnoreList, start: int, end: int
) -> Sequence[tuple[int, Message]]:
    """Return what is left of a token partition at ``[start, end)``, with offsets; nothing where it ends before ``end``.

    Raises:
        DamagedError: what is there is none of TokenMill's.
        BrokerError: no broker answers.

    """
    async with consumer(settings) as client:
        first, _ = (await offsets(client, [tokens]))[tokens]
        try:
            return [
                (record.offset, message_of(record, tokens))
                async for record in read_range(client, tokens, max(first, start), end)
                if not ignored.names(tokens.partition, record)
            ]
        except MovedError:
            return ()
