"""What a writer knows of the end of its token partition, and by what it notices that this end was lost.

A broker that lost its tail acknowledges the next message at an offset that was taken before. But where another worker
has filled the partition again meanwhile, the offset is a new one, and only what stands below it tells: so a writer
whose message does not follow the last one directly looks whether that one is still at its place.
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from tokenmill.message import Message

MessageAt: TypeAlias = Callable[[int], Awaitable[Message | None]]
"""Reads the message at an offset of the token partition; None where none is."""


class LogEnd:
    """The place after the last message that a writer knows of: from its resume, then from its acknowledgements."""

    def __init__(self, end_offset: int, last: Message | None) -> None:
        """Begin with what the resume read: the partition's end, and the message before it."""
        self._offset = end_offset
        self._last = last

    async def acknowledged(self, offset: int, message: Message, message_at: MessageAt) -> str | None:
        """Take note that ``message`` stands at ``offset``; return why the partition must have lost its tail, or None.

        After a reason nothing more may be sent: what was acknowledged before may be missing, and only a resume finds
        where the chain ends now.
        """
        known, last = self._offset, self._last
        self._offset, self._last = offset + 1, message
        if offset < known:
            return f"acknowledged offset {offset}, below {known}"
        if offset > known and last is not None and not _same(last, await message_at(known - 1)):
            return f"holds another message at offset {known - 1} than before"
        return None


def _same(known: Message, found: Message | None) -> bool:
    """Return whether a message holds the same blocks and leaves the chain at the same place."""
    return found is not None and (found.first, found.cursor, found.after) == (known.first, known.cursor, known.after)
