"""Whole documents, never cut where they fit a block: several open blocks, and the one with the least sufficient room.

A document that is longer than a block gives whole blocks first. What is left of it, its *rest*, goes into the open
block with the least room that is enough for it, the oldest of several such. Where none has room a new block is opened;
where as many as may be are open, the fullest one (the oldest of several) is closed with padding before that. A block
leaves when it is full or closed, and is numbered as it leaves. A block whose oldest piece is too far behind is closed
before anything else is done, and a flush closes all, the oldest first.

The work on a call's documents is done twice over: `_Placing` decides which block each piece goes into, in a few list
operations for each; then rows, entries and references are made of all pieces together, with numpy.

Open blocks that are known by reference become tokens again (`Reopening`): the records are read, compared, and milled
once more. Each of their documents must still be what it was: the raw log may have been rewritten, even with documents
of the same length.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tokenmill.documents import SourceRecord
from tokenmill.errors import SourceError
from tokenmill.reading import ADVICE, ResumePoint
from tokenmill.recipe import Recipe
from tokenmill.wire.chain import record_crc
from tokenmill.wire.pieces import (
    NO_BLOCKS,
    PADDING,
    PIECE,
    REFERENCE,
    Piece,
    decode_entry,
    encode_entry,
    join_references,
    split_entries,
    split_references,
)

from ..columns import ChainOutcomes, OutcomeColumns, RecordColumns
from ..document_columns import Integers, numbered
from ..outcomes import Stages
from .document_shapes import document_shape
from .packed_blocks import PackedBlocks, ScatteredTokens, TokenizedDocuments

_NUMBER_BITS: Final = 32
_NUMBER: Final = (1 << _NUMBER_BITS) - 1
_NEVER: Final = 1 << 63
_GONE: Final = -1
_STAYS: Final = 1 << 62


class FitPacking:
    """The packing ``fit``; see the module's docstring."""

    def __init__(
        self,
        block_tokens: int,
        dtype: np.dtype[np.unsignedinteger],
        padding: int,
        *,
        open_blocks: int,
        max_age_offsets: int,
        references: bytes = NO_BLOCKS,
        open_tokens: bytes = b"",
        open_entry: bytes = b"",
    ) -> None:
        """Keep at most ``open_blocks`` blocks open; close those with a piece over ``max_age_offsets`` behind.

        Begin with no open block, or with those of ``references``, of which ``open_tokens`` has the tokens and
        ``open_entry`` the entries, as in a carry that holds them by value.
        """
        self._block_tokens, self._open_blocks, self._max_age = block_tokens, open_blocks, max_age_offsets
        self._dtype = dtype
        self._padding = np.full(block_tokens, padding, dtype).data.cast("B")
        counts, rows = split_references(references)
        self._open = _Pieces.of(counts, rows, dtype.itemsize, open_tokens, open_entry)

    @property
    def open_block(self) -> tuple[bytes, bytes]:
        """The tokens of all open blocks, one block after the other, and their entries; empty when none is open."""
        pieces = self._open
        rows = pieces.rows
        counts = np.diff(pieces.block_starts, append=len(rows))
        entries = _entries(counts, rows["offset"], rows["first"].astype(np.int64), rows["tokens"], pieces.metas)
        return b"".join(pieces.sources), b"".join(entries)

    @property
    def open_tokens(self) -> int:
        """How many tokens all open blocks have."""
        return int(self._open.rows["tokens"].sum(dtype=np.int64))

    @property
    def references(self) -> bytes:
        """The open blocks as references (`tokenmill.wire.pieces`); `NO_BLOCKS` when none is open."""
        return self._open.references(np.arange(len(self._open.sources)))

    def add(self, documents: TokenizedDocuments) -> PackedBlocks:
        """Place documents; return the blocks that left."""
        lengths = np.diff(documents.bounds)
        lengths[:1] -= documents.taken
        wholes, rests = np.divmod(lengths, self._block_tokens)
        placing = self._placing()
        placing.place(documents.offsets.tolist(), wholes.tolist(), rests.tolist())
        counts = wholes + (rests > 0)
        owners, numbers = numbered(counts)
        firsts = numbers * self._block_tokens + np.where(owners == 0, documents.taken, 0)
        sizes = np.where(numbers < wholes[owners], self._block_tokens, rests[owners])
        return self._leave(placing, self._open.with_new(placing.blocks, documents, owners, firsts, sizes), owners)

    def fill(self, offset: int) -> PackedBlocks:
        """Close all open blocks, the oldest first, as the flush record at ``offset`` asked for."""
        placing = self._placing()
        placing.close_all(offset)
        return self._leave(placing, self._open, np.empty(0, np.int64))

    def _placing(self) -> "_Placing":
        pieces, starts = self._open, self._open.block_starts
        used = np.add.reduceat(pieces.rows["tokens"], starts, dtype=np.int64) if len(starts) else starts
        firsts = pieces.rows["offset"][starts].tolist()
        return _Placing(
            self._block_tokens, self._open_blocks, self._max_age, (self._block_tokens - used).tolist(), firsts
        )

    def _leave(self, placing: "_Placing", pieces: "_Pieces", owners: Integers) -> PackedBlocks:
        """Lay out the blocks that leave; keep the pieces of the others, with a copy of their tokens.

        ``owners`` are the numbers of the documents that the new ones of ``pieces`` are of.
        """
        placed = len(pieces.sources) - len(owners) + np.array(placing.times, np.int64)
        rooms, total = np.array(placing.rooms, np.int64), len(pieces.sources)
        left_as = np.full(placing.opened, _STAYS)
        left_as[placing.left] = np.arange(len(rooms))
        numbers = left_as[pieces.blocks]  # of the block of each piece, among those that leave

        def open_after(blocks: int, pieces_placed: int) -> Integers:
            """Return the pieces of the blocks that are open once so many have left, in the blocks' order."""
            there = np.flatnonzero(numbers[:pieces_placed] >= blocks)
            return there[np.argsort(pieces.blocks[there], kind="stable")]

        # a block that is full left with its last piece; one that is closed, before the next piece
        last = np.append(owners, owners[-1:] + 1 if len(owners) else 0)
        times = np.array(placing.times, np.int64)
        cause = np.where(rooms > 0, last[times], last[times - 1])
        finished = last[times] != cause if len(owners) else np.arange(len(rooms)) == len(rooms) - 1
        firsts = np.append(pieces.rows["first"][total - len(owners) :].astype(np.int64), 0)
        cut = (rooms == 0) & ~finished & (firsts[times - 1] == 0)  # the first block of a document that fits none
        joined = np.bincount(numbers[numbers < len(rooms)], minlength=len(rooms)) > 1
        leaving, entries = self._leaving(pieces, numbers, rooms, np.array(placing.causes, np.int64))
        self._open = pieces.kept(open_after(len(rooms), total))
        return PackedBlocks(
            leaving,
            entries,
            cause.tolist(),
            np.where(finished, 0, firsts[times]).tolist(),
            finished=finished.tolist(),
            figures={"padding": placing.rooms, "joined": joined.tolist(), "cut": cut.tolist()},
            references=lambda blocks: pieces.references(open_after(blocks, int(placed[blocks - 1]))),
        )

    def _leaving(
        self, pieces: "_Pieces", numbers: Integers, rooms: Integers, causes: Integers
    ) -> tuple[ScatteredTokens, list[bytes]]:
        """Return tokens and entries of the blocks that leave, each with the padding in its room."""
        chosen, padded = np.flatnonzero(numbers < len(rooms)), np.flatnonzero(rooms)
        rows, item = pieces.rows[chosen], self._dtype.itemsize
        all_numbers = np.concatenate([numbers[chosen], padded])
        order = np.argsort(all_numbers, kind="stable")  # padding comes last in its block
        offsets = np.concatenate([rows["offset"], causes[padded]])[order]
        positions = np.concatenate([rows["first"].astype(np.int64), np.full(len(padded), PADDING)])[order]
        sizes = np.concatenate([rows["tokens"].astype(np.int64), rooms[padded]])[order]
        sources = [pieces.sources[at] for at in chosen.tolist()]
        sources += [self._padding[: room * item] for room in rooms[padded].tolist()]
        metas = [pieces.metas[at] for at in chosen.tolist()] + [b""] * len(padded)
        places = order.tolist()
        entries = _entries(
            np.bincount(all_numbers, minlength=len(rooms)), offsets, positions, sizes, [metas[at] for at in places]
        )
        return ScatteredTokens([sources[at] for at in places], np.cumsum(sizes), item), entries


def _entries(
    counts: Integers, offsets: Integers, positions: Integers, sizes: Integers, metas: Sequence[bytes]
) -> list[bytes]:
    """Return an entry for each block, of so many pieces each; the other arguments are those of all pieces, in order."""
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - sizes
    bounds = np.append(0, np.cumsum(counts))
    begins = bounds[:-1]
    rows = np.empty(len(sizes), PIECE)
    rows["start"] = starts - np.repeat(starts[begins], counts)
    meta_sizes = np.fromiter(map(len, metas), np.int64, len(metas))
    rows["meta_bytes"], rows["offset"], rows["position"] = meta_sizes, offsets, positions
    meta_bounds = np.append(0, np.cumsum(meta_sizes))[bounds]
    heads = np.stack([counts, np.diff(meta_bounds)], axis=1).astype("<u4").view("V8")[:, 0].tolist()
    data, texts = rows.tobytes(), b"".join(metas)
    row_bounds, meta_ends = (bounds * PIECE.itemsize).tolist(), meta_bounds.tolist()
    return [
        heads[n] + data[row_bounds[n] : row_bounds[n + 1]] + texts[meta_ends[n] : meta_ends[n + 1]]
        for n in range(len(counts))
    ]


@dataclass
class _Placing:
    """Which block each piece goes into, and which blocks leave in which order.

    Blocks are numbered here by the order in which they were opened, from 0. Those that are open are in `_rooms`, as
    ``room << 32 | number``: ascending, so the first that is not below ``tokens << 32`` is the one wanted.
    """

    block_tokens: int
    most_open: int
    max_age: int
    open_rooms: Sequence[int]
    """Of the blocks that are open at first, in the order in which they were opened."""
    open_firsts: Sequence[int]
    """The offset of the first piece of each."""
    blocks: list[int] = field(default_factory=list)
    """The block of each new piece."""
    left: list[int] = field(default_factory=list)
    """The blocks that left, in order."""
    times: list[int] = field(default_factory=list)
    """How many new pieces had been placed when each of them left."""
    rooms: list[int] = field(default_factory=list)
    """How many tokens of padding it got."""
    causes: list[int] = field(default_factory=list)
    """The offset of that padding."""

    def __post_init__(self) -> None:
        self.opened = len(self.open_rooms)
        """How many blocks were ever open here."""
        self._rooms = sorted(room << _NUMBER_BITS | number for number, room in enumerate(self.open_rooms))
        self._firsts = list(self.open_firsts)
        """The offset of each block's first piece; `_GONE` where it left."""
        self._oldest = 0
        """No block below this number is open."""

    def place(self, offsets: Sequence[int], wholes: Sequence[int], rests: Sequence[int]) -> None:
        """Place documents: so many whole blocks each, and so many tokens as the rest."""
        rooms, firsts, blocks, most_open = self._rooms, self._firsts, self.blocks, self.most_open
        too_old_from = self._too_old_from()
        for offset, whole, rest in zip(offsets, wholes, rests, strict=True):
            if offset >= too_old_from:
                too_old_from = self._close_old(offset)
            if whole:
                self._give_whole(whole)
            if not rest:
                continue
            at = bisect_left(rooms, rest << _NUMBER_BITS)
            if at < len(rooms):
                key = rooms.pop(at)
                number, room = key & _NUMBER, (key >> _NUMBER_BITS) - rest
            else:
                if at == most_open:
                    self._close(rooms.pop(0), offset)
                number, room = self.opened, self.block_tokens - rest
                self.opened += 1
                firsts.append(offset)
                too_old_from = self._too_old_from()
            blocks.append(number)
            if room:
                insort(rooms, room << _NUMBER_BITS | number)
            else:
                self._left(number, 0, offset)
                too_old_from = self._too_old_from()

    def close_all(self, offset: int) -> None:
        """Close all blocks, those that are too old at ``offset`` for that reason."""
        self._close_old(offset)
        while self._rooms:
            self._too_old_from()
            self._close_oldest(offset)

    def _close_old(self, offset: int) -> int:
        """Close the blocks that are too old at ``offset``; return the offset at which the next one will be.

        Their padding is at the offset from which they were too old: the document that shows it may be much further.
        """
        while offset >= (since := self._too_old_from()):
            self._close_oldest(since)
        return since

    def _too_old_from(self) -> int:
        """Find the oldest block; return the offset at which it is too old."""
        firsts, oldest = self._firsts, self._oldest
        while oldest < len(firsts) and firsts[oldest] == _GONE:
            oldest += 1
        self._oldest = oldest
        return firsts[oldest] + self.max_age + 1 if oldest < len(firsts) else _NEVER

    def _close_oldest(self, offset: int) -> None:
        key = next(key for key in self._rooms if key & _NUMBER == self._oldest)
        self._rooms.remove(key)
        self._close(key, offset)

    def _close(self, key: int, offset: int) -> None:
        self._left(key & _NUMBER, key >> _NUMBER_BITS, offset)

    def _left(self, number: int, room: int, offset: int) -> None:
        self._firsts[number] = _GONE
        self.left.append(number)
        self.times.append(len(self.blocks))
        self.rooms.append(room)
        self.causes.append(offset)

    def _give_whole(self, count: int) -> None:
        numbers, placed = range(self.opened, self.opened + count), len(self.blocks) + 1
        self.blocks += numbers
        self.left += numbers
        self.times += range(placed, placed + count)
        self.rooms += [0] * count
        self.causes += [0] * count
        self._firsts += [_GONE] * count
        self.opened += count


@dataclass(frozen=True)
class _Pieces:
    """Pieces in the order in which they were placed, in columns; those of open blocks come first, block by block."""

    rows: npt.NDArray[np.void]
    """`REFERENCE`; a CRC counts where ``crcs_known``."""
    crcs_known: npt.NDArray[np.bool_]
    blocks: Integers
    """The number of each one's block, in the order of opening."""
    sources: list[Any]
    """The tokens of each."""
    metas: list[bytes]
    crc: Callable[[int], int] | None = None
    """Gives the CRC of a new piece's record, from the piece's place here."""

    @classmethod
    def of(
        cls, counts: Sequence[int], rows: npt.NDArray[np.void], item: int, open_tokens: bytes, open_entry: bytes
    ) -> "_Pieces":
        blocks = np.repeat(np.arange(len(counts)), counts)
        ends = np.cumsum(rows["tokens"], dtype=np.int64) * item
        starts = ends - rows["tokens"].astype(np.int64) * item
        view = memoryview(open_tokens)
        sources = [bytes(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        metas = [piece.meta for entry in split_entries(open_entry, len(counts)) for piece in decode_entry(entry)]
        return cls(rows, np.ones(len(rows), np.bool_), blocks, sources, metas)

    @property
    def block_starts(self) -> Integers:
        """Of pieces in the order of their blocks: the index at which each block begins."""
        return np.flatnonzero(np.diff(self.blocks, prepend=-1))

    def with_new(
        self, blocks: Sequence[int], documents: TokenizedDocuments, owners: Integers, firsts: Integers, sizes: Integers
    ) -> "_Pieces":
        """Return these pieces and new ones: the block and the document of each, its first token there, and how many."""
        new = np.zeros(len(owners), REFERENCE)
        new["offset"], new["first"], new["tokens"] = documents.offsets[owners], firsts, sizes
        starts = documents.bounds[owners] + firsts
        before, crc = len(self.sources), documents.crc
        bounds, data = documents.metas.bounds, documents.metas.data
        if len(bounds) and bounds[-1] > bounds[0]:
            places = zip(bounds[owners].tolist(), bounds[owners + 1].tolist(), strict=True)
            metas = [data[low:high] for low, high in places]
        else:
            metas = [b""] * len(owners)
        return _Pieces(
            np.concatenate([self.rows, new]),
            np.concatenate([self.crcs_known, np.zeros(len(new), np.bool_)]),
            np.concatenate([self.blocks, np.array(blocks, np.int64)]),
            [*self.sources, *documents.tokens.cut(starts, starts + sizes)],
            [*self.metas, *metas],
            lambda at: crc(int(owners[at - before])),
        )

    def references(self, chosen: Integers) -> bytes:
        """Return the chosen pieces, which are in the order of their blocks, as references."""
        self._learn_crcs(chosen)
        starts = np.flatnonzero(np.diff(self.blocks[chosen], prepend=-1))
        return join_references(np.diff(starts, append=len(chosen)).tolist(), self.rows[chosen])

    def kept(self, chosen: Integers) -> "_Pieces":
        """Return the chosen pieces, which are in the order of their blocks, numbered again, with their own tokens."""
        self._learn_crcs(chosen)
        sources = [self.sources[at] for at in chosen.tolist()]
        return _Pieces(
            self.rows[chosen],
            np.ones(len(chosen), np.bool_),
            np.cumsum(np.diff(self.blocks[chosen], prepend=-1) > 0) - 1,
            [source if isinstance(source, bytes) else bytes(source) for source in sources],
            [self.metas[at] for at in chosen.tolist()],
        )

    def _learn_crcs(self, chosen: Integers) -> None:
        unknown = chosen[~self.crcs_known[chosen]]
        if len(unknown) and self.crc is not None:
            self.rows["crc"][unknown] = [self.crc(at) for at in unknown.tolist()]
            self.crcs_known[unknown] = True


NEAR_OFFSETS: Final = 256
"""Referenced records that are nearer to each other than this are read in one go: a read of its own costs a request."""


def is_referenced(record: SourceRecord, crc: int) -> bool:
    """Return whether a record is the one that a reference with this CRC is to."""
    return record_crc(record.key, record.value) == crc


class Reopening:
    """The open blocks of one chain: read all `ranges`, give what is there to `take`, then ask for the `point`."""

    def __init__(
        self, recipe: Recipe, stages: Stages, point: ResumePoint, skips: Collection[int] = (), *, source_first: int = 0
    ) -> None:
        """Reopen the blocks of ``point``; ``skips`` are the offsets that a person put on the skip list.

        Where the point has them by value, their records are compared all the same, from ``source_first`` on, the first
        offset that the source holds.
        """
        self._recipe, self._stages, self._point, self._skips = recipe, stages, point, skips
        self._shape = document_shape(recipe)
        self._references = split_references(point.references)
        rows, lowest = self._references.rows.tolist(), source_first if point.is_complete else 0
        self._wanted = {row[0]: row[1:] for row in rows if row[0] >= lowest}
        self._seen: set[int] = set()
        self._found: dict[int, tuple[bytes, bytes]] = {}
        """Of each offset, the tokens from the first referenced one on, and the meta."""

    @property
    def ranges(self) -> Iterator[tuple[int, int]]:
        """The ranges ``[start, end)`` of offsets to read, ascending."""
        offsets = sorted(self._wanted)
        breaks = [at for at, (one, other) in enumerate(pairwise(offsets), 1) if other - one > NEAR_OFFSETS]
        for low, high in pairwise([0, *breaks, len(offsets)]):
            if low < high:
                yield offsets[low], offsets[high - 1] + 1

    def wanted(self, records: Sequence[SourceRecord]) -> Sequence[SourceRecord]:
        """Return those of some records that are referred to."""
        return [record for record in records if record.offset in self._wanted]

    def take(self, records: Sequence[SourceRecord]) -> None:
        """Mill those of these records, which are in the order of their offsets, that are referred to.

        Raises SourceError where one is another record now, and EngineError or PanicError as `PartitionMill.feed`.
        """
        wanted = self.wanted(records)
        for record in wanted:
            if not is_referenced(record, self._wanted[record.offset][2]):
                raise self._changed(record.offset, "is another record now")
            self._seen.add(record.offset)
        if not self._point.is_complete:
            fetch = RecordColumns.of(wanted)
            for low, high in fetch.parts():
                self._take_part(fetch.part(low, high))

    def _take_part(self, part: RecordColumns) -> None:
        columns = OutcomeColumns.sort(self._stages, part, self._skips)
        kept = columns.kept[self._recipe.split]
        encoded = self._stages.engine.encode(kept.documents.texts)
        documents = ChainOutcomes.of(self._recipe, part, columns, kept, encoded, shape=self._shape).documents
        offsets, bounds, metas = documents.offsets.tolist(), documents.bounds, documents.metas
        firsts, sizes = (np.array([self._wanted[offset][at] for offset in offsets], np.int64) for at in (0, 1))
        for at in np.flatnonzero(firsts + sizes != np.diff(bounds)).tolist():
            given, wanted = bounds[at + 1] - bounds[at], firsts[at] + sizes[at]
            raise self._changed(offsets[at], f"gives {given} tokens, not {wanted}")
        tokens = documents.tokens.cut(bounds[:-1] + firsts, bounds[1:])
        for at, offset in enumerate(offsets):
            meta = metas.data[metas.bounds[at] : metas.bounds[at + 1]]
            self._found[offset] = bytes(tokens[at]), meta

    def point(self) -> ResumePoint:
        """Return the point with the tokens of all open blocks. Raises SourceError where a record is gone."""
        there = self._seen if self._point.is_complete else self._found.keys()
        missing = sorted(self._wanted.keys() - there)
        if missing:
            raise self._changed(missing[0], "is gone, or is no document of the split any more")
        if self._point.is_complete:
            return self._point
        tokens, entries, rows = [], [], iter(self._references.rows.tolist())
        for count in self._references.counts:
            pieces, start = [], 0
            for offset, first, size, _ in islice(rows, count):
                found, meta = self._found[offset]
                tokens.append(found)
                pieces.append(Piece(start, offset, first, meta))
                start += size
            entries.append(encode_entry(pieces))
        return replace(self._point, open_tokens=b"".join(tokens), open_entry=b"".join(entries))

    def _changed(self, offset: int, how: str) -> SourceError:
        return SourceError(
            f"the record at offset {offset} of {self._recipe.raw_topic}, of which an open block of split "
            f"{self._recipe.split} holds tokens, {how}: {ADVICE}"
        )
