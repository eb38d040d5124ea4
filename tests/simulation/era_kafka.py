"""A control topic and token topics of lists, and a consumer of them that stops at each thing that takes time.

The consumer has what the project's own reading of topics (`tokenmill.app.kafka.clients`) asks of aiokafka's.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from tests.simulation.logs import Log, step
from tests.simulation.scene import make_scene
from tokenmill.app.settings import Stream
from tokenmill.errors import BrokerError
from tokenmill.wire.chain import Cursor, genesis_hash, roll
from tokenmill.wire.message import HEADER_NAME, Message, encode_header
from tokenmill.wire.pieces import Piece, encode_entry
from tokenmill.wire.totals import Totals

GENESIS: Final = make_scene(1, 4, 0).geneses[0]
FINGERPRINT: Final = GENESIS.recipe.fingerprint
STREAM: Final = Stream("raw.train", "raw", "train")
MOST_BLOCKS: Final = 400
FETCH: Final = 4
"""Offsets that a fetch takes at most."""


class Said(NamedTuple):
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Written(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    blocks: tuple[int, int] = (0, 0)
    """Of a token message: its blocks, from and to."""


@cache
def hashes(partition: int) -> list[bytes]:
    start = genesis_hash(FINGERPRINT, partition)
    return [start, *roll(start, _tokens(partition, 0, MOST_BLOCKS), [_entry(block) for block in range(MOST_BLOCKS)])]


def _tokens(partition: int, first: int, stop: int) -> bytes:
    return b"".join(bytes((partition, block & 255, block >> 8, 1)) for block in range(first, stop))


def _entry(block: int) -> bytes:
    return encode_entry([Piece(0, block, 0, b"")])


@cache
def written(partition: int, first: int, stop: int, branch: int = 0) -> Written:
    """Return a message of these blocks; those of another branch are right in themselves, and others."""
    chain = hashes(partition)
    tokens, entries = _tokens(partition, first, stop), [_entry(block) for block in range(first, stop)]
    after = chain[stop]
    if branch:
        tokens = bytes(byte ^ branch for byte in tokens)
        after = roll(chain[first], tokens, entries)[-1]
    cursor = Cursor(10 * stop, 0, stop, 10 * stop - 1)
    message = Message(FINGERPRINT, first, cursor, chain[first], after, Totals(), tokens, entries)
    return Written(None, tokens, [(HEADER_NAME, encode_header(message))], (first, stop))


class Topics:
    def __init__(self, partitions: int) -> None:
        self.control: Log[Written] = Log()
        self.tokens: list[Log[Written]] = [Log() for _ in range(partitions)]
        self.failing = 0
        """Requests that are not answered from now on."""
        self.seen: Counter[str] = Counter()

    def log(self, partition: TopicPartition) -> Log[Written]:
        return self.control if partition.topic == STREAM.control_topic else self.tokens[partition.partition]

    def reach(self, partition: int) -> int:
        """Return how many blocks of a partition stand there from block 0 on without a gap; removed ones count."""
        reached = 0
        for first, stop in sorted(entry.blocks for entry in self.tokens[partition].truth.values()):
            if first > reached:
                break
            reached = max(reached, stop)
        return reached

    async def answer(self) -> None:
        await step()
        if self.failing:
            self.failing -= 1
            self.seen["requests not answered"] += 1
            raise BrokerError("no broker answers")


class SimulatedConsumer:
    """Reads `Topics` as an `AIOKafkaConsumer` of no group would."""

    def __init__(self, topics: Topics, rng: random.Random) -> None:
        self._client = self.cluster = self  # the client's own client, which is asked for metadata
        self._topics = topics
        self._rng = rng
        self._position = 0

    def brokers(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(nodeId=0)]

    async def send(self, _: int, __: object) -> SimpleNamespace:
        await self._topics.answer()
        return SimpleNamespace(topics=[(0, STREAM.tokens_topic, False, self._topics.tokens)])

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        await self._topics.answer()
        return {partition: self._topics.log(partition).first for partition in partitions}

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        await self._topics.answer()
        return {partition: self._topics.log(partition).end for partition in partitions}

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read a partition."""

    def seek(self, _: TopicPartition, offset: int) -> None:
        self._position = offset

    async def position(self, _: TopicPartition) -> int:
        return self._position

    async def getmany(self, partition: TopicPartition, *, timeout_ms: int) -> Mapping[TopicPartition, Sequence[Said]]:
        assert timeout_ms > 0
        await self._topics.answer()
        log = self._topics.log(partition)
        if not log.first <= self._position <= log.end:
            self._topics.seen["log moved while read"] += 1
            raise OffsetOutOfRangeError
        end = min(log.end, self._position + self._rng.randint(1, FETCH))
        found = log.read(self._position, end)
        self._position = end
        topic, number = partition
        return {partition: [Said(topic, number, offset, e.key, e.value, e.headers) for offset, e in found]}
