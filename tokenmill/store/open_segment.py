"""The segment that is being written: its three files, and the commit that makes what was appended count."""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError
from tokenmill.store.commit_log import UNKNOWN, Commit
from tokenmill.store.durable import sync_directory, write_at
from tokenmill.store.layout import SegmentPaths
from tokenmill.store.rows import BLOCK_ROW, Rows, make_rows
from tokenmill.store.stream import StreamInfo
from tokenmill.untrusted import open_regular


class DataCrcs(NamedTuple):
    """The CRC-32 of a segment's tokens, and that of its document table."""

    tokens: int
    documents: int


class OpenSegment:
    """Append-only; holds open file descriptors until `close`.

    ``rows`` are the committed blocks that recovery found and ``log_bytes`` the length of their commit log. Files that
    are missing are created with the first block, durably, before anything is written to one of them: an empty file
    cannot be mapped, and a reader that maps ``*.bin`` should not have to handle one.
    """

    def __init__(self, paths: SegmentPaths, info: StreamInfo, rows: Rows, log_bytes: int) -> None:
        self.paths = paths
        self._info = info
        self._rows = np.zeros(info.segment_blocks, BLOCK_ROW)
        self._rows[: len(rows)] = rows
        self.blocks = self._committed = len(rows)
        self._docs_bytes = int(rows["docs_end"][-1]) if len(rows) else 0
        self._log_bytes = log_bytes
        self._source_offset = UNKNOWN
        self.written: DataCrcs | None = None if len(rows) else DataCrcs(0, 0)
        """CRCs of all that was appended; None where recovery found a part of it."""
        self._files: list[int] = []

    @property
    def rows(self) -> Rows:
        """The rows of all blocks so far, those not committed yet included."""
        return self._rows[: self.blocks]

    @property
    def room(self) -> int:
        """Blocks that still fit."""
        return self._info.segment_blocks - self.blocks

    def append(self, tokens: memoryview, entries: Sequence[bytes], chains: Sequence[bytes], source_offset: int) -> None:
        """Write blocks after the last; they count, and are durable, only after `commit`."""
        if not self._files:
            self._open()
        bins, docs, _ = self._files
        rows = make_rows(tokens, entries, chains, self._docs_bytes)
        write_at(bins, tokens, self.blocks * self._info.block_bytes)
        documents = b"".join(entries)
        write_at(docs, documents, self._docs_bytes)
        if self.written is not None:
            self.written = DataCrcs(crc32(tokens, self.written.tokens), crc32(documents, self.written.documents))
        self._rows[self.blocks : self.blocks + len(rows)] = rows
        self.blocks += len(rows)
        self._docs_bytes = int(rows["docs_end"][-1])
        self._source_offset = source_offset

    def _open(self) -> None:
        try:
            for path in (self.paths.tokens, self.paths.documents, self.paths.commits):
                self._files.append(open_regular(path, os.O_RDWR | os.O_CREAT))
            sync_directory(self.paths.directory)
        except (OSError, DamagedError):
            self.close()
            raise

    def commit(self) -> None:
        """Make all that was appended durable and visible: data, sync, record, sync."""
        if self._committed == self.blocks:
            return
        bins, docs, log = self._files
        os.fdatasync(bins)
        os.fdatasync(docs)
        rows = self._rows[self._committed : self.blocks]
        record = Commit(
            blocks=self.blocks,
            bin_bytes=self.blocks * self._info.block_bytes,
            docs_bytes=self._docs_bytes,
            chain=rows["chain"][-1].tobytes(),
            source_offset=self._source_offset,
            rows=rows,
        ).encode()
        write_at(log, record, self._log_bytes)
        os.fdatasync(log)
        self._log_bytes += len(record)
        self._committed = self.blocks

    def close(self) -> None:
        """Close the files; what was appended and not committed is discarded."""
        while self._files:
            os.close(self._files.pop())
