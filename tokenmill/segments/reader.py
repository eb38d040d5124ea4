"""Reading a partition of a store: blocks by number, many at once, and their documents, while the store grows."""

import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tokenmill.chain import genesis_hash
from tokenmill.errors import InputError
from tokenmill.pieces import decode_entry
from tokenmill.segments.damage import damaged
from tokenmill.segments.layout import SegmentPaths, partition_directory, segment_firsts
from tokenmill.segments.rows import chain_after
from tokenmill.segments.segment import Segment
from tokenmill.segments.store import read_stream
from tokenmill.segments.stream import StreamInfo

Tokens = npt.NDArray[np.unsignedinteger]

_OPEN_SEGMENTS: Final = 8
"""Segments kept mapped beside the growing one: an era lies in one or two, and each map holds file descriptors."""
_KNOWN_SEGMENTS: Final = 4096
"""Sealed segments whose manifest is remembered, at a kilobyte each: to map one again then reads no other file."""


@dataclass(frozen=True, slots=True)
class DocumentPiece:
    """The tokens ``[start, stop)`` of a block: a part of one document, or padding."""

    start: int
    stop: int
    offset: int
    """Offset of the source record in the raw partition."""
    position: int
    """Index among the document's tokens of the first one here; -1: padding."""
    id: str | int | None
    fields: Mapping[str, Any]
    """The fields of the record that the stream carries."""


class PartitionReader:
    """The committed blocks ``[first_block, blocks)`` of a partition, as of the last `refresh`.

    Opening costs one listing of the directory, whatever it holds; segments are mapped when they are read. Views that
    were returned stay valid for as long as they are kept. Not for use by several threads at once; open one for each.
    """

    def __init__(
        self,
        directory: Path,
        info: StreamInfo,
        partition: int,
        *,
        check: bool = False,
        open_segments: int = _OPEN_SEGMENTS,
    ) -> None:
        """Open what there is; a partition without a directory has no blocks yet.

        With ``check``, each read is held against the block's CRC, which about halves its speed.
        """
        self.info = info
        self.partition = partition
        self.first_block = 0
        self.blocks = 0
        """Number of the block after the last committed one."""
        self._directory = directory
        self._check = check
        self._open_segments = open_segments
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
            DamagedError: a commit log or manifest was changed after it was written.
            StoreError: a segment belongs to another stream.

        """
        if self._tail is None:
            self._tail = self._find_tail()
        if self._tail is None:
            return self.blocks
        while self._tail.refresh() == self.info.segment_blocks:
            following = self._open(self._tail.paths.first + self.info.segment_blocks)
            if not following.blocks:
                break
            self._remember(self._tail)
            self._tail = following
        self.blocks = self._tail.paths.first + self._tail.blocks
        return self.blocks

    def read(self, number: int) -> Tokens:
        """Return the tokens of one block, ``[block_tokens]``: a read-only view of the file, nothing is copied.

        Raises:
            InputError: the block is not (or no longer) in the store, or not committed as of the last `refresh`.
            DamagedError: its file is missing or too short, or, with ``check``, the block was changed.

        """
        self._require(number, number)
        segment, local = self._locate(number)
        if self._check:
            segment.check_tokens(local)
        block: Tokens = segment.tokens[local]
        return block

    def gather(self, numbers: Sequence[int] | npt.NDArray[np.integer], out: Tokens | None = None) -> Tokens:
        """Return the tokens of any blocks in any order, ``[len(numbers), block_tokens]``, in one buffer.

        ``out``, C-contiguous and of that shape and the stream's dtype, is filled and returned where it is given.

        Raises:
            InputError: a block is not committed as of the last `refresh`, or ``out`` does not fit.
            DamagedError: as in `read`.

        """
        wanted = np.asarray(numbers, dtype=np.int64).reshape(-1)
        shape = (len(wanted), self.block_tokens)
        if out is None:
            out = np.empty(shape, self.dtype)
        elif out.shape != shape or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise InputError(f"out is {out.dtype}{list(out.shape)}; give a contiguous {self.dtype}{list(shape)}")
        if len(wanted):
            self._require(int(wanted.min()), int(wanted.max()))
            self._fill(wanted, out)
        return out

    def documents(self, number: int) -> list[DocumentPiece]:
        """Return the pieces of one block, in the order of their tokens; together they cover the block.

        Raises:
            InputError: the block is not committed as of the last `refresh`.
            DamagedError: its entry is missing or cannot be read, or, with ``check``, was changed.

        """
        self._require(number, number)
        segment, local = self._locate(number)
        if self._check:
            segment.check_entry(local)
        try:
            pieces = decode_entry(segment.entry(local))
            metas = [json.loads(piece.meta) if piece.meta else {} for piece in pieces]
        except ValueError as error:
            raise damaged(segment.paths.documents, f"the entry of block {number} cannot be read ({error})") from error
        stops = [*(piece.start for piece in pieces[1:]), self.block_tokens]
        return [
            DocumentPiece(piece.start, stop, piece.offset, piece.position, meta.get("id"), meta.get("fields", {}))
            for piece, stop, meta in zip(pieces, stops, metas, strict=True)
        ]

    def chain_before(self, number: int) -> bytes | None:
        """Return the chain hash before a committed block or the next one; None where the store cannot tell."""
        if number == 0:
            return genesis_hash(self.info.fingerprint, self.partition)
        if self.first_block < number <= self.blocks:
            segment, local = self._locate(number - 1)
            return chain_after(segment.rows, local)
        if number == self.first_block < self.blocks:
            manifest = self._locate(number)[0].manifest
            return bytes.fromhex(manifest.chain_before) if manifest else None
        return None

    def _fill(self, wanted: npt.NDArray[np.int64], out: Tokens) -> None:
        """Gather, segment by segment."""
        owners = wanted // self.info.segment_blocks
        for owner in np.unique(owners):
            segment, _ = self._locate(int(owner) * self.info.segment_blocks)
            where = np.flatnonzero(owners == owner)
            locals_ = wanted[where] - segment.paths.first
            if self._check:
                for local in locals_.tolist():
                    segment.check_tokens(local)
            if len(where) == len(wanted):  # all in one segment: straight into place; "clip" spares take a buffer
                np.take(segment.tokens, locals_, axis=0, out=out, mode="clip")
            else:
                out[where] = segment.tokens[locals_]

    def _require(self, lowest: int, highest: int) -> None:
        if lowest < self.first_block or highest >= self.blocks:
            number = lowest if lowest < self.first_block else highest
            raise InputError(
                f"block {number} of {self._directory} is not there: blocks {self.first_block} to {self.blocks - 1} are "
                "(as of the last refresh); ask for one of these, or refresh and wait"
            )

    def _locate(self, number: int) -> tuple[Segment, int]:
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
        return Segment(SegmentPaths(self._directory, first), self.info, self.partition)

    def _find_tail(self) -> Segment | None:
        """Return the last segment that there is, or None if there is none yet."""
        try:
            firsts = segment_firsts(os.listdir(self._directory))  # noqa: PTH208 - names alone, of many files
        except FileNotFoundError:
            return None
        if not firsts:
            return None
        self.first_block = firsts[0]
        return self._open(firsts[-1])


def open_partition(store: Path | str, stream: str, partition: int, *, check: bool = False) -> PartitionReader:
    """Open one partition of a stream in a store, or in any copy of one, for reading.

    With ``check``, each block that is read is held against its CRC. A partition that the store holds nothing of yet
    has no blocks; `PartitionReader.refresh` sees them come.

    Raises:
        StoreError: the store holds no such stream, or segments of another one.
        DamagedError: a commit log or manifest was changed.

    """
    directory = partition_directory(Path(store), stream, partition)
    return PartitionReader(directory, read_stream(store, stream), partition, check=check)
