"""Carries, the messages without blocks: cursor, totals and open block held against the reference. Pure."""

from tokenmill.cursor import NO_RECORD, Cursor, record_crc
from tokenmill.message import Message
from tokenmill.pieces import decode_entry
from tokenmill.records import Record
from tokenmill.reference import Reference, ReferenceBlock


class CarryCheck:
    """Checks the carries of one chain; remembers no more than one."""

    def __init__(self) -> None:
        self._longest: Message | None = None

    def problem(self, carry: Message, reference: Reference, last: Record | None) -> str | None:
        """Return what is wrong with a carry, None if nothing is.

        The ``reference`` has read all records below the carry's next offset, and no other; ``last`` was the last.
        """
        remembered = (last.offset, record_crc(last.key, last.value), last.timestamp) if last else (NO_RECORD, 0, 0)
        if carry.cursor != Cursor(carry.cursor.next_offset, 0, carry.first, *remembered):
            return f"the carry before it has the cursor {carry.cursor}"
        if carry.totals.pack() != reference.totals.pack():
            return f"the carry before it counts {carry.totals.to_dict()}, the reference {reference.totals.to_dict()}"
        if len(carry.open_tokens) != reference.open_tokens * reference.recipe.token_dtype.itemsize:
            return f"the carry before it holds {len(carry.open_tokens)} bytes of {reference.open_tokens} open tokens"
        return self._remember(carry)

    def at_close(self, block: ReferenceBlock) -> str | None:
        """Return what is wrong with the open block in the longest carry before ``block``, now that it is full."""
        carry, self._longest = self._longest, None
        if carry is None or carry.first != block.number or not carry.open_tokens:
            return None
        pieces = decode_entry(carry.open_entry)
        if block.tokens.startswith(carry.open_tokens) and decode_entry(block.entry)[: len(pieces)] == pieces:
            return None
        return "a carry before it holds other open tokens than it begins with"

    def _remember(self, carry: Message) -> str | None:
        """Keep the longest of a block's carries: where each continues the other, one tells for all."""
        other = self._longest
        if other is None or other.first != carry.first:
            self._longest = carry
            return None
        shorter, longer = sorted((other, carry), key=lambda message: len(message.open_tokens))
        self._longest = longer
        if longer.open_tokens.startswith(shorter.open_tokens):
            return None
        return "two carries before it hold different open tokens"
