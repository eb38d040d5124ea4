"""Large files, read in parts by several processes: the items, and the chunks, are those that one reader makes.

A file of JSON lines is divided by bytes, a parquet file by row groups. A part is scanned by any process, in any order:
`scan` says which documents are in it. What a chunk is depends on all that comes before it; so the parts' documents go
through the file's one `Chunker`, in order. It sees sizes alone: a document that is a line of the file stays there
(`FileSlice`), until the process reads it that mills it. Everything else comes with its bytes.

Processes that share no memory read parts that are sources by themselves instead (`app.tools.produce.dask_lanes`).
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from io import BufferedReader
from typing import Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tokenmill.errors import SourceError

from ...sources.encodings import BUFFER_BYTES, DAMAGE
from ...sources.file_sources import Chunker, FileSource, Reading, broken_chunk, open_found
from ...sources.formats.columnar import RowGroup, read_parquet, row_groups
from ...sources.formats.text import line_start, lines_between, read_lines
from ...sources.items import DocumentSource, Entry, FileSlice, Item, ItemChunk, Place, Refused, Unmet, readable

PART_BYTES: Final = 4 << 20
"""Bytes of a part of a file of lines: far more than a message between processes costs, and small beside a file."""
LEAST_BYTES: Final = 64 << 10
"""Smaller files are read where they are asked for."""
SPARSE: Final = 8
"""Slices are read one by one where there is that many times as much between them ..."""
LONG_BYTES: Final = 1 << 10
"""... and where they are this long on average: a call of the system takes no longer than to copy as much."""
_COLUMNS: Final = 5  # of `ScannedPart.entries`
_ELSEWHERE: Final = -1  # instead of a length: the outcome is among those with their bytes


class _LinesPart(NamedTuple):
    """The lines of a file that begin at the bytes ``[begin, end)``."""

    path: str
    root: str
    begin: int
    end: int


class _RowsPart(NamedTuple):
    path: str
    root: str
    group: int
    before: int  # rows of the groups before it
    passed: int


Part: TypeAlias = _LinesPart | _RowsPart
Outcome: TypeAlias = Item | Refused | Unmet


@dataclass(frozen=True, slots=True)
class ScannedPart:
    """What is in a part."""

    numbers: int
    """How far the numbers of entries go on in it."""
    entries: npt.NDArray[np.int64]
    """Shape ``[entries, 5]``: each one's number in the part (from 1), its end in the file, and of a document that is
    the bytes of its line, where these begin, how many they are, and whether it needs an id."""
    others: Sequence[Outcome]
    """What the entries of length -1 are, in order."""
    keys: Sequence[bytes | None] = ()
    damage: str = ""


Scan: TypeAlias = Callable[[Part], "Future[ScannedPart]"]
"""Has a part scanned, some time, in some process."""


def scan(part: Part, reading: Reading) -> ScannedPart:
    """Return what is in a part; raises nothing for what is in the file."""
    try:
        return _scanned_lines(part, reading) if isinstance(part, _LinesPart) else _scanned_rows(part, reading)
    except OSError as error:
        return ScannedPart(0, np.empty((0, _COLUMNS), np.int64), (), damage=error.strerror or str(error))


def _scanned_lines(part: _LinesPart, reading: Reading) -> ScannedPart:
    shape, needs = reading.shape_of(readable(part.path)), reading.needs
    entries: list[tuple[int, int, int, int, bool]] = []
    others: list[Outcome] = []
    keys: list[bytes | None] = []
    with open_found(part.path, part.root) as file:
        start, stop = (line_start(file.fileno(), at) for at in (part.begin, part.end))
        file.end = stop
        stream = BufferedReader(file, BUFFER_BYTES)
        quick, keyed = shape.quick, shape.key is not None
        for number, begin, end, line in read_lines(stream, needs.limit, Place(0, start)):
            outcome = shape.too_long("") if line is None else quick(line) or shape.of_json("", line)
            if type(outcome) is Item and outcome.value is line:
                entries.append((number, end, begin, len(line), outcome.needs_id))
                if keyed:
                    keys.append(outcome.key)
            else:
                entries.append((number, end, 0, _ELSEWHERE, False))
                others.append(outcome._replace(text="") if isinstance(outcome, Item) else outcome)
        last, behind = (entries[-1][0], entries[-1][1]) if entries else (0, start)
        numbers = last + lines_between(file.fileno(), behind, stop)  # blank ones follow the last entry
    return ScannedPart(numbers, np.array(entries, np.int64).reshape(-1, _COLUMNS), others, keys)


def _scanned_rows(part: _RowsPart, reading: Reading) -> ScannedPart:
    source = FileSource(part.path, reading, 0, groups=range(part.group, part.group + 1), root=part.root)
    chunker = Chunker(reading.shape_of(source.name), source.name, Place())
    entries: list[tuple[int, int, int, int, bool]] = []
    others: list[Outcome] = []
    last = begin = max(part.before, part.passed)
    with source.opened() as (file, _):
        for number, _, content in read_parquet(file, reading.needs, Place(begin)):
            outcome = chunker.outcome(number, content)
            last = number
            if outcome is not None:
                entries.append((number - begin, 0, 0, _ELSEWHERE, False))
                others.append(outcome._replace(text="") if isinstance(outcome, Item) else outcome)
    return ScannedPart(last - begin, np.array(entries, np.int64).reshape(-1, _COLUMNS), others)


@dataclass(slots=True, kw_only=True)
class PartedSource(FileSource):
    """A file that is scanned in parts, some of them ahead."""

    scan: Scan
    ahead: int
    row_groups: Sequence[RowGroup] = ()

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the file's items, as `FileSource.chunks` does; values that are in the file are `FileSlice`."""
        chunker = Chunker(self.reading.shape, self.name, start)
        try:
            yield from chunker.all(self._entries(start), lambda: self._read(chunker.place), self.size)
        except DAMAGE as error:
            yield broken_chunk(chunker, error)

    def _read(self, place: Place) -> int:
        if not self.row_groups:
            return place.byte
        return self.size * place.entry // max(1, sum(group.rows for group in self.row_groups))

    def _parts(self, start: Place) -> Iterator[Part]:
        file = self.path, self.root
        if not self.row_groups:
            for begin in range(start.byte, self.size, PART_BYTES):
                yield _LinesPart(*file, begin, min(begin + PART_BYTES, self.size))
            return
        before = 0
        for number, group in enumerate(self.row_groups):
            if before + group.rows > start.entry:
                yield _RowsPart(*file, number, before, start.entry)
            before += group.rows

    def _entries(self, start: Place) -> Iterator[Entry]:
        waiting: deque[Future[ScannedPart]] = deque()
        parts = self._parts(start)
        number = start.entry
        try:
            while True:
                while len(waiting) < self.ahead and (part := next(parts, None)) is not None:
                    waiting.append(self.scan(part))
                if not waiting:
                    return
                scanned = waiting.popleft().result()
                yield from self._of_part(scanned, number)
                if scanned.damage:
                    raise OSError(scanned.damage)
                if scanned.numbers <= 0 and scanned.others:  # they say why nothing of the file can be used
                    return
                number += scanned.numbers
        finally:
            for one in waiting:
                one.cancel()

    def _of_part(self, scanned: ScannedPart, before: int) -> Iterator[Entry]:
        others, keys = iter(scanned.others), iter(scanned.keys)
        for number, end, begin, length, needs_id in scanned.entries.tolist():
            if length == _ELSEWHERE:
                yield before + number, end, next(others)
            else:
                value = cast("bytes", FileSlice(self.path, self.root, begin, length))  # dealing does not look into it
                yield before + number, end, Item(value, "", next(keys, None), needs_id=bool(needs_id))


def parted(source: DocumentSource, scan_part: Scan, ahead: int) -> DocumentSource:
    """Return the source, divided if it can be; `scan` scans its parts."""
    if not isinstance(source, FileSource) or source.reading.mapping is not None:
        return source
    if source.size < LEAST_BYTES or not os.path.isfile(source.path):  # noqa: PTH113 - raises nothing
        return source
    groups: Sequence[RowGroup] = ()
    if source.kind == "parquet":
        try:
            with source.opened() as (file, _):
                groups = row_groups(file.path or "")
        except Exception:  # noqa: BLE001 - no parquet, or damaged, as its reader will say
            return source
        if len(groups) <= 1 or max(group.uncompressed_bytes for group in groups) > 64 << 20:  # is in memory
            return source
    elif source.kind != "jsonl":
        return source
    return PartedSource(
        source.path, source.reading, source.size, root=source.root, scan=scan_part, ahead=ahead, row_groups=groups
    )


def read_slices(place: tuple[str, str], begins: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
    """Return slices of a file, which come in this order in it; ``place``: its path and root (`FileSlice`).

    Raises SourceError where the file is shorter than it was, or cannot be read any more.
    """
    total = sum(lengths)
    dense = total < LONG_BYTES * len(lengths) and begins[-1] + lengths[-1] - begins[0] <= SPARSE * total
    found: list[bytes] = []
    try:
        with BufferedReader(open_found(*place), 1 << 20 if dense else 1) as file:
            for begin, length in zip(begins, lengths, strict=True):
                file.seek(begin)
                found.append(file.read(length))
        why = "is shorter than it was when it was read a moment ago" if sum(map(len, found)) < total else ""
    except OSError as error:
        why = f"cannot be read any more ({error.strerror})"
    if why:
        raise SourceError(f"{place[0]} {why}: put it back, and the same command goes on")
    return found
