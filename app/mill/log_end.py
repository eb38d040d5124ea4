"""What a writer remembers of the end of its token partition, and how it notices that this end was lost.

A broker that lost its tail acknowledges the next message at an offset that was taken before. But another worker may
have filled the partition again meanwhile, even to the same offset, and then only what is below it shows that. So a
writer whose message does not follow its last one directly, or who reached another leader than before, or the same one
again, looks whether the last messages are still at their places: without one of these nothing can have been lost. The
last one alone does not show it: other writers of the same blocks may have put an equal one there.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from tokenmill.reading.continuing import FIRST_TAIL
from tokenmill.wire.chain import Cursor
from tokenmill.wire.message import Message

ReadMessages: TypeAlias = Callable[[int, int], Awaitable[Sequence[tuple[int, Message]]]]
"""Reads the messages at the offsets ``[start, end)`` of the token partition, each with its offset, those that retention
has left; none where the partition does not reach the end."""


class _Known(NamedTuple):
    """What is remembered of a message: which blocks it holds, and where it leaves the chain."""

    first: int
    cursor: Cursor
    after: bytes


class LogEnd:
    """The place after the last message that a writer knows of: from its resume, then from its acknowledgements."""

    def __init__(self, end_offset: int, last: Sequence[Message], leader: object) -> None:
        """Begin with what the resume read: the partition's end, and the last messages before it, in their order.

        ``leader`` identifies the leader and the connection to it before that was read; anything that can be compared.
        """
        self._offset = end_offset
        self._last = deque(map(_known, last), maxlen=FIRST_TAIL)
        self._leader = leader

    async def acknowledged(self, offset: int, leader: object, message: Message, read: ReadMessages) -> str | None:
        """Take note that ``leader`` has ``message`` at ``offset``; return why the partition lost its tail, or None.

        After a reason nothing more may be sent: what was acknowledged before may be missing, and only a resume finds
        where the chain ends now.
        """
        known, doubtful = self._offset, leader != self._leader or offset > self._offset
        self._offset, self._leader = offset + 1, leader
        if offset < known:
            return f"acknowledged offset {offset}, below {known}"
        if doubtful:
            found = await read(known - FIRST_TAIL, offset)
            below = [_known(message) for at, message in found if at < known]
            if self._last and not self._are_as_known(below):
                return f"holds other messages below offset {known} than before"
            self._last.extend(_known(message) for at, message in found if at >= known)  # others wrote in between
        self._last.append(_known(message))
        return None

    def _are_as_known(self, found: Sequence[_Known]) -> bool:
        """Return whether the last messages that were found are the remembered ones, as far as both are there."""
        several = min(len(self._last), len(found))
        return several > 0 and list(self._last)[-several:] == list(found[-several:])


def _known(message: Message) -> _Known:
    return _Known(message.first, message.cursor, message.after)
