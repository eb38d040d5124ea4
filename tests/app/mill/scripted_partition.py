"""A raw partition on scripted clients: a world whose brokers, clock and end of the process are a test's."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from aiokafka.errors import KafkaError
from faust.types import TP

from tokenmill.app.kafka.control_log import ControlLog
from tokenmill.app.kafka.control_topic import Settled
from tokenmill.app.kafka.fetched_batches import FetchedBatch
from tokenmill.app.kafka.topics import Existing
from tokenmill.app.mill import publisher
from tokenmill.app.mill import raw_partition as module
from tokenmill.app.mill.raw_partition import RawPartition
from tokenmill.app.mill.recipes import MillContext, RawTopicPlan, plan_topic
from tokenmill.app.settings import Settings
from tokenmill.app.worker.in_flight import Board, Deaths
from tokenmill.documents import Record
from tokenmill.errors import TokenMillError, TopicError
from tokenmill.reading import Tail, genesis_point
from tokenmill.recipe import Genesis
from tokenmill.wire.chain import Cursor, genesis_hash
from tokenmill.wire.message import HEADER_NAME, decode_message

EPOCH = 7
TP0 = TP("raw", 0)
TEXT = b"a document that fills more than a block, for a block has sixty-four bytes; " * 2


class EndedError(BaseException):
    """Stands for the end of the process."""


@dataclass
class World:
    """Everything around a partition: its clock, its skip list, its topics."""

    settings: Settings
    plan: RawTopicPlan
    events: list[tuple[str, Any]] = field(default_factory=list)
    """What was done, in order: a message sent (topic, first block, next offset), a mark, a start."""
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    """What is sent to these topics is acknowledged when its event is set."""
    refused: set[str] = field(default_factory=set)
    """What is sent to these topics is refused."""
    now: float = 1000.0
    tails: dict[str, Tail | TokenMillError] = field(default_factory=dict)
    skipped: frozenset[int] = frozenset()
    errors: dict[str, KafkaError] = field(default_factory=dict)
    """What brokers answer for records of a topic."""
    asked: list[int] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=lambda: {"max.message.bytes": "1048576"})
    """Of the token topics."""
    board: Board = field(default_factory=Board)
    deaths: Deaths = field(default_factory=Deaths.inherited)
    streams: list[Settled] = field(default_factory=list)
    missing: list[TopicError] = field(default_factory=list)
    """Why there is no token partition yet, at each look."""

    def partition(self) -> RawPartition:
        self.streams = []
        for stream, recipe in sorted(self.plan.recipes.items()):
            settled = Settled(stream, Genesis(stream.name, recipe, (0,), 16), ControlLog())
            self.streams.append(settled)
            start = genesis_point(0, genesis_hash(recipe.fingerprint, 0))
            self.tails.setdefault(stream.name, Tail(start, start.cursor, 0))
        return RawPartition(
            TP0,
            MillContext(
                settings=self.settings,
                stages=self.plan.stages,
                streams=self.streams,
                skip_list=self,  # type: ignore[arg-type]
                token_topics=defaultdict(lambda: Existing(1, self.configs)),
                letter_bytes=defaultdict(lambda: 1 << 20),
                require_partition=self.require,
                partitions=self.partitions_of,
                send=self.send,
                leader=lambda _tp: "one",
                start_partition=self.start,
                set_durable=lambda _tp, offset: self.events.append(("durable", offset)),
                board=self.board,
                deaths=self.deaths,
            ),
        )

    async def partitions_of(self, _topic: str) -> int:
        return 1

    async def require(self, partition: int) -> None:
        if self.missing:
            raise self.missing.pop()
        self.events.append(("required", partition))

    async def settle(self, _client: object, _partition: int, cursors: Collection[Cursor]) -> frozenset[int]:
        self.events.append(("settled", len(cursors)))
        return self.skipped

    def wanted(self, _partition: int, _cursors: Collection[Cursor]) -> list[int]:
        return self.asked

    async def start(self, _tp: TP, offset: int) -> int:
        self.events.append(("started", offset))
        return EPOCH

    async def send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> int:
        assert (partition, key) == (0, None)
        if topic in self.refused:
            raise OSError("refused")
        if topic in self.errors:
            raise self.errors[topic]
        header = dict(headers).get(HEADER_NAME)
        what: Any = value
        if header is not None:
            message = decode_message(header, value)
            what = ("carry" if message.is_carry else message.first, message.cursor.next_offset)
        self.events.append((topic, what))
        if topic in self.gates:
            await self.gates[topic].wait()
        at = self.offsets.get(topic, 0)
        self.offsets[topic] = at + 1
        return at

    def told(self, *kinds: str) -> list[Any]:
        return [what for kind, what in self.events if kind in kinds]


def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, splits: dict[str, int], **others: Any) -> World:
    settings = Settings(
        raw_topics=("raw",), tokenizer="bytes", sequence_length=63, message_bytes=64, store=tmp_path, splits=splits,
        shards=sum(splits.values()), **others,
    )  # fmt: skip
    found = World(settings, plan_topic(settings, "raw"))

    @asynccontextmanager
    async def consumer(_settings: object) -> AsyncIterator[object]:
        yield object()

    async def read_tail(_client: object, settled: Settled, *_: object) -> Tail:
        tail = found.tails[settled.stream.name]
        if isinstance(tail, TokenMillError):
            raise tail
        return tail

    def end_process(reason: str, **_: object) -> NoReturn:
        found.events.append(("ended", reason))
        raise EndedError(reason)

    monkeypatch.setattr(module, "consumer", consumer)
    monkeypatch.setattr(module, "read_tail", read_tail)
    monkeypatch.setattr(module, "end_process", end_process)
    monkeypatch.setattr(publisher, "end_process", end_process)
    clock = SimpleNamespace(monotonic=lambda: found.now, time=lambda: found.now, perf_counter=lambda: found.now)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(publisher, "time", clock)
    return found


@asynccontextmanager
async def resumed(world: World) -> AsyncIterator[RawPartition]:
    partition = world.partition()
    await partition.resume()
    try:
        yield partition
    finally:
        if not partition.stuck:
            partition.stop()


def batch(*values: bytes | None, first: int = 0, epoch: int = EPOCH, position: int | None = None) -> FetchedBatch:
    records: list[Any] = [Record(at, 1000 + at, None, value) for at, value in enumerate(values, first)]
    return FetchedBatch(TP0, records, first + len(values) if position is None else position, epoch)


async def rest(times: int = 50) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - a thread tells nobody
        await asyncio.sleep(0.001)


async def fed(partition: RawPartition, found: FetchedBatch) -> None:
    await partition.feed(found)
    await rest()
