"""Reading a partition of a store: blocks by number, many at once, and their documents, while the store grows."""

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.errors import DamagedError
from tokenmill.store.checking import Crcs, Marks, Numbers
from tokenmill.store.damage import damaged
from tokenmill.store.document_table import Pieces, join_pieces
from tokenmill.store.partition_segments import PartitionSegments
from tokenmill.store.rows import chain_after
from tokenmill.store.segment import Segment
from tokenmill.store.start import read_start
from tokenmill.store.stream import StreamInfo
from tokenmill.store.views import DocumentPiece, Part, Tokens
from tokenmill.wire.pieces import Piece, decode_entry

OnDamage = Literal["refuse", "skip"]

_OPEN_SEGMENTS: Final = 8
"""Segments kept mapped beside the growing one: an era is in one or two, and few systems have memory for no end of
page tables."""

log = logging.getLogger(__name__)


class PartitionReader:
    """The committed blocks ``[first_block, blocks)`` of a partition, as of the last `refresh`.

    Opening costs one listing of the directory, whatever it holds; segments are mapped when they are read. Views that
    were returned stay valid for as long as they are kept, also while segments are retired or repaired. Not for use by
    several threads at once; open one for each.

    A damaged block is refused, and no other; after a repair it is read. Who would rather go on without the damaged
    blocks says so (``on_damage="skip"``): `gather` then leaves them out, and `skipped`, `hidden` and the log name what
    is not read. A block is held against its CRC when it is first read in this process, and not again as long as its
    file stays what it is.
    """

    def __init__(
        self,
        directory: Path,
        info: StreamInfo,
        partition: int,
        *,
        check: bool = True,
        on_damage: OnDamage = "refuse",
        open_segments: int = _OPEN_SEGMENTS,
        whole: bool = False,
    ) -> None:
        """Open what there is; a partition without a directory has no blocks yet.

        Without ``check``, tokens and entries are read as they are, changed or not; skipping needs it.
        ``whole`` says that all blocks of a segment will be read soon after the first: the system may then read and map
        it in large pieces, which costs less than page by page, but more than a few blocks do.
        """
        self.info = info
        self.partition = partition
        self.skipped: dict[int, str] = {}
        """Number and damage of each block that `gather` left out so far."""
        self.hidden: str | None = None
        """Damage, passed over with ``on_damage="skip"``, behind which there may be blocks that cannot be seen."""
        self._directory = directory
        self._check = check or on_damage == "skip"
        self._skip = on_damage == "skip"
        self._segments = PartitionSegments(
            directory, info, partition, refuse=not self._skip, whole=whole, mapped=open_segments
        )
        self.locate = self._segments.locate
        """Returns the segment of a block, and the block's number in it."""
        self.torn = self._segments.torn
        """Returns the error for what stands behind the last commit, once no writer is at it; None: nothing does."""
        self.refresh()

    @property
    def first_block(self) -> int:
        """Number of the oldest block; those before were retired, or never here."""
        return self._segments.first_block

    @property
    def blocks(self) -> int:
        """Number of the block after the last committed one."""
        return self._segments.blocks

    @property
    def block_tokens(self) -> int:
        """Tokens in every block."""
        return self.info.block_tokens

    @property
    def dtype(self) -> "np.dtype[np.unsignedinteger]":
        """The tokens' dtype, little-endian."""
        return self.info.dtype

    def refresh(self) -> int:
        """See what has been committed since, here or in another process; return `blocks`. Costs as much as is new.

        Raises:
            DamagedError: a commit log or manifest was changed after it was written, or belongs to another stream.

        """
        try:
            self._segments.follow()
            damage = self._segments.damage
        except DamagedError as error:
            if not self._skip:
                raise
            damage = str(error)
        if damage is not None and damage != self.hidden:
            log.warning("seeing no block from %s on: %s", self.blocks, damage)
        self.hidden = damage
        return self.blocks

    def read(self, number: int) -> Tokens:
        """Return the tokens of one block, ``[block_tokens]``: a read-only view of the file, nothing is copied.

        Raises:
            InputError: the block is not (or no longer) in the store, or not committed as of the last `refresh`.
            DamagedError: its file is missing or too short, or, with ``check``, the block was changed.

        """
        self._require(np.array([number]))
        with self._segments.forgetting(number):
            segment, local = self.locate(number)
            if self._check and len(segment.unsound(np.array([local]))):
                raise segment.token_damage(local)
            return segment.tokens[local]  # type: ignore[no-any-return]  # of a block

    def gather(self, numbers: Sequence[int] | npt.NDArray[np.integer]) -> Tokens:
        """Return the tokens of any blocks in any order, ``[len(numbers), block_tokens]``, in memory of their own.

        With ``on_damage="skip"``, damaged blocks are left out: what is returned is shorter by them.

        Raises:
            InputError: a block is not committed as of the last `refresh`.
            DamagedError: as in `read`; never with ``on_damage="skip"``.

        """
        wanted = np.asarray(numbers, dtype=np.int64).reshape(-1)
        self._require(wanted)
        if self._skip:
            wanted = wanted[self._sound(wanted)]
        out = np.empty((len(wanted), self.block_tokens), self.dtype)
        for where, tokens, rows in self._parts(wanted):
            if len(where) == len(wanted):  # all in one segment: straight into place; "clip" spares take a buffer
                np.take(tokens, rows, axis=0, out=out, mode="clip")
            else:
                out[where] = tokens[rows]
        return out

    def parts(self, numbers: npt.NDArray[np.int64]) -> Iterator[Part]:
        """Yield where any blocks in any order are, segment by segment, for those who copy out of them themselves.

        With ``on_damage="skip"``, damaged blocks are in no part.

        Raises:
            InputError, DamagedError: as in `gather`.

        """
        self._require(numbers)
        if not self._skip:
            yield from self._parts(numbers)
            return
        sound = self._sound(numbers)
        for where, tokens, rows in self._parts(numbers[sound]):
            yield Part(sound[where], tokens, rows)

    def between(self, first: int, stop: int) -> Iterator[Tokens]:
        """Yield tokens of blocks ``[first, stop)``, segment by segment: ``[blocks, block_tokens]``, read-only views.

        None is held against its CRC. Raises as `read`.
        """
        while first < stop:
            with self._segments.forgetting(first):
                segment, local = self._located(first, stop)
                tokens = segment.tokens[local : local + stop - first]
            yield tokens
            first += len(tokens)

    def between_with_crcs(self, first: int, stop: int) -> Iterator[tuple[Tokens, Crcs]]:
        """Yield the same, and what the CRC-32 of each block must be, ``[blocks]``.

        Raises:
            InputError: as in `read`.
            DamagedError: the tokens are missing or too short, or the index is damaged.

        """
        while first < stop:
            with self._segments.forgetting(first):
                segment, local = self._located(first, stop)
                found = slice(local, local + stop - first)
                tokens, crcs = segment.tokens[found], segment.rows["tokens_crc"][found]
            yield tokens, crcs
            first += len(tokens)

    def sound(self, numbers: Numbers) -> Iterator[tuple[int, Marks]]:
        """Hold blocks against their CRCs in place; yield, segment by segment, which of its blocks are known to be
        what was committed: the number of the segment's first block, and a mark for each block from there on.

        Raises:
            InputError, DamagedError: as in `gather`, after the segments before were yielded.

        """  # noqa: D205 - one sentence
        self._require(numbers)
        for where, first in self._by_segment(numbers):
            with self._segments.forgetting(first):
                marks = self._segment(first, numbers[where] - first).sound()
            yield first, marks

    def documents(self, number: int) -> list[DocumentPiece]:
        """Return the pieces of one block, in the order of their tokens; together they cover the block.

        Raises:
            InputError: the block is not committed as of the last `refresh`.
            DamagedError: its entry is missing or cannot be read, or, with ``check``, was changed.

        """
        self._require(np.array([number]))
        with self._segments.forgetting(number):
            pieces, metas = self._decode(number)
        stops = [*(piece.start for piece in pieces[1:]), self.block_tokens]
        return [
            DocumentPiece(piece.start, stop, piece.offset, piece.position, meta.get("id"), meta.get("fields", {}))
            for piece, stop, meta in zip(pieces, stops, metas, strict=True)
        ]

    def pieces(self, number: int) -> npt.NDArray[np.void]:
        """Return the rows of a block's pieces (`tokenmill.wire.pieces.PIECE`), in the order of their starts.

        Raises:
            InputError, DamagedError: as in `documents`.

        """
        return self.pieces_of(np.array([number])).rows

    def pieces_of(self, numbers: Numbers) -> Pieces:
        """Return the pieces of any blocks in any order; nothing else of their entries is looked at.

        Raises:
            InputError, DamagedError: as in `documents`.

        """
        self._require(numbers)
        return join_pieces(self._pieces(numbers), len(numbers))

    def metas(
        self, numbers: Numbers, begins: Numbers
    ) -> Iterator[tuple[Numbers, npt.NDArray[np.void], list[dict[str, Any]]]]:
        """Yield the pieces that begin at these tokens of blocks, segment by segment: their indices in the request,
        their rows (`tokenmill.wire.pieces.PIECE`), and their metas as JSON values.

        Raises:
            InputError, DamagedError: as in `documents`.

        """  # noqa: D205 - one sentence
        self._require(numbers)
        for where, first in self._by_segment(numbers):
            with self._segments.forgetting(first):
                segment, _ = self.locate(first)
                rows, metas = segment.metas(numbers[where] - first, begins[where], check=self._check)
                try:
                    values = [orjson.loads(meta) if meta else {} for meta in metas]
                except ValueError as error:
                    what = f"an entry of the blocks from {first} on cannot be read ({error})"
                    raise damaged(segment.paths.documents, what) from error
            yield where, rows, values

    def _pieces(self, numbers: Numbers) -> Iterator[tuple[Numbers, Pieces]]:
        for where, first in self._by_segment(numbers):
            with self._segments.forgetting(first):
                segment, _ = self.locate(first)
                pieces = segment.pieces(numbers[where] - first, check=self._check)
            yield where, pieces

    def chain_before(self, number: int) -> bytes | None:
        """Return the chain hash before a committed block or the next one; None where the store cannot tell."""
        if number == self.first_block:
            return read_start(self._directory, self.info, self.partition).chain
        if self.first_block < number <= self.blocks:
            segment, local = self.locate(number - 1)
            return chain_after(segment.rows, local)
        return None

    def has_chain_before(self, number: int, chain: bytes) -> bool:
        """Return whether the hash before a committed block or the next one is this one; costs less than `chain_before`.

        Raises:
            InputError: the block before was retired since.
            DamagedError: it is not, because the index is damaged.

        """
        if not self.first_block < number <= self.blocks:
            return self.chain_before(number) == chain
        with self._segments.forgetting(number - 1):
            segment, local = self.locate(number - 1)
            return segment.has_chain_after(local, chain)

    def _decode(self, number: int) -> tuple[list[Piece], list[dict[str, Any]]]:
        """Return the pieces of a block, and their metas as JSON values."""
        segment, local = self.locate(number)
        if self._check:
            segment.check_entry(local)
        try:
            pieces = decode_entry(segment.entry(local))
            return pieces, [json.loads(piece.meta) if piece.meta else {} for piece in pieces]
        except ValueError as error:
            raise damaged(segment.paths.documents, f"the entry of block {number} cannot be read ({error})") from error

    def _sound(self, wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the indices of those of the blocks that are not damaged; note and log the others."""
        numbers = np.unique(wanted)
        owners = numbers // self.info.segment_blocks
        for owner in np.unique(owners):
            self._look_over(numbers[owners == owner].tolist())
        return np.flatnonzero(~np.isin(wanted, list(self.skipped)))

    def _look_over(self, numbers: list[int]) -> None:
        """Note which of the blocks of one segment are damaged; a repair may have replaced some since."""
        first = numbers[0] - numbers[0] % self.info.segment_blocks
        try:
            segment, _ = self.locate(first)
            bad = segment.unsound(np.array(numbers) - first)
            found = {first + local: str(segment.token_damage(local)) for local in bad.tolist()}
        except DamagedError as error:  # the whole segment
            found = dict.fromkeys(numbers, str(error))
        news = [number for number in found if number not in self.skipped]
        if news:
            log.warning("skipping %s blocks from %s on: %s", len(news), news[0], found[news[0]])
        for number in numbers:
            self.skipped.pop(number, None)
        self.skipped |= found
        if found:
            self._segments.forget(numbers[0])

    def _parts(self, wanted: Numbers) -> Iterator[Part]:
        for where, first in self._by_segment(wanted):
            rows = wanted[where] - first
            with self._segments.forgetting(first):
                segment = self._segment(first, rows)
                part = Part(where, segment.tokens, rows)
            yield part

    def _by_segment(self, wanted: Numbers) -> Iterator[tuple[Numbers, int]]:
        """Yield which of the blocks are in a segment, and its first block's number; no file is touched."""
        if not len(wanted):
            return
        size = self.info.segment_blocks
        lowest, highest = (int(number) // size for number in (wanted.min(), wanted.max()))
        if lowest == highest:
            yield np.arange(len(wanted)), lowest * size
            return
        owners = wanted // size
        for owner in np.unique(owners).tolist():
            yield np.flatnonzero(owners == owner), owner * size

    def _segment(self, first: int, rows: Numbers) -> Segment:
        """Return the segment that begins at a block, where damage to these blocks of it is refused, if it is."""
        segment, _ = self.locate(first)
        if self._check and not self._skip:
            bad = segment.unsound(rows)
            if len(bad):
                raise segment.token_damage(int(bad[0]))
        return segment

    def _located(self, first: int, stop: int) -> tuple[Segment, int]:
        self._segments.require(first, stop - 1)
        return self.locate(first)

    def _require(self, wanted: npt.NDArray[np.int64]) -> None:
        if len(wanted):
            self._segments.require(int(wanted.min()), int(wanted.max()))
