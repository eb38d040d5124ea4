"""Eras under competing writers and a log that loses its tail: all readers agree, and every block is in one era.

A history is a list of actions drawn from a seed. Mills that close, persons who close for good, segment workers that
bring, and readers are coroutines of the project's own code over simulated topics (`era_workers`), so that
anything can happen in between: another owner, a kill, a send that lands late or never, a log that loses its tail. Each
`EraRule` is a rule by which eras are closed and followed, with a way to switch it off.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple

import pytest

from tests.eras.judging import read_ended, stops_of
from tests.faults.trial import Trial
from tests.simulation import era_workers
from tests.simulation.broker import Log
from tests.simulation.era_workers import Bringer, Mill, Pace, StoreFiles, Written, written
from tokenmill import reading
from tokenmill.app.kafka import control_topic
from tokenmill.app.kafka.token_topic import KafkaLogs
from tokenmill.app.mill import era_closing as closing
from tokenmill.app.mill.era_closing import EraCloser, Extents
from tokenmill.app.segments.era_bringing import EraBringer
from tokenmill.eras import ERA_KEY, Era, EraFollower, EraLog
from tokenmill.errors import DifferenceError, TokenMillError
from tokenmill.reading import find_extent

_add = EraLog.add
_read_eras = control_topic.read_eras
_step = EraCloser.step
_runs = reading._runs


class EraRule(NamedTuple):
    """A rule, how it is switched off, and the seed of a history that needs it."""

    name: str
    off: Callable[[pytest.MonkeyPatch], None]
    seed: int


def _patched(*changes: tuple[object, str, object]) -> Callable[[pytest.MonkeyPatch], None]:
    def off(patch: pytest.MonkeyPatch) -> None:
        for owner, name, value in changes:
            patch.setattr(owner, name, value)

    return off


def _any_hash(self: EraLog, era: Era) -> bool:
    return (
        not self.ended
        and era.number == self.next_number
        and len(era.ranges) >= self.partitions
        and all(self.end(number) == (part.first, part.before) for number, part in enumerate(era.ranges))
    )


def _must_continue(self: EraLog, value: bytes | None) -> Era | None:
    era = _add(self, value)
    try:
        if era is None and Era.unpack(value or b"").number >= self.next_number:
            raise DifferenceError("an era does not continue the one before")
    except ValueError:
        return None
    return era


async def _look_once(client: Any, topic: str, follower: EraFollower) -> AsyncIterator[object]:
    if follower.log.last is None:
        async for found in _read_eras(client, topic, follower):
            yield found


async def _believing_step(self: EraCloser, client: Any, *, end: bool = False) -> Era | None:
    era = await _step(self, client, end=end)
    if era is not None:
        self._follower.log.add(era.pack())
    return era


async def _two_steps(self: EraCloser, client: Any) -> None:
    for _ in range(2):
        await self.step(client, end=True)


async def _unknown(logs: Any, recipe: Any, partition: int, _: int) -> object:
    return await find_extent(logs, recipe, partition)


async def _last_run(*arguments: Any) -> object:
    found, whole, last = await _runs(*arguments)
    return found[-1:], whole and len(found) < 2, last


async def _strict_extent(self: Extents, client: Any, partition: Any, known: int) -> object:
    logs = KafkaLogs(client, partition, partition)
    return await find_extent(logs, self.recipe, partition.partition, known)


def _forgive(self: EraFollower) -> None:
    self._known = None


ERA_RULES: Final = (
    EraRule("a look begins with the reader's own head", _patched((EraFollower, "holds", lambda *_: True)), 2),
    EraRule("a head that is not on the chain halts its reader", _patched((EraFollower, "finish", _forgive)), 21),
    EraRule("a look that was broken off is undone", _patched((EraFollower, "rewind", lambda *_: None)), 2),
    EraRule(
        "offsets without a record before the first one of a fetch are read again",
        _patched((control_topic, "_one_fetch", control_topic._first_fetch)),
        1259248152,
    ),
    EraRule("what is in eras was there, whatever retention left", _patched((closing, "find_extent", _unknown)), 472),
    EraRule("an era names the hash of the one before", _patched((EraLog, "continues", _any_hash)), 506),
    EraRule("what continues nothing is ignored", _patched((EraLog, "add", _must_continue)), 36),
    EraRule("nothing follows the end marker", _patched((EraLog, "ended", False)), 18),
    EraRule("the end marker is written until it is there", _patched((EraCloser, "close", _two_steps)), 2),
    EraRule(
        "a record is read back before the next is written",
        _patched((closing, "read_eras", _look_once), (EraCloser, "step", _believing_step)),
        0,
    ),
    EraRule("an era ends where blocks are missing", _patched((reading, "_runs", _last_run)), 84),
    EraRule(
        "a partition that contradicts itself keeps no other out", _patched((Extents, "_extent", _strict_extent)), 9
    ),
    EraRule("after an error a store's eras are read again", _patched((EraBringer, "_close", lambda *_: None)), 13),
)


MOST_MILLS: Final = 3
MOST_PARTITIONS: Final = 4
MOST_STEPS: Final = 30
"""That a worker takes at a time: enough for a look and what follows from it."""
SETTLING_STEPS: Final = 6_000

WEIGHTS: Final = {
    "produce": 20, "mill": 40, "bring": 16, "read": 10, "land": 18, "fill": 6, "start mill": 5, "start bringer": 4,
    "kill mill": 2, "kill bringer": 2, "own": 2, "drop": 1, "lose control": 1.2, "recreate control": 0.1,
    "lose tokens": 1.5, "retain tokens": 1, "write junk": 2, "write ahead": 4, "write again": 1, "write another": 0.5,
    "stop partition": 0.3, "add partition": 0.5, "close": 0.8, "silence": 1, "disk": 1,
}  # fmt: skip
"""How often each thing happens; what is below 5 is a fault, of which a history has some."""


class EraHistory:
    """One history; `run` goes through it and raises AssertionError at the first thing that must not be."""

    def __init__(self, seed: int) -> None:
        self.seen: Counter[str] = Counter()
        """How often each fault and each answer to it was met."""
        self.clock = 0.0
        self.topics = era_workers.Topics(partitions := (rng := random.Random(seed)).randint(1, 2))
        self.topics.seen = self.seen
        self.rng = rng
        self._ever = [0] * partitions
        """The most blocks that ever stood on each partition without a gap."""
        self._stopped: set[int] = set()
        """Partitions whose mill has halted: no block of theirs comes any more."""
        self.flights: list[era_workers.Flight] = []
        self._places: set[tuple[int, bytes | None]] = set()
        self._sent: list[bytes] = []
        """All that ever stood on the control topic."""
        self._mills: list[Mill | era_workers.Person] = []
        self._stores = [StoreFiles(), StoreFiles()]
        self._bringers = [Bringer(self, store) for store in self._stores]
        self._readers = [era_workers.Reader(self) for _ in range(2)]
        self._stored = [0 for _ in self._stores]
        self.truth = era_workers.Truth(self.topics, self._ever)

    def run(self, actions: int = 120) -> None:
        faults = [name for name, weight in WEIGHTS.items() if weight < 5]
        left_out = set(self.rng.sample(faults, self.rng.randint(0, len(faults))))
        chosen = {name: weight for name, weight in WEIGHTS.items() if name not in left_out}
        with era_workers.outside(self):
            for name in self.rng.choices(list(chosen), list(chosen.values()), k=actions):
                self.clock += 1
                DOES[name](self)
            self._settle()

    # what happens

    def produce(self) -> None:
        partition = self.rng.randrange(len(self.topics.tokens))
        if partition not in self._stopped:
            first = self.topics.reach(partition)
            self._write(partition, first, first + self.rng.randint(1, 5))

    def write_ahead(self) -> None:
        """Let a message of an owner that knows more than the topic land behind a hole."""
        partition = self.rng.randrange(len(self.topics.tokens))
        first = self.topics.reach(partition) + self.rng.randint(1, 4)
        known = first <= self._ever[partition] and not self.topics.tokens[partition].first
        if known and partition not in self._stopped:
            self._write(partition, first, first + self.rng.randint(1, 6))
            self.seen["messages behind a hole"] += 1

    def write_again(self) -> None:
        """Let a zombie's message land: blocks that are there, cut otherwise."""
        partition = self.rng.randrange(len(self.topics.tokens))
        reached = self.topics.reach(partition)
        if reached and partition not in self._stopped:
            first = self.rng.randrange(reached)
            self._write(partition, first, self.rng.randint(first + 1, reached))
            self.seen["zombies' messages"] += 1

    def write_another(self) -> None:
        """Let a partition contradict itself: a block is there twice, with different tokens; its mill halts."""
        partition = self.rng.randrange(len(self.topics.tokens))
        reached = self.topics.reach(partition)
        if reached and partition not in self._stopped:
            self.topics.tokens[partition].append(written(partition, reached - 1, reached, other=True))
            self._stopped.add(partition)
            self.seen["partitions that contradict themselves"] += 1

    def stop_partition(self) -> None:
        """Let the chain of a partition halt, partition 0 most often: its owner still has it, and closes eras."""
        partition = self.rng.choice([0, 0, self.rng.randrange(len(self.topics.tokens))])
        self._stopped.add(partition)
        self.seen["partition 0 halted"] += partition == 0

    def mill(self) -> None:
        self._some_steps(self._mills)
        self._mills = [mill for mill in self._mills if not mill.over]

    def bring(self) -> None:
        self._some_steps(self._bringers)

    def read(self) -> None:
        self._some_steps([reader for reader in self._readers if not reader.over])

    def land(self) -> None:
        if self.flights:
            flight = self.flights.pop(self.rng.randrange(len(self.flights)))
            self._append(Written(flight.key, flight.value))
            flight.state = "acknowledged" if self.rng.random() < 0.97 else "refused"
            self.seen["written, and told that it was not"] += flight.state == "refused"

    def drop(self) -> None:
        if self.flights:
            self.flights.pop(self.rng.randrange(len(self.flights))).state = "refused"
            self.seen["sends lost"] += 1

    def fill(self) -> None:
        store = self.rng.choice(self._stores)
        partition = self.rng.randrange(len(self._ever))
        have = store.blocks.get(partition, 0)
        store.blocks[partition] = max(have, self.rng.randint(have, max(have, self._ever[partition])))

    def start_mill(self) -> None:
        """Start a mill that believes to have partition 0, whoever else does."""
        if len(self._mills) < MOST_MILLS:
            pace = Pace(self.rng.randint(1, 12), self.rng.choice([0.0, 5.0, 40.0]))
            self._mills.append(Mill(self, pace))
            self.seen["mills beside each other"] += len(self._mills) > 1

    def close(self) -> None:
        self._mills.append(era_workers.Person(self))

    def start_bringer(self) -> None:
        store = self.rng.choice(self._stores)
        if sum(bringer.store is store for bringer in self._bringers) < 2:
            self._bringers.append(Bringer(self, store))
            self.seen["bringers beside each other"] += 1

    def kill_mill(self) -> None:
        if self._mills:
            self._mills.pop(self.rng.randrange(len(self._mills))).kill()
            self.seen["mills killed"] += 1

    def kill_bringer(self) -> None:
        if self._bringers:
            self._bringers.pop(self.rng.randrange(len(self._bringers))).kill()
            self.seen["bringers killed"] += 1

    def own(self) -> None:
        workers = [worker for worker in (*self._mills, *self._bringers) if isinstance(worker, Mill | Bringer)]
        if workers:
            worker = self.rng.choice(workers)
            worker.owns = not worker.owns
            self.seen["partition 0 revoked or assigned"] += 1

    def lose_control(self) -> None:
        log = self.topics.control
        if log.truth and not self.seen["token retention"]:
            cut = sorted(log.truth)[-min(len(log.truth), self.rng.randint(1, 3))]
            self.seen["eras lost after their acknowledgement"] += sum(offset >= cut for offset in log.truth)
            log.lose_tail(cut)
            self.truth.changed()

    def recreate_control(self) -> None:
        if not self.seen["token retention"]:
            self.topics.control.recreate()
            self.truth.changed()
            self.seen["control topics recreated"] += 1

    def lose_tokens(self) -> None:
        """Let a token partition lose its tail; the mill writes the same blocks again, some time."""
        partition = self.rng.randrange(len(self.topics.tokens))
        log = self.topics.tokens[partition]
        if log.truth and partition not in self._stopped:
            log.lose_tail(sorted(log.truth)[-min(len(log.truth), self.rng.randint(1, 3))])
            self.seen["token tails lost"] += 1

    def retain_tokens(self) -> None:
        """Let retention remove the first messages of a token partition, not all, and none that no era has.

        A stream whose eras were lost, or whose partition contradicts itself or has a hole, needs what was removed.
        """
        partition = self.rng.randrange(len(self.topics.tokens))
        log, stops = self.topics.tokens[partition], stops_of(self.truth.versions[-1])
        lost = self.seen["eras lost after their acknowledgement"] + self.seen["control topics recreated"]
        hole = max((entry.blocks[1] for entry in log.entries.values()), default=0) > self.topics.reach(partition)
        if lost or hole or partition in self._stopped or partition >= len(stops):
            return
        needed = [offset for offset, entry in sorted(log.entries.items()) if entry.blocks[1] > stops[partition]]
        free = [offset for offset in sorted(log.entries)[:-1] if not needed or offset <= needed[0]]
        if free:
            log.retain_from(self.rng.choice(free))
            self.seen["token retention"] += 1

    def write_junk(self) -> None:
        """Let something stand there that is no era, one that was written before, or one that another key makes none."""
        value = self.rng.choice([b"junk", b"", *self._sent, *self._sent[-3:] * 3])
        self._append(Written(self.rng.choice([ERA_KEY, ERA_KEY, b"skip"]), value))
        self.seen["junk"] += 1

    def add_partition(self) -> None:
        if len(self.topics.tokens) < MOST_PARTITIONS:
            self.topics.tokens.append(Log())
            self._ever.append(0)
            self.seen["partitions added"] += 1

    def silence(self) -> None:
        self.topics.failing = self.rng.randint(1, 3)

    def disk(self) -> None:
        self.rng.choice(self._stores).commits_left = self.rng.randint(0, 2)
        self.seen["disks that fail"] += 1

    # how it is done

    def _some_steps(self, workers: Sequence[era_workers.Worker]) -> None:
        if workers:
            worker = self.rng.choice(workers)
            for _ in range(self.rng.randint(1, MOST_STEPS)):
                worker.step()
            self._look_at_stores()

    def _write(self, partition: int, first: int, stop: int) -> None:
        if stop <= era_workers.MOST_BLOCKS:
            self.topics.tokens[partition].append(written(partition, first, stop), self.rng.choice([0, 0, 0, 1]))
            self._ever[partition] = max(self._ever[partition], self.topics.reach(partition))

    def _append(self, entry: Written) -> None:
        gap = self.rng.choice([0, 0, 0, 1])  # now and then an offset that holds none
        end = self.topics.control.end
        while (end + gap, entry.value) in self._places:  # nobody could tell that it was lost meanwhile; nobody sends it
            gap += 1
        self._places.add((end + gap, entry.value))
        self.topics.control.append(entry, gap)
        self._sent.append(entry.value or b"")
        before = self.truth.versions[-1]
        self.truth.changed()
        self.seen["records ignored"] += self.truth.versions[-1] == before
        self.seen["eras"] += self.truth.versions[-1] != before

    def _look_at_stores(self) -> None:
        for number, store in enumerate(self._stores):
            lines = [era.pack() for era, _ in store.eras]
            if len(lines) != self._stored[number]:
                self._stored[number] = len(lines)
                assert any(version[: len(lines)] == lines for version in self.truth.versions), "a store has other eras"
            stops = stops_of(lines)
            have = [store.blocks.get(partition, 0) for partition in range(len(self._ever))]
            stops += [0] * (len(have) - len(stops))
            self.seen["eras ahead of their blocks"] += any(n < stop for n, stop in zip(have, stops, strict=True))
            self.seen["blocks ahead of their eras"] += any(n > stop for n, stop in zip(have, stops, strict=True))

    # how it ends

    def _settle(self) -> None:
        """End all faults: what is under way lands, one of each goes on, and the mills write the lost blocks again."""
        self._end_faults()
        mill = Mill(self, Pace(1, 0.0))
        bringers = [Bringer(self, store) for store in self._stores]
        workers: list[era_workers.Worker] = [mill, *bringers, *self._readers]
        for _ in range(SETTLING_STEPS):
            for worker in workers:
                worker.step()
            while self.flights:
                flight = self.flights.pop()
                self._append(Written(flight.key, flight.value))
                flight.state = "acknowledged"
            if self._is_settled(bringers):
                break
        assert not mill.gave_up, "a new mill closes no eras"
        self._judge(bringers)
        for worker in workers:
            worker.kill()

    def _end_faults(self) -> None:
        for worker in (*self._mills, *self._bringers):
            worker.kill()
        self.topics.failing = 0
        while self.flights:
            self.land()
        for partition in set(range(len(self._ever))) - self._stopped:
            while (reached := self.topics.reach(partition)) < self._ever[partition]:
                self._write(partition, reached, self._ever[partition])
        for store in self._stores:
            store.commits_left = None

    def _is_settled(self, bringers: Sequence[Bringer]) -> bool:
        chain = self.truth.versions[-1]
        return (
            self._all_in_eras()
            and all(b.gave_up or [e.pack() for e, _ in b.store.eras] == chain for b in bringers)
            and all(r.halted or [e.pack() for e in r.known] == chain for r in self._readers)
        )

    def _all_in_eras(self) -> bool:
        chain = self.truth.versions[-1]
        if chain and read_ended(chain[-1]):
            return True
        stops = stops_of(chain)
        stops += [0] * (len(self._ever) - len(stops))  # partitions that never had a block
        return all(
            stop == most or partition in self._stopped
            for partition, (stop, most) in enumerate(zip(stops, self._ever, strict=True))
        )

    def _judge(self, bringers: Sequence[Bringer]) -> None:
        chain = self.truth.versions[-1]
        assert self._all_in_eras(), "blocks are left though nothing fails any more"
        for bringer in bringers:
            lines = [era.pack() for era, _ in bringer.store.eras]
            if bringer.gave_up:
                assert lines[-1] not in chain, "a store halted though its last era stands there"
            else:
                assert lines == chain, "a store has other eras than the topic"
        for reader in self._readers:
            if not reader.halted:
                assert [era.pack() for era in reader.known] == chain, "a reader sees other eras than the topic holds"


DOES: Final[dict[str, Callable[[EraHistory], None]]] = {
    name: getattr(EraHistory, name.replace(" ", "_")) for name in WEIGHTS
}


HISTORIES: Final = 250
HISTORIES_IN_FULL: Final = 20_000
RULE_HISTORIES: Final = 1_000

SIGNS: Final = (
    "mills beside each other", "mills killed", "bringers beside each other", "bringers killed", "sends lost",
    "written, and told that it was not", "eras lost after their acknowledgement", "control topics recreated", "junk",
    "token tails lost", "token retention", "messages behind a hole", "zombies' messages",
    "partitions that contradict themselves", "partition 0 halted", "partitions added",
    "partition 0 revoked or assigned", "requests not answered", "disks that fail",
)  # fmt: skip
"""What was done."""
ANSWERS: Final = (
    "eras", "records ignored", "looks", "looks broken off", "log moved while read", "streams closed",
    "mills halted over an era that was lost", "stores halted over an era that was lost",
    "readers halted over an era that was lost", "said: no era takes blocks of this partition",
    "said: waiting for the eras' files", "eras ahead of their blocks", "blocks ahead of their eras",
)  # fmt: skip
"""What came of it: each rule was needed."""
RARE: Final = ("end markers written again",)
"""What happens in every few thousand."""


@pytest.mark.fault("simulated", "eras-contested", "eras-lost")
@pytest.mark.timeout(3600)
@pytest.mark.slow
def test_all_who_read_eras_agree_and_every_block_is_in_one(trial: Trial) -> None:
    """Whatever is killed, doubled, lost, late or refused: mills, stores and readers see the topic's eras or halt."""
    first = trial.rng.randrange(1 << 32)
    rounds = trial.rounds(HISTORIES, HISTORIES_IN_FULL)
    seen: Counter[str] = Counter()
    for seed in range(first, first + rounds):
        history = EraHistory(seed)
        try:
            history.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen.update(history.seen)
    for name in SIGNS:
        trial.fired(name, seen[name])
    missing = [name for name in (*SIGNS, *ANSWERS, *(RARE if trial.full else ())) if not seen[name]]
    assert not missing, f"in {rounds} histories from seed {first} on, nothing tried {missing}"
    trial.held("eras", "loud", era_histories=rounds)
    print(f"seeds {first} to {first + rounds - 1}: {dict(sorted(seen.items()))}")  # noqa: T201 - the run's evidence


@pytest.mark.fault("simulated")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("rule", ERA_RULES, ids=lambda rule: rule.name)
@pytest.mark.cases(5)
def test_without_the_rule_eras_go_wrong(rule: EraRule, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history that is known to need the rule ends well with it; a full run counts those among a thousand."""
    EraHistory(rule.seed).run()
    rule.off(monkeypatch)
    assert goes_wrong(rule.seed), "the histories that seeds give have changed: look for another seed (`make faults`)"
    rounds = trial.rounds(0, RULE_HISTORIES)
    found = [seed for seed in range(rounds) if goes_wrong(seed)]
    trial.fired(f"without the rule: {rule.name}", 1 + len(found))
    trial.held("eras")
    print(f"| {rule.name} | {len(found)} of {rounds:,} | {found[:3]} |")  # noqa: T201 - a line of docs/reliability.md


@pytest.mark.needs("minutes")
def test_the_same_seed_gives_the_same_history() -> None:
    """So a printed seed is enough to see a failure again."""
    for seed in range(10):
        runs = [EraHistory(seed) for _ in range(2)]
        for history in runs:
            history.run()
        assert runs[0].seen == runs[1].seen


def goes_wrong(seed: int) -> bool:
    """Return whether a history violates something; without a rule the code may also fail outright."""
    try:
        EraHistory(seed).run()
    except (AssertionError, LookupError, ValueError, TokenMillError):
        return True
    return False
