"""Reading the eras of a store, while they grow: by number and by block, in constant memory."""

from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import Final

from zlib_ng.zlib_ng import crc32

from tokenmill.eras import Era, era_hash
from tokenmill.errors import DamagedError, InputError
from tokenmill.store.damage import eras_damaged, too_short
from tokenmill.store.era_rows import COMMIT_ROWS, END, ROW_BYTES, EraRow, EraScan, row_seed, scan
from tokenmill.store.file_part import FileAhead, read_part
from tokenmill.store.layout import ERA_INDEX_FILE, ERA_LINES_FILE
from tokenmill.store.stream import StreamInfo

_LONGEST_LINE: Final = 1 << 20
"""Of an era of 10,000 partitions."""


class EraReader:
    """The committed eras of a stream in a store, as of the last `refresh`; eras are never retired, the first is 0.

    Opening, `refresh` and `era` cost the same however many there are; `find` costs its logarithm. No file is kept open.
    """

    def __init__(self, directory: Path, info: StreamInfo) -> None:
        """Read the eras in ``<store>/<stream>``; without files, there are none yet.

        Raises:
            DamagedError: as in `refresh`.

        """
        self.eras = 0
        """The number of the era after the last one."""
        self.blocks = 0
        """Blocks of all eras together."""
        self.ended = False
        """Whether the last era is the end marker: no other will come."""
        self.ahead = 0
        """Eras behind these that the index has and the lines lack: a copy of both is under way, or was interrupted."""
        self._directory = directory
        self._lines = directory / ERA_LINES_FILE
        self._index = directory / ERA_INDEX_FILE
        self._seed = row_seed(info.fingerprint)
        self._rows_ahead, self._lines_ahead = FileAhead(self._index), FileAhead(self._lines)
        self._lines_end = self._index_end = 0
        """Bytes of the lines that are committed; and by the whole index."""
        self.refresh()

    def refresh(self) -> int:
        """Read what was committed since, here or in another process; return `eras`.

        Whoever copies a store may put the index in its place before the lines (rsync goes by name): eras whose lines
        are still to come do not count yet (`ahead`).

        Raises:
            DamagedError: what was committed was changed or is missing.

        """
        size = _size(self._index)
        if size < self.eras * ROW_BYTES:
            raise eras_damaged(self._index, too_short(self._index, size, self.eras * ROW_BYTES))
        if size // ROW_BYTES > self.eras:
            if _size(self._lines) < self._lines_end:
                raise self._cut_off(_size(self._lines), self._lines_end)
            found = self._look(size)
            if found.damage:  # seen while the writer finished one commit and began the next: look again
                found = self._look(_size(self._index))
            if found.damage:
                raise eras_damaged(self._index, found.damage)
            self._hold_back(_size(self._lines))
        return self.eras

    def _hold_back(self, size: int) -> None:
        """Count only the eras whose lines are there, in so many bytes."""
        found, last = self.eras, self.row(self.eras - 1)
        self._index_end = last.stop
        if size < last.stop:
            self.eras = bisect_right(range(found), size, key=lambda number: self.row(number).stop)
            last = self.row(self.eras - 1)
        self.ahead = found - self.eras
        self.blocks, self.ended, self._lines_end = last.blocks, bool(last.flags & END), last.stop

    def era(self, number: int) -> Era:
        """Return an era.

        Raises:
            InputError: it is not committed as of the last `refresh`.
            DamagedError: it is not what was committed.

        """
        line = self._committed(number)
        try:
            return _unpacked(line, number)
        except ValueError as error:
            self._forget()
            what = f"era {number}, at byte {self.row(number - 1).stop}, cannot be read ({error})"
            raise eras_damaged(self._lines, what) from error

    def hash_of(self, number: int) -> bytes:
        """Return the hash of an era, which pins it, all eras before it, and the blocks of all of these.

        Raises:
            as `era`.

        """
        return era_hash(self._committed(number))

    def _committed(self, number: int) -> bytes:
        """Return the line of an era, without its newline, checked against its CRC; raises as `era`."""
        self._require(number)
        try:
            return self._line(number)
        except DamagedError:
            self._forget()
            raise

    def _line(self, number: int) -> bytes:
        low, high, end = max(number - 1, 0) * ROW_BYTES, (number + 1) * ROW_BYTES, self.eras * ROW_BYTES
        rows = self._rows_ahead.read(low, high, end)
        row = self._row_of(number, rows[number * ROW_BYTES - low :])
        first = self._row_of(number - 1, rows[:ROW_BYTES]).stop if number else 0
        line = self._lines_ahead.read(first, row.stop, self._lines_end)
        if len(line) != row.stop - first or crc32(line) != row.line:
            raise eras_damaged(self._lines, f"era {number}, at byte {first}, is not what was committed")
        return line[:-1]

    def blocks_before(self, number: int) -> int:
        """Return how many blocks all eras before ``number`` have together; `eras` may be asked for, too.

        Raises:
            InputError: that is not known as of the last `refresh`.

        """
        return self.row(number - 1).blocks

    def find(self, block: int) -> int:
        """Return the era that holds a block, counted through all eras in their order.

        Raises:
            InputError: no era known as of the last `refresh` holds it.

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
        return self._row_of(number, read_part(self._index, number * ROW_BYTES, (number + 1) * ROW_BYTES))

    def _row_of(self, number: int, row: bytes) -> EraRow:
        if len(row) != ROW_BYTES:
            raise eras_damaged(self._index, f"the row of era {number} is missing")
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
        return eras_damaged(self._index, f"what stands behind its {self.eras} valid rows is none")

    def is_complete(self) -> bool:
        """Return whether the end marker is the last era, or the last line: then all that it ends was written once."""
        size = _size(self._lines)
        last = read_part(self._lines, max(size - _LONGEST_LINE, 0), size).removesuffix(b"\n").rpartition(b"\n")[2]
        with suppress(ValueError):
            return self.ended or Era.unpack(last).end
        return False

    @property
    def lines_missing(self) -> DamagedError:
        """The error for eras that are `ahead` where nobody copies them."""
        return self._cut_off(_size(self._lines), self._index_end)

    def _cut_off(self, size: int, wanted: int) -> DamagedError:
        return eras_damaged(self._lines, too_short(self._lines, size, wanted))

    def _forget(self) -> None:
        self._rows_ahead.forget()
        self._lines_ahead.forget()

    def _require(self, number: int) -> None:
        if not 0 <= number < self.eras:
            raise InputError(
                f"era {number} is not in {self._directory}: it has {self.eras} (as of the last refresh), from 0 on; "
                "refresh and wait, or ask for one of these"
            )


def _unpacked(line: bytes, number: int) -> Era:
    """Return the era of a line; raises ValueError if it is none, or another."""
    era = Era.unpack(line)
    if era.number != number:
        raise ValueError(f"it is era {era.number}")
    return era


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
