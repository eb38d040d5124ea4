"""A Kafka in memory, for `produce`: what is under way to each partition arrives when a script lets it arrive.

It knows as much as `produce` relies on: a partition gets batches in the order in which one producer sent them, each as
a whole or not at all; a transactional id is granted to one owner at a time; and an aborted transaction leaves a marker
in the partitions that were added to it, behind which the brokers refuse what an earlier owner sent. What a killed
process had under way may still arrive, long after, where nobody has put a marker.
"""

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import AsyncMock

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OutOfOrderSequenceNumber, ProducerFenced

from tokenmill.app.settings import Settings, dead_letter_topic, produced_topic

RAW = "raw"
DEAD = dead_letter_topic(RAW)
PRODUCED = produced_topic(RAW)


SELDOM = 0.05
MOST_UNDER_WAY = 2


class Stored(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(slots=True)
class Log:
    records: list[Stored] = field(default_factory=list)
    end: int = 0
    first: int = 0
    refuses_below: int = 0
    """Epoch of the last marker: who has a lower one is refused."""
    sequences: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By epoch: how many records its owner has here, and therefore the sequence of its next one."""

    def append(self, records: Iterable[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]]) -> None:
        for key, value, headers in records:
            self.records.append(Stored(self.end, key, value, headers))
            self.end += 1


class Builder:
    def __init__(self) -> None:
        self.records: list[Any] = []

    def append(self, *, timestamp: object, key: bytes | None, value: bytes | None, headers: Iterable[Any] = ()) -> bool:
        assert timestamp is not None
        self.records.append((key, value, tuple(headers)))
        return True

    def close(self) -> None:
        """Take no more."""

    def size(self) -> int:
        return sum(len(key or b"") + len(value or b"") for key, value, _ in self.records)


class UnderWay(NamedTuple):
    epoch: int
    sequence: int
    records: list[Any]
    future: "asyncio.Future[None]"


class ScriptedKafka:
    def __init__(self, partitions: int, rng: random.Random) -> None:
        self.counts = {RAW: partitions, DEAD: 2, PRODUCED: 1}
        self.logs: dict[TopicPartition, Log] = defaultdict(Log)
        self.under_way: dict[TopicPartition, deque[UnderWay]] = defaultdict(deque)
        self.stale: dict[TopicPartition, deque[UnderWay]] = defaultdict(deque)
        """What owners sent that others have followed: it arrives late, if ever."""
        self.epoch = 0
        self.rng = rng
        self.delivered = 0
        self.slow: str | None = None
        """A topic that takes what it gets when nothing else waits, or seldom."""
        self.refuse: Callable[[TopicPartition], Exception | None] = lambda _: None
        self.refuse_value: Callable[[bytes | None], Exception | None] = lambda _: None
        """Of the raw topic: a batch with a value that is refused is refused as a whole."""

    async def deliver(self, share: float = 0.3) -> None:
        """Let batches arrive, one now and then, of partitions by chance; until cancelled."""
        while True:
            await asyncio.sleep(0)
            if self.rng.random() < share:
                self.deliver_one()

    def deliver_one(self) -> None:
        waiting = [name for name, batches in self.under_way.items() if batches]
        quick = [name for name in waiting if name.topic != self.slow or self.rng.random() < SELDOM]
        late = [name for name, batches in self.stale.items() if batches]
        if late and self.rng.random() < SELDOM:
            self.arrive(self.rng.choice(late), self.stale)
        elif quick:
            self.arrive(self.rng.choice(quick))

    def arrive_late(self) -> None:
        for name, batches in self.stale.items():
            while batches:
                self.arrive(name, self.stale)

    def grant(self) -> int:
        """Return the epoch of a new owner; what the one before has under way is late from now on."""
        self.epoch += 1
        for name, batches in self.under_way.items():
            arriving = self.rng.choice([0, 1, len(batches)])  # what is behind it is lost with a connection
            self.stale[name].extend(list(batches)[:arriving])
            batches.clear()
        return self.epoch

    def arrive(self, name: TopicPartition, batches: Mapping[TopicPartition, deque[UnderWay]] | None = None) -> None:
        """Let the first batch arrive that is under way to a partition, or of others the first."""
        epoch, sequence, records, future = (batches or self.under_way)[name].popleft()
        log = self.logs[name]
        refused = [self.refuse_value(value) for _, value, _ in records if name.topic == RAW]
        error = (
            ProducerFenced() if epoch < log.refuses_below else next(filter(None, [self.refuse(name), *refused]), None)
        )
        if error is None and sequence != log.sequences[epoch]:
            error = OutOfOrderSequenceNumber()
        if error is None:
            log.append(records)
            log.sequences[epoch] += len(records)
            self.delivered += 1
        if future.done() or future.get_loop().is_closed():
            return  # its process was killed
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def forget(self, name: TopicPartition, before: int) -> None:
        log = self.logs[name]
        log.first = max(log.first, before)
        log.records = [record for record in log.records if record.offset >= before]

    def values(self, topic: str) -> list[list[bytes | None]]:
        names = [TopicPartition(topic, number) for number in range(self.counts[topic])]
        return [[record.value for record in self.logs[name].records] for name in names]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        package = "tokenmill.app.tools.produce"

        @asynccontextmanager
        async def producer(_: Settings, **options: Any) -> AsyncIterator[Producer]:
            client = Producer(self, options.get("transactional_id"))
            try:
                yield client
            finally:
                client.ended = True

        @asynccontextmanager
        async def consumer(_: Settings, **options: Any) -> AsyncIterator[Consumer]:
            assert options == {"isolation_level": "read_uncommitted"}, "what another run has open would hide the end"
            yield Consumer(self)

        # As to a login that may not see what is configured.
        monkeypatch.setattr(f"{package}.sending.described", AsyncMock(return_value={}))
        monkeypatch.setattr(f"{package}.run_notes.consumer", consumer)
        monkeypatch.setattr(f"{package}.producing.ensure_produced", AsyncMock())
        for module in ("producing", "sending"):
            monkeypatch.setattr(f"{package}.{module}.producer", producer)
            count = AsyncMock(side_effect=lambda _, topic: self.counts[topic])
            monkeypatch.setattr(f"{package}.{module}.partition_count", count)


class Transactions:
    """What aiokafka calls its transaction manager."""

    def __init__(self, name: str | None) -> None:
        self.transactional_id = name
        self.added: list[TopicPartition] = []
        self.maybe_add_partition_to_txn = self.added.append
        self.sequences: dict[TopicPartition, int] = defaultdict(int)

    def increment_sequence_number(self, name: TopicPartition, count: int) -> None:
        self.sequences[name] += count


class Producer:
    """As much of aiokafka's producer as `produce` uses."""

    def __init__(self, kafka: ScriptedKafka, name: str | None) -> None:
        self.kafka = kafka
        self._txn_manager = Transactions(name)
        self.epoch = kafka.epoch if name is None else kafka.grant()
        self.ended = False
        self.create_batch = Builder

    async def begin_transaction(self) -> None:
        assert self._txn_manager.transactional_id is not None

    async def abort_transaction(self) -> None:
        """Put a marker into each partition that was added."""
        await asyncio.sleep(0)
        for name in self._txn_manager.added:
            log = self.kafka.logs[name]
            log.end += 1
            log.refuses_below = self.epoch
        self._txn_manager.added.clear()

    async def send_batch(self, builder: Builder, topic: str, *, partition: int) -> "asyncio.Future[None]":
        """Send it; waits while two others are under way there."""
        while len(self.kafka.under_way[TopicPartition(topic, partition)]) >= MOST_UNDER_WAY:  # noqa: ASYNC110 - a script lets them arrive
            await asyncio.sleep(0)
        return self._send(builder, topic, partition)

    def _send(self, builder: Builder, topic: str, partition: int) -> "asyncio.Future[None]":
        assert self._txn_manager.transactional_id is None, "readers would wait for a commit"
        assert not self.ended
        name, future = TopicPartition(topic, partition), asyncio.get_running_loop().create_future()
        sequence = self._txn_manager.sequences[name]
        self.kafka.under_way[name].append(UnderWay(self.epoch, sequence, builder.records, future))
        self._txn_manager.increment_sequence_number(name, len(builder.records))
        return future

    async def send(
        self, topic: str, value: Any = None, key: Any = None, partition: int = 0, *, headers: Iterable[Any] = ()
    ) -> "asyncio.Future[None]":
        builder = Builder()
        builder.append(timestamp=0, key=key, value=value, headers=headers)
        return self._send(builder, topic, partition)

    async def send_and_wait(self, *arguments: Any, **named: Any) -> None:
        await (await self.send(*arguments, **named))


class Consumer:
    """As much of aiokafka's consumer as `read_range` uses."""

    def __init__(self, kafka: ScriptedKafka) -> None:
        self.logs = kafka.logs
        self.at: dict[TopicPartition, int] = {}
        self.seek = self.at.__setitem__

    async def topics(self) -> set[str]:
        return {name.topic for name in self.logs}

    async def beginning_offsets(self, names: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {name: self.logs[name].first for name in names}

    async def end_offsets(self, names: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {name: self.logs[name].end for name in names}

    def assign(self, names: Iterable[TopicPartition]) -> None:
        self.at.update(dict.fromkeys(names, 0))

    async def position(self, name: TopicPartition) -> int:
        return self.at[name]

    async def getmany(self, name: TopicPartition, **_: object) -> Mapping[TopicPartition, list[Stored]]:
        found = [record for record in self.logs[name].records if record.offset >= self.at[name]][:7]
        self.at[name] = found[-1].offset + 1 if found else self.logs[name].end
        return {name: found} if found else {}
