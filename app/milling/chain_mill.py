"""One chain of one raw partition: outcomes and tokens go in, messages come out. Pure, and fast over whole fetches.

The answer is that of `milling.reference`, whatever the batches, on any host and however often it
restarts.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from tokenmill.errors import SettingsError, SourceError
from tokenmill.packings import Concat, Fit, packing_of
from tokenmill.reading.continuing import ResumePoint
from tokenmill.recipe import Recipe
from tokenmill.records import SourceRecord
from tokenmill.wire.chain import Cursor, record_crc, roll
from tokenmill.wire.message import HEADER_OVERHEAD, Message
from tokenmill.wire.pieces import NO_BLOCKS, split_references

from .columns import ChainOutcomes
from .packing.concat_packing import ConcatPacking
from .packing.document_shapes import ChunksShape, RowsShape, document_shape
from .packing.fit_packing import FitPacking
from .packing.packed_blocks import PackedBlocks, Packing, TokenizedDocuments
from .packing.separate_packing import SeparatePacking


class ChainMill:
    """The state of one chain between two fetches: its open block, cursor, totals and hash."""

    def __init__(
        self,
        recipe: Recipe,
        point: ResumePoint,
        *,
        message_bytes: int,
        ends: Collection[int] = frozenset(),
    ) -> None:
        """Continue at ``point``; cut messages at about ``message_bytes``, one block at least.

        A message that reaches a block of ``ends``, which is looked at again in every feed, ends before it: so who
        verifies a topic gets messages that can be compared with those on it.
        """
        self.recipe = recipe
        self._message_bytes = message_bytes
        self._ends = ends
        self.shape = document_shape(recipe)
        """What the packing makes of a document by its ids alone."""
        self._fingerprint = recipe.fingerprint
        self._block_bytes = recipe.block_bytes
        self._packing = open_packing(
            recipe, open_tokens=point.open_tokens, open_entry=point.open_entry, references=point.references
        )
        self._position = point.cursor
        self._chain = point.chain
        self.totals = point.totals.copy()
        """What became of the records so far, up to the next offset (not only up to the last block)."""
        self._last: SourceRecord | None = None

    @property
    def next_offset(self) -> int:
        """The offset of the record that the chain wants next."""
        return self._position.next_offset

    @property
    def next_block(self) -> int:
        """The number of the block that is open or comes next."""
        return self._position.block

    @property
    def oldest_reference(self) -> int | None:
        """The lowest offset that an open block refers to; None where none does."""
        references = split_references(self._packing.references)
        return references.oldest if references.counts else None

    @property
    def open_tokens(self) -> int:
        """Tokens that wait in the open block."""
        return self._packing.open_tokens

    def feed(self, outcomes: ChainOutcomes) -> list[Message]:
        """Take the outcomes of consecutive records; return the messages of all blocks that became full.

        Records that the chain has passed are skipped, so the caller may begin anywhere at or below `next_offset`.
        Raises SourceError where the document that the chain is in the middle of is not there, or has another outcome
        now.
        """
        fetch = outcomes.fetch
        first = fetch.index(self.next_offset)
        flushes = outcomes.flushes(first)
        messages: list[Message] = []
        for low, high in _groups(first, len(fetch.records), flushes):
            documents, indices = outcomes.between(low, high)
            if self._position.within and low not in flushes:
                documents = self._continued(documents)
            documents = documents._replace(crc=partial(_crc, fetch.records, indices))
            if low in flushes:
                packed = self._packing.fill(fetch.records[low].offset)
                messages += self._messages(outcomes, low, high, packed, [low])
            else:
                packed = self._packing.add(documents)
                messages += self._messages(outcomes, low, high, packed, indices)
        return messages

    def carry(self, position: int, *, by_value: bool = False) -> Message | None:
        """Return a carry for the consumer's ``position``, past trailing gaps; None in the middle of a record.

        Of a packing with several open blocks it holds these by reference, and with ``by_value`` their tokens as well.
        """
        if self._position.within:
            return None
        references = self._packing.references
        tokens, entry = self._packing.open_block if by_value or not references else (b"", b"")
        cursor = self._cursor(max(position, self.next_offset), 0, self._last)
        return Message(
            fingerprint=self._fingerprint,
            first=self.next_block,
            cursor=cursor,
            before=self._chain,
            after=self._chain,
            totals=self.totals.copy(),
            tokens=b"",
            entries=[],
            open_tokens=tokens,
            open_entry=entry,
            references=references,
        )

    def _continued(self, documents: TokenizedDocuments) -> TokenizedDocuments:
        """Go on with the document whose beginning is in blocks, if it is there: two histories must not be joined."""
        offset, taken = self.next_offset, self._position.taken
        if not documents or documents.offsets[0] != offset or documents.bounds[1] - documents.bounds[0] <= taken:
            raise SourceError(
                f"the document at offset {offset} of {self.recipe.raw_topic} gave {taken} tokens to blocks before "
                f"block {self.next_block} of split {self.recipe.split}, and now gives fewer: it was rewritten, or "
                "put on the skip list too late; restore it, or begin a new stream with stream_suffix"
            )
        return documents._replace(taken=taken)

    def _messages(
        self,
        outcomes: ChainOutcomes,
        counted: int,
        end: int,
        packed: PackedBlocks,
        writers: Sequence[int] | npt.NDArray[np.int64],
    ) -> list[Message]:
        """Cut the blocks of records ``[counted, end)`` into messages, counting the records up to each message's cursor.

        ``writers`` are the indices of the records whose tokens or padding is in the blocks.
        """
        messages = []
        for low, high in self._cuts(packed):
            owner = int(writers[packed.documents[high - 1]])
            taken, finished = packed.taken[high - 1], packed.finished[high - 1]
            passed = owner + finished
            outcomes.count(self.totals, counted, passed)
            for name, numbers in packed.figures.items():
                self.totals.packing[name] += sum(numbers[low:high])
            counted = passed
            record = outcomes.fetch.records[owner]
            self._position = self._cursor(record.offset + finished, taken, record, self.next_block + high - low)
            messages.append(self._message(packed, low, high))
        outcomes.count(self.totals, counted, end)
        self._last = outcomes.fetch.records[end - 1]
        self._position = self._cursor(self._last.offset + 1, 0, self._last)
        return messages

    def _message(self, packed: PackedBlocks, low: int, high: int) -> Message:
        size = self.recipe.block_tokens
        tokens, entries = packed.tokens.between(low * size, high * size).tobytes(), packed.entries[low:high]
        before, chains = self._chain, roll(self._chain, tokens, entries)
        self._chain = chains[-1]
        return Message(
            fingerprint=self._fingerprint,
            first=self.next_block - (high - low),
            cursor=self._position,
            before=before,
            after=self._chain,
            totals=self.totals.copy(),
            tokens=tokens,
            entries=entries,
            references=packed.references(high),
            chains=chains,
        )

    def _cuts(self, packed: PackedBlocks) -> Iterator[tuple[int, int]]:
        """Divide the blocks into runs of about ``message_bytes``, and at the blocks where a message must end."""
        count, first = len(packed.entries), self.next_block
        bytes_to = np.cumsum([0, *map(len, packed.entries)]) + np.arange(count + 1) * self._block_bytes
        forced = sorted(end - first for end in self._ends)
        low, room = 0, self._message_bytes - HEADER_OVERHEAD
        while low < count:
            high = max(low + 1, int(np.searchsorted(bytes_to, bytes_to[low] + room, side="right")) - 1)
            at = bisect_right(forced, low)
            high = min((high, *forced[at : at + 1]))
            yield low, high
            low = high

    def _cursor(self, next_offset: int, taken: int, last: SourceRecord | None, block: int | None = None) -> Cursor:
        block = self._position.block if block is None else block
        if last is None:
            kept = self._position
            return Cursor(next_offset, taken, block, kept.last_offset, kept.last_crc, kept.last_timestamp)
        return Cursor(next_offset, taken, block, last.offset, record_crc(last.key, last.value), last.timestamp)


def _groups(first: int, end: int, flushes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Divide ``[first, end)`` so that a flush is alone in its range; nothing is divided where there is none."""
    for index in flushes:
        if index > first:
            yield first, index
        yield index, index + 1
        first = index + 1
    if first < end:
        yield first, end


def _crc(records: Sequence[SourceRecord], indices: npt.NDArray[np.int64], at: int) -> int:
    record = records[int(indices[at])]
    return record_crc(record.key, record.value)


def open_packing(
    recipe: Recipe, *, open_tokens: bytes = b"", open_entry: bytes = b"", references: bytes = NO_BLOCKS
) -> Packing:
    """Return the packing that the recipe names, beginning with the open blocks that a carry holds by value.

    Raises SettingsError where this version does not know the packing.
    """
    size, dtype, padding = recipe.block_tokens, recipe.token_dtype, recipe.padding_id
    packing, shape = packing_of(recipe), document_shape(recipe)
    if isinstance(packing, Concat):
        return ConcatPacking(size, dtype, padding, open_tokens=open_tokens, open_entry=open_entry)
    if isinstance(packing, Fit):
        return FitPacking(
            size,
            dtype,
            padding,
            open_blocks=packing.open_blocks,
            max_age_offsets=packing.max_age_offsets,
            references=references,
            open_tokens=open_tokens,
            open_entry=open_entry,
        )
    if isinstance(shape, RowsShape | ChunksShape):
        return SeparatePacking(size, dtype, padding, step=shape.step)
    raise SettingsError(f"packing {recipe.packing!r} is unknown here: use the version that made the stream")
