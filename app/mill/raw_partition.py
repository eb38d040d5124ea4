"""One raw partition on one mill worker: from its resume until it is revoked."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OutOfOrderSequenceNumber, TopicAuthorizationFailedError, UnknownTopicOrPartitionError
from faust.types import TP

from tokenmill.errors import DeadlyRecordError, MovedError, TokenMillError, TopicError
from tokenmill.reading import ResumePoint
from tokenmill.wire.chain import Cursor
from tokenmill.wire.message import Message

from ..kafka.clients import REFUSALS, consumer, read_batches
from ..kafka.dead_letters import LetterTopic
from ..kafka.fetched_batches import FetchedBatch
from ..kafka.token_topic import messages_between, read_tail
from ..kafka.topics import described, letter_bytes, worst_message_bytes
from ..milling.decoding import FramedDecoder
from ..milling.outcomes import Outcome
from ..milling.packing.fit_packing import Reopening
from ..milling.partition_mill import ChainMill, Looked, PartitionMill
from ..settings import dead_letter_topic, rejected_topic
from ..telemetry import worker_metrics as metrics
from ..telemetry.measuring import MillMeter, PartitionProgress, State, waiting_status
from ..worker.ending import end_process, or_end
from ..worker.in_flight import HALTING, Containment, RecordsInFlight
from .inquiry import Inquiry
from .publisher import CarryTime, LogEnd, Publisher, ValueCarries, send_letters, written_letters
from .recipes import MillContext, SchemaWait

HANG_SECONDS = 15.0
"""A record that takes as long is named, and its partition shown as halted, until it is done. Nothing else follows from
it: what becomes of a record depends on no clock."""
HANGS: Final = "a record takes long"
"""The same in short, as `TokenMillError.brief` says it of errors."""
WAIT_SECONDS: Final = 5.0
"""How soon a partition that lacks its token partition looks for it again, or whose letters were not taken tries."""
NOT_TAKEN: Final = (*REFUSALS, TopicAuthorizationFailedError, UnknownTopicOrPartitionError)
"""Errors with which brokers refuse letters, and would again, until a person has changed something."""
LETTERS_WAIT: Final = (
    "correct what `tokenmill topics check` says of it, the rights to write to it, or the number of its brokers; this "
    "partition goes on by itself then"
)

T = TypeVar("T")
log = structlog.get_logger(__name__)


class RawPartition:
    """Mills one raw partition: `resume`, then `feed` again and again, and `tick` now and then; `stop` ends it."""

    def __init__(self, tp: TP, context: MillContext) -> None:
        self.tp = tp
        self._log = log.bind(topic=tp.topic, partition=tp.partition)
        self.halted: str | None = None
        """Why the partition is halted, or None."""
        self.waiting: TokenMillError | None = None
        """What the partition waits for at the moment, or None."""
        self.position = 0
        """The source offset up to which records have been milled."""
        self._context = context
        self._halted_by = TokenMillError.brief
        self._ignored_at_halt: int | None = None
        self._generation: int | None = None
        """What the last start of the partition returned; None while nothing may be milled and sent."""
        self._takes = False
        """Whether more records are taken; what was taken before may still be milled and sent."""
        self._mill: PartitionMill | None = None
        self._publishers: dict[str, Publisher] = {}
        self._stages = context.stages
        self._inquiry: Inquiry | None = None
        """None where duplicates are kept."""
        self._judged: asyncio.Task[None] | None = None
        self._skips: frozenset[int] = frozenset()
        self._containment = Containment(tp, context.board, context.deaths)
        self._note = self._containment.note
        decoder = context.stages.decoder
        self._schemas: SchemaWait | None = None
        """None where records name no schema."""
        if isinstance(decoder, FramedDecoder):
            self._schemas = SchemaWait(decoder, f"{tp.topic}[{tp.partition}]", self._wait_for, self._containment.work)
        self._lock = asyncio.Lock()
        self._hanging: RecordsInFlight | None = None
        self._dead_letter: Mapping[str, Any] | None = None
        self._meter = MillMeter(tp.topic)

    async def resume(self) -> None:
        """Find where each chain continues, and let the source flow from the lowest of these places.

        What a new start does not get over halts the partition; everything else is raised and ends the worker. After
        such a halt it may be called again (`may_go_on`).
        """
        self._meter.clock.enter("resume")
        self.halted = self._ignored_at_halt = None
        self._publishers.clear()
        ignored = self._ignored()
        try:
            await self._require_token_partitions()
            chains = None
            while chains is None:
                with suppress(MovedError):  # retention passed what was being read: look again
                    chains = await self._find_chains()
            if not self.halted:
                await self._start(chains)
        except HALTING as error:
            self._halt(error)
            self._ignored_at_halt = ignored

    async def _require_token_partitions(self) -> None:
        """Wait until every stream has a partition for this one, which may be new; another may have to add it."""
        while True:
            try:
                await self._context.require_partition(self.tp.partition)
            except TopicError as error:
                self.waiting = error
                self._log.warning("waiting", reason=str(error))
                await asyncio.sleep(WAIT_SECONDS)
            else:
                self.waiting = None
                return

    async def _find_chains(self) -> list[ChainMill]:
        context, found = self._context, []
        raw = TopicPartition(self.tp.topic, self.tp.partition)
        most_bytes = worst_message_bytes(context.settings, context.settings.for_topic(raw.topic))
        every = sum(context.token_topics[one.stream.tokens_topic].partitions for one in context.streams)
        chains_there = len(context.settings.raw_topics) * every  # of other raw topics, about as many
        async with consumer(context.settings) as client:
            for settled in context.streams:
                tokens = TopicPartition(settled.stream.tokens_topic, self.tp.partition)
                topic = context.token_topics[tokens.topic]
                leader = partial(context.leader, TP(tokens.topic, tokens.partition))
                before = leader()
                tail = await read_tail(client, settled, tokens, raw)
                found.append((settled.genesis.recipe, tail))
                self._publishers[settled.genesis.recipe.split] = Publisher(
                    send=context.send,
                    topic=tokens.topic,
                    partition=tokens.partition,
                    durable=tail.furthest,
                    end=LogEnd(tail.end_offset, tail.last, before),
                    leader=leader,
                    read=partial(messages_between, context.settings, tokens, settled, wait=self._wait_for),
                    on_stray=self._halt_over_stray,
                    on_durable=partial(self._on_durable, settled.stream.name),
                    carry_time=CarryTime(
                        context.settings.carry_seconds, context.settings.carry_bytes, topic.retention_seconds
                    ),
                    value_carries=ValueCarries(most_bytes),
                    most_bytes=topic.joined_bytes(chains_there),
                )
            self._skips = await context.skip_list.settle(client, self.tp.partition, self._durable_cursors())
            chains = []
            if context.logs is not None:
                self._stages = replace(context.stages, seen={})
                self._inquiry = Inquiry(raw, context.logs, self._stages.seen, self._wait_for)
                first = min(settled.genesis.start(raw.partition) for settled in context.streams)
                await self._inquiry.resume(client, min(tail.point.cursor.next_offset for _, tail in found), first)
            for recipe, tail in found:
                reopening = Reopening(recipe, context.stages, tail.point, self._skips, source_first=tail.source_first)
                point = await self._reopened(client, raw, reopening)
                chains.append(ChainMill(recipe, point, message_bytes=context.settings.message_bytes))
            return chains

    async def _reopened(self, client: AIOKafkaConsumer, raw: TopicPartition, reopening: Reopening) -> ResumePoint:
        """Return a chain's tail with the tokens of its open blocks, whose records are read and milled again."""
        for start, end in reopening.ranges:
            async for fetched in read_batches(client, raw, start, end):
                self._containment.look(self._skips)
                for run in self._containment.runs(reopening.wanted(fetched)):
                    if self._schemas is not None:
                        await self._schemas.learn(run, run[0].offset, self._skips)
                    await self._in_hand(run[0].offset, run[-1].offset, partial(reopening.take, run))
        return reopening.point()

    async def _in_hand(self, first: int, last: int, action: Callable[[], T]) -> T:
        return await asyncio.to_thread(self._containment.work, first, last, action)

    async def _start(self, chains: Sequence[ChainMill]) -> None:
        rejects = self._context.settings.rejects == "topic"
        self._mill = PartitionMill(self._stages, chains, self._skips, self._note, list_rejected=rejects)
        self.position = self._mill.next_offset
        lowest = min(self._durable_cursors(), key=lambda cursor: cursor.next_offset)
        self._meter.resumed(self._mill.chains, lowest.last_timestamp)
        for publisher in self._publishers.values():
            publisher.start()
        begin = self.position if self._inquiry is None else self._inquiry.begin
        generation = await self._context.start_partition(self.tp, begin)
        if self.halted:  # since a moment ago
            return
        self._generation, self._takes = generation, True
        if self._inquiry is not None:
            judged = or_end(self._mill_judged(self._mill, self._inquiry))
            self._judged = asyncio.create_task(judged, name=f"mill what is judged of {self.tp}")
        self._meter.clock.wait()
        self._log.info("partition resumed", offset=self.position)

    def _durable_cursors(self) -> list[Cursor]:
        return [publisher.durable for publisher in self._publishers.values()]

    async def feed(self, batch: FetchedBatch) -> None:
        """Mill what a fetch brought; when this returns, steps 1 to 3 of the commit protocol are done.

        The commit protocol is the order in which a message, its dead letters and its commit are acknowledged:

        1. Mill, in a thread. Nothing has left the process yet.
        2. Send the dead letters of the whole fetch, and what it filtered out if that is wanted; wait until all in-sync
           replicas have them.
        3. Queue each split's messages at the publisher of its token partition, waiting while the queue is full.
        4. Send the messages of a token partition one at a time (`Publisher`), each with the cursor behind its blocks.
           Where it is not certain that the last one is at the end of the log (`LogEnd`), the process ends.
        5. Note the cursor as durable, for people and lag tools.
        6. Send a carry for a chain that took many records, or none for long, without a message.

        docs/architecture.md says why each is safe. `resume` reads commits where step 4 put them, and mills again from
        the lowest cursor on.
        """
        mill = self._mill
        if mill is None or not self._takes or batch.generation != self._generation:
            return
        self._containment.look(self._skips)
        try:
            async for share in self._containment.shares(batch):
                await self._feed(mill, share)
        except HALTING as error:
            self._halt(error)

    async def _feed(self, mill: PartitionMill, batch: FetchedBatch) -> None:
        inquiry = self._inquiry
        if self._schemas is not None:
            first = mill.next_offset if inquiry is None else inquiry.begin
            await self._schemas.learn(batch.records, first, self._skips)  # carries are written meanwhile
        if batch.generation != self._generation:
            return
        async with self._lock:
            if inquiry is None:
                await self._mill_share(mill, batch)
                return
            asked = await self._in_hand(*_span(batch), partial(inquiry.sign, mill, batch))
        await inquiry.ask(asked)

    async def _mill_judged(self, mill: PartitionMill, inquiry: Inquiry) -> None:
        try:
            while True:
                asked = await inquiry.next()
                async with self._lock:
                    await self._mill_share(mill, asked.batch, asked.looked)
        except HALTING as error:
            self._halt(error)

    async def _mill_share(self, mill: PartitionMill, batch: FetchedBatch, looked: Looked | None = None) -> None:
        self._meter.begin(batch.records)
        milled = await self._in_hand(*_span(batch), partial(mill.feed, batch.records, looked))  # 1
        self._meter.clock.divide(milled.seconds)
        if self._hanging is not None:  # it took very long, and is done
            self._hanging = self.halted = None
            self._log.warning("partition goes on")
        if batch.generation != self._generation:
            return
        await self._send_dead_letters(milled.dead_letters)  # 2
        if milled.rejected:
            await self._send_letters(rejected_topic(self.tp.topic), milled.rejected)
        self._meter.clock.enter("publish")
        for split, messages in milled.messages.items():
            await self._publishers[split].put(messages)  # 3; which takes steps 4 and 5
        self.position = max(batch.position, mill.next_offset)
        for publisher in self._publishers.values():
            publisher.carry_time.took(milled.value_bytes)
        await self._queue_carries(mill)  # 6; here, too: under load, `tick` always finds it at work
        self._meter.fed(batch.records, milled.value_bytes)

    async def _send_dead_letters(self, outcomes: Sequence[Outcome]) -> None:
        """Take step 2."""
        self._meter.clock.enter("dead_letters")
        if not outcomes:
            return
        await self._send_letters(dead_letter_topic(self.tp.topic), outcomes)
        for outcome in outcomes:
            metrics.DEAD_LETTERS.labels(self.tp.topic, outcome.reason).inc()
        last = outcomes[-1]
        self._dead_letter = {"offset": last.record.offset, "reason": last.reason, "at": time.time()}

    async def _send_letters(self, topic: str, outcomes: Sequence[Outcome]) -> None:
        """Send records with their reasons to a topic; return when all of them are acknowledged.

        Where the topic takes none, or somebody has deleted it, the partition waits, and says so: others go on.
        """
        context = self._context
        first, last = outcomes[0].record.offset, outcomes[-1].record.offset
        while True:
            try:
                where = LetterTopic(topic, await context.partitions(topic), context.letter_bytes[topic])
                letters = await self._in_hand(first, last, partial(written_letters, where, self.tp, outcomes))
                await self._acknowledged(topic, send_letters(context.send, topic, letters))
            except NOT_TAKEN as error:
                if self.waiting is None:
                    self._log.warning("waiting", reason=repr(error))
                self._wait_for(TopicError(f"topic {topic} takes no letters ({error!r}): {LETTERS_WAIT}"))
                await asyncio.sleep(WAIT_SECONDS)
                with suppress(TokenMillError):  # which the next try meets as well
                    found = (await described(context.settings, [topic])).get(topic)
                    context.letter_bytes[topic] = letter_bytes(context.settings, found)
            except OutOfOrderSequenceNumber:  # aiokafka counted what was refused before
                end_process(
                    f"topic {topic} takes letters again after it had refused some: the next start sends all of them"
                )
            else:
                break
        self._wait_for(None)

    async def _acknowledged(self, topic: str, sent: Coroutine[Any, Any, None]) -> None:
        """Await letters; show meanwhile that the partition waits for its topic where brokers take long over them."""
        sending = asyncio.ensure_future(sent)
        try:
            while not (await asyncio.wait({sending}, timeout=HANG_SECONDS))[0]:
                self._wait_for(TopicError(f"topic {topic} has not taken a letter for a while: {LETTERS_WAIT}"))
            sending.result()
        finally:
            sending.cancel()

    def _on_durable(self, stream: str, message: Message) -> None:
        """Take step 5, after a message was acknowledged."""
        metrics.BLOCKS.labels(stream, "topic").inc(message.count)
        self._context.set_durable(self.tp, min(cursor.next_offset for cursor in self._durable_cursors()))

    async def _queue_carries(self, mill: PartitionMill) -> None:
        """Take step 6."""
        for split, chain in mill.chains.items():
            await self._publishers[split].put_carry(chain, self.position)

    async def tick(self) -> None:
        """Name a record that takes very long, and write a carry for each chain that needs one."""
        hanging = self._note.hanging(HANG_SECONDS)
        if hanging is not None and hanging != self._hanging:
            self._hanging, self._halted_by = hanging, HANGS
            self.halted = f"milling has hung for {HANG_SECONDS:.0f} s at {hanging}"
            self._log.critical("partition hangs", reason=self.halted)
        if self._mill is None or self._generation is None or not self._takes or self._lock.locked():
            return
        async with self._lock:
            await self._queue_carries(self._mill)

    @property
    def stuck(self) -> bool:
        """Whether a thread of this process hangs in one of the partition's records."""
        return self._hanging is not None and self._note.hanging(0) is not None

    def heed_skips(self) -> None:
        """End the process where a person wants a record skipped that can still be: the next owner does it."""
        if self._mill is None:
            return  # it resumes, and asks by itself
        for offset in self._context.skip_list.wanted(self.tp.partition, self._durable_cursors()):
            end_process(
                f"offset {offset} of {self.tp.topic}[{self.tp.partition}] is on the skip list: the next start skips it"
            )

    def halt(self, reason: str) -> None:
        """Halt for this reason until the process ends; a partition that has halted already keeps its own reason."""
        if self.halted is None:
            self._halt(TopicError(reason))

    def _halt(self, error: TokenMillError) -> None:
        self._takes = False
        if not isinstance(error, DeadlyRecordError):  # before which all is as it should be, and is sent
            self._cease()
        self.halted = str(error)
        self._halted_by = error.brief
        self._meter.clock.enter("halted")
        self._log.critical("partition halted", reason=self.halted)

    def _halt_over_stray(self, error: TokenMillError) -> None:
        """Halt over a record that another writer put among our messages; once it is ignored, `resume` goes on."""
        self._halt(error)
        self._ignored_at_halt = self._ignored()

    def heed_retention(self, below: int) -> None:
        """Take note that the source's records below an offset may soon be gone."""
        for publisher in self._publishers.values():
            publisher.value_carries.endangered_below = below

    def may_go_on(self) -> bool:
        """Return whether more messages are passed over than when the partition halted in its `resume`."""
        return self._ignored_at_halt is not None and self._ignored() > self._ignored_at_halt

    def _ignored(self) -> int:
        return sum(settled.control.ignored.size(self.tp.partition) for settled in self._context.streams)

    def stop(self) -> None:
        """Send nothing more; a thread that hangs in a record cannot be ended, so the process is."""
        self._cease()
        if self._schemas is not None:
            self._schemas.stop()
        if self.stuck:
            end_process(f"{self.tp.topic}[{self.tp.partition}] is given up while {self.halted}")
        self._note.close()
        self._meter.clock.stop()

    def _cease(self) -> None:
        self._generation = None
        if self._inquiry is not None:
            self._inquiry.stop()
        if self._judged is not None and self._judged is not asyncio.current_task():
            self._judged.cancel()
        for publisher in self._publishers.values():
            publisher.stop()

    def _wait_for(self, what: TokenMillError | None) -> None:
        """Show what the partition waits for, so that it is not taken for one that makes no progress."""
        self.waiting = what

    def progress(self) -> PartitionProgress:
        """Return where the partition is, for its gauges."""
        state: State = "resuming" if self._generation is None else "running"
        state = "halted" if self.halted else "waiting" if self.waiting else state
        return self._meter.progress(state, self.position, self._publishers)

    def status(self) -> Mapping[str, Any]:
        """Return where the partition is, for the supervisor and for people; chains once it has resumed."""
        mill = self._mill
        return {
            "position": self.position,
            "halted": self.halted,
            "halted_by": self._halted_by if self.halted else None,
            **waiting_status(self.waiting, self._meter.clock),
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


def _span(batch: FetchedBatch) -> tuple[int, int]:
    records = batch.records
    return (records[0].offset, records[-1].offset) if records else (batch.position, batch.position)
