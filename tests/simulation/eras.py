"""The control topic under competing era writers: what they do step by step, what the log loses, what readers see.

A history is a list of actions drawn from a seed. Writers are generators that stop before each thing that takes time, so
that anything can happen in between: another writer, a kill, a send that lands late or never, a log that loses its tail.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from tests.eras.histories import FINGERPRINT, chain_hash, look
from tokenmill.eras import ERA_KEY, Era, EraFollower, EraLog, EraRange, Extent, LogRecord, close_era
from tokenmill.errors import DifferenceError

MOST_WRITERS: Final = 3
MOST_PARTITIONS: Final = 4

Look = Callable[[EraFollower, list[LogRecord]], list[Era]]


class EraHistory:
    """One history; `run` goes through it and raises AssertionError at the first thing that must not be."""

    def __init__(self, seed: int, *, look: Look = look) -> None:
        """Draw what there is at the beginning."""
        self.seen: Counter[str] = Counter()
        """How often each fault and each answer to it was met."""
        self._rng = random.Random(seed)
        self._look_at = look
        self._blocks = [0] * self._rng.randint(1, 2)
        self._log: list[LogRecord] = []
        self._next_offset = 0
        self._in_flight: list[bytes] = []
        self._acked: set[bytes] = set()
        self._writers: list[Iterator[None]] = []
        self._readers = [EraFollower(f"reader {number}", FINGERPRINT) for number in range(3)]
        self._known: list[list[Era]] = [[] for _ in self._readers]
        self._halted: set[int] = set()
        self._clock = 0

    def run(self, actions: int = 120) -> None:
        """Let so many things happen, then end all faults, and check that every reader has every block once."""
        does = {
            self._produce: 20,
            self._step: 60,
            self._look: 20,
            self._land: 15,
            self._start: 6,
            self._kill: 3,
            self._drop: 1,
            self._lose_tail: 1.5,
            self._lose_blocks: 1.5,
            self._write_junk: 1,
            self._add_partition: 0.5,
        }
        faults = [action for action, weight in does.items() if weight < 5]
        left_out = set(self._rng.sample(faults, self._rng.randint(0, len(faults))))
        chosen = {action: weight for action, weight in does.items() if action not in left_out}
        for action in self._rng.choices(list(chosen), list(chosen.values()), k=actions):
            action()
        self._settle()

    # what happens

    def _produce(self) -> None:
        self._blocks[self._rng.randrange(len(self._blocks))] += self._rng.randint(1, 5)

    def _start(self) -> None:
        if len(self._writers) < MOST_WRITERS:
            self._writers.append(self._write())
            self.seen["writers beside each other"] += len(self._writers) > 1

    def _step(self) -> None:
        if self._writers:
            writer = self._rng.choice(self._writers)
            if next(writer, self) is self:
                self._writers.remove(writer)

    def _kill(self) -> None:
        if self._writers:
            self._writers.pop(self._rng.randrange(len(self._writers)))
            self.seen["writers killed"] += 1

    def _land(self) -> None:
        if self._in_flight:
            self._append(self._in_flight.pop(self._rng.randrange(len(self._in_flight))))

    def _drop(self) -> None:
        if self._in_flight:
            self._in_flight.pop(self._rng.randrange(len(self._in_flight)))
            self.seen["sends lost"] += 1

    def _lose_tail(self) -> None:
        if self._log:
            lost = self._log[-self._rng.randint(1, 3) :]
            self._log = self._log[: -len(lost)]
            self._next_offset = lost[0].offset
            self.seen["records lost after their acknowledgement"] += len(lost)

    def _lose_blocks(self) -> None:
        """Let a token topic lose its tail; the mill writes the same blocks again, some time."""
        partition = self._rng.randrange(len(self._blocks))
        self._blocks[partition] = max(0, self._blocks[partition] - self._rng.randint(1, 8))
        self.seen["token tails lost"] += 1

    def _write_junk(self) -> None:
        self._append(self._rng.choice([b"junk", b"", *(record.value or b"" for record in self._log)]))

    def _add_partition(self) -> None:
        if len(self._blocks) < MOST_PARTITIONS:
            self._blocks.append(0)
            self.seen["partitions added"] += 1

    def _look(self) -> None:
        number = self._rng.randrange(len(self._readers))
        if number not in self._halted:
            self._look_of(number)

    # who does it

    def _write(self) -> Iterator[None]:
        """Do what a mill does that believes to own partition 0."""
        follower = EraFollower("writer", FINGERPRINT)
        while True:
            yield
            try:
                self._look_at(follower, list(self._log))
            except DifferenceError:
                self.seen["writers ended over a log that was rewritten"] += 1
                return
            extents = {}
            for partition in range(len(self._blocks)):
                yield
                blocks = self._blocks[partition]
                extents[partition] = Extent(blocks, chain_hash(partition, blocks))
            self._clock += 1
            overdue = self._rng.random() < 0.5
            era = close_era(follower.log, extents, now=self._clock, era_blocks=6, overdue=overdue)
            if era is None:
                continue
            yield
            value = era.pack()
            self._in_flight.append(value)
            while value not in self._acked and value in self._in_flight:
                yield
            if value not in self._acked:
                return  # the send failed: the process ends

    def _append(self, value: bytes) -> None:
        self._log.append(LogRecord(self._next_offset, ERA_KEY, value))
        self._next_offset += self._rng.choice([1, 1, 1, 2])  # now and then an offset that holds none
        self._acked.add(value)

    def _look_of(self, number: int) -> None:
        known, right = self._known[number], self._truth()
        try:
            known += self._look_at(self._readers[number], list(self._log))
        except DifferenceError:
            assert known != right[: len(known)], "a reader halted though all that it knows stands there"
            self._halted.add(number)
            self.seen["readers halted over an era that was lost"] += 1
            return
        assert known == right, "a reader sees other eras than the log holds"
        self.seen["looks"] += 1

    def _truth(self) -> list[Era]:
        """Return what the log says to somebody who comes now; eras are right about the blocks."""
        log = EraLog(FINGERPRINT)
        eras = [log.add(record.value) for record in self._log]
        self.seen["records ignored"] += eras.count(None)
        for era in filter(None, eras):
            assert all(part.after == chain_hash(p, part.stop) for p, part in enumerate(era.ranges))
        return [era for era in eras if era]

    # how it ends

    def _settle(self) -> None:
        """End all faults: what is under way lands, one writer goes on, and the mills write the lost blocks again."""
        self._writers.clear()
        while self._in_flight:
            self._land()
        for partition, part in enumerate(self._last_ranges()):
            self._blocks[partition] = max(self._blocks[partition], part.stop)
        self._start()
        for _ in range(60 + 20 * len(self._blocks)):
            self._step()
            self._land()
            self._start()
        for number in set(range(len(self._readers))) - self._halted:
            self._look_of(number)
        taken = [part.stop for part in self._last_ranges()]
        taken += [0] * (len(self._blocks) - len(taken))  # partitions that never had a block
        assert taken == self._blocks, "blocks are left though nothing fails any more"

    def _last_ranges(self) -> tuple[EraRange, ...]:
        eras = self._truth()
        return eras[-1].ranges if eras else ()
