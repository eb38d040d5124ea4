"""A history: a list of actions, each a name and a number, that any part of is a history, too, so that it can be shrunk.

Everything that happens is decided by these numbers: who goes on, what is lost, what lands. The same list gives the same
history; a list is drawn from a seed.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from tests.simulation.broker import Broker, Flight, Log, Scene, Stored, make_record, make_scene
from tests.simulation.worker import Judge, MillWorker, Rules, Store
from tokenmill import reading
from tokenmill.documents import Record
from tokenmill.wire.pieces import split_references

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


def plan_of(block_tokens: int, first_tail: int, *parts: str, splits: int = 1, start: int = 0) -> Plan:
    """Return a plan written by hand: names with numbers, ``mill:88``, each part as often as it says (``3*``)."""
    actions = []
    for part in parts:
        times, _, names = part.rpartition("*")
        found = [Action(name.replace("_", " "), int(number)) for name, number in (w.split(":") for w in names.split())]
        actions += found * int(times or 1)
    return Plan(splits, block_tokens, start, first_tail, actions)


WEIGHTS: Final = {
    "mill": 30, "store": 9, "land": 14, "produce": 12, "start": 4, "kill": 2, "revoke": 1, "carry": 3, "refuse": 1,
    "land unheard": 1, "restart store": 1, "raw gap": 1, "raw retention": 1, "token retention": 1, "token tail": 1.2,
    "raw tail": 0.5, "raw recreated": 0.15, "tokens recreated": 0.2, "both tails": 0.3,
}  # fmt: skip
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


class History:
    def __init__(self, plan: Plan, rules: Rules | None = None) -> None:
        self.plan, self.rules = plan, rules or Rules()
        self.broker, self.workers, self.counts = Broker(), list[MillWorker](), Counter[str]()
        self.scene: Scene = make_scene(plan.splits, plan.block_tokens, plan.start, plan.fit)
        for recipe in self.scene.source.recipes:
            self.broker.tokens[recipe.split], self.broker.landed[recipe.split] = Log(), []
        self.stores = [Store(each, self.broker.tokens[each.split], self.rules) for each in self.scene.source.recipes]
        self.judge = Judge(self.scene, self.broker)
        self.broker.raw.skip(plan.start)
        self._made = 0

    def run(self) -> list[str]:
        with patch.object(reading, "FIRST_TAIL", self.plan.first_tail):
            for name, number in self.plan.actions:
                act: Callable[[int], bool] = getattr(self, f"_{name.replace(' ', '_')}")
                self.counts[name] += act(number)
            self._calm(self.plan.actions[-1].number if self.plan.actions else 0)
            self.judge.close(self.stores)
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
        if flight := self._flight(number):
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
        if alive := self._alive:
            _end(alive[number % len(alive)])
        return bool(alive)

    _revoke = _kill  # what a worker has in flight may land in both cases, and neither sends anything more

    def _carry(self, number: int) -> bool:
        if alive := self._alive:
            worker = alive[number % len(alive)]
            worker.carry_due, worker.carry_by_value = True, bool(number // 8 % 2)
        return bool(alive)

    def _restart_store(self, number: int) -> bool:
        self.stores[number % len(self.stores)].kill()
        return True

    def _raw_retention(self, number: int) -> bool:
        return _retained(self.broker.raw, number)

    def _token_retention(self, number: int) -> bool:
        return _retained(self._token_log(number), number // 4)

    def _token_log(self, number: int) -> Log[Stored]:
        logs = list(self.broker.tokens.values())
        return logs[number % len(logs)]

    def _token_tail(self, number: int) -> bool:
        log = self._token_log(number)
        before = log.end
        log.lose_tail(before - 1 - number // 4 % 6)
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
            _end(worker)
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
        for name in ("gaps", "looks", "duplicates", "cut messages"):
            self.counts[name] += sum(getattr(store, name.replace(" ", "_")) for store in self.stores)
        self.counts["blocks"] += sum(len(store.committed) for store in self.stores)
        self.counts["messages"] += sum(map(len, self.broker.landed.values()))
        self.counts["carries"] += sum(m.is_carry for landed in self.broker.landed.values() for m in landed)


def _end(worker: MillWorker) -> None:
    worker.stop()
    worker.alive = False


def _retained(log: Log[Any], number: int) -> bool:
    before = log.first
    log.retain_from(before + 1 + number % max(1, log.end - before))
    return log.first > before


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
