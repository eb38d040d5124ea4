"""One segment, open for reading: its blocks, their CRCs, and the document table in columns.

The processor has an instruction for CRCs, so what they cost is to read memory, if it is asked for in long runs: a call
of a function costs as much as two kilobytes. What the CRC of a run must be follows from those of its blocks: the first
one's is moved over the length of the second, whose own is added without carry. Moving is linear in its bits, so it is
looked up byte by byte, for many blocks at once.

The CRCs of rows that were just copied, and are in the core's cache, cost next to nothing (`crcs_of_runs`). Where a copy
is not of whole blocks, these are looked at in place, each once in a process (`unsound`).
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError
from tokenmill.store.layout import SegmentPaths, damaged
from tokenmill.store.maps import FileMap, Identity, MapWatch, is_settled
from tokenmill.store.sealing import BLOCK_ROW, Rows, Scan, chain_after, entry_span, load_index, load_manifest, scan
from tokenmill.store.store import StreamInfo
from tokenmill.untrusted import regular_file
from tokenmill.wire.pieces import ENTRY_HEADER, PIECE

Tokens = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True)
class DocumentPiece:
    """The tokens ``[start, stop)`` of a block: a part of one document, or padding."""

    start: int
    """Index of its first token in the block."""
    stop: int
    """Index after its last token."""
    offset: int
    """Offset of the source record in the raw partition."""
    position: int
    """Index among the document's tokens of the first one here; -1: padding."""
    id: str | int | None
    fields: Mapping[str, Any]
    """The fields of the record that the stream carries."""


class Part(NamedTuple):
    """The blocks of a request that are in one segment."""

    where: npt.NDArray[np.int64]
    tokens: Tokens
    """The segment's tokens, ``[blocks, block_tokens]``: a read-only view of the file."""
    rows: npt.NDArray[np.int64]


Numbers = npt.NDArray[np.int64]


class Pieces(NamedTuple):
    """The pieces of some blocks, one block's after the other's."""

    counts: Numbers
    """How many pieces each block has, ``[blocks]``; 1 at least."""
    rows: npt.NDArray[np.void]
    """All of them (`tokenmill.wire.pieces.PIECE`), each block's in the order of their starts, ``[pieces]``."""

    def between(self, first: int, stop: int) -> "Pieces":
        """Return the pieces of the blocks ``[first, stop)``."""
        start = int(self.counts[:first].sum())
        return Pieces(self.counts[first:stop], self.rows[start : start + int(self.counts[first:stop].sum())])


class UnreadableEntryError(ValueError):
    """An entry is none, or its pieces cannot be those of a block; ``at`` is its index among those asked for."""

    def __init__(self, at: int) -> None:
        super().__init__(f"entry {at} cannot be read")
        self.at = at


def pieces_in(table: npt.NDArray[np.uint8], starts: Numbers, ends: Numbers, block_tokens: int) -> Pieces:
    """Return the pieces of entries ``[starts, ends)`` of a table; raises UnreadableEntryError at one that is none."""
    _require(ends - starts >= ENTRY_HEADER.size + PIECE.itemsize)
    numbers = _items(table, np.dtype("<u4"))
    counts, metas = (numbers[at].astype(np.int64) for at in (starts, starts + 4))
    _require((counts > 0) & (ENTRY_HEADER.size + counts * PIECE.itemsize + metas == ends - starts))
    firsts = np.cumsum(counts) - counts
    at = np.repeat(starts + ENTRY_HEADER.size - firsts * PIECE.itemsize, counts)
    at += np.arange(len(at)) * PIECE.itemsize
    rows = _items(table, np.dtype(f"V{PIECE.itemsize}"))[at].view(PIECE)  # copied without a look at its fields
    begins = rows["start"]
    rises = np.empty(len(rows), np.bool_)
    np.greater(begins[1:], begins[:-1], out=rises[1:])
    rises[firsts] = begins[firsts] == 0
    rises &= begins < block_tokens
    if not rises.all():
        raise UnreadableEntryError(int(np.searchsorted(firsts, np.argmin(rises), side="right")) - 1)
    return Pieces(counts, rows)


def metas_in(
    table: npt.NDArray[np.uint8], starts: Numbers, pieces: Pieces, blocks: Numbers, begins: Numbers
) -> tuple[npt.NDArray[np.void], list[bytes]]:
    """Return the pieces at ``begins`` in ``blocks`` of the entries at ``starts`` of a table, and their metas."""
    firsts = np.cumsum(pieces.counts) - pieces.counts
    owners = np.repeat(np.arange(len(pieces.counts)), pieces.counts)
    keys = owners << 32 | pieces.rows["start"].astype(np.int64)
    chosen = np.searchsorted(keys, blocks << 32 | begins)
    stops = np.cumsum(pieces.rows["meta_bytes"], dtype=np.int64)
    behind = np.concatenate([[0], stops[:-1]])
    at = starts + ENTRY_HEADER.size + pieces.counts * PIECE.itemsize - behind[firsts]
    low = (at[blocks] + behind[chosen]).tolist()
    high = (at[blocks] + stops[chosen]).tolist()
    data = table.data
    return pieces.rows[chosen], [bytes(data[start:stop]) for start, stop in zip(low, high, strict=True)]


def join_pieces(parts: Iterable[tuple[Numbers, Pieces]], blocks: int) -> Pieces:
    """Return the pieces of so many blocks, of which each part has those that it names; together they have all."""
    found = list(parts)
    if len(found) == 1 and len(found[0][0]) == blocks:
        where, pieces = found[0]
        if np.array_equal(where, np.arange(blocks)):
            return pieces
    counts = np.empty(blocks, np.int64)
    for where, pieces in found:
        counts[where] = pieces.counts
    firsts = np.cumsum(counts) - counts
    rows = np.empty(int(counts.sum()), PIECE)
    for where, pieces in found:
        mine = np.repeat(firsts[where] - (np.cumsum(pieces.counts) - pieces.counts), pieces.counts)
        rows[mine + np.arange(len(mine))] = pieces.rows
    return Pieces(counts, rows)


def _items(table: npt.NDArray[np.uint8], dtype: "np.dtype[Any]") -> npt.NDArray[Any]:
    return np.ndarray((max(len(table) - dtype.itemsize + 1, 0),), dtype, table, strides=(1,))


def _require(good: npt.NDArray[np.bool_]) -> None:
    if not good.all():
        raise UnreadableEntryError(int(np.argmin(good)))


_RUN_BYTES: Final = 128 << 10
"""A run has half of it at least, over which the cost of a call is nothing."""
_RUNS_AT_LEAST: Final = 8
"""From so many runs on, to compute what their CRCs must be costs less than to look at the wanted blocks alone."""
_SMALL_BYTES: Final = 1 << 20
"""Files up to which all blocks are looked at with the first: to come back to each of thousands costs more."""
_REMEMBERED_BYTES: Final = 64 << 20
"""Marks of one byte a block that are kept for readers to come: of 131 GB of tokens in blocks of 2 kB."""

Marks: TypeAlias = npt.NDArray[np.bool_]
Crcs: TypeAlias = npt.NDArray[np.uint32]

_remembered: dict[Identity, Marks] = {}


def marks_of(identity: Identity, blocks: int) -> Marks:
    """Return the marks of a file, the same array for all threads: marks are only set. A changed file has new ones."""
    marks = _remembered.get(identity)
    if marks is None or len(marks) != blocks:
        marks = np.zeros(blocks, np.bool_)
        if is_settled(identity):
            if sum(map(len, list(_remembered.values()))) + blocks > _REMEMBERED_BYTES:
                _remembered.clear()  # to go through more than that again and again would find none of them, anyway
            _remembered[identity] = marks
    return marks


def unsound(tokens: Tokens, crcs: Crcs, marks: Marks, rows: Numbers, *, whole: bool) -> Numbers:
    """Return those of some blocks that are not what their CRCs say, and mark those that are.

    Args:
        tokens: of all blocks of a file, ``[blocks, block_tokens]``, contiguous.
        crcs, marks: of the blocks.
        rows: the blocks to look at: ascending, each once, none of them marked.
        whole: whether all blocks will be wanted soon, so that their neighbours are looked at, too.
    """
    size = tokens.strides[0]
    data = tokens.view(np.uint8).reshape(-1).data
    if whole and len(crcs) * size <= _SMALL_BYTES:
        bad = _one_by_one(data, size, crcs, marks, np.flatnonzero(~marks))
        return rows[np.isin(rows, bad)]
    rows = _without_sound_runs(data, size, crcs, marks, rows, whole=whole)
    return _one_by_one(data, size, crcs, marks, rows)


def _one_by_one(data: memoryview, size: int, crcs: Crcs, marks: Marks, rows: Numbers) -> Numbers:
    wanted = crcs[rows].tolist()
    starts = (rows * size).tolist()
    sound = [crc32(data[start : start + size]) == crc for start, crc in zip(starts, wanted, strict=True)]
    if all(sound):
        marks[rows] = True
        return rows[:0]
    marks[rows[sound]] = True
    return rows[np.logical_not(sound)]


def _without_sound_runs(
    data: memoryview, size: int, crcs: Crcs, marks: Marks, rows: Numbers, *, whole: bool
) -> Numbers:
    """Look at whole runs where that is worth it, mark the blocks of those that are sound, and return the other rows."""
    if len(rows) < _RUNS_AT_LEAST:
        return rows
    each = 1 << max((_RUN_BYTES // size).bit_length() - 1, 0)
    runs = rows // each
    runs = runs[np.flatnonzero(np.diff(runs, prepend=-1))]
    runs = runs[(runs + 1) * each <= len(crcs)]
    # A run is worth reading whole if a quarter of its blocks is wanted; more of them will be.
    if len(runs) < _RUNS_AT_LEAST or not (whole or len(rows) * 4 >= len(runs) * each):
        return rows
    span = each * size
    found = [crc32(data[start : start + span]) for start in (runs * span).tolist()]
    whole_runs = len(crcs) // each
    wanted = _joined(crcs[: whole_runs * each].reshape(-1, each)[runs], size)
    marks[: whole_runs * each].reshape(-1, each)[runs[wanted == np.array(found, np.uint32)]] = True
    return rows[~marks[rows]]


def crcs_of_runs(crcs: Crcs, size: int, each: int) -> list[int]:
    """Return the CRCs of runs of ``each`` of these pieces of ``size`` bytes, and of the rest, from their ``crcs``."""
    runs, rest = divmod(len(crcs), each)
    width = 1 << (each - 1).bit_length()
    padded = np.zeros((runs + (rest > 0), width), np.uint32)  # in front: nothing that is moved stays nothing
    padded[:runs, width - each :] = crcs[: runs * each].reshape(runs, each)
    padded[runs:, width - rest :] = crcs[runs * each :]
    found: list[int] = _joined(padded, size).tolist()
    return found


def _joined(crcs: Crcs, size: int) -> Crcs:
    """Return the CRCs of pieces behind each other, ``[runs, pieces]``: a power of two of them, with ``size`` bytes."""
    while crcs.shape[1] > 1:
        first, second = np.ascontiguousarray(crcs[:, ::2]), crcs[:, 1::2]
        parts = first.view(np.uint8).reshape(*first.shape, 4)
        crcs = second.copy()
        for place, table in enumerate(_moving(size)):
            crcs ^= table.take(parts[..., place])  # in two thirds of the time of brackets
        size *= 2
    return crcs[:, 0]


@lru_cache(maxsize=256)
def _moving(size: int) -> tuple[Crcs, ...]:
    """Return what becomes of each byte of a CRC when so many bytes follow, by the byte's place: the lowest first."""
    zeros = bytes(size)
    none = crc32(zeros)
    tables: list[Any] = []
    for place in range(4):
        table = np.zeros(256, np.uint32)
        for bit in range(8):
            moved = np.uint32(crc32(zeros, 1 << 8 * place + bit) ^ none)
            table[1 << bit : 2 << bit] = table[: 1 << bit] ^ moved
        tables.append(table)
    return tuple(tables)


class Segment:
    """The committed blocks of a segment, counted from 0, as of the last `refresh`; views of earlier maps stay valid."""

    def __init__(
        self, paths: SegmentPaths, info: StreamInfo, partition: int, *, refuse: bool = True, whole: bool = False
    ) -> None:
        """Read what is committed; without ``refuse``, blocks before damage; ``whole``: all tokens will be read soon."""
        self.paths = paths
        self.blocks = 0
        self.damage: str | None = None
        """Damage to the commit log that was not refused; what the log says after it is not known."""
        self._refuse = refuse
        self._whole = whole
        self.manifest = load_manifest(paths, info, partition)
        """The manifest of one sealed when it was first read; one that grows is followed by its commit log."""
        self._info = info
        self._partition = partition
        self._parts: list[Rows] = []
        self._log_bytes = 0
        self._log_file = 0
        """The inode of the commit log: a repair replaces the file by one with records of other lengths."""
        self._watch = MapWatch()
        self._tokens: Tokens
        self._sound: Marks
        self._documents: npt.NDArray[np.uint8]
        self._entries_asked: int
        self._table_is_sound: bool | None
        """Whether that has the manifest's CRC; None: not checked."""
        self._index: Rows | None
        """The rows of a sealed segment as its index has them, unchecked; `rows` are checked."""
        self.unmap()
        self.refresh()

    def refresh(self) -> int:
        """Read what was committed since, return how many blocks there are; raises DamagedError where it was changed."""
        if self.manifest is None and self.blocks < self._info.segment_blocks:
            self._look_at_files()
            if self.manifest is None:
                self._read_log()
        if self.manifest is not None:
            self.blocks = self.manifest.blocks
        return self.blocks

    @property
    def rows(self) -> Rows:
        """The rows of the committed blocks."""
        if self.manifest is not None and not self._parts:
            self._parts = [load_index(self.paths, self.manifest)]
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.empty(0, BLOCK_ROW), *self._parts])]
        return self._parts[0]

    def has_chain_after(self, number: int, chain: bytes) -> bool:
        """Return whether this is the chain hash after a block, by one row if it is; raises DamagedError as `rows`."""
        if self.manifest is not None and not self._parts:
            if self._index is None:
                mapped = np.asarray(FileMap(self.paths.index, (number + 1) * BLOCK_ROW.itemsize))
                self._index = np.frombuffer(mapped, BLOCK_ROW, count=len(mapped) // BLOCK_ROW.itemsize)
            if number < len(self._index) and chain_after(self._index, number) == chain:
                return True
        return chain_after(self.rows, number) == chain

    @property
    def tokens(self) -> npt.NDArray[np.unsignedinteger]:
        """The tokens, ``[blocks, block_tokens]``: a read-only view of the file."""
        if not self._watch.look([self._tokens, self._documents]):  # a repair put other files in their place
            self.unmap()
        if len(self._tokens) < self.blocks:
            file = FileMap(self.paths.tokens, self.blocks * self._info.block_bytes)
            if self._whole:
                file.advise_large_pages()
            whole = file.size // self._info.block_bytes
            flat = np.asarray(file)[: whole * self._info.block_bytes].view(self._info.dtype)
            self._tokens = flat.reshape(whole, self._info.block_tokens)
            self._sound = marks_of(file.identity, whole)
        return self._tokens[: self.blocks]

    def entry(self, number: int) -> memoryview:
        """Return the entry of a block: a read-only view of the file."""
        return self.documents(*entry_span(self.rows, number))

    def documents(self, start: int, end: int) -> memoryview:
        """Return these bytes of the document table, which must be committed: a read-only view of the file."""
        return self._table(end).data[start:end]

    def pieces(self, numbers: Numbers, *, check: bool) -> Pieces:
        """Return the pieces of any blocks; raises DamagedError where an entry cannot be read, or fails its CRC."""
        return self._read_pieces(numbers, check=check)[2]

    def metas(self, numbers: Numbers, begins: Numbers, *, check: bool) -> tuple[npt.NDArray[np.void], list[bytes]]:
        """Return the pieces that begin at these tokens of blocks, and their metas; raises as `pieces`."""
        blocks, owners = np.unique(numbers, return_inverse=True)
        table, starts, pieces = self._read_pieces(blocks, check=check)
        return metas_in(table, starts, pieces, owners, begins)

    def _read_pieces(self, numbers: Numbers, *, check: bool) -> tuple[npt.NDArray[np.uint8], Numbers, Pieces]:
        """Return the document table, where the entries of blocks begin there, and their pieces."""
        docs_end = self.rows["docs_end"]
        table = self._table(int(docs_end[-1]))
        ends = docs_end[numbers].astype(np.int64)
        starts = docs_end[numbers - 1].astype(np.int64)
        starts[numbers == 0] = 0
        if check:
            self._check_entries(table, numbers, starts, ends)
        try:
            return table, starts, pieces_in(table, starts, ends, self._info.block_tokens)
        except UnreadableEntryError as error:
            number = self.paths.first + int(numbers[error.at])
            raise damaged(self.paths.documents, f"the entry of block {number} cannot be read") from error

    def _check_entries(self, table: npt.NDArray[np.uint8], numbers: Numbers, starts: Numbers, ends: Numbers) -> None:
        """Hold entries against their CRCs; where many of a sealed segment were asked for, the whole table, once."""
        self._entries_asked += len(numbers)
        # Once an eighth of a sealed segment's entries was asked for, to check all with one call costs less.
        if self._entries_asked * 8 >= self.blocks and self._table_is_sound is None and self.manifest:
            self._table_is_sound = crc32(table[: self.manifest.docs_bytes]) == self.manifest.docs_crc32
        if self._table_is_sound:
            return
        data, wanted = table.data, self.rows["entry_crc"][numbers].tolist()
        for number, start, end, crc in zip(numbers.tolist(), starts.tolist(), ends.tolist(), wanted, strict=True):
            if crc32(data[start:end]) != crc:
                raise self._entry_damage(number, start)

    def _table(self, end: int) -> npt.NDArray[np.uint8]:
        if not self._watch.look([self._tokens, self._documents]):
            self.unmap()
        if len(self._documents) < end:
            self._documents = np.asarray(FileMap(self.paths.documents, end))
        return self._documents

    def unmap(self) -> None:
        """Drop the maps, and the rows of a sealed segment; they are made again when they are needed."""
        self._tokens = np.empty((0, self._info.block_tokens), self._info.dtype)
        self._sound = np.zeros(0, np.bool_)
        self._documents = np.empty(0, np.uint8)
        self._entries_asked = 0
        self._table_is_sound = None
        self._index = None
        if self.manifest is not None:
            self._parts = []

    def check(self, number: int) -> None:
        """Raise DamagedError where the tokens of a block, or its entry, fail their CRC."""
        if crc32(self.tokens[number]) != self.rows["tokens_crc"][number]:
            raise self.token_damage(number)
        self.check_entry(number)

    def token_damage(self, number: int) -> DamagedError:
        """Return the error for a block whose tokens fail their CRC."""
        at = number * self._info.block_bytes
        return damaged(self.paths.tokens, f"block {self.paths.first + number}, at byte {at}, is not what was committed")

    def unsound(self, numbers: Numbers) -> Numbers:
        """Return those of some blocks, each once, whose tokens fail their CRC; raises DamagedError as `tokens`."""
        tokens = self.tokens
        rest = numbers[~self._sound[numbers]]
        if not len(rest):
            return rest
        crcs, marks = self.rows["tokens_crc"][: self.blocks], self._sound[: self.blocks]
        whole = self._whole and self.manifest is not None  # a growing one is mapped again, and its marks are gone
        return unsound(tokens, crcs, marks, _once(rest, self.blocks), whole=whole)

    def sound(self) -> Marks:
        """Return which blocks were found to be what was committed, ``[blocks]``, by anyone in this process."""
        return self._sound[: self.blocks]

    def check_entry(self, number: int) -> None:
        """Raise DamagedError where the entry of a block fails its CRC."""
        if crc32(self.entry(number)) != self.rows["entry_crc"][number]:
            raise self._entry_damage(number, entry_span(self.rows, number)[0])

    def _entry_damage(self, number: int, at: int) -> DamagedError:
        what = f"the entry of block {self.paths.first + number}, at byte {at}, is not what was committed"
        return damaged(self.paths.documents, what)

    def torn(self) -> DamagedError | None:
        """Return the error for what stands behind the last whole record of the commit log, once no writer is at it."""
        size = self.paths.commits.stat().st_size if self.manifest is None and self.paths.commits.exists() else 0
        if size <= self._log_bytes:
            return None
        what = f"what stands at byte {self._log_bytes}, behind the records of {self.blocks} blocks, is no record"
        return damaged(self.paths.commits, what)

    def _look_at_files(self) -> None:
        """Look for the manifest, unless the commit log still is the file that was read; drop what is of another."""
        try:
            file = self.paths.commits.stat().st_ino
        except FileNotFoundError:
            file = 0
        if self._log_bytes and file == self._log_file:
            return
        self.manifest = load_manifest(self.paths, self._info, self._partition)
        if self._log_bytes and (file or self.manifest is not None):
            self.unmap()
            self._parts, self._log_bytes, self.blocks, self.damage = [], 0, 0, None

    def _read_log(self) -> None:
        found = self._scan_log()
        if found.damage:
            # Seen while the writer finished one record and began the next: the first is whole when looked at again.
            found = self._scan_log()
        self.damage = None
        if found.damage:
            error = damaged(self.paths.commits, f"after {self._log_bytes} good bytes, {found.damage}")
            if self._refuse:
                raise error
            self.damage = str(error)
        self._parts += [commit.rows for commit in found.commits]
        self.blocks += sum(len(commit.rows) for commit in found.commits)
        self._log_bytes += found.end

    def _scan_log(self) -> Scan:
        try:
            with regular_file(self.paths.commits) as file:
                self._log_file = os.fstat(file.fileno()).st_ino
                file.seek(self._log_bytes)
                log = file.read()
        except FileNotFoundError:  # the segment's first block is still to come
            log = b""
        return scan(
            log,
            block_bytes=self._info.block_bytes,
            segment_blocks=self._info.segment_blocks,
            blocks=self.blocks,
            docs_bytes=int(self.rows["docs_end"][-1]) if self.blocks else 0,
        )


def _once(rows: Numbers, count: int) -> Numbers:
    """Return rows of ``range(count)`` in order, each once; without sorting arrays, which costs more."""
    if len(rows) * 64 < count:
        return np.array(sorted(set(rows.tolist())))
    wanted = np.zeros(count, np.bool_)
    wanted[rows] = True
    return np.flatnonzero(wanted)
