"""A history: a list of actions, each a name and a number, that any part of is a history, too, so that it can be shrunk.

Everything that happens is decided by these numbers: who goes on, what is lost, what lands. The same list gives the same
history; a list is drawn from a seed.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from tests.mills import PARTITION
from tests.simulation.broker import Broker, Flight, SimulatedLogs, Stored
from tests.simulation.logs import Log
from tests.simulation.scene import Scene, make_record, make_scene
from tests.simulation.store import Store
from tests.simulation.worker import MillWorker, Rules, reaches
from tokenmill import reading
from tokenmill.app.milling.outcomes import Kind
from tokenmill.app.milling.reference import ReferenceBlock
from tokenmill.documents import Record
from tokenmill.errors import DifferenceError, GapError, SourceError
from tokenmill.reading import Tail, resume_point
from tokenmill.wire.chain import NO_RECORD, Cursor, genesis_hash
from tokenmill.wire.message import Message
from tokenmill.wire.pieces import split_references
from tokenmill.wire.totals import Totals


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
        if any(reaches(cursor, cut) for cursor in sent) or any(w.touches(cut) for w in workers if w.alive):
            self.rewritten = True
        if cut < self.scene.source.start:
            self.rewritten = True

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
            blocks, totals, states = self._reference(recipe.split)
            for number, store in enumerate(stores):
                if store.recipe is recipe:
                    self._close_store(store, f"{recipe.split}, store {number}", blocks)
            if not self.rewritten:
                self._close_topic(recipe.split, blocks, totals, states)
        self._close_dead_letters()

    def _reference(self, split: str) -> tuple[list[ReferenceBlock], dict[int, Totals], dict[int, bytes]]:
        """Return the right blocks, and the totals and the open blocks after all records below each offset."""
        recipe = next(recipe for recipe in self.scene.source.recipes if recipe.split == split)
        reference = self.scene.source.reference(recipe)
        blocks: list[ReferenceBlock] = []
        totals, states, at = {}, {}, 0
        for offset, record in sorted(self.broker.raw.truth.items()):
            totals.update(dict.fromkeys(range(at, offset + 1), reference.totals.copy()))
            states.update(dict.fromkeys(range(at, offset + 1), reference.references))
            at = offset + 1
            blocks += reference.blocks([record])
        totals.update(dict.fromkeys(range(at, self.broker.raw.end + 1), reference.totals.copy()))
        states.update(dict.fromkeys(range(at, self.broker.raw.end + 1), reference.references))
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
        self, split: str, blocks: list[ReferenceBlock], totals: dict[int, Totals], states: dict[int, bytes]
    ) -> None:
        recipe = next(recipe for recipe in self.scene.source.recipes if recipe.split == split)
        chains = [genesis_hash(recipe.fingerprint, PARTITION), *(block.chain for block in blocks)]
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
        truth = self.broker.raw.truth
        stands = [(r.offset, why) for r, why in self.broker.dead if r.timestamp == _timestamp(truth.get(r.offset))]
        right, sent = self._dead(), dict(stands)
        if self.rewritten or self.halted_mill:
            return
        if sent != right:
            self.violations.append(f"dead letters {sorted(sent.items() ^ right.items())} are missing or too many")


def _place_of(end: Message | ReferenceBlock) -> tuple[Cursor, Totals, bytes]:
    return end.cursor, end.totals, end.references


def _timestamp(record: Record | None) -> int | None:
    return None if record is None else record.timestamp


def _was_removed(store: Store, block: int) -> bool:
    """Return whether retention removed a block that no later message holds: who waits for it waits loudly."""

    def holds(log: dict[int, Stored]) -> bool:
        return any(entry.sent.first <= block < entry.sent.end for entry in log.values())

    return holds(store.log.truth) and not holds(store.log.entries)


MOST_WORKERS: Final = 3
"""Alive at once: an owner, a zombie, and another one; fewer than the messages of a tail, as the protocol wants it."""
QUIET_ROUNDS: Final = 30
"""Rounds in which nothing at all moves, after which nothing will: longer than the longest wait of a store."""
MOST_ROUNDS: Final = 3000
"""Rounds after which something goes on for ever; a history needs some hundred."""


class Action(NamedTuple):
    """Something that happens; what ``number`` means is the action's own affair."""

    name: str
    number: int


@dataclass(frozen=True)
class Plan:
    splits: int
    block_tokens: int
    start: int
    first_tail: int
    actions: Sequence[Action]
    fit: tuple[int, int] | None = None
    """Open blocks, and offsets that their pieces may be behind, of the packing ``fit``; None: ``concat``."""


WEIGHTS: Final = {
    "mill": 30,
    "store": 9,
    "land": 14,
    "produce": 12,
    "start": 4,
    "kill": 2,
    "revoke": 1,
    "carry": 3,
    "refuse": 1,
    "land unheard": 1,
    "restart store": 1,
    "raw gap": 1,
    "raw retention": 1,
    "token retention": 1,
    "token tail": 1.2,
    "raw tail": 0.5,
    "raw recreated": 0.15,
    "tokens recreated": 0.2,
    "both tails": 0.3,
}
"""How often each action is drawn."""


def draw_plan(seed: int, only: Sequence[str] = (), *, fit: bool = False) -> Plan:
    """Return the plan of a seed: a few faults in one, none of most kinds, so that each kind meets every other.

    With ``only``, these faults and no others, often. With ``fit``, the same in that packing.
    """
    rng = random.Random(seed)
    faults = [name for name, weight in WEIGHTS.items() if weight <= 2]
    left_out = set(rng.sample(faults, rng.randint(len(faults) // 2, len(faults) - 1)))
    weights = {name: weight for name, weight in WEIGHTS.items() if name not in left_out}
    if only:
        weights = {name: weight for name, weight in WEIGHTS.items() if name not in faults} | dict.fromkeys(only, 2)
    names = rng.choices(list(weights), list(weights.values()), k=rng.randint(15, 50))
    plan = Plan(
        splits=1 + (rng.random() < 0.2),
        block_tokens=rng.choice([4, 8, 16]),
        start=rng.choice([0, 0, 0, 2]),
        first_tail=rng.choice([2, 3, 4, 8, 8, 16, 64]),
        actions=[Action("produce", rng.getrandbits(30)), *(Action(name, rng.getrandbits(30)) for name in names)],
    )
    return replace(plan, fit=(rng.choice([1, 2, 3, 5]), rng.choice([1, 2, 5, 8, 100]))) if fit else plan


@dataclass
class History:
    plan: Plan
    rules: Rules = field(default_factory=Rules)
    broker: Broker = field(default_factory=Broker)
    workers: list[MillWorker] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _made: int = 0

    def __post_init__(self) -> None:
        plan = self.plan
        self.scene: Scene = make_scene(plan.splits, plan.block_tokens, plan.start, plan.fit)
        for recipe in self.scene.source.recipes:
            self.broker.tokens[recipe.split], self.broker.landed[recipe.split] = Log(), []
            self.stores.append(Store(recipe, self.broker.tokens[recipe.split], self.rules))
        self.judge = Judge(self.scene, self.broker)
        self.broker.raw.skip(plan.start)

    def run(self) -> list[str]:
        before, reading.FIRST_TAIL = reading.FIRST_TAIL, self.plan.first_tail  # type: ignore[misc]
        try:
            for name, number in self.plan.actions:
                act: Callable[[int], bool] = getattr(self, f"_{name.replace(' ', '_')}")
                self.counts[name] += act(number)
            self._calm(self.plan.actions[-1].number if self.plan.actions else 0)
            self.judge.close(self.stores)
        finally:
            reading.FIRST_TAIL = before  # type: ignore[misc]
        self._count()
        return self.judge.violations

    @property
    def _alive(self) -> list[MillWorker]:
        return [worker for worker in self.workers if worker.alive]

    def _mill(self, number: int) -> bool:
        alive = self._alive
        if not alive:
            return self._start(number)
        worker = alive[number % len(alive)]
        for at in range(1 + number // 8 % 12):
            if worker.step(number // 128 + at) == "idle" and not at % 3:
                self._land_some(number)
            if not worker.alive:
                break
        return True

    def _land_some(self, number: int) -> None:
        if number // 1024 % 3 == 0 and self.broker.flights:
            self._land(number // 4096)

    def _store(self, number: int) -> bool:
        store = self.stores[number % len(self.stores)]
        for _ in range(1 + number // 8 % 12):
            self._step_store(store)
        return True

    def _step_store(self, store: Store) -> str:
        halted = store.halt is not None
        did = store.step()
        if store.halt is not None and not halted:
            self.judge.store_halted(store)
        return did

    def _flight(self, number: int) -> Flight | None:
        return self.broker.flights[number % len(self.broker.flights)] if self.broker.flights else None

    def _land(self, number: int, *, told: bool = True) -> bool:
        flight = self._flight(number)
        if flight is None:
            return False
        if self.broker.land(flight, told=told) and flight.split is not None and flight.stored is not None:
            self.counts["landed late"] += not any(w.number == flight.stored.producer for w in self._alive)
            self.judge.letters_before(flight.stored.sent, flight.split)
        return True

    def _land_unheard(self, number: int) -> bool:
        return self._land(number, told=False)

    def _refuse(self, number: int) -> bool:
        flight = self._flight(number)
        if flight is not None:
            self.broker.refuse(flight)
        return flight is not None

    def _produce(self, number: int) -> bool:
        for at in range(1 + number % 4):
            self._made += 1
            kind = (number // 4 + at * 7919) % (1 << 20)
            self.broker.raw.append(make_record(self.broker.raw.end, (self._made << 20) + kind))
        return True

    def _raw_gap(self, number: int) -> bool:
        self.broker.raw.skip(1 + number % 3)
        return True

    def _start(self, number: int) -> bool:
        most = self.plan.first_tail - 1 if self.rules.tail_above_writers else MOST_WORKERS
        if len(self._alive) >= min(MOST_WORKERS, most):
            return False
        self.counts["second owners"] += bool(self._alive)
        worker = MillWorker(
            len(self.workers), self.scene, self.broker, self.judge, self.rules,
            fetch_records=(1, 2, 3, 5, 8)[number % 5], message_bytes=(1, 300, 420, 1000)[number // 5 % 4],
        )  # fmt: skip
        self.workers.append(worker)
        return True

    def _kill(self, number: int) -> bool:
        alive = self._alive
        if alive:
            worker = alive[number % len(alive)]
            worker.stop()
            worker.alive = False
        return bool(alive)

    _revoke = _kill  # what a worker has in flight may land in both cases, and neither sends anything more

    def _carry(self, number: int) -> bool:
        alive = self._alive
        if alive:
            alive[number % len(alive)].carry_due = True
            alive[number % len(alive)].carry_by_value = bool(number // 8 % 2)
        return bool(alive)

    def _restart_store(self, number: int) -> bool:
        self.stores[number % len(self.stores)].kill()
        return True

    def _raw_retention(self, number: int) -> bool:
        raw = self.broker.raw
        before = raw.first
        raw.retain_from(raw.first + 1 + number % max(1, raw.end - raw.first))
        return raw.first > before

    def _token_retention(self, number: int) -> bool:
        log = self._token_log(number)
        before = log.first
        log.retain_from(log.first + 1 + number // 4 % max(1, log.end - log.first))
        return log.first > before

    def _token_log(self, number: int) -> Log[Stored]:
        logs = list(self.broker.tokens.values())
        return logs[number % len(logs)]

    def _token_tail(self, number: int) -> bool:
        log = self._token_log(number)
        before = log.end
        log.lose_tail(log.end - 1 - number // 4 % 6)
        self._lose_flights(log)
        return log.end < before

    def _lose_flights(self, log: Log[Stored]) -> None:
        """Let what was sent to the lost leader vanish, unless its sender lives, and sends it again to the new one."""
        alive = {worker.number for worker in self._alive}
        for flight in list(self.broker.flights):
            sent = flight.stored
            if sent is not None and self.broker.tokens.get(flight.split or "") is log and sent.producer not in alive:
                self.broker.refuse(flight)

    def _raw_tail(self, number: int) -> bool:
        raw = self.broker.raw
        before, cut = raw.end, max(raw.first, raw.end - 1 - number // 4 % 6)
        if cut >= before:
            return False
        self.judge.raw_lost(cut, self.workers)
        raw.lose_tail(cut)
        return True

    def _both_tails(self, number: int) -> bool:
        return self._raw_tail(number) | self._token_tail(number // 64)

    def _raw_recreated(self, number: int) -> bool:
        self.judge.raw_lost(0, self.workers)
        self.broker.raw.recreate()
        for at in range(number // 16 % 12):
            self._produce(number // 256 + at)
        return True

    def _raw_replaced(self, number: int) -> bool:
        """Put another text of its length in the place of one whose rest is in an open block."""
        raw = self.broker.raw
        furthest = max((m for some in self.broker.landed.values() for m in some), key=lambda m: m.cursor.place)
        held = [row for row in split_references(furthest.references).rows.tolist() if row[0] in raw.entries]
        offsets = [offset for offset, first, *_ in held if first and offset != furthest.cursor.last_offset]
        for offset in offsets[number % max(1, len(offsets)) :][:1]:
            record = raw.entries[offset]
            value = bytes(97 + (byte - 96) % 26 for byte in record.value or b"")
            raw.entries[offset] = raw.truth[offset] = Record(offset, record.timestamp, record.key, value)
            self.judge.rewritten = True
            return True
        return False

    def _tokens_recreated(self, number: int) -> bool:
        log = self._token_log(number)
        log.recreate()
        self._lose_flights(log)
        return True

    def _calm(self, number: int) -> None:
        """End all faults: what is on its way lands or is lost, one owner is left, and new text comes."""
        while self.broker.flights and number % 3:
            self._land(number) if number // 3 % 2 else self.broker.refuse(self.broker.flights[0])
        alive = self._alive
        if alive and number // 16 % 2:
            alive = [worker for worker in alive if worker is not alive[number // 32 % len(alive)]]
        for worker in alive:
            worker.stop()
            worker.alive = False
        self._settle()
        for at in range(4):
            self._produce(number // 7 + at * 31)
        self._made += 1
        self.broker.raw.append(make_record(self.broker.raw.end, (self._made << 20) + 2))
        self.stores += [Store(s.recipe, s.log, self.rules) for s in self.stores]
        self._settle()
        for worker in self._alive:  # as the service does, `carry_seconds` after a chain's last message
            worker.carry_due = self.rules.carries_in_time
        self._settle()

    def _settle(self) -> None:
        quiet = rounds = 0
        while quiet < QUIET_ROUNDS:
            rounds += 1
            if rounds > MOST_ROUNDS:
                self.judge.violations.append("it never comes to rest")
                return
            while self.broker.flights:
                self._land(0)
            if not self._alive and not any(worker.halt for worker in self.workers[-1:]):
                self._start(3)
            did = [self._step_store(store) for store in self.stores]
            did += [worker.step(at) for worker in self._alive for at in range(2 + self.plan.splits)]
            quiet = quiet + 1 if set(did) <= {"idle"} and not self.broker.flights else 0

    def _count(self) -> None:
        self.counts += self.broker.counts + self.judge.counts
        self.counts["workers that ended"] += sum(bool(worker.ended) for worker in self.workers)
        for worker in self.workers:
            if worker.ended:
                self.counts[f"ended: {worker.ended.split(' at ')[0].split(' offset')[0]}"] += 1
        self.counts["gaps"] += sum(store.gaps for store in self.stores)
        self.counts["looks"] += sum(store.looks for store in self.stores)
        self.counts["duplicates"] += sum(store.duplicates for store in self.stores)
        self.counts["cut messages"] += sum(store.cut_messages for store in self.stores)
        self.counts["blocks"] += sum(len(store.committed) for store in self.stores)
        self.counts["messages"] += sum(map(len, self.broker.landed.values()))
        self.counts["carries"] += sum(m.is_carry for landed in self.broker.landed.values() for m in landed)


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return a plan that still fails, of which no part can be left out and no number made 0."""
    while True:
        for smaller in _smaller(plan):
            if fails(smaller):
                plan = smaller
                break
        else:
            return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    actions = list(plan.actions)
    size = len(actions) // 2
    while size:
        for low in range(0, len(actions), size):
            yield replace(plan, actions=actions[:low] + actions[low + size :])
        size //= 2
    for at, action in enumerate(actions):
        if action.number:
            yield replace(plan, actions=[*actions[:at], Action(action.name, 0), *actions[at + 1 :]])
