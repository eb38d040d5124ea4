"""Where the documents of a stream are in its blocks: an index made of pieces alone, 12 bytes a document.

A document is the pieces with its record's offset, in the order of their positions: in consecutive blocks, or in others
where documents are fitted. It is listed when its pieces reach from position 0 to its end. That is seen where a piece
ends before its block does; else the packing says when all of it is there, or the stream's end (`of_ranges`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tokenmill.packings import CONCAT, SEPARATE, Fit, PackingParameters, Rows, packing_parameters
from tokenmill.samples.sequence import Numbers
from tokenmill.store import PartitionReader, Pieces, StreamInfo
from tokenmill.wire.pieces import PADDING

_BLOCKS_AT_ONCE: Final = 8192
"""Whose pieces are looked at together: what has not ended there is kept for the next ones."""

Lengths = npt.NDArray[np.int32]


class DocumentPieces(NamedTuple):
    """The pieces of some documents, in order; an entry for each."""

    slots: Numbers
    """Which of the documents that were asked for it is of."""
    partitions: Numbers
    blocks: Numbers
    starts: Numbers
    positions: Numbers
    lengths: Numbers


class DocumentIndex:
    """The documents in ranges of blocks, by partition and the place of their first token."""

    def __init__(self, block_tokens: int, documents: "_Documents", bounds: Numbers) -> None:
        """Take the documents of all partitions, and the number of each partition's first, and of all."""
        self.lengths = documents.lengths
        self.unfinished = documents.unfinished
        """Documents that begin in the ranges, and are not listed because it is not known that their ends are there."""
        self._block_tokens = block_tokens
        self._all = documents
        self._bounds = bounds

    @classmethod
    def of_ranges(
        cls, info: StreamInfo, ranges: Iterable[tuple[PartitionReader, int, int]], *, ended: bool = False
    ) -> Self:
        """Return the documents that are in blocks ``[first, stop)`` of partitions, whole.

        What ends with a block is known to be whole once the partition has a later block, for all packings take
        documents one after the other, but for ``fit``: there a piece that is no whole block is its document's last one.
        Behind whole blocks alone, a rest may be in a block that is still open, and is in one that has left as soon as a
        record over ``max_age_offsets`` later has a piece.

        ``ended``: nothing comes behind these ranges. Then a document that ends with a block is whole if the last token
        there is one that ends documents; or in any case, if none does, or if the packing leaves nothing in open blocks.

        Tokens that several blocks repeat are there once: the token that two chunks share, and in ``rows`` those before
        and after a text.

        Raises InputError where blocks are not in the store (any more); DamagedError for the document table.
        """
        packing, recipe = packing_in(info), info.recipe
        repeated = len(recipe.get("begin_of_document", ())) if isinstance(packing, Rows) else 0
        end = recipe.get("end_of_document", ()) if recipe.get("packing") not in SEPARATE else ()
        last = end if isinstance(end, int) else next(reversed(end), None)
        parts = []
        for reader, first, stop in ranges:
            found = _PartitionDocuments(info.block_tokens, most_age(info), repeated)
            for start in range(first, stop, _BLOCKS_AT_ONCE):
                numbers = np.arange(start, min(start + _BLOCKS_AT_ONCE, stop))
                found.add(numbers, reader.pieces_of(numbers))
            if ended:
                found.end(partial(_end_with, reader, last))
            parts.append(found.documents())
        return cls(info.block_tokens, _joined(parts), np.cumsum([0, *(len(part.places) for part in parts)]))

    def __len__(self) -> int:
        return len(self._all.places)

    def partitions_of(self, documents: Numbers) -> Numbers:
        """Return the partition of each of these documents."""
        return np.searchsorted(self._bounds, documents, side="right") - 1

    def in_partition(self, partition: int) -> range:
        """Return the numbers of a partition's documents."""
        return range(int(self._bounds[partition]), int(self._bounds[partition + 1]))

    def first_pieces(self, documents: Numbers) -> tuple[Numbers, Numbers]:
        """Return the block of each document's first token, and its index there."""
        blocks, starts = np.divmod(self._all.places[documents], self._block_tokens)
        return blocks, starts

    def last_blocks(self, documents: Numbers) -> Numbers:
        """Return for each document the highest number of a block that has a piece of it."""
        blocks = self._all.places // self._block_tokens
        np.maximum.at(blocks, self._all.owners, self._all.owned_places // self._block_tokens)
        return blocks[documents]

    def pieces_of(self, documents: Numbers) -> DocumentPieces:
        """Return where the tokens of these documents are."""
        first, stop = (np.searchsorted(self._all.owners, documents, side=side) for side in ("left", "right"))
        counts = np.maximum(stop - first, 1)
        slots = np.repeat(np.arange(len(documents)), counts)
        firsts = np.cumsum(counts) - counts
        within = np.arange(len(slots)) - firsts[slots]
        places, lengths = self._all.places[documents][slots], self.lengths[documents].astype(np.int64)[slots]
        several = (stop > first)[slots]
        owned = (first[slots] + within)[several]
        places[several], lengths[several] = self._all.owned_places[owned], self._all.owned_lengths[owned]
        before = np.cumsum(lengths) - lengths
        blocks, starts = np.divmod(places, self._block_tokens)
        partitions = self.partitions_of(documents)[slots]
        return DocumentPieces(slots, partitions, blocks, starts, before - before[firsts][slots], lengths)

    def without(self, dropped: npt.NDArray[np.bool_]) -> "DocumentIndex":
        """Return the index of the other documents, numbered again."""
        kept, old = ~dropped, self._all
        numbers = np.concatenate([[0], np.cumsum(kept)])  # of each document, and of all
        mine = kept[old.owners]
        owned = (numbers[old.owners[mine]], old.owned_places[mine], old.owned_lengths[mine])
        found = _Documents(old.places[kept], old.lengths[kept], *owned, old.unfinished)
        return DocumentIndex(self._block_tokens, found, numbers[self._bounds])


class _Documents(NamedTuple):
    """Documents by the place of their first token, in one partition or several."""

    places: Numbers
    """Of the first token of each: its block's number, times the tokens of a block, and its index there."""
    lengths: Lengths
    owners: Numbers
    """Of each piece of a document of several pieces, the document's number among these; ascending."""
    owned_places: Numbers
    owned_lengths: Lengths
    unfinished: int = 0
    """Further documents, which begin here."""


def _joined(parts: Sequence[_Documents]) -> _Documents:
    firsts = np.cumsum([0, *(len(part.places) for part in parts)]).tolist()
    moved = [part._replace(owners=part.owners + first) for part, first in zip(parts, firsts, strict=False)]
    empty = (np.empty(0, kind) for kind in (np.int64, np.int32, np.int64, np.int64, np.int32))
    columns = zip(empty, *(part[:5] for part in moved), strict=True)
    return _Documents._make([*map(np.concatenate, columns), sum(part.unfinished for part in parts)])


class _Columns(NamedTuple):
    offsets: Numbers
    positions: Numbers
    places: Numbers
    lengths: Numbers


class _PartitionDocuments:
    """Puts the documents of a partition together from the pieces of its blocks, which come in order."""

    def __init__(self, block_tokens: int, max_age: int | None, repeated: int) -> None:
        self._block_tokens = block_tokens
        self._max_age = max_age
        self._repeated = repeated
        """Tokens before a text, which each further row of its document begins with; positions do not count them."""
        self._highest = -1
        self._pending = _Columns(*(np.empty(0, np.int64) for _ in _Columns._fields))
        """The pieces of documents that are not whole yet."""
        self._found: list[_Documents] = []

    def add(self, blocks: Numbers, pieces: Pieces) -> None:
        starts = pieces.rows["start"].astype(np.int64)
        stops = np.empty_like(starts)
        stops[:-1] = starts[1:]
        stops[np.cumsum(pieces.counts) - 1] = self._block_tokens
        places = np.repeat(blocks * self._block_tokens, pieces.counts) + starts
        positions = pieces.rows["position"]
        kept = positions != PADDING
        skipped = np.where(positions > 0, self._repeated, 0)
        new = (pieces.rows["offset"], positions + skipped, places + skipped, stops - starts - skipped)
        self._highest = max(self._highest, int(pieces.rows["offset"].max(initial=-1)))
        columns = _Columns(*(np.concatenate([old, one[kept]]) for old, one in zip(self._pending, new, strict=True)))
        self._put_together(columns, int(blocks[-1]))

    def end(self, are_whole: Callable[[Numbers], npt.NDArray[np.bool_]]) -> None:
        """Note that nothing comes behind these blocks; asked for documents that end with a block, by the last one."""
        self._put_together(self._pending, 0, are_whole)

    def documents(self) -> _Documents:
        places, lengths, owners, owned_places, owned_lengths, _ = _joined(self._found)
        if (places[1:] < places[:-1]).any():
            order = np.argsort(places, kind="stable")
            ranks = np.empty_like(order)
            ranks[order] = np.arange(len(order))
            owners = ranks[owners]
            again = np.argsort(owners, kind="stable")
            places, lengths, owners = places[order], lengths[order], owners[again]
            owned_places, owned_lengths = owned_places[again], owned_lengths[again]
        unfinished = int((self._pending.positions == 0).sum())
        return _Documents(places, lengths, owners, owned_places, owned_lengths, unfinished)

    def _put_together(
        self, columns: _Columns, last_block: int, are_whole: Callable[[Numbers], npt.NDArray[np.bool_]] | None = None
    ) -> None:
        """Note the documents that are whole; keep the pieces of the others."""
        if not len(columns.offsets):
            return
        same = columns.offsets[1:] == columns.offsets[:-1]
        rises = (columns.offsets[1:] > columns.offsets[:-1]) | same & (columns.positions[1:] > columns.positions[:-1])
        if not rises.all():
            order = np.lexsort((columns.positions, columns.offsets))
            columns = _Columns(*(column[order] for column in columns))
            same = columns.offsets[1:] == columns.offsets[:-1]
        follows = columns.positions == 0  # what begins a document, and else what continues the piece before it
        ends = columns.positions + columns.lengths
        follows[1:] = np.where(same, columns.positions[1:] <= ends[:-1], follows[1:])
        firsts = np.flatnonzero(np.concatenate([[True], ~same]))
        lasts = np.append(firsts[1:], len(follows)) - 1
        if self._max_age is None:
            inside = (columns.places[lasts] + columns.lengths[lasts]) % self._block_tokens != 0
            settled = columns.places[lasts] // self._block_tokens < last_block
        else:
            inside = columns.lengths[lasts] < self._block_tokens  # a rest, which is the last piece wherever it ends
            settled = columns.offsets[lasts] + self._max_age < self._highest
        if are_whole is not None:
            settled = are_whole(columns.places[lasts] // self._block_tokens)
        whole = np.logical_and.reduceat(follows, firsts) & (inside | settled)
        counts = lasts - firsts + 1
        lengths = columns.lengths.copy()  # what comes twice is taken where it comes last
        lengths[:-1] = np.where(same, columns.positions[1:] - columns.positions[:-1], lengths[:-1])
        owners = np.repeat(np.where(whole & (counts > 1), np.cumsum(whole) - 1, -1), counts)
        owned = owners >= 0
        pieces = (owners[owned], columns.places[owned], lengths[owned].astype(np.int32))
        self._found.append(_Documents(columns.places[firsts[whole]], ends[lasts[whole]].astype(np.int32), *pieces))
        rest = np.repeat(~whole, counts)
        self._pending = _Columns(*(column[rest] for column in columns))


def documents_beginning_in(
    reader: PartitionReader, first: int, stop: int, end: int | None = None
) -> tuple[DocumentIndex, int, int] | None:
    """Return an index whose first documents are those that begin in blocks ``[first, stop)``, and how many these are.

    They are in the order of their first tokens, and a function of the chain: later blocks are read as far as these
    documents go on. Of a stream that has ended, with block ``end``, they are those that are whole; the last number
    counts the others. None where it is not known yet how all of them end. Raises as `DocumentIndex.of_ranges`.
    """
    begun = int((reader.pieces_of(np.arange(first, stop)).rows["position"] == 0).sum())
    ahead, last = 1, reader.blocks if end is None else end
    while True:
        reached = min(stop + ahead, last)
        ended = reached == end
        index = DocumentIndex.of_ranges(reader.info, [(reader, first, reached)], ended=ended)
        blocks, _ = index.first_pieces(np.arange(len(index)))
        count = int(np.searchsorted(blocks, stop))
        if count == begun or ended:
            return index, count, begun - count
        if reached == last:
            return None
        ahead *= 4


def packing_in(info: StreamInfo) -> PackingParameters:
    """Return the packing of a stream, ``concat`` without a genesis; raises SettingsError where it is not known here."""
    return packing_parameters(info.recipe.get("packing", CONCAT), info.recipe.get("packing_parameters") or {})


def most_age(info: StreamInfo) -> int | None:
    """Return how many offsets the pieces of a block may be behind its last one; None where offsets never fall."""
    packing = packing_in(info)
    return packing.max_age_offsets if isinstance(packing, Fit) else None


def _end_with(reader: PartitionReader, token: int | None, blocks: Numbers) -> npt.NDArray[np.bool_]:
    found = np.ones(len(blocks), np.bool_)
    for where, tokens, rows in reader.parts(blocks) if token is not None else ():
        found[where] = tokens[rows, -1] == token
    return found
