"""The judge of a history: what the reference makes of the log that finally stands, against all that was done.

It counts blocks and offsets in ways of its own; nothing here asks the code that chooses, resumes or accepts.
"""

from collections import Counter
from dataclasses import dataclass, field

from tests.mills import PARTITION
from tests.simulation.broker import Broker, SimulatedLogs, Stored
from tests.simulation.scene import Scene
from tests.simulation.store import Store
from tests.simulation.worker import MillWorker, reaches
from tokenmill.app.milling.outcomes import Kind
from tokenmill.app.milling.reference import ReferenceBlock
from tokenmill.errors import DifferenceError, GapError, SourceError
from tokenmill.reading.continuing import Tail, resume_point
from tokenmill.records import Record
from tokenmill.wire.chain import NO_RECORD, Cursor, genesis_hash
from tokenmill.wire.message import Message
from tokenmill.wire.pieces import split_references
from tokenmill.wire.totals import Totals


@dataclass
class Judge:
    """Looks on while a history runs, and has the last word on it."""

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
        """Take note that the raw log is about to lose all from ``cut`` on."""
        sent = [m.cursor for messages in self.broker.landed.values() for m in messages]
        sent += [f.stored.sent.cursor for f in self.broker.flights if f.stored is not None]
        if any(reaches(cursor, cut) for cursor in sent) or any(w.touches(cut) for w in workers if w.alive):
            self.rewritten = True
        if cut < self.scene.source.start:
            self.rewritten = True

    def resumed(self, split: str, logs: SimulatedLogs, tail: Tail) -> None:
        """Hold a resume against the log that it saw."""
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
        """Hold a halt of a mill against its reason."""
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
        """Check that the dead letters of all records that a message's cursor has passed are acknowledged."""
        if self.rewritten:
            return
        sent = {record.offset for record, _ in self.broker.dead}
        missing = [offset for offset in self._dead() if offset < message.cursor.next_offset and offset not in sent]
        if missing:
            self.violations.append(f"{split}: block {message.first} stands, and dead letters {missing} do not")

    def _dead(self) -> dict[int, str]:
        """Return offset and reason of every record that is no document and finally stands."""
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
        """Say the last word: all is quiet, and nothing more will come."""
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
        """Hold every message that ever stood on a token partition against the chain."""
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
