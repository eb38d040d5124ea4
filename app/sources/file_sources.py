"""Sources of documents: a file, or standard input. Each yields its items in chunks, from the end of any chunk on."""

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path
from stat import S_ISREG
from sys import maxsize
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from tokenmill.errors import RecordError

from ..milling.decoding.plain_values import check_no_scalar
from .contents import Look, begin_of, look_at, open_file
from .encodings import BUFFER_BYTES, DAMAGE, UNDECODED, UTF_8, seems
from .formats import BY_CHOICE, Choice
from .items import (
    BEFORE,
    START,
    Bad,
    DocumentSource,
    Entry,
    File,
    Item,
    ItemChunk,
    Needs,
    Opened,
    Opening,
    Place,
    Refused,
    Text,
    Unmet,
    Ways,
    object_in,
    readable,
    where_words,
)
from .mapping import Mapping
from .shape import Shape, without_nan

CHUNK_BYTES: Final = 1 << 20
"""Bytes of values and refused data after which a chunk ends; a run cannot continue with another size."""
CHUNK_ENTRIES: Final = 4096
"""Entries in a chunk, wanted or not, so that the progress of a file is seen even if a condition hardly ever holds."""
CHUNK_RULE: Final = 3
"""Version of how files are read and chunks end: a run continues only with its own."""
STDIN: Final = "-"
STDIN_NUMBER: Final = 0
_FOLDERS: Final = re.compile(r"(?<![^/!])[^/!=]+=[^/!]*(?=[/!])")
TABLES: Final = frozenset({"csv", "tsv"})


class Chunker:
    """Makes items of entries, and chunks of items. Where a chunk ends depends on the entries and the shape alone."""

    def __init__(self, shape: Shape, name: str, start: Place, *, one_by_one: bool = False) -> None:
        """Make items of the entries of ``name`` after ``start``; ``one_by_one``: of a pipe, where each is a chunk."""
        self.place = start
        self._shape = shape
        self._name = name
        self._limit = 0 if one_by_one else CHUNK_BYTES
        self._advised = self._is_broken = False
        self._ids = None if one_by_one else shape.ids
        # Of the last full chunk; once the entries have ended, or raised, of the `rest` behind it:
        self.rest: list[Item | Refused] = []
        self._numbers: list[int] = []
        self.size = 0  # as `CHUNK_BYTES` counts it
        self.unmet = Unmet()

    def all(
        self, entries: Iterable[Entry], read_so_far: Callable[[], int] = lambda: 0, bytes_on_disk: int = 0
    ) -> Iterator[ItemChunk]:
        """Yield all chunks of a source; meanwhile `place` is the end of the last one. The last items are in `rest`."""
        items: list[Item | Refused] = []
        numbers: list[int] = []
        size, count, limit, quick = 0, 0, self._limit, self._shape.quick
        unmet = without_field = unnamed = 0
        try:
            for number, at, content in entries:
                # The usual case first, for what is done here is done for every line.
                item = (quick(content) if type(content) is bytes else None) or self.outcome(number, content)
                count += 1
                if isinstance(item, Unmet):
                    unmet += item.documents
                    without_field += item.without_field
                elif item is not None:
                    items.append(item)
                    numbers.append(0 if type(content) is Text and content.whole else number)
                    if isinstance(item, Refused):
                        size += len(item.data)
                    else:
                        size += len(item.value)
                        unnamed += item.unnamed
                if size >= limit or count >= CHUNK_ENTRIES:
                    self.place, self.size, self._numbers = Place(number, at), size, numbers
                    self.unmet = Unmet(unmet, without_field, unnamed)
                    yield self.chunk(items, read_so_far())
                    items, numbers, size, count = [], [], 0, 0
                    unmet = without_field = unnamed = 0
        finally:
            self.rest, self._numbers, self.size = items, numbers, size
            self.unmet = Unmet(unmet, without_field, unnamed)
        yield self.chunk(self.rest, bytes_on_disk, last=True)

    def chunk(self, items: list[Item | Refused], bytes_read: int, *, last: bool = False) -> ItemChunk:
        """Return the chunk of these items: those of a full one, or the `rest`."""
        return ItemChunk(
            items, self.place, bytes_read, self.size, last, self.unmet, self._numbers, self._name, self._ids
        )

    def where(self, number: int) -> str:
        """Return the place of an entry, for people."""
        return where_words((self._name, number))

    def outcome(self, number: int, content: object) -> Item | Refused | Unmet | None:
        """Return what an entry is; the first one that is in another encoding says which it seems to be."""
        item = self._outcome(number, content)
        if not isinstance(item, Refused):
            return item
        whole = not number or (isinstance(content, Text) and content.whole)
        if item.why.startswith(UNDECODED) and not self._advised:
            self._advised = True
            item = item._replace(why=item.why + seems(item.data))
        self._is_broken, counted = self._is_broken or item.broken, self._is_broken
        return item._replace(row=not whole, broken=item.broken and not counted)

    def _outcome(self, number: int, content: object) -> Item | Refused | Unmet | None:
        if type(content) is bytes:
            return self._shape.of_json(f"{self._name}:{number}", content)
        if isinstance(content, dict):
            where = self.where(number)
            return self._shape.of_row(where, content, where)
        if isinstance(content, Text):
            where = self._name if content.whole else self.where(number)
            return self._shape.of_text(where, where, content.data)
        if isinstance(content, Bad):
            return Refused(self.where(number), content.why, content.data, content.broken, limit=content.limit)
        if isinstance(content, Refused):  # by another process (`app.tools.pack.parted_sources`), as what follows
            return content._replace(where=self.where(number))
        if content is None or isinstance(content, Item | Unmet):
            return content
        raise TypeError(content)


@dataclass(frozen=True, slots=True)
class Reading(Ways):
    """How all sources are read."""

    shape: Shape
    choice: Choice = "auto"
    mapping: Mapping | None = None
    encoding: str | None = None
    """Of all files of text, JSON and tables that begin with no byte order mark; None: UTF-8."""

    @property
    def needs(self) -> Needs:
        """What formats need to know."""
        texts = tuple(name for name, _ in self.shape.texts)
        columns = None if self.mapping else self.shape.columns
        ways = {way.name: getattr(self, way.name) for way in fields(Ways)}
        return Needs(self.shape.max_record_bytes, texts, columns, **ways)

    def entries(self, file: File, start: Place, *, piped: bool = False) -> Iterator[Entry]:
        """Return the entries of a file, packed or not, mapped if there is a mapping."""
        needs = self.needs
        look = open_file(file, self.choice, self.encoding, needs)
        if look.why_not:
            return iter([(0, 0, Bad(look.why_not, broken=True))])
        entries = BY_CHOICE[look.kind](file, needs, start)
        if look.kind == "text" and self.choice == "auto" and self.separator is None:
            entries = map(_no_values, entries)
        columns = _folder_columns(file.name) if self.mapping else None
        return self.mapped(_with_columns(entries, columns) if columns else entries, file.name, piped=piped)

    def mapped(self, entries: Iterator[Entry], name: str, *, piped: bool = False) -> Iterator[Entry]:
        """Return the entries of a source as the mapping makes them, if there is one."""
        if self.mapping is None:
            return entries
        return self.mapping.of(map(_finite, entries) if self.shape.nan_is_null else entries, name=name, piped=piped)

    def shape_of(self, name: str) -> Shape:
        """Return how the documents of a file of this name are made: its folders may name columns."""
        return self.shape.within(_folder_columns(name))


class OpenedSources(NamedTuple):
    """What is to be read, and how."""

    reading: Reading
    sources: list[DocumentSource]


def _folder_columns(name: str) -> dict[str, str | None]:
    """Return the columns that the folders of a file stand for, as Hive and Spark name them: ``lang=en/part-0.csv``."""
    columns: dict[str, str | None] = {}
    for folder in _FOLDERS.findall(name):
        column, _, value = folder.partition("=")
        columns[unquote(column)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return columns


def _no_values(entry: Entry) -> Entry:
    """Refuse a whole file whose lines all are JSON values, as a mill does, or mostly objects: the first was cut."""
    content = entry[2]
    if isinstance(content, Text) and (why := _why_values(content.data)):
        return 0, 0, Bad(why, content.data)
    return entry


def _why_values(data: bytes) -> str:
    if data.count(b'{"') * 2 > data.count(b"\n"):
        lines = [line.strip() for line in data.splitlines() if line.strip()]
        if 2 * sum(line.startswith(b'{"') and object_in(line) is not None for line in lines) > len(lines):
            return "most lines are JSON objects, the first is none: --format jsonl reads them; as a text: --format text"
    why = ""
    for line in BytesIO(data):
        try:
            if line.strip():
                check_no_scalar(line, "--format text, or --lines")
                return ""
        except RecordError as error:
            why = why or str(error)
    return why


def _finite(entry: Entry) -> Entry:
    number, at, content = entry
    if isinstance(content, bytes) and object_in(content) is None:
        content = without_nan(content.lstrip(BEFORE)) or content
    return number, at, content


def _with_columns(entries: Iterator[Entry], columns: dict[str, str | None]) -> Iterator[Entry]:
    for number, at, content in entries:
        row = object_in(content) if isinstance(content, bytes) else content
        yield number, at, columns | row if isinstance(row, dict) else content


def file_chunks(
    source: DocumentSource, reading: Reading, start: Place, opening: Opening, *, piped: bool = False
) -> Iterator[ItemChunk]:
    """Yield the items of a file, wherever it is; ``piped``: one in each chunk."""
    chunker = Chunker(reading.shape_of(source.name), source.name, start, one_by_one=piped)
    try:
        with opening as (file, read_so_far):
            yield from chunker.all(reading.entries(file, start, piped=piped), read_so_far, source.size)
    except DAMAGE as error:
        yield broken_chunk(chunker, error)


@dataclass(slots=True)
class FileSource(DocumentSource):
    """A file of any format, perhaps compressed; or a part of one that grows."""

    path: str
    reading: Reading
    size: int = -1
    """Byte at which the part ends; by default the end of the file now."""
    begin: Place = START
    bounded: bool = False
    """Whether what comes after `size` is left out."""
    groups: range | None = None
    root: str = ""
    """The folder that it was found in, out of which nothing leads when it is opened; empty: none."""
    _look: Look | None = field(default=None, init=False, compare=False)

    def open(self) -> "_BoundedFile":
        """Open the file. Raises as `open_found`."""
        return open_found(self.path, self.root)

    def __post_init__(self) -> None:
        if self.size < 0:
            self.size = 0
            with suppress(OSError):
                self.size = Path(self.path).stat().st_size

    @property
    def name(self) -> str:
        """The path as it was given."""
        return readable(self.path)

    @property
    def kind(self) -> str:
        """The kind as which its bytes are read as they are on disk; empty where they are packed or recoded."""
        if self._look is None:
            self._look = Look()
            with suppress(OSError):
                if S_ISREG(Path(self.path).stat().st_mode):  # a pipe can be read once
                    with BufferedReader(self.open(), BUFFER_BYTES) as stream:
                        begin = begin_of(File(self.name, stream))
                    said = self.reading
                    self._look = look_at(self.name, begin, said.choice, said.encoding, said.needs)
        return self._look.kind if self._look.encoding == UTF_8 else ""

    @property
    def grows(self) -> bool:
        """Whether it may grow at its end, with what was there before read as it was."""
        return self.kind in ("jsonl", "lines")

    def part(self, entry: int, byte: int, end: int) -> "FileSource":
        """Return the part between two places of a file that grows; any other file whole."""
        return replace(self, size=end, begin=Place(entry, byte), bounded=True) if self.grows else self

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the file's items."""
        return file_chunks(self, self.reading, max(start, self.begin), self.opened())

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """Open the file, and say how it is read. Raises as `open_found`."""
        opened = self.open()
        opened.end = self.size if self.bounded else maxsize
        with BufferedReader(opened, BUFFER_BYTES) as raw:
            path = f"/proc/self/fd/{raw.fileno()}" if self.root else self.path
            file = File(self.name, raw, path, begin=self.begin, groups=self.groups)

            def read_so_far() -> int:
                # Not where `raw` is, up to a buffer before: another thread may be reading it (`Mapping`), and asking a
                # buffered reader moves its notion of that.
                if file.share is not None:
                    return int(file.share * self.size)
                return os.lseek(raw.fileno(), 0, os.SEEK_CUR) if self.size else 0  # a pipe has no size, and no place

            yield file, read_so_far


def open_found(path: str, root: str) -> "_BoundedFile":
    """Open a file; what was found in the folder ``root``, if it was, may meanwhile be something else.

    Raises OSError where it cannot be; or it was found, and is no regular file, or a link leads out of the folder.
    """
    try:
        file = _BoundedFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if root else 0)))
    except FileNotFoundError as error:
        if not Path(path).is_symlink():
            raise
        target = readable(os.readlink(path))  # noqa: PTH115 - as it is written
        how = "; `git annex get` gets it" if "annex/objects/" in target else ""
        raise OSError(errno.ENOENT, f"a link to {target}, which is not there{how}") from error
    if not root:
        return file
    place = Path(f"/proc/self/fd/{file.fileno()}").readlink()
    if S_ISREG(os.fstat(file.fileno()).st_mode) and place.is_relative_to(root):
        return file
    file.close()
    raise OSError(errno.EXDEV, "it is no file of its folder any more: something was put in its place")


class _BoundedFile(FileIO):
    """A file up to some byte."""

    end = maxsize

    def readinto(self, buffer: Any) -> int:
        """Read what is before the end; a pipe has none."""
        return super().readinto(memoryview(buffer)[: self._left()] if self.end < maxsize else buffer)

    def readall(self) -> bytes:
        return (self.read(self._left()) if self.end < maxsize else super().readall()) or b""

    def _left(self) -> int:
        return max(0, self.end - self.tell())


@dataclass(frozen=True, slots=True)
class StandardInput(DocumentSource):
    """What is piped in. It is read once, so no run can continue in it; items come as soon as they are there."""

    reading: Reading
    name: str = "stdin"
    size: int = 0

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the items, one in each chunk."""
        # Not sys.stdin: the interpreter closes it at its end, and aborts if a thread is still in the middle of a read.
        # Nor is this one closed, which would wait for the end of a read that was given up.
        raw = BufferedReader(FileIO(STDIN_NUMBER, closefd=False), BUFFER_BYTES)
        opened: Opened = (File(self.name, raw), lambda: 0)
        return file_chunks(self, self.reading, start, nullcontext(opened), piped=True)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What is no source: an archive whose members cannot be listed, the folder of a table, what is gone."""

    name: str
    why: str
    size: int = 0

    def signature(self) -> bytes:
        """Return why it cannot be read."""
        return self.why.encode("utf-8", "replace")

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield a refusal that says why."""
        yield ItemChunk([Refused(self.name, self.why, broken=True)], start, 0, 0, last=True)


def broken_chunk(chunker: Chunker, error: BaseException) -> ItemChunk:
    """Return the last chunk of a source that cannot be read to its end: what was read, and why it ends."""
    last = len(chunker.rest)
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    place = f" (behind entry {chunker.place.entry:,} and {last:,} more)" if chunker.place.entry or last else ""
    refused = Refused(chunker.where(0), f"cannot be read{' to its end' if place else ''}: {why}{place}", broken=True)
    return chunker.chunk([*chunker.rest, refused], 0, last=True)


class GivenSource(DocumentSource):
    """Items that a program makes, each sent as soon as it is made."""

    name = "given"
    size = 0

    def __init__(self, items: Iterable[Item | Refused]) -> None:
        self._items = items

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the items, one in each chunk."""
        for item in self._items:
            size = len(item.data if isinstance(item, Refused) else item.value)
            yield ItemChunk([item], start, 0, size, name=self.name)
        yield ItemChunk([], start, 0, 0, last=True)


def read_items(sources: Iterable[DocumentSource]) -> Iterator[Item | Refused]:
    """Yield all items of all sources, one source after the other."""
    for source in sources:
        for chunk in source.chunks(Place()):
            yield from chunk.items
