"""What a writer knows of the end of its token partition, and by what it notices that this end was lost.

A broker that lost its tail acknowledges the next message at an offset that was taken before. But another worker may
have filled the partition again meanwhile, even to the same offset, and then only what stands below it tells. So a
writer whose message does not follow its last one directly, or who reached another leader than before, or the same one
anew, looks whether its last message is still at its place: without one of these nothing can have been lost.
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from tokenmill.message import Message

MessageAt: TypeAlias = Callable[[int], Awaitable[Message | None]]
"""Reads the message at an offset of the token partition; None where none is."""


class LogEnd:
    """The place after the last message that a writer knows of: from its resume, then from its acknowledgements."""

    def __init__(self, end_offset: int, last: Message | None, leader: object) -> None:
        """Begin with what the resume read: the partition's end, and the message before it.

        ``leader`` stands for the leader and the connection to it before that was read; anything that can be compared.
        """
        self._offset = end_offset
        self._last = last
        self._leader = leader

    async def acknowledged(self, offset: int, leader: object, message: Message, message_at: MessageAt) -> str | None:
        """Take note that ``leader`` has ``message`` at ``offset``; return why the partition lost its tail, or None.

        After a reason nothing more may be sent: what was acknowledged before may be missing, and only a resume finds
        where the chain ends now.
        """
        known, last, doubtful = self._offset, self._last, leader != self._leader or offset > self._offset
        self._offset, self._last, self._leader = offset + 1, message, leader
        if offset < known:
            return f"acknowledged offset {offset}, below {known}"
        if doubtful and last is not None and not _same(last, await message_at(known - 1)):
            return f"holds another message at offset {known - 1} than before"
        return None


def _same(known: Message, found: Message | None) -> bool:
    """Return whether a message holds the same blocks and leaves the chain at the same place."""
    return found is not None and (found.first, found.cursor, found.after) == (known.first, known.cursor, known.after)
