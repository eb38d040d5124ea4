"""Reading a partition of a store: blocks by number, many at once, and their documents, while the store grows."""

import json
import logging
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.errors import DamagedError, InputError
from tokenmill.store import layout
from tokenmill.store.layout import StorePath
from tokenmill.store.sealing import chain_after
from tokenmill.store.segment import Crcs, DocumentPiece, Marks, Numbers, Part, Pieces, Segment, Tokens, join_pieces
from tokenmill.store.store import StreamInfo, read_start, read_stream
from tokenmill.wire.pieces import Piece, decode_entry

OnDamage = Literal["refuse", "skip"]

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
        open_segments: int = 8,
        whole: bool = False,
    ) -> None:
        """Open what there is; a partition without a directory has no blocks yet.

        So many segments are kept mapped in addition to the growing one: an era is in one or two, and few systems have
        memory for page tables without end. Without ``check``, tokens and entries are read as they are, changed or not;
        skipping needs it.
        ``whole`` says that all blocks of a segment will be read soon after the first: the system may then read and map
        it in large pieces, which costs less than page by page, but more than a few blocks do.
        """
        self.info = info
        self.partition = partition
        self.block_tokens = info.block_tokens
        """Tokens in every block."""
        self.dtype = info.dtype
        """The tokens' dtype, little-endian."""
        self.first_block = 0
        """Number of the oldest block; those before were retired, or never here."""
        self.blocks = 0
        """Number of the block after the last committed one."""
        self.skipped: dict[int, str] = {}
        """Number and damage of each block that `gather` left out so far."""
        self.hidden: str | None = None
        """Damage, passed over with ``on_damage="skip"``, behind which there may be blocks that cannot be seen."""
        self._check = check or on_damage == "skip"
        self._skip = on_damage == "skip"
        self._directory = directory
        self._whole = whole
        self._mapped = open_segments
        self._tail: Segment | None = None
        self._cache: OrderedDict[int, Segment] = OrderedDict()
        self._known: OrderedDict[int, Segment] = OrderedDict()
        self.refresh()

    def refresh(self) -> int:
        """See what has been committed since, here or in another process; return `blocks`. Costs as much as is new.

        Raises DamagedError where a commit log or manifest was changed after it was written, or belongs to another
        stream.
        """
        try:
            self._follow()
            damage = self._tail.damage if self._tail is not None else None
        except DamagedError as error:
            if not self._skip:
                raise
            damage = str(error)
        if damage is not None and damage != self.hidden:
            log.warning("seeing no block from %s on: %s", self.blocks, damage)
        self.hidden = damage
        return self.blocks

    def reaches(self, stop: int) -> bool:
        """Return whether all blocks before ``stop`` are committed; asks the files again where that is not known."""
        return self.blocks >= stop or self.refresh() >= stop

    def torn(self) -> DamagedError | None:
        """Return the error for what stands behind the last commit, once no writer is at it; None: nothing does."""
        return self._tail.torn() if self._tail is not None else None

    def locate(self, number: int) -> tuple[Segment, int]:
        """Return the segment of a block, and the block's number in it.

        Raises DamagedError where its manifest or commit log is damaged or missing.
        """
        first = number - number % self.info.segment_blocks
        if self._tail is not None and self._tail.paths.first == first:
            return self._tail, number - first
        segment = self._cache.get(first) or self._known.get(first)
        if segment is None:
            segment = self._open(first)
            if segment.blocks < self.info.segment_blocks:
                what = f"{segment.blocks} blocks of it are committed, but later segments exist"
                raise layout.damaged(segment.paths.tokens, what)
        self._remember(segment)
        return segment, number - first

    def read(self, number: int) -> Tokens:
        """Return the tokens of one block, ``[block_tokens]``: a read-only view of the file, nothing is copied.

        Raises InputError where the block is not (or no longer) in the store, or not committed as of the last `refresh`;
        DamagedError where its file is missing or too short, or, with ``check``, the block was changed.
        """
        self._require(np.array([number]))
        with self._forgetting(number):
            segment, local = self.locate(number)
            if self._check and len(segment.unsound(np.array([local]))):
                raise segment.token_damage(local)
            return segment.tokens[local]  # type: ignore[no-any-return]  # of a block

    def gather(self, numbers: Sequence[int] | npt.NDArray[np.integer]) -> Tokens:
        """Return the tokens of any blocks in any order, ``[len(numbers), block_tokens]``, in memory of their own.

        With ``on_damage="skip"``, damaged blocks are left out: what is returned is shorter by them.

        Raises InputError where a block is not committed as of the last `refresh`; DamagedError as in `read`; never with
        ``on_damage="skip"``.
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

        With ``on_damage="skip"``, damaged blocks are in no part. Raises as `gather`.
        """
        self._require(numbers)
        if not self._skip:
            yield from self._parts(numbers)
            return
        sound = self._sound(numbers)
        for where, tokens, rows in self._parts(numbers[sound]):
            yield Part(sound[where], tokens, rows)

    def between(self, first: int, stop: int, *, with_crcs: bool = False) -> Iterator[tuple[Tokens, Crcs | None]]:
        """Yield tokens of blocks ``[first, stop)``, segment by segment: ``[blocks, block_tokens]``, read-only views.

        None is held against its CRC. ``with_crcs``: what the CRC-32 of each block must be comes along, ``[blocks]``.

        Raises:
            InputError: as in `read`.
            DamagedError: the tokens are missing or too short, or with ``with_crcs`` the index is damaged.
        """
        while first < stop:
            with self._forgetting(first):
                self._require_span(first, stop - 1)
                segment, local = self.locate(first)
                found = slice(local, local + stop - first)
                tokens, crcs = segment.tokens[found], segment.rows["tokens_crc"][found] if with_crcs else None
            yield tokens, crcs
            first += len(tokens)

    def sound(self, numbers: Numbers) -> Iterator[tuple[int, Marks]]:
        """Hold blocks against their CRCs in place; yield, segment by segment, which of its blocks are known to be
        what was committed: the number of the segment's first block, and a mark for each block from there on.
        Raises as `gather`, after the segments before were yielded.
        """  # noqa: D205 - one sentence
        self._require(numbers)
        for where, first in self._by_segment(numbers):
            with self._forgetting(first):
                marks = self._segment(first, numbers[where] - first).sound()
            yield first, marks

    def documents(self, number: int) -> list[DocumentPiece]:
        """Return the pieces of one block, in the order of their tokens; together they cover the block.

        Raises InputError where the block is not committed as of the last `refresh`; DamagedError where its entry is
        missing or cannot be read, or, with ``check``, was changed.
        """
        self._require(np.array([number]))
        with self._forgetting(number):
            pieces, metas = self._decode(number)
        stops = [*(piece.start for piece in pieces[1:]), self.block_tokens]
        return [
            DocumentPiece(piece.start, stop, piece.offset, piece.position, meta.get("id"), meta.get("fields", {}))
            for piece, stop, meta in zip(pieces, stops, metas, strict=True)
        ]

    def pieces(self, number: int) -> npt.NDArray[np.void]:
        """Return the rows of a block's pieces (`tokenmill.wire.pieces.PIECE`), in the order of their starts.

        Raises InputError, DamagedError as in `documents`.
        """
        return self.pieces_of(np.array([number])).rows

    def pieces_of(self, numbers: Numbers) -> Pieces:
        """Return the pieces of any blocks in any order; nothing else of their entries is looked at.

        Raises InputError, DamagedError as in `documents`.
        """
        self._require(numbers)
        return join_pieces(self._pieces(numbers), len(numbers))

    def metas(
        self, numbers: Numbers, begins: Numbers
    ) -> Iterator[tuple[Numbers, npt.NDArray[np.void], list[dict[str, Any]]]]:
        """Yield the pieces that begin at these tokens of blocks, segment by segment: their indices in the request,
        their rows (`tokenmill.wire.pieces.PIECE`), and their metas as JSON values. Raises as `documents`.
        """  # noqa: D205 - one sentence
        self._require(numbers)
        for where, first in self._by_segment(numbers):
            with self._forgetting(first):
                segment, _ = self.locate(first)
                rows, metas = segment.metas(numbers[where] - first, begins[where], check=self._check)
                try:
                    values = [orjson.loads(meta) if meta else {} for meta in metas]
                except ValueError as error:
                    what = f"an entry of the blocks from {first} on cannot be read ({error})"
                    raise layout.damaged(segment.paths.documents, what) from error
            yield where, rows, values

    def _pieces(self, numbers: Numbers) -> Iterator[tuple[Numbers, Pieces]]:
        for where, first in self._by_segment(numbers):
            with self._forgetting(first):
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

        Raises InputError where the block before was retired since; DamagedError where it is not, because the index is
        damaged.
        """
        if not self.first_block < number <= self.blocks:
            return self.chain_before(number) == chain
        with self._forgetting(number - 1):
            segment, local = self.locate(number - 1)
            return segment.has_chain_after(local, chain)

    def _decode(self, number: int) -> tuple[list[Piece], list[dict[str, Any]]]:
        segment, local = self.locate(number)
        if self._check:
            segment.check_entry(local)
        try:
            pieces = decode_entry(segment.entry(local))
            return pieces, [json.loads(piece.meta) if piece.meta else {} for piece in pieces]
        except ValueError as error:
            what = f"the entry of block {number} cannot be read ({error})"
            raise layout.damaged(segment.paths.documents, what) from error

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
            self._forget(numbers[0])

    def _parts(self, wanted: Numbers) -> Iterator[Part]:
        for where, first in self._by_segment(wanted):
            rows = wanted[where] - first
            with self._forgetting(first):
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

    def _require(self, wanted: npt.NDArray[np.int64]) -> None:
        if len(wanted):
            self._require_span(int(wanted.min()), int(wanted.max()))

    def _follow(self) -> None:
        if self._tail is None or self._raise_first() > self._tail.paths.first:
            self._tail = self._find_tail()
        if self._tail is None:
            return
        while self._tail.refresh() == self.info.segment_blocks:
            following = self._open(self._tail.paths.first + self.info.segment_blocks)
            if not following.blocks:
                break
            self._remember(self._tail)
            self._tail = following
        self.blocks = self._tail.paths.first + self._tail.blocks

    @contextmanager
    def _forgetting(self, number: int) -> Iterator[None]:
        """Do with a block's segment what may find damage; `_forget` it then."""
        try:
            yield
        except DamagedError:
            self._forget(number)
            raise

    def _forget(self, number: int) -> None:
        """Map a damaged block's segment again when it is next read; raises InputError where it was retired."""
        self._raise_first()
        self._require_span(number, number)
        first = number - number % self.info.segment_blocks
        if self._tail is not None and self._tail.paths.first == first:
            self._tail = self._open(first)
        for segments in (self._cache, self._known):
            segments.pop(first, None)

    def _require_span(self, lowest: int, highest: int) -> None:
        if 0 <= lowest < self.first_block:
            raise InputError(
                f"block {lowest} of {self._directory} is not there any more: it begins at block {self.first_block}, "
                "for its older segments were retired; ask for later blocks, or read a store that still holds this one"
            )
        if lowest < 0 or highest >= self.blocks:
            number = lowest if lowest < 0 else highest
            raise InputError(
                f"block {number} of {self._directory} is not there: blocks {self.first_block} to {self.blocks - 1} are "
                "(as of the last refresh); ask for one of these, or refresh and wait"
            )

    def _raise_first(self) -> int:
        """See whether segments were retired; return the number of the first block."""
        self.first_block = read_start(self._directory, self.info, self.partition).block
        return self.first_block

    def _remember(self, segment: Segment) -> None:
        """Keep the segment mapped, and unmap the one that was not used for the longest time."""
        first = segment.paths.first
        if segment.manifest is not None:  # one that was seen growing holds all its rows
            self._known[first] = segment
        while len(self._known) > 16_384:  # noqa: PLR2004 - a kilobyte each; to map one again then reads no other file
            self._known.popitem(last=False)
        self._cache[first] = segment
        self._cache.move_to_end(first)
        while len(self._cache) > self._mapped:
            _, unused = self._cache.popitem(last=False)
            unused.unmap()

    def _open(self, first: int) -> Segment:
        paths = layout.SegmentPaths(self._directory, first)
        return Segment(paths, self.info, self.partition, refuse=not self._skip, whole=self._whole)

    def _find_tail(self) -> Segment | None:
        try:
            firsts = layout.segment_firsts(os.listdir(self._directory))  # noqa: PTH208 - names alone, of many files
        except FileNotFoundError:
            return None
        start = self._raise_first()
        if not firsts or firsts[-1] < start:
            self.blocks = start
            return None
        self.blocks = max(self.blocks, firsts[-1])  # all before the last segment are there, whatever becomes of that
        return self._open(firsts[-1])


def open_partition(
    store: StorePath, stream: str, partition: int, *, check: bool = True, on_damage: OnDamage = "refuse"
) -> PartitionReader:
    """Open one partition of a stream in a store, or in any copy of one, for reading.

    Each block is held against its CRC when it is first read in this process, and refused if it differs; with
    ``on_damage="skip"``, `PartitionReader.gather` leaves it out. With ``check=False``, blocks are read as they are. A
    partition that the store holds nothing of yet has no blocks; `PartitionReader.refresh` sees them come.

    Raises:
        StoreError: the store holds no such stream.
        DamagedError: a commit log or manifest was changed, or belongs to another stream.
    """
    directory = layout.partition_directory(layout.store_directory(store), stream, partition)
    return PartitionReader(directory, read_stream(store, stream), partition, check=check, on_damage=on_damage)
