"""The store's side of the eras: its lines and rows in order, held against the records of the control topic."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from zlib_ng.zlib_ng import crc32

from tokenmill.eras import Era
from tokenmill.errors import DamagedError
from tokenmill.store import StreamInfo, open_eras, streams_in
from tokenmill.store.era_reader import ERA_ADVICE
from tokenmill.store.era_rows import COMMIT_ROWS, ROW_BYTES, EraRow, encode_row, row_seed, scan
from tokenmill.store.layout import ERA_INDEX_FILE, ERA_LINES_FILE, stream_directory

from .result import Kind

LOOKS: Final = 10
"""Looks at rows that do not count, before they are called damage: a writer is done with them in a moment."""
LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class StoreEras:
    """How many eras a store held at the mark."""

    eras: int
    damage: str | None = None
    """Why they cannot be read at all (then ``eras`` is 0), or what stands behind them."""

    @classmethod
    def look(cls, store: Path | None, stream: str) -> Self | None:
        """Return the mark of a stream; None where there is no store, or the stream is not in it."""
        if store is None or stream not in streams_in(store):
            return None
        try:
            reader = open_eras(store, stream)
            index = stream_directory(store, stream) / ERA_INDEX_FILE
            rows = 0
            for _ in range(LOOKS):
                reader.refresh()
                rows = index.stat().st_size // ROW_BYTES if index.exists() else 0
                if rows <= reader.eras:
                    return cls(reader.eras)
                time.sleep(LOOK_SECONDS)
        except DamagedError as error:
            return cls(0, str(error))
        text = f"{rows - reader.eras} rows of {index} from era {reader.eras} on are not whole. A segment worker that is"
        return cls(reader.eras, f"{text} started cuts them off, and brings these eras again")


class EraFinding(NamedTuple):
    """What is the matter with an era in the store."""

    kind: Kind
    text: str


class EraCopy:
    """The eras of a store from one on, in order; as many as it held at the mark."""

    def __init__(self, store: Path, info: StreamInfo, mark: StoreEras, before: EraRow) -> None:
        """Begin behind an era of which the row says ``before``, ``EraRow()`` for the first; `opened` reads."""
        directory = stream_directory(store, info.name)
        self._lines = directory / ERA_LINES_FILE
        self._index = directory / ERA_INDEX_FILE
        self._mark = mark
        self._seed = row_seed(info.fingerprint)
        self._row = before
        self._earlier: int | None = None
        """The place in its commit of the row before; None where that is not known."""

    @contextmanager
    def opened(self, first: int) -> Iterator[Self]:
        """Open the files at era ``first``; nothing is read where the store holds none from there on."""
        if first >= self._mark.eras:
            yield self
            return
        with self._lines.open("rb") as self._line_file, self._index.open("rb") as self._row_file:
            self._line_file.seek(self._row.stop)
            self._row_file.seek(first * ROW_BYTES)
            yield self

    def compare(self, era: Era, offset: int) -> EraFinding | None:
        """Hold the next era, whose record stands at ``offset``, against the store; None: equal, or not there yet."""
        if era.number >= self._mark.eras:
            return None
        stored = self._row_file.read(ROW_BYTES)
        line = era.pack() + b"\n"
        held = self._line_file.read(len(line))
        row = EraRow.decode(stored) if len(stored) == ROW_BYTES else EraRow()
        wanted = encode_row((era, offset), line, self._seed, self._row, row.earlier)
        if held != line:
            return self._other_line(era, row, stored)
        if stored != wanted or not self._fits(row.earlier):
            must = EraRow.decode(wanted)
            told = [name for name in EraRow._fields[:-1] if getattr(row, name) != getattr(must, name)]
            fields = ", ".join(told) or "its checksum or place"
            return EraFinding(
                "damaged", f"{self._index}: the row of era {era.number} is wrong ({fields}). {ERA_ADVICE}"
            )
        self._row, self._earlier = row, row.earlier
        return None

    def _other_line(self, era: Era, row: EraRow, stored: bytes) -> EraFinding:
        """Tell a line that is not what was committed from another era that was."""
        first = self._row.stop
        self._line_file.seek(first)
        found = self._line_file.read(max(min(row.stop - first, self._lines.stat().st_size), 0))
        if scan(stored, self._seed, era.number).count and crc32(found) == row.line:
            return EraFinding(
                "different",
                f"{self._lines}: era {era.number} is another than on the control topic, which was rewritten, or the "
                f"store is another stream's. {ERA_ADVICE}",
            )
        text = f"{self._lines}: era {era.number}, at byte {first}, is not what was committed. {ERA_ADVICE}"
        return EraFinding("damaged", text)

    def _fits(self, earlier: int) -> bool:
        if self._earlier is None:
            return earlier < COMMIT_ROWS
        return earlier == 0 or earlier == self._earlier + 1 < COMMIT_ROWS
