"""A mill worker as a set of coroutines: a step at a time, what `raw_partition` and `publisher` in `app/mill/` do."""

from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from tests.mills import PARTITION
from tests.simulation.broker import Broker, Flight, SimulatedLogs, stored
from tests.simulation.logs import step
from tests.simulation.scene import Scene
from tokenmill.app.mill.publisher import LogEnd
from tokenmill.app.milling.packing.fit_packing import Reopening
from tokenmill.app.milling.partition_mill import ChainMill, Milled, PartitionMill
from tokenmill.app.worker.in_flight import HALTING
from tokenmill.errors import MovedError
from tokenmill.reading import ResumePoint, Tail, find_tail
from tokenmill.recipe import Genesis
from tokenmill.wire.chain import Cursor
from tokenmill.wire.message import Message

QUEUE: Final = 3
"""Messages that may wait for one token partition."""


class ResumeError(Exception):
    """The process ends, and its supervisor starts another."""


class Judge(Protocol):
    def resumed(self, split: str, logs: SimulatedLogs, tail: Tail) -> None:
        """Hold a resume against the log that it saw."""

    def halted(self, error: Exception, logs: SimulatedLogs | None) -> None:
        """Hold a halt of a mill against its reason."""


@dataclass(frozen=True)
class Rules:
    """What the simulated shell around the pure code keeps; a rule that is off shows what it is for."""

    one_in_flight: bool = True
    end_when_refused: bool = True
    dead_letters_first: bool = True
    leader_changes_end: bool = True
    look_again: bool = True
    never_jump: bool = True
    tail_above_writers: bool = True
    whole_look: bool = True
    carries_in_time: bool = True


@dataclass
class MillWorker:
    """One process that mills the raw partition, from its start until it is killed, stopped, ended or halted."""

    number: int
    scene: Scene
    broker: Broker
    judge: Judge
    rules: Rules
    fetch_records: int
    message_bytes: int
    alive: bool = True
    halt: Exception | None = None
    ended: str = ""
    carry_due: bool = False
    carry_by_value: bool = False
    position: int = 0
    reached: int = 0
    """The offset up to which records were fetched."""
    queues: dict[str, deque[Message]] = field(default_factory=dict)
    durable: dict[str, Cursor] = field(default_factory=dict)
    _tasks: list[Coroutine[Any, Any, None]] = field(default_factory=list)
    _ends: dict[str, LogEnd] = field(default_factory=dict)
    _sequences: dict[str, int] = field(default_factory=dict)
    _mill: PartitionMill | None = None
    _logs: SimulatedLogs | None = None

    def __post_init__(self) -> None:
        self._tasks.append(self._main())

    def step(self, choice: int) -> str:
        if not self._tasks:
            return "idle"
        task = self._tasks[choice % len(self._tasks)]
        try:
            return str(task.send(None))
        except HALTING as error:
            self.judge.halted(error, self._logs)
            self.halt = error
            self.stop()
        except ResumeError as error:
            self.ended = str(error)
            self.alive = False
            self.stop()
        return "works"

    def stop(self) -> None:
        for task in self._tasks:
            task.close()
        self._tasks.clear()
        self.alive = self.alive and self.halt is not None

    def touches(self, cut: int) -> bool:
        """Return whether anything here came of records at or above ``cut``."""
        waiting = (message.cursor for queue in self.queues.values() for message in queue)
        return self.reached > cut or any(reaches(cursor, cut) for cursor in waiting)

    async def _main(self) -> None:
        chains, source_leader = [], self.broker.raw.leader
        for genesis in self.scene.geneses:
            split = genesis.recipe.split
            self._logs = SimulatedLogs(self.broker, split)
            leader = self.broker.tokens[split].leader
            tail, point = await self._find(genesis)
            self.judge.resumed(split, self._logs, tail)
            chains.append(ChainMill(genesis.recipe, point, message_bytes=self.message_bytes))
            self._ends[split] = LogEnd(tail.end_offset, tail.last, leader)
            self.durable[split], self.queues[split], self._sequences[split] = tail.furthest, deque(), 0
        self._logs = None
        self._mill = PartitionMill(self.scene.source.stages, chains)
        self.position = self._mill.next_offset
        await step()
        self._tasks += [self._send_all(split) for split in self.queues]
        while True:
            await step("works" if await self._feed(self._mill, source_leader) else "idle")

    async def _find(self, genesis: Genesis) -> tuple[Tail, ResumePoint]:
        assert self._logs is not None
        while True:
            tail = await find_tail(self._logs, genesis, PARTITION)
            try:
                stages, first = self.scene.source.stages, tail.source_first
                reopening = Reopening(genesis.recipe, stages, tail.point, source_first=first)
                for start, end in reopening.ranges:
                    async for records in self._logs.records(start, end):
                        reopening.take(records)
                return tail, reopening.point()
            except MovedError:
                continue

    async def _feed(self, mill: PartitionMill, leader: int) -> bool:
        raw = self.broker.raw
        if self.rules.leader_changes_end and raw.leader != leader:
            raise ResumeError("the leader changed")
        if not self.rules.never_jump and self.position < raw.first:
            self.position = raw.first
        if not raw.first <= self.position <= raw.end:
            raise ResumeError("out of range")
        end = min(raw.end, self.position + self.fetch_records)
        works = end > self.position
        if works:
            self.reached = end
            milled = mill.feed([record for _, record in raw.read(self.position, end)])
            if self.rules.dead_letters_first:
                await self._send_dead_letters(milled)
            await self._publish(milled.messages)
            if not self.rules.dead_letters_first:
                await self._send_dead_letters(milled)
            self.position = max(end, mill.next_offset)
        if self.carry_due:
            self.carry_due = False
            await self._publish({split: self._carry(chain) for split, chain in mill.chains.items()})
        return works

    def _carry(self, chain: ChainMill) -> list[Message]:
        split = chain.recipe.split
        if self.queues[split] or self.position <= self.durable[split].next_offset:
            return []
        carry = chain.carry(self.position, by_value=self.carry_by_value)
        return [] if carry is None else [carry]

    async def _send_dead_letters(self, milled: Milled) -> None:
        if milled.dead_letters:
            flight = self.broker.send(Flight(None, letters=milled.dead_letters))
            await self._landed(flight)

    async def _landed(self, flight: Flight) -> None:
        while flight.state == "flying":
            await step("waits")
        if flight.state == "refused" and self.rules.end_when_refused:
            raise ResumeError("not acknowledged")

    async def _publish(self, messages: Mapping[str, list[Message]] | Any) -> None:
        for split, found in messages.items():
            for message in found:
                while len(self.queues[split]) >= QUEUE:
                    await step("waits")
                self.queues[split].append(message)

    async def _send_all(self, split: str) -> None:
        queue = self.queues[split]
        while True:
            while not queue:
                await step("idle")
            if self.rules.one_in_flight:
                await self._send([queue[0]], split)
                queue.popleft()
            else:
                together = list(queue)
                await self._send(together, split)
                for _ in together:
                    queue.popleft()

    async def _send(self, messages: list[Message], split: str) -> None:
        flights = []
        for message in messages:
            sequence = self._sequences[split]
            self._sequences[split] += 1
            flights.append(self.broker.send(Flight(split, stored(message, self.number, sequence))))
        for flight, message in zip(flights, messages, strict=True):
            await self._landed(flight)
            if flight.state == "refused":
                continue
            lost = await self._ends[split].acknowledged(
                flight.offset, flight.leader, message, partial(self._last_messages, split)
            )
            if lost is not None:
                self.broker.counts[f"noticed: {lost.split()[0]}"] += 1
                raise ResumeError(lost)
            self.durable[split] = max(self.durable[split], message.cursor, key=lambda cursor: cursor.place)

    async def _last_messages(self, split: str, start: int, end: int) -> list[tuple[int, Message]]:
        await step()
        self.broker.counts["predecessors read again"] += 1
        log = self.broker.tokens[split]
        held = [at for at in range(start, end) if at in log.entries] if end <= log.end else []
        return [(at, log.entries[at].message()) for at in held]


def reaches(cursor: Cursor, cut: int) -> bool:
    """Return whether a cursor has passed, or taken tokens of, anything at or above ``cut``."""
    return cursor.next_offset > cut or cursor.last_offset >= cut
