"""What a source is and what it yields, what every format promises, and the libraries that only some formats need."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import import_module
from io import BufferedReader
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

import orjson

from tokenmill.errors import InputError, how_to_install

MEMORY_BYTES: Final = 256 << 20
"""Memory that a file may demand by default: `xz -9` takes 65 MiB, `zstd -19` 8 MiB, `zstd --long=28` all of it."""
MAX_RECORD: Final = "max_record_bytes"
"""The setting that bounds a record, and so each entry of a file."""
_CUT: Final = "…"
ITEM_BYTES: Final = 200
"""Bytes that an item costs beside value and text, so that a million empty lines are bounded as well."""
BEFORE: Final = b"\xef\xbb\xbf\x1e"
"""Bytes that may be before a JSON value: a byte order mark, and what begins a text of a sequence (RFC 7464)."""


def object_in(data: bytes) -> dict[str, Any] | None:
    """Return the JSON object that bytes are, whatever may be before it; None where they are none."""
    try:
        found = orjson.loads(data.lstrip(BEFORE))
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def readable(path: str) -> str:
    """Return a path as text: bytes that are no UTF-8, which names may hold, as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return str(error).strip().partition("\n")[0]


class TooMuchMemoryError(OSError):
    """What is in a file takes more memory than files may demand; nothing of it was decoded."""

    @classmethod
    def check(cls, what: str, size: int, memory: int) -> None:
        """Raise it where ``size`` bytes are more than ``memory``."""
        if size > memory:
            more = 1 << max(0, (size - 1).bit_length() - 30)
            raise cls(f"{what} takes {size:,} bytes of memory, over {memory:,}: --unpack-memory {more}GiB allows that")


class Item(NamedTuple):
    """One document, as it is sent."""

    value: bytes
    text: str
    key: bytes | None = None
    unnamed: bool = False
    """Whether it has no id of its own, though one was asked for, or there is something in its place."""
    needs_id: bool = False
    """Whether its value is a JSON object without an id: it gets its place as one (`PlaceIds`)."""


class Refused(NamedTuple):
    """Something in a source that is no document."""

    where: str
    """File and, where it has such, line, row or number of the record, for people."""
    why: str
    data: bytes = b""
    """For a dead letter; empty if it is too long, or no bytes."""
    broken: bool = False
    """The source cannot be read to its end: it is truncated, damaged, or not what it should be. One refusal says so."""
    row: bool = False
    """Whether it is a line, row or record of its source; else it is all of it."""
    limit: str = ""
    """The setting over whose limit it is; empty: it is not too long."""


Where: TypeAlias = tuple[str, int]
"""The place of an item, for people: the name of its source, and the number of its entry there, 0 where it is all."""


Placed: TypeAlias = tuple[Item | Refused, Where]
"""An item with its place."""


def where_words(where: Where) -> str:
    """Return the place in words."""
    name, number = where
    return f"{name}:{number}" if number else name


@dataclass(slots=True, eq=False)
class FileSlice:
    """Stands for the bytes of a value that is in a file; it is as long as they are."""

    path: str
    root: str
    begin: int
    length: int
    end: bytes = b""
    """Is written instead of their last bracket, if there is one (`with_end`)."""

    def __len__(self) -> int:
        return self.length + max(0, len(self.end) - 1)


def with_end(value: bytes, end: bytes) -> bytes:
    """Return a JSON object that ends in another way than with its bracket alone."""
    return value.rstrip()[:-1] + end


class PlaceIds(NamedTuple):
    """Gives documents their places as ids."""

    id_field: str
    max_id_bytes: int

    def given(self, item: Item, where: Where) -> Item:
        """Return the document with its place as the id, at the end of the object: there it counts over any before."""
        end = b"," + orjson.dumps({self.id_field: fit_id(where_words(where), self.max_id_bytes)})[1:]
        value: Any = item.value
        made = replace(value, end=end) if isinstance(value, FileSlice) else with_end(value, end)
        return item._replace(value=cast("bytes", made), needs_id=False)


def fit_id(name: str, max_id_bytes: int) -> str:
    """Return the name, cut on the left where it is too long for an id: a path's end says more than its start."""
    if len(name) * 6 <= max_id_bytes and name.isascii():
        return name
    name = name.encode("utf-8", "replace").decode()
    if id_bytes(name) <= max_id_bytes:
        return name
    while name and id_bytes(_CUT + name) > max_id_bytes:
        name = name[1:]
    return _CUT + name


def id_bytes(name: str) -> int:
    """Return how long an id is, as `Limits` counts."""
    return len(orjson.dumps(name)) - 2  # without the quotes


class Unmet(NamedTuple):
    """Counts of documents that were read and are not as was asked for."""

    documents: int = 0
    without_field: int = 0
    """How many of these lack the field of the condition: all of them, where its name is misspelt."""
    unnamed: int = 0


class Place(NamedTuple):
    """A place in a source between two entries, from which it can be read again."""

    entry: int = 0
    """What the format counts: lines, rows, records, elements; 0 is the start."""
    byte: int = 0
    """Where to go in the (decompressed) bytes; 0 for formats that count entries from the start."""


START: Final = Place()


class ItemChunk(NamedTuple):
    """Consecutive items of a source; where it ends depends on the source and the options alone."""

    items: list[Item | Refused]
    after: Place
    bytes_read: int
    """Bytes read of the file on disk, for progress; 0 where that is unknown."""
    size: int
    """Bytes of the values, and of what is refused: by it memory is bounded."""
    last: bool = False
    unmet: Unmet = Unmet()
    numbers: Sequence[int] = ()
    """The number of each item's entry in its source, for people (`Place.entry`); 0 where the source is the document."""
    name: str = ""
    ids: PlaceIds | None = None
    """None: nothing in this source has a place that is found again."""

    @property
    def memory(self) -> int:
        """Bytes that it takes in memory, roughly: text and value of each item."""
        return ITEM_BYTES * len(self.items) + 2 * self.size

    def placed(self) -> Iterator[Placed]:
        """Yield each item with its place, which is its id as well, if it needs one."""
        ids = self.ids
        for item, where in zip(self.items, zip(repeat(self.name), chain(self.numbers, repeat(0))), strict=False):
            if ids is not None and type(item) is Item and item.needs_id:
                yield ids.given(item, where), where
            else:
                yield item, where


class DocumentSource(Protocol):
    """Where documents come from; another kind of source is a new class with these."""

    @property
    def name(self) -> str:
        """The name for people; the same in every run of the same command."""

    @property
    def size(self) -> int:
        """Bytes on disk; 0 if unknown."""

    def signature(self) -> bytes:
        """Return bytes that change when the content does; none for files, compared by it, and what is read once."""
        return b""

    def chunks(self, start: Place) -> Iterator[ItemChunk]:
        """Yield the items after ``start``, which is the end of a chunk, or the beginning.

        The last chunk, and no other, is ``last``; it may be empty. What cannot be read is `Refused`, not raised.
        """


class Text(NamedTuple):
    """Plain text, in UTF-8 as far as anybody knows yet."""

    data: bytes
    whole: bool = False
    """It is all of its file, so the file's name is its id."""


class Bad(NamedTuple):
    """An entry that is no document."""

    why: str
    data: bytes = b""
    broken: bool = False
    """The file cannot be read to its end, or not in one part."""
    limit: str = ""


Content: TypeAlias = bytes | dict[str, Any] | Text | Bad | Item | Refused | Unmet | None
"""The bytes of a JSON value, a row, a text, what cannot be used, or nothing; or what another process made of such."""

Entry: TypeAlias = tuple[int, int, Content]
"""Number of this entry, which is also `Place.entry` behind it; `Place.byte` behind it; what it is."""


@dataclass(slots=True)
class File:
    """An open file."""

    name: str
    stream: "BufferedReader[Any]"
    """Its bytes, decompressed, from the start."""
    path: str | None = None
    """Where the same bytes are on disk, for libraries that read by themselves; None: only in `stream`."""
    encoding: str = "utf-8"
    """The encoding of its bytes before they became UTF-8 (`app.sources.encodings`)."""
    share: float | None = None
    """Share of it that was read, 0 to 1, where the format knows it better than the stream's position."""
    begin: Place = START
    """Where a part of a table begins: between its first line and this, nothing is read."""
    groups: range | None = None
    """The row groups of a parquet file that are read; None: all."""


Opened: TypeAlias = tuple[File, Callable[[], int]]
"""An open file, and what says how many bytes of it were read."""
Opening: TypeAlias = AbstractContextManager[Opened]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What somebody said of how formats are read."""

    delimiter: str | None = None
    """Between the fields of csv and tsv; None: comma and tab."""
    quote: str = '"'
    """Around fields of csv and tsv; empty: none is."""
    escape: str | None = None
    """Before a quote or a delimiter that is a part of a field of csv and tsv."""
    separator: str | None = None
    """Between the documents of a text; None: it is one."""
    extract: bool = False
    unpack_memory: int = MEMORY_BYTES
    """Memory that a file may demand of who decompresses and decodes it."""


@dataclass(frozen=True, slots=True)
class Needs(Ways):
    """What a format has to know of the use of its entries."""

    limit: int
    """Bytes of the largest record: a larger entry is `Bad`, and is not held in memory."""
    texts: tuple[str, ...] = ()
    columns: frozenset[str] | None = None
    """The only columns that matter; None: all do."""

    @property
    def too_long(self) -> Bad:
        """The entry instead of a larger one."""
        return Bad(f"longer than {self.limit} bytes ({MAX_RECORD})", limit=MAX_RECORD)

    def names_text(self, names: Sequence[str]) -> bool:
        """Return whether a column of these names may have the text."""
        return any(name in names or name.partition(".")[0] in names for name in self.texts)

    def missing(self, names: list[str]) -> Bad | None:
        """Return why a table with these columns cannot be used; None if it can."""
        twice = {n for n in names if names.count(n) > 1 and (self.columns is None or n in self.columns)}
        if twice:
            return Bad(f"the column {min(twice)!a} is there twice: give each a name of its own", broken=True)
        if self.columns is None or self.names_text(names):
            return None
        wanted, there = " or ".join(map(repr, self.texts)), ", ".join(map(ascii, names[:12]))
        return Bad(f"no column {wanted}; there are: {there}; say which is the text: --field", broken=True)


class Format(Protocol):
    """A way to read a file's entries."""

    def __call__(self, file: File, needs: Needs, start: Place) -> Iterator[Entry]:
        """Yield the entries after ``start``, in order, in bounded memory: they depend on file and ``needs`` alone.

        What cannot be used is yielded as `Bad` and harms no other entry; where more than one entry is lost with it, it
        is ``broken``. Errors of the stream (`DAMAGE` in `encodings`) are not caught.
        """


def library(module: str, extra: str, purpose: str) -> Any:
    """Return the imported module. Raises InputError where it is not installed; says which extra brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise InputError(f"{purpose} needs {package}, of the extra '{extra}': {how_to_install(extra)}") from error
