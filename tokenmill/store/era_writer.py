"""The writer of a stream's eras in one store: appends them in order, commits them, and recovers what a crash left."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tokenmill.eras import Era, EraLog
from tokenmill.errors import DamagedError, GapError, StoreError
from tokenmill.store.durable import blaming, sync_directory, write_at
from tokenmill.store.era_reader import EraReader
from tokenmill.store.era_rows import COMMIT_ROWS, ROW_BYTES, EraRow, encode_commit, row_seed
from tokenmill.store.layout import ERA_INDEX_FILE, ERA_LINES_FILE, stream_directory
from tokenmill.store.lock import PartitionLock
from tokenmill.store.store import Store, read_stream
from tokenmill.store.stream import StreamInfo
from tokenmill.untrusted import open_regular


class EraWriter:
    """The one writer of a stream's eras in a store, from `open` to `close`; not for several threads at once.

    It holds the lock on the stream's directory. When a write or a sync fails, it is closed: what a failed sync left on
    the disk is unknown, and only a new `open`, which recovers, may go on.
    """

    def __init__(self, directory: Path, info: StreamInfo, lock: PartitionLock) -> None:
        """Recover in the locked directory; callers use `open`."""
        self._directory = directory
        self._lock: PartitionLock | None = lock
        self._files: list[int] = []
        reader = EraReader(directory, info)
        if reader.ahead:  # no writer leaves that, and to cut them off would lose what was committed
            raise reader.lines_missing
        self.next_number = reader.eras
        """The number of the era that `append` wants next."""
        last = None
        for number in range(max(reader.eras - COMMIT_ROWS, 0), reader.eras):  # these may have been hit by a power loss
            last = reader.era(number)
        self._seed = row_seed(info.fingerprint)
        self._row = reader.row(reader.eras - 1)
        self.position = self._row.offset if last is not None else None
        """Offset on the control topic of the last era's record; None before the first."""
        self._log = EraLog(info.fingerprint, last)
        self.truncated_bytes = self._recover(reader)
        """Bytes that recovery cut off because they had never been committed."""

    @property
    def last(self) -> Era | None:
        """The last era of the store, None before the first: where an `EraFollower` goes on, with `position`."""
        return self._log.last

    @classmethod
    def open(cls, store: Store, stream: str) -> Self:
        """Lock the eras of a stream that the store holds, recover them, and be ready to append.

        Raises:
            LockedError: another writer holds them.
            DamagedError: what was committed is damaged.
            StoreError: the store lacks the stream.
            DiskError: the store cannot be read or written to, or is no longer in its place.

        """
        directory = stream_directory(store.path, stream)
        lock = None
        try:
            with blaming(directory):
                store.require()
                info = read_stream(store.path, stream)
                lock = PartitionLock(directory)
                return cls(directory, info, lock)
        except BaseException:
            if lock is not None:
                lock.close()
            raise

    def append(self, eras: Sequence[tuple[Era, int]]) -> None:
        """Write eras, each with its record's offset on the control topic; durable and visible when this returns.

        Raises:
            GapError: one does not continue the one before; nothing is written.
            DiskError: a write or sync failed, or the directory was moved away; the writer is closed.

        """
        if self._lock is None:
            raise StoreError(f"the writer of the eras in {self._directory} is closed; open it again, which recovers")
        self._require_continuing(eras)
        try:
            with blaming(self._directory):
                self._lock.check_place()
                for first in range(0, len(eras), COMMIT_ROWS):
                    self._commit(eras[first : first + COMMIT_ROWS])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unlock the eras."""
        while self._files:
            os.close(self._files.pop())
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_continuing(self, eras: Sequence[tuple[Era, int]]) -> None:
        log = EraLog(self._log.fingerprint, self._log.last)
        for era, _ in eras:
            if log.add(era.pack()) is None:
                raise GapError(
                    f"{self._directory} wants an era that continues era {log.next_number - 1} and was given era "
                    f"{era.number}, which does not: eras must come through an EraFollower that began at this "
                    "writer's last era"
                )

    def _commit(self, eras: Sequence[tuple[Era, int]]) -> None:
        """Make eras durable and visible: lines, sync, rows, sync."""
        lines, rows = encode_commit(eras, self._seed, self._row)
        text, index = self._files
        write_at(text, lines, self._row.stop)
        os.fdatasync(text)
        write_at(index, rows, self.next_number * ROW_BYTES)
        os.fdatasync(index)
        self._row = EraRow.decode(rows[-ROW_BYTES:])
        self.next_number += len(eras)
        self.position = eras[-1][1]
        for era, _ in eras:
            self._log.add(era.pack())

    def _recover(self, reader: EraReader) -> int:
        """Cut off what was never committed, and make the last commit durable; return the bytes cut off.

        The last rows may have been written without their sync having returned, or with its having failed; the page
        cache shows them all the same. Written again, they are on the disk when this returns.
        """
        wanted = self._row.stop, reader.eras * ROW_BYTES
        truncated = 0
        try:
            for name, length in zip((ERA_LINES_FILE, ERA_INDEX_FILE), wanted, strict=True):
                file = open_regular(self._directory / name, os.O_RDWR | os.O_CREAT)
                self._files.append(file)
                truncated += max(os.fstat(file).st_size - length, 0)
                os.ftruncate(file, length)
            sync_directory(self._directory)
            first = max(reader.eras - COMMIT_ROWS, 0)
            index = self._files[1]
            write_at(index, os.pread(index, (reader.eras - first) * ROW_BYTES, first * ROW_BYTES), first * ROW_BYTES)
            for file in self._files:
                os.fsync(file)
        except (OSError, DamagedError):
            self.close()
            raise
        return truncated
