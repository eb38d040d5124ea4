"""One chain of one raw partition: outcomes and tokens go in, messages come out. Pure, and fast over whole fetches.

The answer is that of `tokenmill.reference`, whatever the batches, whoever computes it and however often it restarts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.chain import roll
from tokenmill.cursor import NO_RECORD, Cursor, record_crc
from tokenmill.documents import document_meta
from tokenmill.errors import SourceError
from tokenmill.message import HEADER_OVERHEAD, Message
from tokenmill.outcomes import NO_TOKENS, Kind, Outcome
from tokenmill.packing import Packed, PackedDocument
from tokenmill.packing.opening import open_packing
from tokenmill.recipe import Recipe
from tokenmill.records import Record
from tokenmill.resume import ResumePoint
from tokenmill.totals import Totals


@dataclass(frozen=True, slots=True)
class Fate:
    """A record as one chain sees it, with its tokens where the chain keeps it."""

    record: Record
    kind: Kind
    reason: str = ""
    tokens: npt.NDArray[np.integer] | None = None
    meta: bytes = b""


def fate(outcome: Outcome, recipe: Recipe, tokens: npt.NDArray[np.integer] | None) -> Fate:
    """Return the record's fate in the chain of ``recipe``; ``tokens`` are those of a kept document."""
    kind = outcome.kind_in(recipe.split)
    if kind is Kind.KEPT and outcome.document is not None and tokens is not None:
        if not len(tokens):
            return Fate(outcome.record, Kind.FILTERED, NO_TOKENS)
        return Fate(outcome.record, kind, tokens=tokens, meta=document_meta(outcome.document, recipe.carry))
    return Fate(outcome.record, kind, outcome.reason)


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

    def feed(self, fates: Sequence[Fate]) -> list[Message]:
        """Take the records' fates, in the order of their offsets; return the messages of the blocks that became full.

        Records that the chain has passed are skipped, so the caller may begin anywhere at or below `next_offset`.

        Raises:
            SourceError: the document that the chain stands in the middle of is not there, or has another outcome now.

        """
        fates = [fate for fate in fates if fate.record.offset >= self.next_offset]
        if fates and self._position.taken:
            self._check_continues(fates[0])
        messages: list[Message] = []
        for group in _groups(fates):
            if group[0].kind is Kind.FLUSH:
                packed = self._packing.fill(group[0].record.offset)
            else:
                packed = self._packing.add([self._document(fate) for fate in group if fate.tokens is not None])
            messages += self._messages(group, packed)
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

    def _check_continues(self, fate: Fate) -> None:
        """Check that there is more of the document whose beginning is in blocks: two histories must not be joined."""
        offset, taken = self.next_offset, self._position.taken
        if fate.record.offset != offset or fate.tokens is None or len(fate.tokens) + 1 <= taken:
            raise SourceError(
                f"the document at offset {offset} of {self.recipe.raw_topic} gave {taken} tokens to block "
                f"{self.next_block - 1} of split {self.recipe.split}, and now gives fewer: it was rewritten, or "
                "put on the skip list too late; restore it, or begin a new stream with stream_suffix"
            )

    def _document(self, fate: Fate) -> PackedDocument:
        tokens = fate.tokens if fate.tokens is not None else np.empty(0, np.uint32)
        taken = self._position.taken if fate.record.offset == self.next_offset else 0
        return PackedDocument(fate.record.offset, tokens, fate.meta, taken)

    def _messages(self, group: Sequence[Fate], packed: Packed) -> list[Message]:
        """Cut the blocks of one group into messages, counting its records up to each message's cursor."""
        padding = group[0].kind is Kind.FLUSH
        writers = [0] if padding else [i for i, fate in enumerate(group) if fate.tokens is not None]
        chains = roll(self._chain, packed.tokens.reshape(-1).data.cast("B"), packed.entries) if packed.entries else []
        messages = []
        counted = 0
        for low, high in self._cuts(packed):
            owner = writers[packed.documents[high - 1]]
            taken = packed.taken[high - 1]
            passed = owner if taken else owner + 1
            self._count(group[counted:passed])
            counted = passed
            record = group[owner].record
            self._position = self._cursor(record.offset + (not taken), taken, record, self.next_block + high - low)
            messages.append(self._message(packed, low, high, chains))
        self._count(group[counted:])
        self._last = group[-1].record
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

    def _count(self, fates: Sequence[Fate]) -> None:
        totals = self._totals
        totals.records += len(fates)
        for fate in fates:
            kind = fate.kind
            if kind is Kind.KEPT:
                totals.kept += 1
                totals.tokens += len(fate.tokens) + 1 if fate.tokens is not None else 0
                totals.value_bytes += len(fate.record.value or b"")
            elif kind is Kind.OTHER_SPLIT:
                totals.other_split += 1
            elif kind is Kind.FILTERED:
                totals.filtered[fate.reason] += 1
            elif kind is Kind.DEAD_LETTERED:
                totals.dead_lettered[fate.reason] += 1
            elif kind is Kind.TOMBSTONE:
                totals.tombstones += 1
            else:
                totals.flushes += 1

    def _cursor(self, next_offset: int, taken: int, last: Record | None, block: int | None = None) -> Cursor:
        block = self._position.block if block is None else block
        if last is None:
            kept = self._position
            return Cursor(next_offset, taken, block, kept.last_offset, kept.last_crc, kept.last_timestamp)
        return Cursor(next_offset, taken, block, last.offset, record_crc(last.key, last.value), last.timestamp)


def _groups(fates: Sequence[Fate]) -> Iterator[Sequence[Fate]]:
    """Divide the fates so that a flush stands alone; nothing is divided where there is none."""
    start = 0
    for index, fate in enumerate(fates):
        if fate.kind is Kind.FLUSH:
            if index > start:
                yield fates[start:index]
            yield fates[index : index + 1]
            start = index + 1
    if start < len(fates):
        yield fates[start:]


def genesis_point(start_offset: int, chain: bytes) -> ResumePoint:
    """Return the point at which a chain begins: ``start_offset`` is the genesis's for the partition."""
    return ResumePoint(Cursor(start_offset, 0, 0, NO_RECORD), chain, Totals())
