"""Mill workers and stores as coroutines that do what `app/mill` and `app/segments` do, and the judge of both."""

from collections import Counter, deque
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from tests.mills import PARTITION
from tests.simulation.broker import Broker, Flight, Log, Scene, SimulatedLogs, Stored, step, stored
from tokenmill.app.mill.publisher import LogEnd
from tokenmill.app.milling.outcomes import Kind
from tokenmill.app.milling.packing.fit_packing import Reopening
from tokenmill.app.milling.partition_mill import ChainMill, Milled, PartitionMill
from tokenmill.app.milling.reference import ReferenceBlock
from tokenmill.app.segments import token_partition
from tokenmill.app.segments.following import GapSearch, find_start
from tokenmill.app.worker.in_flight import HALTING
from tokenmill.documents import Record
from tokenmill.errors import DifferenceError, GapError, MovedError, SourceError
from tokenmill.reading import Acceptor, Blocks, Gap, ResumePoint, Tail, Taken, find_tail, resume_point
from tokenmill.recipe import Genesis, Recipe
from tokenmill.wire.chain import NO_RECORD, Cursor, genesis_hash
from tokenmill.wire.message import Message
from tokenmill.wire.pieces import split_references
from tokenmill.wire.totals import Totals

QUEUE: Final = 3
"""Messages that may wait for one token partition."""


class ResumeError(Exception):
    """The process ends, and its supervisor starts another."""


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
    judge: "Judge"
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
            self.ended, self.alive = str(error), False
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
            await self._landed(self.broker.send(Flight(None, letters=milled.dead_letters)))

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
            together = [queue[0]] if self.rules.one_in_flight else list(queue)
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
            held = partial(self._last_messages, split)
            lost = await self._ends[split].acknowledged(flight.offset, flight.leader, message, held)
            if lost is not None:
                self.broker.counts[f"noticed: {lost.split()[0]}"] += 1
                raise ResumeError(lost)
            self.durable[split] = max(self.durable[split], message.cursor, key=lambda cursor: cursor.place)

    async def _last_messages(self, split: str, start: int, end: int) -> list[tuple[int, Message]]:
        await step()
        self.broker.counts["predecessors read again"] += 1
        log = self.broker.tokens[split]
        return [(at, log.entries[at].message()) for at in range(start, end) if at in log.entries and end <= log.end]


def reaches(cursor: Cursor, cut: int) -> bool:
    """Return whether a cursor has passed, or taken tokens of, anything at or above ``cut``."""
    return cursor.next_offset > cut or cursor.last_offset >= cut


LONGEST_PATIENCE: Final = 8
"""Steps between two looks that found nothing, at most."""
FRUITLESS_LOOKS: Final = 2
"""Looks that found nothing, after which looking is rest, for the scheduler."""


class Kept(NamedTuple):
    tokens: bytes
    entry: bytes
    chain: bytes


@dataclass
class Store:
    """What is on the disk of one store, and the process that adds to it."""

    recipe: Recipe
    log: Log[Stored]
    rules: Rules
    fetch_messages: int = 3
    commit_blocks: int = 2
    """Appended blocks that share a commit."""
    committed: list[Kept] = field(default_factory=list)
    halt: Exception | None = None
    looks: int = 0
    duplicates: int = 0
    gaps: int = 0
    cut_messages: int = 0
    _hint: int = -1
    _appended: list[Kept] = field(default_factory=list)
    _appended_hint: int = -1
    _task: Coroutine[Any, Any, None] | None = None

    def step(self) -> str:
        """Go on for a step, with a new process where there is none; return what was done."""
        if self.halt is not None:
            return "idle"
        if self._task is None:
            self._task = self._main()
        try:
            return str(self._task.send(None))
        except token_partition.HALTING as error:
            self._commit()
            self.halt, self._task = error, None
        except ResumeError:
            self.kill()
        return "works"

    def kill(self) -> None:
        if self._task is not None:
            self._task.close()
        self._task = None
        self._appended.clear()

    def _commit(self) -> None:
        if self._appended:
            self.committed += self._appended
            self._hint = self._appended_hint
            self._appended.clear()

    def _chain_before(self, block: int) -> bytes | None:
        """Return the hash before a block that is on the disk or appended; None for others."""
        kept = len(self.committed)
        if not block:
            return genesis_hash(self.recipe.fingerprint, PARTITION)
        if block > kept + len(self._appended):
            return None
        return (self.committed[block - 1] if block <= kept else self._appended[block - 1 - kept]).chain

    async def _main(self) -> None:
        log, block = self.log, len(self.committed)
        chain = self._chain_before(block)
        assert chain is not None
        begin: dict[str, Any] = {"block": block, "chain": chain, "recall": self._chain_before}
        acceptor = Acceptor(self.recipe.fingerprint, PARTITION, self.recipe.block_bytes, **begin)
        held = (log.first, log.end)
        await step()

        async def first_message(offset: int) -> Message | None:
            await step()
            if offset < log.first or held[1] > log.end:
                raise ResumeError("the log moved")
            return next((log.entries[at].message() for at in range(offset, held[1]) if at in log.entries), None)

        position, _ = await find_start(held, block, chain, self._hint, first_message)
        await self._follow(acceptor, position, log.leader)

    async def _follow(self, acceptor: Acceptor, position: int, leader: int) -> None:
        log, search, patience, in_vain = self.log, GapSearch(), 1, 0
        while True:
            if self.rules.leader_changes_end and log.leader != leader:
                raise ResumeError("the leader changed")
            end = min(log.end, position + self.fetch_messages)
            if not log.first <= position <= end:
                raise ResumeError("out of range")
            works = self._read(acceptor, search, position, end)
            position = end
            missing = search.missing if self.rules.look_again and search.is_over(position) else None
            if missing is None:
                await step("works" if works and in_vain <= FRUITLESS_LOOKS else "idle")
                continue
            self.looks += 1
            self._commit()  # a look takes longer than the time between two commits
            if self._is_hopeless(search, acceptor.next_block):
                raise GapError(f"no longer holds block {acceptor.next_block}")
            found_some = acceptor.next_block > missing.wanted
            in_vain = 0 if found_some else in_vain + 1
            patience = 1 if found_some else min(2 * patience, LONGEST_PATIENCE)
            for _ in range(patience):
                await step("idle")
            position = log.first
            search.began(cut=log.first > 0)

    def _is_hopeless(self, search: GapSearch, block: int) -> bool:
        if self.rules.whole_look:
            return search.is_hopeless(block)
        oldest = min(self.log.entries, default=None)
        return self.log.first > 0 and oldest is not None and self.log.entries[oldest].sent.first > block

    def _read(self, acceptor: Acceptor, search: GapSearch, position: int, end: int) -> bool:
        gap = None
        for offset, entry in self.log.read(position, end):
            gap = self._take(acceptor, search, entry.message(), offset) or gap
        if len(self._appended) >= self.commit_blocks or end == position:
            self._commit()
        if gap is not None:
            search.miss(gap, max(end, self.log.end))
        return end > position

    def _take(self, acceptor: Acceptor, search: GapSearch, message: Message, offset: int) -> Gap | None:
        search.saw(message)
        verdict = acceptor.offer(message)
        if isinstance(verdict, Gap):
            self.gaps += 1
            return verdict
        self.duplicates += verdict.dropped
        if isinstance(verdict, Taken) and verdict.blocks.entries:
            self.cut_messages += verdict.dropped > 0
            self._append(verdict.blocks, offset)
        return None

    def _append(self, blocks: Blocks, offset: int) -> None:
        size = self.recipe.block_bytes
        tokens = bytes(blocks.tokens)
        for at, (entry, chain) in enumerate(zip(blocks.entries, blocks.chains, strict=True)):
            self._appended.append(Kept(tokens[at * size : (at + 1) * size], entry, chain))
        self._appended_hint = offset


@dataclass
class Judge:
    scene: Scene
    broker: Broker
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    rewritten: bool = False
    """Records that were milled, or may have been, were lost: from here on two histories can meet."""
    unprovable: bool = False
    """A worker resumed after that, and retention had removed the record that would have told it."""
    jumped: set[str] = field(default_factory=set)
    """Chains that were continued after a gap that the source cannot fill any more."""
    halted_mill: bool = False
    _letters: dict[tuple[int, int], str | None] = field(default_factory=dict)

    def raw_lost(self, cut: int, workers: list[MillWorker]) -> None:
        sent = [m.cursor for messages in self.broker.landed.values() for m in messages]
        sent += [f.stored.sent.cursor for f in self.broker.flights if f.stored is not None]
        milled = any(reaches(cursor, cut) for cursor in sent) or any(w.touches(cut) for w in workers if w.alive)
        self.rewritten |= milled or cut < self.scene.source.start

    def resumed(self, split: str, logs: SimulatedLogs, tail: Tail) -> None:
        by_value = tail.point.references and tail.point.is_complete
        unseen = by_value and split_references(tail.point.references).oldest < tail.source_first
        if self.rewritten and (logs.skipped_check or unseen) and tail.point.cursor.last_offset != NO_RECORD:
            self.unprovable = True
        self.counts["resumed before the furthest cursor"] += tail.furthest.place > tail.point.cursor.place
        self.counts["resumed by value"] += bool(by_value)
        self.counts["resumed in the middle of a record"] += tail.point.cursor.within and not tail.point.cursor.taken
        if tail.gap is None:
            return
        self.counts["resumed after a gap"] += 1
        self.jumped.add(split)
        before = [resume_point(m).needs_from for m in logs.seen if m.end <= tail.gap[0]]
        if max([self.scene.source.start, *before]) >= logs.source_first:
            self.violations.append(f"{split}: went on after a gap that the source still fills")

    def halted(self, error: Exception, logs: SimulatedLogs | None) -> None:
        self.halted_mill = True
        kind = type(error).__name__
        if isinstance(error, GapError) or "removed before" in str(error):
            self.counts[f"mill halted: retention ({kind})"] += 1
            assert logs is not None
            reachable = [m for m in logs.seen if resume_point(m).needs_from >= logs.source_first]
            if reachable or self.scene.source.start >= logs.source_first:
                self.violations.append(f"a false halt over retention: {error}")
        elif isinstance(error, (SourceError, DifferenceError)):
            self.counts[f"mill halted: rewritten ({kind})"] += 1
            if not self.rewritten:
                self.violations.append(f"a false halt over a rewritten log: {error}")
        else:
            self.violations.append(f"a mill halted over {error!r}")

    def store_halted(self, store: Store) -> None:
        """Hold a halt of a store against its reason; called when it happens."""
        split, wanted = store.recipe.split, len(store.committed)
        self.counts[f"store halted: {type(store.halt).__name__}"] += 1
        if isinstance(store.halt, GapError):
            if store.log.first == 0 or any(e.sent.first <= wanted for e in store.log.entries.values()):
                self.violations.append(f"{split}: a store halted falsely: {store.halt}")
        elif not isinstance(store.halt, DifferenceError) or not self.rewritten:
            self.violations.append(f"{split}: a store halted falsely: {store.halt!r}")

    def letters_before(self, message: Message, split: str) -> None:
        if self.rewritten:
            return
        sent = {record.offset for record, _ in self.broker.dead}
        missing = [offset for offset in self._dead() if offset < message.cursor.next_offset and offset not in sent]
        if missing:
            self.violations.append(f"{split}: block {message.first} stands, and dead letters {missing} do not")

    def _dead(self) -> dict[int, str]:
        letters = {
            offset: self._letter(record)
            for offset, record in self.broker.raw.truth.items()
            if offset >= self.scene.source.start
        }
        return {offset: reason for offset, reason in letters.items() if reason is not None}

    def _letter(self, record: Record) -> str | None:
        key = (record.offset, record.timestamp)
        if key not in self._letters:
            outcome = self.scene.source.stages.outcome(record)
            self._letters[key] = outcome.reason if outcome.kind is Kind.DEAD_LETTERED else None
        return self._letters[key]

    def close(self, stores: list[Store]) -> None:
        if self.unprovable:
            self.counts["rewritten, and retention removed the proof"] += 1
            return
        for recipe in self.scene.source.recipes:
            blocks, totals, states = self._reference(recipe)
            for number, store in enumerate(stores):
                if store.recipe is recipe:
                    self._close_store(store, f"{recipe.split}, store {number}", blocks)
            if not self.rewritten:
                self._close_topic(recipe, blocks, totals, states)
        self._close_dead_letters()

    def _reference(self, recipe: Recipe) -> tuple[list[ReferenceBlock], dict[int, Totals], dict[int, bytes]]:
        """Return the right blocks, and the totals and the open blocks after all records below each offset."""
        reference = self.scene.source.reference(recipe)
        blocks: list[ReferenceBlock] = []
        totals, states, at = dict[int, Totals](), dict[int, bytes](), 0
        for offset, record in [*sorted(self.broker.raw.truth.items()), (self.broker.raw.end, None)]:
            totals.update(dict.fromkeys(range(at, offset + 1), reference.totals.copy()))
            states.update(dict.fromkeys(range(at, offset + 1), reference.references))
            at = offset + 1
            blocks += [] if record is None else reference.blocks([record])
        return blocks, totals, states

    def _close_store(self, store: Store, name: str, blocks: list[ReferenceBlock]) -> None:
        """Hold a store against the chain that finally stands.

        A store keeps the blocks of a log that was lost. It can see that it does at the first block that is another one;
        a chain whose documents were all dropped since has none.
        """
        right = [(block.tokens, block.entry, block.chain) for block in blocks]
        kept = [tuple(block) for block in store.committed]
        stopped = self.halted_mill or store.halt is not None
        if self.rewritten and len(kept) > len(right) and kept[: len(right)] == right:
            self.counts["ahead of a rewritten chain that has no other block yet"] += 1
        elif kept != right[: len(kept)]:
            if not (self.rewritten and stopped):
                self.violations.append(f"{name}: holds {len(kept)} blocks that are no prefix of the {len(right)}")
        elif len(kept) == len(right) or stopped or store.recipe.split in self.jumped:
            return
        elif _was_removed(store, len(kept)):
            self.counts["waits for what retention removed"] += 1
        else:
            self.violations.append(f"{name}: holds {len(kept)} of {len(right)} blocks, and nothing says why")

    def _close_topic(
        self, recipe: Recipe, blocks: list[ReferenceBlock], totals: dict[int, Totals], states: dict[int, bytes]
    ) -> None:
        split, chains = recipe.split, [genesis_hash(recipe.fingerprint, PARTITION), *(block.chain for block in blocks)]
        for message in self.broker.landed[split]:
            ends = message.before, message.after
            if message.end >= len(chains) or ends != (chains[message.first], chains[message.end]):
                self.violations.append(f"{split}: block {message.first} is another one than the reference's")
            elif message.is_carry:
                right = totals.get(message.cursor.next_offset), states.get(message.cursor.next_offset)
                if (message.totals, message.references) != right:
                    self.violations.append(f"{split}: the carry before block {message.first} counts wrongly")
            elif _place_of(message) != _place_of(blocks[message.end - 1]):
                self.violations.append(f"{split}: the message before block {message.end} leaves the chain elsewhere")
            if not message.totals.balanced:
                self.violations.append(f"{split}: the totals before block {message.end} do not balance")

    def _close_dead_letters(self) -> None:
        times = {offset: record.timestamp for offset, record in self.broker.raw.truth.items()}
        sent = {record.offset: why for record, why in self.broker.dead if record.timestamp == times.get(record.offset)}
        if not (self.rewritten or self.halted_mill) and sent != (right := self._dead()):
            self.violations.append(f"dead letters {sorted(sent.items() ^ right.items())} are missing or too many")


def _place_of(end: Message | ReferenceBlock) -> tuple[Cursor, Totals, bytes]:
    return end.cursor, end.totals, end.references


def _was_removed(store: Store, block: int) -> bool:
    """Return whether retention removed a block that no later message holds: who waits for it waits loudly."""

    def holds(log: dict[int, Stored]) -> bool:
        return any(entry.sent.first <= block < entry.sent.end for entry in log.values())

    return holds(store.log.truth) and not holds(store.log.entries)
