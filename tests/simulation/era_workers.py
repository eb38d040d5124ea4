"""Who closes, brings and reads eras: the project's own code, which stops at each thing that waits; and its topics."""

import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar, cast

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from tests.eras.judging import chain_of, read_ended, read_era
from tests.histories import History, make_history
from tests.simulation.broker import Log, make_scene, step
from tokenmill.app.kafka import clients
from tokenmill.app.kafka.control_log import ControlLog
from tokenmill.app.kafka.control_topic import Settled, read_eras
from tokenmill.app.mill import era_closing as closing
from tokenmill.app.mill.era_closing import EraCloser, EraKeeper
from tokenmill.app.segments import era_bringing as bringing
from tokenmill.app.segments.era_bringing import EraBringer
from tokenmill.app.settings import Settings, Stream
from tokenmill.eras import ERA_KEY, Era, EraFollower, EraLog
from tokenmill.errors import BrokerError, DifferenceError, DiskError, GapError, LockedError, MovedError, TopicError
from tokenmill.store import Store
from tokenmill.wire.message import HEADER_NAME, encode_header

GENESIS: Final = make_scene(1, 4, 0).geneses[0]
FINGERPRINT: Final = GENESIS.recipe.fingerprint
STREAM: Final = Stream("raw.train", "raw", "train")
MOST_BLOCKS: Final = 400
FETCH: Final = 4
"""Offsets that a fetch takes at most."""


class Written(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    blocks: tuple[int, int] = (0, 0)
    """Of a token message: its blocks, from and to."""


@cache
def history_of(partition: int, other_from: int | None = None) -> History:
    return make_history(MOST_BLOCKS, other_from=other_from, fingerprint=FINGERPRINT, partition=partition)


@cache
def written(partition: int, first: int, stop: int, *, other: bool = False) -> Written:
    """Return a message of these blocks; one whose first block is another one is right in itself."""
    message = history_of(partition, first if other else None).message(first, stop)
    return Written(None, bytes(message.tokens), [(HEADER_NAME, encode_header(message))], (first, stop))


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
        self._topics, self._rng, self._position = topics, rng, 0

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

    async def getmany(self, partition: TopicPartition, *, timeout_ms: int) -> Mapping[TopicPartition, Sequence[Any]]:
        assert timeout_ms > 0
        await self._topics.answer()
        log = self._topics.log(partition)
        if not log.first <= self._position <= log.end:
            self._topics.seen["log moved while read"] += 1
            raise OffsetOutOfRangeError
        end = min(log.end, self._position + self._rng.randint(1, FETCH))
        found = log.read(self._position, end)
        self._position = end
        where = partition._asdict()
        return {partition: [SimpleNamespace(**where, offset=offset, **each._asdict()) for offset, each in found]}


class Truth:
    """The eras after each change of the control topic."""

    def __init__(self, topics: Topics, ever: Sequence[int]) -> None:
        self.versions: list[list[bytes]] = [[]]
        self._topics = topics
        self._ever = ever

    def changed(self) -> None:
        """Note the eras that stand there now; what each says of blocks must be so, and below what ever stood there."""
        records = sorted(self._topics.control.truth.items())
        chain = chain_of((entry.value for _, entry in records if entry.key == ERA_KEY), FINGERPRINT)
        self.versions.append(chain)
        if chain:
            era = read_era(chain[-1])
            assert era is not None
            for partition, (first, stop, before, after) in enumerate(era["ranges"]):
                known = history_of(partition).chains
                assert (before, after) == (known[first].hex(), known[stop].hex()), "an era names another hash"
                assert stop <= self._ever[partition], "an era has blocks that never were there without a gap"

    def now(self) -> int:
        return len(self.versions) - 1

    def require_lost(self, head: Era | None, since: int, who: str) -> None:
        assert head is not None, f"{who} halted though it had seen nothing"
        found = [version for version in self.versions[since:] if head.pack() not in version]
        assert found, f"{who} halted though era {head.number}, the last that it has, stands there"

    def require_head(self, head: Era | None, since: int, who: str) -> None:
        assert head is None or any(head.pack() in version for version in self.versions[since:]), (
            f"{who} takes for the last era what was none while it looked"
        )

    def require_end(self, since: int) -> None:
        assert any(version and read_ended(version[-1]) for version in self.versions[since:]), (
            "a stream counts as closed that has no end marker"
        )

    def require_chain(self, eras: Sequence[Era], since: int, who: str) -> None:
        values = [era.pack() for era in eras]
        assert any(version[: len(values)] == values for version in self.versions[since:]), (
            f"{who} sees other eras than the topic held while it looked"
        )


SETTLED: Final = Settled(STREAM, GENESIS, ControlLog())
PASSING: Final = (*clients.PASSING, TopicError)
T = TypeVar("T")


@dataclass(eq=False)
class Flight:
    key: bytes
    value: bytes
    state: str = "flying"


class World(Protocol):
    """What a history is to its workers."""

    topics: Topics
    truth: Truth
    seen: Counter[str]
    clock: float
    rng: random.Random
    flights: list[Flight]


@dataclass
class Pace:
    era_blocks: int
    era_max_seconds: float

    def for_topic(self, _: str) -> Self:
        return self


class Worker:
    """A process: it goes on step by step, is stopped by not being stepped, and killed."""

    owns, gave_up, over = True, False, False
    _work: Coroutine[Any, Any, None] | None = None

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = cast("AIOKafkaConsumer", SimulatedConsumer(world.topics, world.rng))

    async def work(self) -> None:
        raise NotImplementedError

    def step(self) -> None:
        if not self.over:
            self._work = self._work or self.work()
            try:
                self._work.send(None)
            except StopIteration:
                self.over = True

    def kill(self) -> None:
        if self._work is not None:
            self._work.close()
        self.over = True


class Sender(Worker):
    async def write(self, _: str, key: bytes, value: bytes) -> None:
        flight = Flight(key, value)
        self.world.flights.append(flight)
        while flight.state == "flying":
            await step()
        if flight.state == "refused":
            raise BrokerError("it was not acknowledged")


class Mill(Sender):
    """A mill that believes, or does not, to have partition 0."""

    def __init__(self, world: World, pace: Pace) -> None:
        super().__init__(world)
        self._keeper = EraKeeper(cast("Settings", pace), [SETTLED], lambda _: self.owns, self.write)

    async def work(self) -> None:
        keeper, name = self._keeper, STREAM.name
        while True:
            began = self.world.truth.now()
            try:
                await keeper._step(self.client, SETTLED)
            except PASSING:
                self.world.seen["looks broken off"] += 1
            else:
                closer = keeper._closers.get(name)
                if closer is not None and name not in keeper.halts:
                    self.world.truth.require_head(closer._follower.log.last, began, "a mill")
            if name in keeper.halts and not self.gave_up:
                head = keeper._closers[name]._follower.log.last
                self.world.truth.require_lost(head, began, "a mill")
                self.world.seen["mills halted over an era that was lost"] += 1
            self.gave_up = name in keeper.halts
            await step()


class Person(Sender):
    """Somebody who closes the stream (`tokenmill close`)."""

    _ends = 0

    async def work(self) -> None:
        began = self.world.truth.now()
        closer = EraCloser(SETTLED, self._write_counted, era_blocks=1, era_seconds=0.0)
        try:
            await closer.close(self.client)
        except (*PASSING, *closing.FINAL):
            self.world.seen["closing failed"] += 1
            return
        self.world.truth.require_end(began)
        self.world.seen["streams closed"] += 1
        self.world.seen["end markers written again"] += self._ends > 1

    async def _write_counted(self, topic: str, key: bytes, value: bytes) -> None:
        self._ends += read_ended(value)
        await self.write(topic, key, value)


@dataclass
class StoreFiles:
    """The eras' files of a store, and how many of its blocks are there."""

    eras: list[tuple[Era, int]] = field(default_factory=list)
    blocks: dict[int, int] = field(default_factory=dict)
    holder: "SimulatedWriter | None" = None
    commits_left: int | None = None
    """Eras that the disk takes before it fails; None: all."""


class SimulatedWriter:
    """An `EraWriter` whose files are a list."""

    def __init__(self, process: "Bringer") -> None:
        self.process, self._store = process, process.store
        self.last: Era | None = None
        self.position: int | None = None
        if self._store.eras:
            self.last, self.position = self._store.eras[-1]

    @classmethod
    def open(cls, store: Store, _: str) -> "SimulatedWriter":
        process = cast("Bringer", store)
        if process.store.holder is not None:
            raise LockedError("another process has it")
        process.store.holder = cls(process)
        return process.store.holder

    @property
    def next_number(self) -> int:
        return len(self._store.eras)

    def append(self, eras: Sequence[tuple[Era, int]]) -> None:
        """Take eras that continue; a disk that fails has taken some."""
        files, log = self._store, EraLog(FINGERPRINT, self.last)
        for era, offset in eras:
            if log.add(era.pack()) is None:
                raise GapError("it does not continue")
            if files.commits_left == 0:
                files.commits_left = None
                self.close()
                raise DiskError("no space left")
            files.commits_left = files.commits_left and files.commits_left - 1
            files.eras.append((era, offset))
            self.last, self.position = era, offset

    def close(self) -> None:
        if self._store.holder is self:
            self._store.holder = None


class Bringer(Worker):
    """A segment worker that has partition 0 of the token topic."""

    def __init__(self, world: World, store: StoreFiles) -> None:
        super().__init__(world)
        self.store = store
        self._bringer = EraBringer([SETTLED], cast("Store", self), lambda _: self.owns)

    async def work(self) -> None:
        name = STREAM.name
        while True:
            began = self.world.truth.now()
            try:
                await self._bringer._step(self.client, SETTLED)
            except PASSING:
                self.world.seen["looks broken off"] += 1
            if name in self._bringer.halts and not self.gave_up:
                self.world.truth.require_lost(self.store.eras[-1][0] if self.store.eras else None, began, "a store")
                self.world.seen["stores halted over an era that was lost"] += 1
            self.gave_up = name in self._bringer.halts
            await step()

    def kill(self) -> None:
        super().kill()
        if self.store.holder is not None and self.store.holder.process is self:
            self.store.holder = None


class Reader(Worker):
    """Somebody who follows the eras on the control topic."""

    def __init__(self, world: World) -> None:
        self.follower = EraFollower(STREAM.name, FINGERPRINT)
        self.known: list[Era] = []
        self.halted = False
        super().__init__(world)

    async def work(self) -> None:
        while True:
            began = self.world.truth.now()
            try:
                async for found in read_eras(self.client, STREAM.control_topic, self.follower):
                    self.known += [era for era, _ in found]
            except DifferenceError:
                self.world.truth.require_lost(self.known[-1] if self.known else None, began, "a reader")
                self.world.seen["readers halted over an era that was lost"] += 1
                self.halted = self.over = True
                return
            except MovedError:
                self.world.seen["looks at a log that moved again and again"] += 1
            except BrokerError:
                self.world.seen["looks broken off"] += 1
            else:
                self.world.truth.require_chain(self.known, began, "a reader")
                self.world.seen["looks"] += 1
            await step()


async def _in_steps(function: Callable[..., T], *arguments: object) -> T:
    """Do what `asyncio.to_thread` and `in_thread` do: others get their turn before it and after it."""
    await step()
    answer = function(*arguments)
    await step()
    return answer


@contextmanager
def outside(world: World) -> Iterator[None]:
    """Replace what the project's code takes from outside: the clock, threads, a store's files, and the log's lines."""

    def said(event: str, **_: object) -> None:
        world.seen[f"said: {event}"] += 1

    log = SimpleNamespace(**dict.fromkeys(("debug", "info", "warning", "error", "critical"), said))
    clock = SimpleNamespace(monotonic=lambda: world.clock, time_ns=count(1_000_000, 1_000_000).__next__)
    with pytest.MonkeyPatch.context() as patch:
        for module in (bringing, closing):
            patch.setattr(module, "log", log)
        patch.setattr(closing, "time", clock)
        patch.setattr(bringing, "EraWriter", SimulatedWriter)
        patch.setattr(bringing, "in_thread", _in_steps)
        patch.setattr("asyncio.to_thread", _in_steps)
        yield
