"""A raw partition on scripted clients: a world whose brokers, clock and end of the process are a test's."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol
from unittest.mock import AsyncMock

import pytest
from faust.types import TP

from tests.app.conftest import EndedError, rest
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


@dataclass
class World:
    """Everything around a partition: its clock, its skip list, its topics."""

    settings: Settings
    plan: RawTopicPlan
    events: list[tuple[str, Any]] = field(default_factory=list)
    """What was done, in order: a message sent (topic, first block, next offset), a mark, a start."""
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    """What is sent to these topics is acknowledged when its event is set."""
    now: float = 1000.0
    tails: dict[str, Tail | TokenMillError] = field(default_factory=dict)
    skipped: frozenset[int] = frozenset()
    errors: dict[str, Exception] = field(default_factory=dict)
    """What comes of sending to a topic."""
    asked: list[int] = field(default_factory=list)
    offsets: Counter[str] = field(default_factory=Counter)
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
        context = MillContext(
            settings=self.settings, stages=self.plan.stages, streams=self.streams, board=self.board, deaths=self.deaths,
            skip_list=self, token_topics=defaultdict(lambda: Existing(1, self.configs)),  # type: ignore[arg-type]
            letter_bytes=defaultdict(lambda: 1 << 20), require_partition=self.require, send=self.send,
            partitions=AsyncMock(return_value=1), leader=lambda _tp: "one", start_partition=self.start,
            set_durable=lambda _tp, offset: self.events.append(("durable", offset)),
        )  # fmt: skip
        return RawPartition(TP0, context)

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
        self.offsets[topic] += 1
        return self.offsets[topic] - 1

    def told(self, *kinds: str) -> list[Any]:
        return [what for kind, what in self.events if kind in kinds]


class WorldFactory(Protocol):
    """Makes a world with these splits and settings, whose processes end with an `EndedError`."""

    def __call__(self, splits: dict[str, int], **others: Any) -> World: ...


@pytest.fixture
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorldFactory:
    def make(splits: dict[str, int], **others: Any) -> World:
        settings = Settings(
            raw_topics=("raw",), tokenizer="bytes", sequence_length=63, message_bytes=64, store=tmp_path, splits=splits,
            shards=sum(splits.values()), **others,
        )  # fmt: skip
        return _scripted(World(settings, plan_topic(settings, "raw")), monkeypatch)

    return make


@pytest.fixture
def world(make_world: WorldFactory) -> World:
    return make_world({"train": 1000})


def _scripted(found: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Have partitions meet this world."""

    async def read_tail(_client: object, settled: Settled, *_: object) -> Tail:
        tail = found.tails[settled.stream.name]
        if isinstance(tail, TokenMillError):
            raise tail
        return tail

    def end_process(reason: str, **_: object) -> NoReturn:
        found.events.append(("ended", reason))
        raise EndedError(reason)

    monkeypatch.setattr(module, "consumer", lambda _settings: nullcontext())
    monkeypatch.setattr(module, "read_tail", read_tail)
    clock = SimpleNamespace(**dict.fromkeys(("monotonic", "time", "perf_counter"), lambda: found.now))
    for each in (module, publisher):
        monkeypatch.setattr(each, "end_process", end_process)
        monkeypatch.setattr(each, "time", clock)
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


async def fed(partition: RawPartition, found: FetchedBatch) -> None:
    await partition.feed(found)
    await rest()
