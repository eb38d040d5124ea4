"""One segment, open for reading, sealed or growing."""

import os
from typing import Final

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError
from tokenmill.store.checking import Marks, Numbers, marks_of, unsound
from tokenmill.store.commit_log import Scan, scan
from tokenmill.store.damage import damaged
from tokenmill.store.document_table import Pieces, UnreadableEntryError, metas_in, pieces_in
from tokenmill.store.layout import SegmentPaths
from tokenmill.store.maps import FileMap, MapWatch
from tokenmill.store.rows import BLOCK_ROW, Rows, chain_after, entry_span
from tokenmill.store.sealed import load_index, load_manifest
from tokenmill.store.stream import StreamInfo
from tokenmill.store.views import Tokens
from tokenmill.untrusted import regular_file

_ENTRIES_DENSE: Final = 8
"""Once one in so many of a sealed segment's entries was asked for, to check all with one call costs less."""


class Segment:
    """The committed blocks of one segment, as of the last `refresh`; blocks are counted from 0 here.

    Maps are made when they are first needed and again when the segment has outgrown them. Views of earlier maps stay
    valid: committed bytes are never written again or cut off.
    """

    def __init__(
        self, paths: SegmentPaths, info: StreamInfo, partition: int, *, refuse: bool = True, whole: bool = False
    ) -> None:
        """Read what is committed now.

        Without ``refuse``, blocks before damage in the commit log can be read. With ``whole``, all tokens will be read
        soon: the system may read and map them in large pieces.
        """
        self.paths = paths
        self.blocks = 0
        self.damage: str | None = None
        """Damage to the commit log that was not refused; what the log says after it is not known."""
        self._refuse = refuse
        self._whole = whole
        self.manifest = load_manifest(paths, info, partition)
        """The manifest, if the segment was sealed when it was first read; a growing segment is followed by its commit
        log."""
        self._info = info
        self._partition = partition
        self._parts: list[Rows] = []
        self._log_bytes = 0
        self._log_file = 0
        """The inode of the commit log: a repair replaces the file by one with records of other lengths."""
        self._watch = MapWatch()
        self._tokens: Tokens
        self._sound: Marks
        """Of the blocks in `_tokens`."""
        self._documents: npt.NDArray[np.uint8]
        self._entries_asked: int
        """Of the document table that is mapped."""
        self._table_is_sound: bool | None
        """Whether that has the manifest's CRC; None: nobody looked."""
        self._index: Rows | None
        """The rows of a sealed segment as its index has them, unchecked; `rows` are checked."""
        self.unmap()
        self.refresh()

    def refresh(self) -> int:
        """Read what was committed since; return how many blocks there are. The cost depends on what is new.

        Raises:
            DamagedError: commit log or manifest were changed after they were written, or are another segment's.

        """
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
        """Return whether the chain hash after a block is this one; looks at one row where it is.

        Raises:
            DamagedError: it is another one, and the index is not what the manifest says.

        """
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
        """Return the pieces of any blocks in any order; with ``check``, their entries are held against their CRCs.

        Raises:
            DamagedError: an entry is missing, cannot be read, or is not what was committed.

        """
        return self._read_pieces(numbers, check=check)[2]

    def metas(self, numbers: Numbers, begins: Numbers, *, check: bool) -> tuple[npt.NDArray[np.void], list[bytes]]:
        """Return the pieces of blocks that begin at these tokens, ``[pieces]`` each, and their metas.

        Raises:
            DamagedError: as in `pieces`.

        """
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
        if self._entries_asked * _ENTRIES_DENSE >= self.blocks and self._table_is_sound is None and self.manifest:
            self._table_is_sound = crc32(table[: self.manifest.docs_bytes]) == self.manifest.docs_crc32
        if self._table_is_sound:
            return
        data, wanted = table.data, self.rows["entry_crc"][numbers].tolist()
        for number, start, end, crc in zip(numbers.tolist(), starts.tolist(), ends.tolist(), wanted, strict=True):
            if crc32(data[start:end]) != crc:
                raise self._entry_damage(number, start)

    def _table(self, end: int) -> npt.NDArray[np.uint8]:
        """Return the document table, with as many bytes at least."""
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

    def check_tokens(self, number: int) -> None:
        """Check the CRC of a block's tokens.

        Raises:
            DamagedError: naming the file and the block.

        """
        if crc32(self.tokens[number]) != self.rows["tokens_crc"][number]:
            raise self.token_damage(number)

    def token_damage(self, number: int) -> DamagedError:
        """Return the error for a block whose tokens fail their CRC."""
        at = number * self._info.block_bytes
        return damaged(self.paths.tokens, f"block {self.paths.first + number}, at byte {at}, is not what was committed")

    def unsound(self, numbers: Numbers) -> Numbers:
        """Return those of some blocks, each once, whose tokens fail their CRC.

        A block that was found sound in this process is not looked at again, unless its file was changed since.

        Raises:
            DamagedError: the tokens or the index are missing or cut off, or the index is damaged.

        """
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
        """Check the CRC of a block's entry.

        Raises:
            DamagedError: naming the file and the block.

        """
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
        """See whether the segment is sealed, unless its commit log is still the file that was read before.

        With another log, or with a manifest alone, what was read from the files before is dropped.
        """
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
        """Scan what the commit log holds beyond the records known already."""
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
