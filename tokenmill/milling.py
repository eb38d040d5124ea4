"""One chain of one raw partition: outcomes and tokens go in, messages come out. Pure, and fast over whole fetches.

The answer is that of `tokenmill.reference`, whatever the batches, whoever computes it and however often it restarts.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tokenmill.chain import roll
from tokenmill.cursor import NO_RECORD, Cursor, record_crc
from tokenmill.errors import SourceError
from tokenmill.fates import Fates
from tokenmill.message import HEADER_OVERHEAD, Message
from tokenmill.outcomes import Kind, Outcome
from tokenmill.packing import Packed
from tokenmill.packing.opening import open_packing
from tokenmill.recipe import Recipe
from tokenmill.records import Record
from tokenmill.resume import ResumePoint
from tokenmill.totals import Totals


class ChainMill:
    """The state of one chain between two batches: its open block, cursor, totals and hash."""

    def __init__(self, recipe: Recipe, point: ResumePoint, *, message_bytes: int) -> None:
        """Continue at ``point``; cut messages at about ``message_bytes``, one block at least."""
        self.recipe = recipe
        self._message_bytes = message_bytes
        self._packing = open_packing(recipe, open_tokens=point.open_tokens, open_entry=point.open_entry)
        self._position = point.cursor
        self._chain = point.chain
        self._totals = point.totals.copy()
        self._last: Record | None = None

    @property
    def next_offset(self) -> int:
        """The offset of the record that the chain wants next."""
        return self._position.next_offset

    @property
    def next_block(self) -> int:
        """The number of the block that is open or comes next."""
        return self._position.block

    @property
    def open_tokens(self) -> int:
        """Tokens that wait in the open block."""
        return len(self._packing.open_block[0]) // self.recipe.token_dtype.itemsize

    @property
    def totals(self) -> Totals:
        """What became of the records so far, up to the next offset (not only up to the last block)."""
        return self._totals

    def feed(self, outcomes: Sequence[Outcome], tokens: Sequence[npt.NDArray[np.integer] | None]) -> list[Message]:
        """Take the records' outcomes, in the order of their offsets; return the messages of all full blocks.

        ``tokens`` has the ids of the documents that the chain keeps. Records that the chain has passed are skipped, so
        the caller may begin anywhere at or below `next_offset`.

        Raises:
            SourceError: the document that the chain stands in the middle of is not there, or has another outcome now.

        """
        first = bisect_left(outcomes, self.next_offset, key=_offset)
        messages: list[Message] = []
        for low, high in _groups(outcomes, first):
            fates = Fates(self.recipe, outcomes[low:high], tokens[low:high])
            if self._position.taken:
                self._continue(fates)
            if outcomes[low].kind is Kind.FLUSH:
                packed = self._packing.fill(outcomes[low].record.offset)
                messages += self._messages(fates, packed, [0])
            else:
                packed = self._packing.add(fates.documents)
                messages += self._messages(fates, packed, fates.kept)
        return messages

    def carry(self, position: int) -> Message | None:
        """Return a carry for the consumer's ``position``, past trailing gaps; None in the middle of a document."""
        if self._position.taken:
            return None
        tokens, entry = self._packing.open_block
        cursor = self._cursor(max(position, self.next_offset), 0, self._last)
        return Message(
            fingerprint=self.recipe.fingerprint,
            first=self.next_block,
            cursor=cursor,
            before=self._chain,
            after=self._chain,
            totals=self._totals.copy(),
            tokens=b"",
            entries=[],
            open_tokens=tokens,
            open_entry=entry,
        )

    def _continue(self, fates: Fates) -> None:
        """Go on with the document whose beginning is in blocks, if it is there: two histories must not be joined."""
        offset, taken = self.next_offset, self._position.taken
        document = fates.documents[0] if fates.documents else None
        if document is None or document.offset != offset or len(document.tokens) + 1 <= taken:
            raise SourceError(
                f"the document at offset {offset} of {self.recipe.raw_topic} gave {taken} tokens to block "
                f"{self.next_block - 1} of split {self.recipe.split}, and now gives fewer: it was rewritten, or "
                "put on the skip list too late; restore it, or begin a new stream with stream_suffix"
            )
        fates.documents[0] = document._replace(taken=taken)

    def _messages(self, fates: Fates, packed: Packed, writers: Sequence[int]) -> list[Message]:
        """Cut the blocks of one group into messages, counting its records up to each message's cursor.

        ``writers`` are the indices of the outcomes whose tokens or padding is in the blocks.
        """
        chains = roll(self._chain, packed.tokens.reshape(-1).data.cast("B"), packed.entries) if packed.entries else []
        messages = []
        counted = 0
        for low, high in self._cuts(packed):
            owner = writers[packed.documents[high - 1]]
            taken = packed.taken[high - 1]
            passed = owner if taken else owner + 1
            fates.count(self._totals, counted, passed)
            counted = passed
            record = fates.record(owner)
            self._position = self._cursor(record.offset + (not taken), taken, record, self.next_block + high - low)
            messages.append(self._message(packed, low, high, chains))
        fates.count(self._totals, counted, len(fates))
        self._last = fates.record(-1)
        self._position = self._cursor(self._last.offset + 1, 0, self._last)
        return messages

    def _message(self, packed: Packed, low: int, high: int, chains: Sequence[bytes]) -> Message:
        before, self._chain = self._chain, chains[high - 1]
        return Message(
            fingerprint=self.recipe.fingerprint,
            first=self.next_block - (high - low),
            cursor=self._position,
            before=before,
            after=self._chain,
            totals=self._totals.copy(),
            tokens=packed.tokens[low:high].tobytes(),
            entries=packed.entries[low:high],
        )

    def _cuts(self, packed: Packed) -> Iterator[tuple[int, int]]:
        """Divide the blocks into runs of about ``message_bytes``."""
        low, size = 0, HEADER_OVERHEAD
        for block, entry in enumerate(packed.entries):
            block_size = self.recipe.block_bytes + len(entry)
            if block > low and size + block_size > self._message_bytes:
                yield low, block
                low, size = block, HEADER_OVERHEAD
            size += block_size
        if low < len(packed.entries):
            yield low, len(packed.entries)

    def _cursor(self, next_offset: int, taken: int, last: Record | None, block: int | None = None) -> Cursor:
        block = self._position.block if block is None else block
        if last is None:
            kept = self._position
            return Cursor(next_offset, taken, block, kept.last_offset, kept.last_crc, kept.last_timestamp)
        return Cursor(next_offset, taken, block, last.offset, record_crc(last.key, last.value), last.timestamp)


def _offset(outcome: Outcome) -> int:
    return outcome.record.offset


def _groups(outcomes: Sequence[Outcome], first: int) -> Iterator[tuple[int, int]]:
    """Divide ``[first, len(outcomes))`` so that a flush stands alone; nothing is divided where there is none."""
    for index in [i for i, outcome in enumerate(outcomes) if outcome.kind is Kind.FLUSH and i >= first]:
        if index > first:
            yield first, index
        yield index, index + 1
        first = index + 1
    if first < len(outcomes):
        yield first, len(outcomes)


def genesis_point(start_offset: int, chain: bytes) -> ResumePoint:
    """Return the point at which a chain begins: ``start_offset`` is the genesis's for the partition."""
    return ResumePoint(Cursor(start_offset, 0, 0, NO_RECORD), chain, Totals())
