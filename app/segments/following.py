"""Where a reader of a token partition reads, and what it does about a block that is missing. Pure decisions.

Most gaps heal: the next owner writes the missing block again, perhaps below the reader's position. So the reader goes
on to the end of the log as it was when the gap was seen, then looks through the whole partition again.
"""

from typing import Final

from tokenmill.reading.acceptance import Gap
from tokenmill.reading.continuing import FIRST_TAIL, FirstMessage, place_below
from tokenmill.wire.message import Message

from ..tasks import Backoff

GAP_SECONDS: Final = 2.0
"""Seconds before a reader that misses a block looks through the whole token partition again; doubled with each look
that found nothing ..."""
LONGEST_GAP_SECONDS: Final = 60.0
"""... up to this."""


async def find_start(
    held: tuple[int, int], block: int, chain: bytes, hint: int, first_message: FirstMessage
) -> tuple[int, Message | None]:
    """Return an offset from which a reader that wants ``block`` reads: the hint where it is true, else by number.

    ``held`` are the first offset that the partition holds and the one after its last, ``chain`` is the hash before the
    block, ``hint`` the offset of the message that ended there. Returns the hint's message as well.

    Writers overlap, so what is found can be above a message that holds the block. Then a gap is seen, and everything
    is looked through; if a message comes that shows it. So none begins above the last messages of all writers together:
    among these is the one that reaches furthest.
    """
    first, end = held
    highest = max(first, end - FIRST_TAIL)
    if first <= hint < end:
        message = await first_message(hint)
        if message is not None and hint_holds(message, block, chain):
            return min(hint, highest), message
    return min(await place_below(held, block, first_message), highest), None


def hint_holds(message: Message, block: int, chain: bytes) -> bool:
    """Return whether reading may begin with this message: it holds the wanted block, or ends before it."""
    return message.first < block <= message.end and (message.end > block or message.after == chain)


class GapSearch:
    """What a reader remembers while it misses a block."""

    def __init__(self) -> None:
        self.missing: Gap | None = None
        """The gap as it was seen, or None."""
        self.vain_looks = 0
        """How often, in a row, all that the topic holds was looked through for a missing block, and in vain."""
        self._until = 0
        self._from_first = False
        self._cut = False
        self._lowest: int | None = None
        self._backoff = Backoff(GAP_SECONDS, LONGEST_GAP_SECONDS)

    def began(self, *, cut: bool, from_first: bool = False) -> None:
        """Begin to read again, ``from_first``: at the first offset of the partition, so that all of it is read.

        ``cut``: from there, and retention has removed what was before.
        """
        self.missing = None
        self._from_first = from_first
        self._cut = cut
        self._lowest = None

    def saw(self, message: Message) -> None:
        """Take note of a message, accepted or not."""
        if self._lowest is None or message.first < self._lowest:
            self._lowest = message.first

    def miss(self, gap: Gap, until: int) -> bool:
        """Take note of a gap; ``until`` is the end of the log as it is known. Returns whether it is a new one."""
        if self.missing is not None:
            return False
        self.missing, self._until = gap, until
        return True

    def is_over(self, position: int) -> bool:
        """Return whether a block was missing and everything that was in the log then has been read."""
        return self.missing is not None and position >= self._until

    def pause(self, block: int) -> float:
        """Return how many seconds to wait before all is looked through again; 0 where the missing block was found.

        ``block`` is the wanted one, now that the search is over. The wait doubles with each look that found nothing.
        """
        if self.missing is not None and block > self.missing.wanted:
            self.vain_looks = 0
            self._backoff.reset()
            return 0.0
        self.vain_looks += self._from_first
        return self._backoff.next()

    def is_hopeless(self, block: int) -> bool:
        """Return whether the block is below all blocks retained: all of them were read, and none is as low.

        The first message alone does not show it: after lost tails and with several writers a later one can hold lower
        blocks.
        """
        return self._cut and self._lowest is not None and self._lowest > block
