"""Where a chain continues, found from the last messages on its token partition alone.

Pure; `tokenmill.app.kafka.token_topic` reads. A new owner takes the furthest cursor of the contiguous run, not that of
the last message: a zombie's older one may be there. Resuming from an older position is always safe, because the same
records give the same blocks.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tokenmill.reading.acceptance import Acceptor, Gap, Taken
from tokenmill.wire.cursor import NO_RECORD, Cursor
from tokenmill.wire.message import Message
from tokenmill.wire.references import NO_BLOCKS, split_references
from tokenmill.wire.totals import Totals

NewAcceptor: TypeAlias = Callable[[int, bytes | None], Acceptor]
"""Makes a reader that begins before a block with the chain hash before it; None: the chain's own first hash."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Everything that the next block depends on, beside the source."""

    cursor: Cursor
    chain: bytes
    """Chain hash before block ``cursor.block``."""
    totals: Totals
    open_tokens: bytes = b""
    """The open blocks so far, where a carry holds them."""
    open_entry: bytes = b""
    references: bytes = NO_BLOCKS
    """The same as references, in a packing that has several (`tokenmill.wire.references`)."""

    @property
    def is_complete(self) -> bool:
        """Whether the tokens of all open blocks are here, so that none has to be read from the source again."""
        return not self.references or bool(self.open_tokens)

    @property
    def needs_from(self) -> int:
        """The lowest offset of the source that continuing here needs."""
        following = self.cursor.next_offset
        return following if self.is_complete else min(following, split_references(self.references).oldest)


@dataclass(frozen=True, slots=True)
class Run:
    """A contiguous run of messages within a tail."""

    point: ResumePoint
    """The furthest one in the run that the source still holds all of that it needs; else the furthest."""
    first: int
    """Number of the block with which the run begins."""
    furthest: Cursor
    """The furthest cursor in the run."""


def genesis_point(start_offset: int, chain: bytes) -> ResumePoint:
    """Return the point at which a chain begins: ``start_offset`` is the genesis's for the partition."""
    return ResumePoint(Cursor(start_offset, 0, 0, NO_RECORD), chain, Totals())


class RunFinder:
    """Finds the contiguous runs among the messages of a token partition, whatever their order; `add` each one.

    Holds one reader for each run and no message, so a whole partition can be read through it in little memory. More
    than one run means a gap: read more of the partition before believing any.
    """

    def __init__(self, new_acceptor: NewAcceptor, *, whole: bool, source_first: int = 0) -> None:
        """Make readers with ``new_acceptor``.

        With ``whole``, the messages will be all that the partition ever held: what begins at block 0 must begin there
        with the chain's own first hash. ``source_first`` is the first offset that the source holds.
        """
        self._new_acceptor = new_acceptor
        self._source_first = source_first
        self._open = [_new_run(new_acceptor(0, None))] if whole else []

    def add(self, message: Message) -> None:
        """Take the next message.

        Raises:
            DifferenceError, DamagedError, FingerprintError: as `Acceptor.offer`.

        """
        place = bisect_right(self._open, message.first, key=lambda run: run.first)
        if not place or message.first > self._open[place - 1].acceptor.next_block:
            run = _new_run(self._new_acceptor(message.first, message.before))
            self._open.insert(place, run)
            place += 1
        if self._open[place - 1].offer(message, self._source_first):
            self._join(place - 1)

    def _join(self, place: int) -> None:
        """Make one run of the one at ``place`` and those that it has reached."""
        run = self._open[place]
        while place + 1 < len(self._open) and self._open[place + 1].first <= run.acceptor.next_block:
            run.join(self._open.pop(place + 1))

    def runs(self) -> list[Run]:
        """Return the runs found so far, in the order of their blocks."""
        return [
            Run(run.reached or run.furthest, run.first, run.furthest.cursor)
            for run in self._open
            if run.furthest is not None
        ]


@dataclass(slots=True)
class _OpenRun:
    """A run that may still grow."""

    first: int
    before: bytes
    """Chain hash before the first block: the reader forgets it when the run grows long."""
    acceptor: Acceptor
    furthest: ResumePoint | None = None
    reached: ResumePoint | None = None
    """The furthest one that the source holds all of that it needs."""

    def offer(self, message: Message, source_first: int) -> bool:
        """Take what continues the run; return whether there was anything."""
        verdict = self.acceptor.offer(message)
        if isinstance(verdict, Gap):
            return False
        point = resume_point(message)
        if isinstance(verdict, Taken):
            self.furthest = _further(self.furthest, point)
        if point.needs_from >= source_first and (isinstance(verdict, Taken) or verdict.checked):
            self.reached = _further(self.reached, point)
        return isinstance(verdict, Taken)

    def join(self, other: "_OpenRun") -> None:
        """Become one with a run whose beginning this one has reached.

        Raises:
            DifferenceError: the two hold different blocks.

        """
        ahead, behind = self.acceptor, other.acceptor
        if ahead.next_block < behind.next_block:
            ahead, behind = behind, ahead
        self.acceptor.require_hash(other.first, other.before)
        ahead.require_hash(behind.next_block, behind.chain)
        self.acceptor = ahead
        self.furthest, self.reached = _further(self.furthest, other.furthest), _further(self.reached, other.reached)


def _further(one: ResumePoint | None, other: ResumePoint | None) -> ResumePoint | None:
    """Return the further one of two points; of two at one place a complete one, if there is one."""
    points = [point for point in (one, other) if point is not None]
    return max(points, key=lambda point: (point.cursor.place, point.is_complete), default=None)


def _new_run(acceptor: Acceptor) -> _OpenRun:
    return _OpenRun(acceptor.next_block, acceptor.chain, acceptor)


def runs(messages: Iterable[Message], new_acceptor: NewAcceptor, *, whole: bool) -> list[Run]:
    """Return the contiguous runs among ``messages``; see `RunFinder`."""
    finder = RunFinder(new_acceptor, whole=whole)
    for message in messages:
        finder.add(message)
    return finder.runs()


def resume_point(message: Message) -> ResumePoint:
    """Return the point after a message."""
    return ResumePoint(
        message.cursor, message.after, message.totals, message.open_tokens, message.open_entry, message.references
    )
