"""Where a chain continues, found from the last messages on its token partition alone.

Pure; `tokenmill.app.kafka.token_topic` reads. A new owner takes the furthest cursor of the contiguous run, not that of
the last message: a zombie's older one may be there. Resuming from an older position is always safe, because the same
records give the same blocks.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tokenmill.reading.acceptance import Acceptor, Taken
from tokenmill.wire.cursor import NO_RECORD, Cursor
from tokenmill.wire.message import Message
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
    """The open block so far, where a carry holds it."""
    open_entry: bytes = b""


@dataclass(frozen=True, slots=True)
class Run:
    """A contiguous run of messages within a tail."""

    point: ResumePoint
    """The furthest cursor in the run."""
    first: int
    """Number of the block with which the run begins."""


def genesis_point(start_offset: int, chain: bytes) -> ResumePoint:
    """Return the point at which a chain begins: ``start_offset`` is the genesis's for the partition."""
    return ResumePoint(Cursor(start_offset, 0, 0, NO_RECORD), chain, Totals())


class RunFinder:
    """Finds the contiguous runs among the messages of a token partition, whatever their order; `add` each one.

    Holds one reader for each run and no message, so a whole partition can be read through it in little memory. More
    than one run means a gap: read more of the partition before believing any.
    """

    def __init__(self, new_acceptor: NewAcceptor, *, whole: bool) -> None:
        """Make readers with ``new_acceptor``.

        With ``whole``, the messages will be all that the partition ever held: what begins at block 0 must begin there
        with the chain's own first hash.
        """
        self._new_acceptor = new_acceptor
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
        if self._open[place - 1].offer(message):
            self._join(place - 1)

    def _join(self, place: int) -> None:
        """Make one run of the one at ``place`` and those that it has reached."""
        run = self._open[place]
        while place + 1 < len(self._open) and self._open[place + 1].first <= run.acceptor.next_block:
            run.join(self._open.pop(place + 1))

    def runs(self) -> list[Run]:
        """Return the runs found so far, in the order of their blocks."""
        return [Run(run.furthest, run.first) for run in self._open if run.furthest is not None]


@dataclass(slots=True)
class _OpenRun:
    """A run that may still grow."""

    first: int
    before: bytes
    """Chain hash before the first block: the reader forgets it when the run grows long."""
    acceptor: Acceptor
    furthest: ResumePoint | None = None

    def offer(self, message: Message) -> bool:
        """Take what continues the run; return whether there was anything."""
        if not isinstance(self.acceptor.offer(message), Taken):
            return False
        if self.furthest is None or message.cursor.place > self.furthest.cursor.place:
            self.furthest = resume_point(message)
        return True

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
        points = [point for point in (self.furthest, other.furthest) if point is not None]
        self.furthest = max(points, key=lambda point: point.cursor.place, default=None)


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
    return ResumePoint(message.cursor, message.after, message.totals, message.open_tokens, message.open_entry)
