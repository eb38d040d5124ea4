"""Reading a partition of a store: blocks by number, many at once, and their documents, while the store grows."""

import json
import logging
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DamagedError, InputError
from tokenmill.store.damage import damaged
from tokenmill.store.layout import SegmentPaths, segment_firsts
from tokenmill.store.rows import Rows, chain_after
from tokenmill.store.segment import Segment
from tokenmill.store.start import read_start
from tokenmill.store.stream import StreamInfo
from tokenmill.store.views import DocumentPiece, Part, Tokens
from tokenmill.wire.pieces import ENTRY_HEADER, PIECE, Piece, decode_entry

OnDamage = Literal["refuse", "skip"]

_OPEN_SEGMENTS: Final = 8
"""Segments kept mapped beside the growing one: an era lies in one or two, and each map holds file descriptors."""
_KNOWN_SEGMENTS: Final = 4096
"""Sealed segments whose manifest is remembered, at a kilobyte each: to map one again then reads no other file."""

log = logging.getLogger(__name__)


class PartitionReader:
    """The committed blocks ``[first_block, blocks)`` of a partition, as of the last `refresh`.

    Opening costs one listing of the directory, whatever it holds; segments are mapped when they are read. Views that
    were returned stay valid for as long as they are kept, also while segments are retired or repaired. Not for use by
    several threads at once; open one for each.

    A damaged block is refused, and no other; after a repair it is read. Who would rather go on without the damaged
    blocks says so (``on_damage="skip"``): `gather` then leaves them out, and `skipped`, `hidden` and the log name what
    is not read.
    """

    def __init__(
        self,
        directory: Path,
        info: StreamInfo,
        partition: int,
        *,
        check: bool = False,
        on_damage: OnDamage = "refuse",
        open_segments: int = _OPEN_SEGMENTS,
        whole: bool = False,
    ) -> None:
        """Open what there is; a partition without a directory has no blocks yet.

        With ``check``, each read is held against the block's CRC, which about halves its speed; skipping needs it.
        ``whole`` says that all blocks of a segment will be read soon after the first: the system may then read and map
        it in large pieces, which costs less than page by page, but more than a few blocks do.
        """
        self.info = info
        self.partition = partition
        self.first_block = 0
        """Number of the oldest block; those before were retired, or never here."""
        self.blocks = 0
        """Number of the block after the last committed one."""
        self.skipped: dict[int, str] = {}
        """Number and damage of each block that `gather` left out so far."""
        self.hidden: str | None = None
        """Damage, passed over with ``on_damage="skip"``, behind which there may be blocks that cannot be seen."""
        self._directory = directory
        self._check = check or on_damage == "skip"
        self._skip = on_damage == "skip"
        self._open_segments = open_segments
        self._whole = whole
        self._tail: Segment | None = None
        self._cache: OrderedDict[int, Segment] = OrderedDict()
        self._known: OrderedDict[int, Segment] = OrderedDict()
        self.refresh()

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

    def read(self, number: int) -> Tokens:
        """Return the tokens of one block, ``[block_tokens]``: a read-only view of the file, nothing is copied.

        Raises:
            InputError: the block is not (or no longer) in the store, or not committed as of the last `refresh`.
            DamagedError: its file is missing or too short, or, with ``check``, the block was changed.

        """
        self._require(np.array([number]))
        with self._forgetting(number):
            segment, local = self.locate(number)
            if self._check:
                segment.check_tokens(local)
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
        """Yield where any blocks in any order lie, segment by segment, for those who copy out of them themselves.

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
        self._require(np.array([first, stop - 1] if first < stop else []))
        while first < stop:
            with self._forgetting(first):
                segment, local = self.locate(first)
                tokens = segment.tokens[local : local + stop - first]
            yield tokens
            first += len(tokens)

    def documents(self, number: int) -> list[DocumentPiece]:
        """Return the pieces of one block, in the order of their tokens; together they cover the block.

        Raises:
            InputError: the block is not committed as of the last `refresh`.
            DamagedError: its entry is missing or cannot be read, or, with ``check``, was changed.

        """
        self._require(np.array([number]))
        with self._forgetting(number):
            pieces, metas = self._decode(number)
        stops = [*(piece.start for piece in pieces[1:]), self.block_tokens]
        return [
            DocumentPiece(piece.start, stop, piece.offset, piece.position, meta.get("id"), meta.get("fields", {}))
            for piece, stop, meta in zip(pieces, stops, metas, strict=True)
        ]

    def pieces(self, number: int) -> Rows:
        """Return the rows of a block's pieces (`tokenmill.wire.pieces.PIECE`), in the order of their starts; nothing
        else of its entry is looked at, and nothing copied.

        Raises:
            InputError, DamagedError: as in `documents`.

        """  # noqa: D205 - one sentence
        self._require(np.array([number]))
        with self._forgetting(number):
            segment, local = self.locate(number)
            if self._check:
                segment.check_entry(local)
            entry = segment.entry(local)
            count, metas = ENTRY_HEADER.unpack_from(entry) if len(entry) >= ENTRY_HEADER.size else (0, 0)
            if not count or ENTRY_HEADER.size + count * PIECE.itemsize + metas != len(entry):
                raise damaged(segment.paths.documents, f"the entry of block {number} cannot be read")
        return np.frombuffer(entry, PIECE, count, ENTRY_HEADER.size)

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
        with self._forgetting(number - 1):
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
        """Note which of the blocks of one segment are damaged; a repair may have mended some since."""
        first = numbers[0] - numbers[0] % self.info.segment_blocks
        try:
            segment, _ = self.locate(first)
            damage = segment.damaged_tokens(number - first for number in numbers)
            found = {first + local: text for local, text in damage.items()}
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

    def _follow(self) -> None:
        """Go on to the last block that is committed now."""
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

    def _parts(self, wanted: npt.NDArray[np.int64]) -> Iterator[Part]:
        if not len(wanted):
            return
        lowest, highest = (int(number) // self.info.segment_blocks for number in (wanted.min(), wanted.max()))
        alone = lowest == highest
        owners = wanted[:1] if alone else wanted // self.info.segment_blocks
        for owner in [lowest] if alone else np.unique(owners).tolist():
            where = np.arange(len(wanted)) if alone else np.flatnonzero(owners == owner)
            try:
                segment, _ = self.locate(owner * self.info.segment_blocks)
                rows = wanted[where] - segment.paths.first
                if self._check and not self._skip:
                    for row in rows.tolist():
                        segment.check_tokens(row)
                part = Part(where, segment.tokens, rows)
            except DamagedError:
                self._forget(int(wanted[where[0]]))
                raise
            yield part

    def _require(self, wanted: npt.NDArray[np.int64]) -> None:
        if not len(wanted):
            return
        lowest, highest = int(wanted.min()), int(wanted.max())
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

    def locate(self, number: int) -> tuple[Segment, int]:
        """Return the segment of a block, and the block's number in it."""
        first = number - number % self.info.segment_blocks
        if self._tail is not None and self._tail.paths.first == first:
            return self._tail, number - first
        segment = self._cache.get(first) or self._known.get(first)
        if segment is None:
            segment = self._open(first)
            if segment.blocks < self.info.segment_blocks:
                raise damaged(
                    segment.paths.tokens, f"{segment.blocks} blocks of it are committed, but later segments exist"
                )
        self._remember(segment)
        return segment, number - first

    @contextmanager
    def _forgetting(self, number: int) -> Iterator[None]:
        """Do with a block's segment what may find damage; `_forget` it then."""
        try:
            yield
        except DamagedError:
            self._forget(number)
            raise

    def _forget(self, number: int) -> None:
        """Map the segment of a damaged block anew when it is read again, for it may have been repaired by then.

        Raises:
            InputError: it is not damaged, but was retired.

        """
        self._raise_first()
        self._require(np.array([number]))
        first = number - number % self.info.segment_blocks
        if self._tail is not None and self._tail.paths.first == first:
            self._tail = self._open(first)
        for segments in (self._cache, self._known):
            segments.pop(first, None)

    def _raise_first(self) -> int:
        """See whether segments were retired; return the number of the first block."""
        self.first_block = read_start(self._directory, self.info, self.partition).block
        return self.first_block

    def _remember(self, segment: Segment) -> None:
        """Keep the segment mapped, and unmap the one that was not used for the longest time."""
        first = segment.paths.first
        if segment.manifest is not None:  # one that was seen growing holds all its rows
            self._known[first] = segment
        while len(self._known) > _KNOWN_SEGMENTS:
            self._known.popitem(last=False)
        self._cache[first] = segment
        self._cache.move_to_end(first)
        while len(self._cache) > self._open_segments:
            _, unused = self._cache.popitem(last=False)
            unused.unmap()

    def _open(self, first: int) -> Segment:
        paths = SegmentPaths(self._directory, first)
        return Segment(paths, self.info, self.partition, refuse=not self._skip, whole=self._whole)

    def _find_tail(self) -> Segment | None:
        """Return the last segment that there is, or None if there is none yet."""
        try:
            firsts = segment_firsts(os.listdir(self._directory))  # noqa: PTH208 - names alone, of many files
        except FileNotFoundError:
            return None
        start = self._raise_first()
        if not firsts or firsts[-1] < start:
            self.blocks = start
            return None
        self.blocks = max(self.blocks, firsts[-1])  # all before the last segment are there, whatever becomes of that
        return self._open(firsts[-1])
