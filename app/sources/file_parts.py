"""Large files in parts, each a source by itself, so that several processes read them.

What the parts are depends on the file alone. Files of lines and tables are divided where a line or row ends, parquet
files between row groups. What a part yields has the numbers, and so the ids, that it has in the whole file.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader
from typing import Final, NamedTuple

import xxhash

from tokenmill.errors import InputError

from .encodings import BUFFER_BYTES
from .file_sources import TABLES, FileSource
from .formats.columnar import row_groups
from .formats.tables import row_ends
from .formats.text import line_start, lines_between
from .items import DocumentSource, File, ItemChunk, Place

PART_BYTES: Final = 64 << 20
"""Least bytes of a part, but for the last one of a file; another number would be other parts, and so another run."""
HEAD_BYTES: Final = 1 << 20
"""Of a table, the first bytes are part of each part's signature: its first line names the columns."""
PIECE_BYTES: Final = 1 << 20


class PartBounds(NamedTuple):
    """A part of a file."""

    begin: Place
    data: tuple[int, int]
    """The bytes that it is read from."""
    groups: tuple[int, int] = (0, 0)
    """First and last row group, the last one excluded; of parquet files alone."""


class FileParts(NamedTuple):
    """How a file is divided."""

    size: int
    """Its bytes then."""
    bounds: tuple[PartBounds, ...]


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a large file."""

    whole: FileSource
    bounds: PartBounds
    file_size: int

    @property
    def name(self) -> str:
        """The file's, with the byte where the part begins."""
        return f"{self.whole.name}[{self.bounds.data[0]}:]"

    @property
    def size(self) -> int:
        """Bytes of it."""
        begin, end = self.bounds.data
        return end - begin

    def signature(self) -> bytes:
        """Return a hash of its bytes. Raises InputError where the file is another one than that which was divided."""
        begin, end = self.bounds.data
        content = xxhash.xxh3_128()
        try:
            with self.whole.open() as file:
                self._require_size(os.fstat(file.fileno()).st_size)
                if self.whole.kind in TABLES:
                    content.update(file.read(min(begin, HEAD_BYTES)))
                file.seek(begin)
                while begin < end and (piece := file.read(min(PIECE_BYTES, end - begin))):
                    content.update(piece)
                    begin += len(piece)
        except OSError as error:
            return f"error {error.errno}".encode()
        return content.digest()

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the part's items, as `FileSource.chunks` does those of the file. Raises as `signature`."""
        whole, (begin, end) = self.whole, self.bounds.data
        groups = range(*self.bounds.groups) if self.bounds.groups[1] else None
        self._require_size(FileSource(whole.path, whole.reading).size)
        part = replace(whole, size=end, begin=self.bounds.begin, bounded=groups is None, groups=groups)
        for chunk in part.chunks(start):
            yield chunk._replace(bytes_read=max(0, chunk.bytes_read - begin))

    def _require_size(self, size: int) -> None:
        if size != self.file_size:
            raise InputError(
                f"{self.whole.name} has changed since the command began ({self.file_size:,} bytes then, {size:,} now); "
                "what was read before is sent"
            )


@dataclass(frozen=True, slots=True)
class DividedFile:
    """How a file is divided, as a source without documents: a run that has it notices when that changes."""

    name: str
    parts: FileParts

    @property
    def size(self) -> int:
        """The file's."""
        return self.parts.size

    def signature(self) -> bytes:
        """Return a hash of where the parts begin and end."""
        return xxhash.xxh3_128_digest(repr(self.parts).encode())

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield nothing."""
        yield ItemChunk([], start, self.size, 0, last=True)


def parts_of(source: FileSource, least: int = PART_BYTES) -> FileParts:
    """Return how a file that may be divided is divided; ``least`` is `PART_BYTES`, of the process that asks.

    Reads files of lines and tables to their ends. Raises nothing for what is in the file.
    """
    size = source.size
    try:
        with source.open() as raw, BufferedReader(raw, BUFFER_BYTES) as stream:
            if source.kind == "parquet":
                return FileParts(size, tuple(_row_groups(f"/proc/self/fd/{raw.fileno()}", least)))
            table = partial(row_ends, File(source.name, stream), source.reading.needs, tabs=source.kind == "tsv")
            ends = table() if source.kind in TABLES else _lines(raw.fileno(), size, least)
            return FileParts(size, tuple(_cut(ends, size, least)))
    except Exception:  # noqa: BLE001 - whatever is wrong with it, who reads the file says so
        return FileParts(size, ())


def may_be_divided(source: FileSource) -> bool:
    """Return whether it is so large, and of such a kind, that it may have several parts."""
    return source.size >= 2 * PART_BYTES and (source.grows or source.kind in TABLES or source.kind == "parquet")


def _lines(descriptor: int, size: int, least: int) -> Iterator[Place]:
    """Yield the ends of lines, each the first one that is ``least`` bytes or more behind the one before."""
    end = Place()
    while end.byte + least < size:
        at = line_start(descriptor, end.byte + least)
        end = Place(end.entry + lines_between(descriptor, end.byte, at), at)
        yield end


def _cut(ends: Iterable[Place], size: int, least: int) -> Iterator[PartBounds]:
    """Yield the parts between those ends that are at least so many bytes apart."""
    begin = Place()
    for end in ends:
        if end.byte - begin.byte >= least and end.byte < size:
            yield PartBounds(begin, (begin.byte, end.byte))
            begin = end
    yield PartBounds(begin, (begin.byte, size))


def _row_groups(path: str, least: int) -> Iterator[PartBounds]:
    groups = row_groups(path)
    first = rows = before = 0
    for number, group in enumerate(groups, 1):
        begin = groups[first].begin
        rows += group.rows
        if group.end - begin >= least or number == len(groups):
            yield PartBounds(Place(before), (begin, group.end), (first, number))
            first, before = number, rows


def divided(sources: Sequence[DocumentSource], parts: Mapping[str, FileParts]) -> list[DocumentSource]:
    """Return the sources, those with more than one part in parts; ``parts`` is by path."""
    found: list[DocumentSource] = []
    for source in sources:
        known = parts.get(source.path) if isinstance(source, FileSource) else None
        if isinstance(source, FileSource) and known is not None and len(known.bounds) > 1:
            found += [FilePart(source, bounds, known.size) for bounds in known.bounds]
        else:
            found.append(source)
    return found
