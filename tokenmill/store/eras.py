"""The eras of a stream in a store: their lines and the index of them, one writer, any number of readers.

The index has one row of 48 bytes for each line of ``eras.jsonl``, which makes that line count (docs/format.md). Lines
are on disk before their rows are written, and the rows of one commit before the next commit begins.
"""

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Self

from zlib_ng.zlib_ng import crc32

from tokenmill.eras import Era, EraLog, era_hash
from tokenmill.errors import DamagedError, GapError, InputError, StoreError
from tokenmill.store import layout
from tokenmill.store.layout import StorePath
from tokenmill.store.maps import FileAhead, read_part
from tokenmill.store.store import Store, StreamInfo, read_stream
from tokenmill.untrusted import open_regular

ROW_BYTES: Final = 48
COMMIT_ROWS: Final = 64
"""Most eras in one commit, and one less than a reader that opens the index looks at: those before are finished."""
END: Final = 1
_ROW: Final = Struct("<QQQQIIII")
_CRC: Final = Struct("<I")
_CRC_AT: Final = ROW_BYTES - _CRC.size


class EraRow(NamedTuple):
    """One row, with the fields that docs/format.md describes; ``EraRow()`` is the row before the first."""

    stop: int = 0
    blocks: int = 0
    offset: int = 0
    closed: int = 0
    flags: int = 0
    earlier: int = 0
    line: int = 0
    crc: int = 0

    @classmethod
    def decode(cls, row: bytes) -> Self:
        """Return the row that these 48 bytes spell."""
        return cls(*_ROW.unpack(row))


@dataclass(frozen=True, slots=True)
class EraScan:
    """The content of an index."""

    count: int
    damage: str | None
    """Why what follows it cannot be a commit whose writing was cut off; None if it can."""


def row_seed(fingerprint: bytes) -> int:
    """Return the start value of each row's CRC in a stream with this fingerprint."""
    return crc32(b"tokenmill eras 1" + fingerprint)


def encode_commit(eras: Sequence[tuple[Era, int]], seed: int, before: EraRow) -> tuple[bytes, bytes]:
    """Return the lines and the rows of one commit: eras that follow the one of row ``before``, each with its offset."""
    lines, rows = [], []
    for earlier, (era, offset) in enumerate(eras):
        line = era.pack() + b"\n"
        row = encode_row((era, offset), line, seed, before, earlier)
        before = EraRow.decode(row)
        rows.append(row)
        lines.append(line)
    return b"".join(lines), b"".join(rows)


def encode_row(era_at: tuple[Era, int], line: bytes, seed: int, before: EraRow, earlier: int) -> bytes:
    """Return the row of an era, given with its offset, whose ``line`` follows that of row ``before``."""
    era, offset = era_at
    stop, blocks = before.stop + len(line), before.blocks + era.blocks
    row = _ROW.pack(stop, blocks, offset, era.closed, END * era.end, earlier, crc32(line), 0)[:_CRC_AT]
    return row + _CRC.pack(_crc(seed, era.number, row))


def scan(rows: bytes, seed: int, number: int) -> EraScan:
    """Look at the rows from ``number`` on; each is valid or not by itself.

    Those of a commit are written in any order, and are on disk before the next one begins: so an invalid row counts as
    never written only if no later commit follows.
    """
    cut = [rows[at : at + ROW_BYTES] for at in range(0, len(rows) - ROW_BYTES + 1, ROW_BYTES)]
    valid = [
        _crc(seed, n, row[:_CRC_AT]) == int.from_bytes(row[_CRC_AT:], "little") for n, row in enumerate(cut, number)
    ]
    count = valid.index(False) if False in valid else len(cut)
    for index in range(count + 1, len(cut)):
        if valid[index] and index - EraRow.decode(cut[index]).earlier > count:
            return EraScan(count, f"the row of era {number + count} is damaged (that of era {number + index} is whole)")
    return EraScan(count, None)


def _crc(seed: int, number: int, row: bytes) -> int:
    return crc32(row, crc32(number.to_bytes(8, "little"), seed))


class EraReader:
    """The committed eras of a stream in a store, as of the last `refresh`; eras are never retired, the first is 0.

    Opening, `refresh` and `era` cost the same however many there are; `find` costs its logarithm. No file is kept open.
    """

    def __init__(self, directory: Path, info: StreamInfo) -> None:
        """Read the eras in ``<store>/<stream>``; without files, there are none yet. Raises as `refresh`."""
        self.eras = 0
        """The number of the era after the last one."""
        self.blocks = 0
        """Blocks of all eras together."""
        self.ended = False
        """Whether the last era is the end marker: no other will come."""
        self.ahead = 0
        """Eras behind these that the index has and the lines lack: a copy of both is under way, or was interrupted."""
        self._directory = directory
        self._lines = directory / layout.ERA_LINES_FILE
        self._index = directory / layout.ERA_INDEX_FILE
        self._seed = row_seed(info.fingerprint)
        self._forget()
        self._lines_end = self._index_end = 0
        """Bytes of the lines that are committed; and by the whole index."""
        self.refresh()

    def refresh(self) -> int:
        """Read what was committed since, here or in another process; return `eras`.

        A copy of a store may have the index in its place before the lines (rsync goes by name): eras whose lines
        are still to come do not count yet (`ahead`).

        Raises DamagedError where what was committed was changed or is missing.
        """
        size = _size(self._index)
        if size < self.eras * ROW_BYTES:
            raise layout.eras_damaged(self._index, layout.too_short(self._index, size, self.eras * ROW_BYTES))
        if size // ROW_BYTES > self.eras:
            if _size(self._lines) < self._lines_end:
                raise self._cut_off(_size(self._lines), self._lines_end)
            damage = self._look(size).damage
            if damage:  # seen while the writer finished one commit and began the next: look again
                damage = self._look(_size(self._index)).damage
            if damage:
                raise layout.eras_damaged(self._index, damage)
            found, last, lines = self.eras, self.row(self.eras - 1), _size(self._lines)
            self._index_end = last.stop
            if lines < last.stop:
                self.eras = bisect_right(range(found), lines, key=lambda number: self.row(number).stop)
                last = self.row(self.eras - 1)
            self.ahead = found - self.eras
            self.blocks, self.ended, self._lines_end = last.blocks, bool(last.flags & END), last.stop
        return self.eras

    def era(self, number: int) -> Era:
        """Return an era.

        Raises InputError where it is not committed as of the last `refresh`; DamagedError where it is not what was
        committed.
        """
        if (kept := self._kept.get(number)) is not None:
            return kept
        line = self._committed(number)
        try:
            era = Era.unpack(line)
            if era.number == number:
                if len(self._kept) >= 4:  # noqa: PLR2004 - who reads ahead, looks and locates asks for the same ones
                    self._kept.clear()
                self._kept[number] = era
                return era
            why = f"it is era {era.number}"
        except ValueError as error:
            why = str(error)
        self._forget()
        what = f"era {number}, at byte {self.row(number - 1).stop}, cannot be read ({why})"
        raise layout.eras_damaged(self._lines, what)

    def hash_of(self, number: int) -> bytes:
        """Return the hash of an era, which pins it, all eras before it, and the blocks of all of these.

        Raises as `era`.
        """
        return era_hash(self._committed(number))

    def _committed(self, number: int) -> bytes:
        """Return the line of an era, without its newline, checked against its CRC; raises as `era`."""
        self._require(number)
        try:
            return self._line(number)
        except DamagedError:  # it may have been repaired when it is read again
            self._forget()
            raise

    def _forget(self) -> None:
        self._rows_ahead, self._lines_ahead = FileAhead(self._index), FileAhead(self._lines)
        self._kept: dict[int, Era] = {}
        self._rows: dict[int, EraRow] = {}
        """Some of the index, by era; any thread may ask for a row."""

    def _line(self, number: int) -> bytes:
        low, high, end = max(number - 1, 0) * ROW_BYTES, (number + 1) * ROW_BYTES, self.eras * ROW_BYTES
        rows = self._rows_ahead.read(low, high, end)
        row = self._row_of(number, rows[number * ROW_BYTES - low :])
        first = self._row_of(number - 1, rows[:ROW_BYTES]).stop if number else 0
        line = self._lines_ahead.read(first, row.stop, self._lines_end)
        if len(line) != row.stop - first or crc32(line) != row.line:
            raise layout.eras_damaged(self._lines, f"era {number}, at byte {first}, is not what was committed")
        return line[:-1]

    def blocks_before(self, number: int) -> int:
        """Return how many blocks all eras before ``number`` have together; `eras` may be asked for, too.

        Raises InputError where that is not known as of the last `refresh`.
        """
        return self.row(number - 1).blocks

    def find(self, block: int) -> int:
        """Return the era that holds a block, counted through all eras in their order.

        Raises InputError where no era known as of the last `refresh` holds it.
        """
        if not 0 <= block < self.blocks:
            raise InputError(f"the eras of {self._directory} have {self.blocks} blocks, not {block + 1}: refresh, wait")
        return bisect_right(range(self.eras), block, key=lambda number: self.row(number).blocks)

    def row(self, number: int) -> EraRow:
        """Return the index's row of a committed era; for era -1, the row before the first.

        Only `era` compares a row with the era's line.
        """
        if number == -1:
            return EraRow()
        self._require(number)
        row = self._rows.get(number)
        if row is None:
            row = self._row_of(number, read_part(self._index, number * ROW_BYTES, (number + 1) * ROW_BYTES))
            if len(self._rows) >= 1024:  # noqa: PLR2004 - a run asks for the same ones again and again
                self._rows.clear()
            self._rows[number] = row
        return row

    def _row_of(self, number: int, row: bytes) -> EraRow:
        if len(row) != ROW_BYTES:
            raise layout.eras_damaged(self._index, f"the row of era {number} is missing")
        return EraRow.decode(row)

    def _look(self, size: int) -> EraScan:
        """Find the rows that count in an index of ``size`` bytes, and take them over."""
        rows = size // ROW_BYTES
        first = max(self.eras, rows - COMMIT_ROWS - 1)  # it, and those before, belong to finished commits
        new = read_part(self._index, first * ROW_BYTES, rows * ROW_BYTES)
        found = scan(new, self._seed, first)
        if found.damage is None and found.count:
            self.eras = first + found.count
        elif found.damage is None and first > self.eras:
            return EraScan(0, f"the row of era {first} is damaged ({rows - first - 1} stand behind it)")
        return found

    def torn(self) -> DamagedError | None:
        """Return the error for what stands behind the last valid row, once no writer is at it; None: nothing does."""
        if self.ahead or _size(self._index) <= self.eras * ROW_BYTES:
            return None
        return layout.eras_damaged(self._index, f"what stands behind its {self.eras} valid rows is none")

    def is_complete(self) -> bool:
        """Return whether the end marker is the last era, or the last line: then all that it ends was written once."""
        size = _size(self._lines)
        end = read_part(self._lines, max(size - (1 << 20), 0), size)  # lines of 10,000 partitions are as long
        last = end.removesuffix(b"\n").rpartition(b"\n")[2]
        with suppress(ValueError):
            return self.ended or Era.unpack(last).end
        return False

    @property
    def lines_missing(self) -> DamagedError:
        """The error for eras that are `ahead` while nothing is copied."""
        return self._cut_off(_size(self._lines), self._index_end)

    def _cut_off(self, size: int, wanted: int) -> DamagedError:
        return layout.eras_damaged(self._lines, layout.too_short(self._lines, size, wanted))

    def _require(self, number: int) -> None:
        if not 0 <= number < self.eras:
            raise InputError(
                f"era {number} is not in {self._directory}: it has {self.eras} (as of the last refresh), from 0 on; "
                "refresh and wait, or ask for one of these"
            )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class EraWriter(layout.Closing):
    """The one writer of a stream's eras in a store, from `open` to `close`, with the lock; not for several threads.

    When a write or a sync fails, it is closed: what a failed sync left on the disk is unknown, and only a new `open`,
    which recovers, may go on.
    """

    def __init__(self, directory: Path, info: StreamInfo, lock: layout.PartitionLock) -> None:
        """Recover in the locked directory; callers use `open`."""
        self._directory = directory
        self._lock: layout.PartitionLock | None = lock
        self._files: list[int] = []
        reader = EraReader(directory, info)
        if reader.ahead:  # no writer leaves that, and to cut them off would lose what was committed
            raise reader.lines_missing
        self.next_number = reader.eras
        last = None
        for number in range(max(reader.eras - COMMIT_ROWS, 0), reader.eras):  # these may have been hit by a power loss
            last = reader.era(number)
        self._seed = row_seed(info.fingerprint)
        self._row = reader.row(reader.eras - 1)
        self.position = self._row.offset if last is not None else None
        """Offset on the control topic of the last era's record; None before the first."""
        self._log = EraLog(info.fingerprint, last)
        self.truncated_bytes = self._recover(reader)

    @property
    def last(self) -> Era | None:
        """The last era of the store, None before the first: where an `EraFollower` goes on, with `position`."""
        return self._log.last

    @classmethod
    def open(cls, store: Store, stream: str) -> Self:
        """Lock the eras of a stream that the store holds, recover them, and be ready to append.

        Raises LockedError for another writer; DamagedError for committed eras; StoreError where the store lacks the
        stream; DiskError where it cannot be read or written to, or is no longer in its place.
        """
        directory = layout.stream_directory(store.path, stream)
        with ExitStack() as stack, layout.blaming(directory):
            store.require()
            info = read_stream(store.path, stream)
            writer = cls(directory, info, stack.enter_context(layout.PartitionLock(directory)))
            stack.pop_all()
            return writer

    def append(self, eras: Sequence[tuple[Era, int]]) -> None:
        """Write eras, each with its record's offset on the control topic; durable and visible when this returns.

        Raises GapError where one does not continue the one before: nothing is written; DiskError where a write or sync
        failed, or the directory was moved away; the writer is closed.
        """
        if self._lock is None:
            raise StoreError(f"the writer of the eras in {self._directory} is closed; open it again, which recovers")
        log = EraLog(self._log.fingerprint, self._log.last)
        for era, _ in eras:
            if log.add(era.pack()) is None:
                raise GapError(
                    f"{self._directory} wants an era that continues era {log.next_number - 1} and was given era "
                    f"{era.number}, which does not: eras must come through an EraFollower that began at this "
                    "writer's last era"
                )
        try:
            with layout.blaming(self._directory):
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

    def _commit(self, eras: Sequence[tuple[Era, int]]) -> None:
        """Make eras durable and visible: lines, sync, rows, sync."""
        lines, rows = encode_commit(eras, self._seed, self._row)
        text, index = self._files
        layout.write_at(text, lines, self._row.stop)
        os.fdatasync(text)
        layout.write_at(index, rows, self.next_number * ROW_BYTES)
        os.fdatasync(index)
        self._row = EraRow.decode(rows[-ROW_BYTES:])
        self.next_number += len(eras)
        self.position = eras[-1][1]
        for era, _ in eras:
            self._log.add(era.pack())

    def _recover(self, reader: EraReader) -> int:
        """Cut off what was never committed, and make the last commit durable; return the bytes cut off.

        The page cache shows rows whose sync did not return, or failed: written again, they are on the disk.
        """
        wanted = self._row.stop, reader.eras * ROW_BYTES
        truncated = 0
        try:
            for name, length in zip((layout.ERA_LINES_FILE, layout.ERA_INDEX_FILE), wanted, strict=True):
                file = open_regular(self._directory / name, os.O_RDWR | os.O_CREAT)
                self._files.append(file)
                truncated += max(os.fstat(file).st_size - length, 0)
                os.ftruncate(file, length)
            layout.sync_directory(self._directory)
            first, index = max(reader.eras - COMMIT_ROWS, 0) * ROW_BYTES, self._files[1]
            layout.write_at(index, os.pread(index, wanted[1] - first, first), first)
            for file in self._files:
                os.fsync(file)
        except (OSError, DamagedError):
            self.close()
            raise
        return truncated


def open_eras(store: StorePath, stream: str) -> EraReader:
    """Open the eras of a stream in a store, or in any copy of one, for reading.

    Raises StoreError where the store holds no such stream; DamagedError where what was committed was changed or is
    missing.
    """
    return EraReader(layout.stream_directory(layout.store_directory(store), stream), read_stream(store, stream))
