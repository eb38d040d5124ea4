"""One raw partition on one mill worker: from its resume until it is revoked."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
from aiokafka import TopicPartition
from faust.types import TP

from tokenmill.errors import (
    DamagedError,
    DifferenceError,
    EngineError,
    FingerprintError,
    GapError,
    PanicError,
    SourceError,
    TokenMillError,
    TopicError,
)
from tokenmill.milling.chain_mill import ChainMill
from tokenmill.milling.outcomes import Outcome, Stages
from tokenmill.milling.partition_mill import Milled, PartitionMill
from tokenmill.reading.log_end import LogEnd
from tokenmill.records import SourceRecord
from tokenmill.wire.dead_letters import RecordPlace, encode_dead_letter, letter_partition
from tokenmill.wire.message import Message

from .. import telemetry as metrics
from ..kafka.chain_logs import messages_between, read_tail
from ..kafka.clients import consumer
from ..kafka.control_topic import Settled
from ..settings import Settings, dead_letter_topic
from ..supervisor.in_flight import Board, Note, Suspects
from ..telemetry.measuring import Standing, State
from ..telemetry.mill_meter import MillMeter
from ..worker.ending import end_process
from ..worker.ownership import FetchedBatch
from .publisher import Publisher, Send
from .schemas import SchemaWait
from .skip_list import SkipList

HANG_SECONDS = 15.0
"""A record that takes as long is named, and its partition shown as halted, until it is done. Nothing else follows from
it: what becomes of a record depends on no clock."""
HANGS: Final = "a record takes long"
"""The same in short, as `TokenMillError.brief` says it of errors."""
HALTING = (SourceError, GapError, DifferenceError, DamagedError, FingerprintError, EngineError)
"""What a new start cannot mend for this partition, while the others can go on: it stands until a person acts."""
WAIT_SECONDS: Final = 5.0
"""How soon a partition that lacks its token partition looks for it again."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MillContext:
    """What all raw partitions of a topic on one worker share."""

    settings: Settings
    stages: Stages
    streams: Sequence[Settled]
    skip_list: SkipList
    retention: Mapping[str, float | None]
    """How long each token topic keeps its messages, in seconds; None: for ever."""
    require_partition: Callable[[int], Awaitable[None]]
    """Returns when all streams have a partition of this number; raises `TopicError` while they cannot."""
    send: Send
    partitions: Callable[[str], Awaitable[int]]
    """How many partitions a topic has that is sent to."""
    leader: Callable[[TP], object]
    """What stands for the leader of a partition that is sent to (`tokenmill.reading.log_end`)."""
    board: Board | None = None
    """Where a supervisor reads what is being milled."""
    start_partition: Callable[[TP, int], Awaitable[int | None]]
    set_durable: Callable[[TP, int], None]


class RawPartition:
    """Mills one raw partition: `resume`, then `feed` again and again, and `tick` now and then; `stop` ends it."""

    def __init__(self, tp: TP, context: MillContext) -> None:
        """Do nothing yet."""
        self.tp = tp
        self.halted: str | None = None
        """Why the partition stands, or None."""
        self.waiting: str | None = None
        """What the partition waits for at the moment, or None."""
        self.position = 0
        """The source offset up to which records have been milled."""
        self._context = context
        self._halted_by = TokenMillError.brief
        self._epoch: int | None = None
        self._mill: PartitionMill | None = None
        self._publishers: dict[str, Publisher] = {}
        self._lock = asyncio.Lock()
        self._since_message: dict[str, tuple[float, int]] = {}
        self._bytes = 0
        self._meter = MillMeter(tp.topic)
        self._note = Note(tp.topic, tp.partition, context.board)
        self._hanging: Suspects | None = None
        self._dead_letter: Mapping[str, Any] | None = None
        self._ignored_at_halt: int | None = None
        self._schemas = SchemaWait(context.stages, f"{tp.topic}[{tp.partition}]", self._wait_for)
        self._skips: frozenset[int] = frozenset()

    async def resume(self) -> None:
        """Find where each chain continues, and let the source flow from the lowest of these places.

        What a new start cannot mend halts the partition; everything else is raised and ends the worker. After such a
        halt it may be called again (`may_go_on`).
        """
        self._meter.clock.enter("resume")
        self.halted = self._ignored_at_halt = None
        self._publishers.clear()
        ignored = self._ignored()
        try:
            await self._resume()
        except HALTING as error:
            self._halt(error)
            self._ignored_at_halt = ignored

    def may_go_on(self) -> bool:
        """Return whether more messages are passed over than when the partition halted in its `resume`."""
        return self._ignored_at_halt is not None and self._ignored() > self._ignored_at_halt

    def _ignored(self) -> int:
        return sum(settled.control.ignored.size(self.tp.partition) for settled in self._context.streams)

    def halt(self, reason: str) -> None:
        """Stand from now on, for this reason, until the process ends; one that stands already keeps its own."""
        if self.halted is None:
            self._halt(TopicError(reason))

    def _stands(self) -> bool:
        return self.halted is not None

    def _halt(self, error: TokenMillError) -> None:
        self._stand_still()
        self.halted = str(error)
        self._halted_by = error.brief
        self._meter.clock.enter("halted")
        log.critical("partition halted", topic=self.tp.topic, partition=self.tp.partition, reason=self.halted)

    async def _resume(self) -> None:
        context = self._context
        await self._require_token_partitions()
        chains = []
        async with consumer(context.settings) as client:
            for settled in context.streams:
                recipe = settled.genesis.recipe
                tokens = TopicPartition(settled.stream.tokens_topic, self.tp.partition)
                raw = TopicPartition(self.tp.topic, self.tp.partition)
                leader = partial(context.leader, TP(tokens.topic, tokens.partition))
                before = leader()
                tail = await read_tail(client, settled, tokens, raw)
                chains.append(ChainMill(recipe, tail.point, message_bytes=context.settings.message_bytes))
                self._publishers[recipe.split] = Publisher(
                    context.send,
                    tokens.topic,
                    tokens.partition,
                    cursor=tail.point.cursor,
                    end=LogEnd(tail.end_offset, tail.last, before),
                    leader=leader,
                    read=partial(messages_between, context.settings, tokens, settled.control.ignored),
                    on_durable=partial(self._on_durable, settled.stream.name),
                )
            cursors = [publisher.durable for publisher in self._publishers.values()]
            self._skips = await context.skip_list.settle(client, self.tp.partition, cursors)
        if self._stands():
            return
        self._mill = PartitionMill(context.stages, chains, self._skips, self._note)
        self.position = self._mill.next_offset
        lowest = min(
            (publisher.durable for publisher in self._publishers.values()), key=lambda cursor: cursor.next_offset
        )
        self._meter.resumed(self._mill.chains, lowest.last_timestamp)
        now = time.monotonic()
        self._since_message = dict.fromkeys(self._publishers, (now, 0))
        for publisher in self._publishers.values():
            publisher.start()
        epoch = await context.start_partition(self.tp, self.position)
        if self._stands():  # since a moment ago
            return
        self._epoch = epoch
        self._meter.clock.wait()
        log.info("partition resumed", topic=self.tp.topic, partition=self.tp.partition, offset=self.position)

    def heed_skips(self) -> None:
        """End the process where a person wants a record skipped that can still be: the next owner does it."""
        if self._mill is None:
            return  # it resumes, and asks by itself
        cursors = [publisher.durable for publisher in self._publishers.values()]
        for offset in self._context.skip_list.wanted(self.tp.partition, cursors):
            end_process(
                f"offset {offset} of {self.tp.topic}[{self.tp.partition}] is to be skipped: the next start does"
            )

    async def _require_token_partitions(self) -> None:
        """Wait until every stream has a partition for this one, which may be new; another may have to add it."""
        while True:
            try:
                await self._context.require_partition(self.tp.partition)
            except TopicError as error:
                self.waiting = str(error)
                log.warning("waiting", topic=self.tp.topic, partition=self.tp.partition, reason=self.waiting)
                await asyncio.sleep(WAIT_SECONDS)
            else:
                self.waiting = None
                return

    def stop(self) -> None:
        """Send nothing more; a thread that hangs in a record cannot be ended, so the process is."""
        self._stand_still()
        if self.stuck:
            end_process(f"{self.tp.topic}[{self.tp.partition}] is given up while {self.halted}")
        self._note.close()
        self._meter.clock.stop()

    def _stand_still(self) -> None:
        self._epoch = None
        for publisher in self._publishers.values():
            publisher.stop()

    async def feed(self, batch: FetchedBatch) -> None:
        """Mill what a fetch brought; when this returns, its dead letters are acknowledged and its blocks are queued."""
        if batch.generation != self._epoch or self._mill is None:
            return
        await self._schemas.learn(batch.records, self._mill.next_offset, self._skips)  # carries are written meanwhile
        if batch.generation != self._epoch:
            return
        async with self._lock:
            self._meter.clock.enter("other")
            self._meter.fetched(batch.records)
            try:
                milled = await asyncio.to_thread(self._mill_noted, self._mill, batch.records)
            except HALTING as error:
                self._halt(error)
                return
            self._go_on()
            seconds = milled.seconds
            self._meter.clock.divide({"decode": seconds.decode, "tokenize": seconds.tokenize, "pack": seconds.pack})
            if self._epoch != batch.generation:
                return
            self._meter.clock.enter("dead_letters")
            await self._send_dead_letters(milled)
            self._meter.clock.enter("publish")
            for split, messages in milled.messages.items():
                await self._publish(split, messages)
            self.position = max(batch.position, self._mill.next_offset)
            self._bytes += milled.value_bytes
            self._meter.fed(batch.records, milled.value_bytes)
            await self._publish_carries(self._mill)  # here, too: under load, `tick` always finds it at work
            self._meter.clock.wait()

    def _mill_noted(self, mill: PartitionMill, records: Sequence[SourceRecord]) -> Milled:
        """Mill in a thread. What ends the process leaves the note of the records; what halts the partition does not."""
        try:
            milled = mill.feed(records)
        except PanicError as error:
            suspects = self._note.hanging(0)
            self._note.done()
            raise PanicError(f"{error}; to go on without it: {suspects}" if suspects else str(error)) from error
        except HALTING:
            self._note.done()
            raise
        self._note.done()
        return milled

    def _wait_for(self, what: str | None) -> None:
        """Show what the partition waits for; so nobody takes it for one that stands still."""
        self.waiting = what

    async def _send_dead_letters(self, milled: Milled) -> None:
        if milled.dead_letters:
            topic = dead_letter_topic(self.tp.topic)
            partitions = await self._context.partitions(topic)
            await asyncio.gather(*(self._send_dead_letter(topic, partitions, out) for out in milled.dead_letters))
            for outcome in milled.dead_letters:
                metrics.DEAD_LETTERS.labels(self.tp.topic, outcome.reason).inc()
            last = milled.dead_letters[-1]
            self._dead_letter = {"offset": last.record.offset, "reason": last.reason, "at": time.time()}

    async def _send_dead_letter(self, topic: str, partitions: int, outcome: Outcome) -> None:
        """Send a record with its reason. It comes at least once: a worker that resumes may send it again."""
        record = outcome.record
        place = RecordPlace(self.tp.topic, self.tp.partition, record.offset)
        headers = encode_dead_letter(
            place,
            reason=outcome.reason,
            detail=outcome.detail,
            timestamp=record.timestamp,
            exception=outcome.exception,
            original=record.headers,
        )
        await self._context.send(topic, letter_partition(place, partitions), record.value, record.key, headers)

    async def _publish(self, split: str, messages: Sequence[Message]) -> None:
        if messages:
            self._since_message[split] = (time.monotonic(), self._bytes)
            await self._publishers[split].put(messages)

    async def tick(self) -> None:
        """Write a carry for each chain that needs one."""
        self._look_for_hanging()
        if self._mill is None or self._epoch is None or self._lock.locked():
            return
        async with self._lock:
            await self._publish_carries(self._mill)

    async def _publish_carries(self, mill: PartitionMill) -> None:
        for split, chain in mill.chains.items():
            if self._publishers[split].idle and self._is_due(split):
                carry = chain.carry(self.position)
                if carry is not None:
                    await self._publish(split, [carry])

    def _look_for_hanging(self) -> None:
        """Say so, once, when a record takes very long."""
        hanging = self._note.hanging(HANG_SECONDS)
        if hanging is None or hanging == self._hanging:
            return
        self._hanging = hanging
        self._halted_by = HANGS
        self.halted = f"milling has hung for {HANG_SECONDS:.0f} s at {hanging}"
        log.critical("partition hangs", topic=self.tp.topic, partition=self.tp.partition, reason=self.halted)

    def _go_on(self) -> None:
        """Show the partition as running again after a record that took very long."""
        if self._hanging is not None:
            self._hanging = self.halted = None
            log.warning("partition goes on", topic=self.tp.topic, partition=self.tp.partition)

    @property
    def stuck(self) -> bool:
        """Whether a thread of this process hangs in one of the partition's records."""
        return self._hanging is not None and self._note.hanging(0) is not None

    def _is_due(self, split: str) -> bool:
        """Whether a chain went far, or long, without a message, or its last one will soon be removed from the topic."""
        settings, publisher = self._context.settings, self._publishers[split]
        since, at_bytes = self._since_message[split]
        age = time.monotonic() - since
        retention = self._context.retention.get(publisher.topic)
        if retention is not None and age >= retention / 2:
            return True
        if self.position <= publisher.durable.next_offset:
            return False
        return age >= settings.carry_seconds or self._bytes - at_bytes >= settings.carry_bytes

    def _on_durable(self, stream: str, message: Message) -> None:
        metrics.BLOCKS.labels(stream, "topic").inc(message.count)
        lowest = min(publisher.durable.next_offset for publisher in self._publishers.values())
        self._context.set_durable(self.tp, lowest)

    def standing(self) -> Standing:
        """Return where the partition stands, for its gauges."""
        started = self._epoch is not None
        state: State = "running" if started else "resuming"
        state = "halted" if self.halted else "waiting" if self.waiting else state
        return self._meter.standing(state, self.position, self._publishers)

    def status(self) -> Mapping[str, Any]:
        """Return where the partition is, for the supervisor and for people; chains once it has resumed."""
        mill = self._mill
        return {
            "position": self.position,
            "halted": self.halted,
            "halted_by": self._halted_by if self.halted else None,
            "waiting": self.waiting,
            "dead_letter": self._dead_letter,
            "chains": {split: self._chain_status(split, chain) for split, chain in mill.chains.items()} if mill else {},
        }

    def _chain_status(self, split: str, chain: ChainMill) -> Mapping[str, Any]:
        durable = self._publishers[split].durable
        return {
            "block": durable.block,
            "offset": durable.next_offset,
            "open_tokens": chain.open_tokens,
            "documents": chain.totals.kept,
            "bytes": chain.totals.value_bytes,
            "tokens": chain.totals.tokens,
        }
