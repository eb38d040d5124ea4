"""Where a chain continues, told from the last messages on its token partition alone. Pure; `tokenmill.app.tail` reads.

A new owner takes the furthest cursor of the contiguous run, not that of the last message: a zombie's older one may lie
there. Resuming from an older position is always safe, because the same records give the same blocks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenmill.acceptance import Acceptor, Gap, Taken
from tokenmill.cursor import Cursor
from tokenmill.message import Message
from tokenmill.totals import Totals


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Everything that the next block depends on, beside the source."""

    cursor: Cursor
    chain: bytes
    """Chain hash before block ``cursor.block``."""
    totals: Totals
    open_tokens: bytes = b""
    """The open block so far, when a carry told it."""
    open_entry: bytes = b""


@dataclass(frozen=True, slots=True)
class Run:
    """A contiguous run of messages within a tail."""

    point: ResumePoint
    """The furthest cursor in the run."""
    first: int
    """Number of the block with which the run begins."""


def runs(
    messages: Sequence[Message], new_acceptor: Callable[[int, bytes | None], Acceptor], *, whole: bool
) -> list[Run]:
    """Return the contiguous runs among ``messages``, in the order of their block numbers.

    ``messages`` lie in the order of their offsets; ``new_acceptor(block, chain)`` makes a reader that stands there.
    With ``whole``, they are all that the partition ever held, and the first run begins at block 0 and nowhere else
    (it is missing from the answer when no message begins there).

    More than one run means a gap in the tail: read more of the partition before believing any.

    Raises:
        DifferenceError, DamagedError, FingerprintError: as `Acceptor.offer`.

    """
    found = []
    rest = sorted(messages, key=lambda message: message.first) if not whole else list(messages)
    acceptor = new_acceptor(0, None) if whole else None
    while rest:
        if acceptor is None:
            start = min(rest, key=lambda message: message.first)
            acceptor = new_acceptor(start.first, start.before)
        first = acceptor.next_block
        run, rest = _follow(acceptor, rest)
        if run is not None:
            found.append(Run(run, first))
        acceptor = None
    return found


def _follow(acceptor: Acceptor, messages: Sequence[Message]) -> tuple[ResumePoint | None, list[Message]]:
    """Offer the messages again and again until none is taken; return the furthest point and what lies past a gap."""
    furthest: ResumePoint | None = None
    rest = list(messages)
    moved = True
    while moved:
        moved = False
        waiting = []
        for message in rest:
            verdict = acceptor.offer(message)
            if isinstance(verdict, Gap):
                waiting.append(message)
            elif isinstance(verdict, Taken):
                moved = True
                if furthest is None or message.cursor.place > furthest.cursor.place:
                    furthest = resume_point(message)
        rest = waiting
    return furthest, rest


def resume_point(message: Message) -> ResumePoint:
    """Return the point after a message."""
    return ResumePoint(message.cursor, message.after, message.totals, message.open_tokens, message.open_entry)
