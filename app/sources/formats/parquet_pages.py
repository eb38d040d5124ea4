"""What a Parquet file says of its row groups and pages, read before anything of them is decoded.

The library believes it: a page of a kilobyte may become gigabytes, and asking the library for what damage made
contradict itself ends the process. (parquet.thrift, in Thrift's compact protocol.)
"""

from collections.abc import Iterator
from io import SEEK_END
from typing import Any, Final, NamedTuple

from ..items import TooMuchMemoryError

MAGIC: Final = b"PAR1"
_STRUCT_BYTES: Final = 1 << 10
"""What the library makes of a struct in a list: that of a column in a row group takes so much."""
_DEEPEST: Final = 32
_DICTIONARY: Final = 2
"""Type of a page."""
_CHUNK: Final = {3: {5: int, 7: int, 9: int, 11: int}}
_FOOTER: Final = {4: [{1: [_CHUNK], 2: int, 3: int}]}
_PAGE: Final = {1: int, 2: int, 3: int, 5: {1: int}, 8: {1: int}}
"""The fields that are wanted of a footer, and of a page's head: numbers, structs, and lists of these."""


class ColumnChunk(NamedTuple):
    """A column in a row group."""

    values: int
    begin: int
    end: int
    """Its bytes in the file."""


class RowGroup(NamedTuple):
    """A row group of a parquet file."""

    rows: int
    uncompressed_bytes: int
    """Of all its columns, as it says."""
    chunks: list[ColumnChunk]

    @property
    def begin(self) -> int:
        """First byte of the file that it is in."""
        return min((chunk.begin for chunk in self.chunks), default=0)

    @property
    def end(self) -> int:
        """Byte of the file behind it."""
        return max((chunk.end for chunk in self.chunks), default=0)


class ColumnPage(NamedTuple):
    """A page of a column, as its head says."""

    is_dictionary: bool
    size: int
    """Bytes, decompressed."""


def row_groups_of(stream: Any, memory: int) -> list[RowGroup]:
    """Return a file's row groups, in order.

    Raises TooMuchMemoryError where there are so many columns in them that the library takes more than ``memory``; and
    OSError where it is no parquet file, or cannot be read.
    """
    end = stream.seek(0, SEEK_END) - 8
    stream.seek(max(0, end))
    tail = stream.read(8)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or size > end:
        raise OSError("it has not the end of a parquet file")
    TooMuchMemoryError.check("the list of columns", size, memory)
    stream.seek(end - size)
    footer = _parsed(_Thrift(stream.read(size), memory // _STRUCT_BYTES), _FOOTER)
    return [_row_group(group) for group in footer.get(4, ())]


def _row_group(said: dict[int, Any]) -> RowGroup:
    chunks = []
    for chunk in said.get(1, ()):
        about = chunk.get(3, {})
        data, dictionary = about.get(9, 0), about.get(11, 0)
        begin = dictionary if 0 < dictionary < data else data
        chunks.append(ColumnChunk(about.get(5, 0), begin, begin + about.get(7, 0)))
    return RowGroup(said.get(3, 0), said.get(2, 0), chunks)


def pages_of(stream: Any, chunk: ColumnChunk) -> Iterator[ColumnPage]:
    """Yield the pages of a column in a row group, from its dictionary to its last value; nothing is decoded.

    Raises OSError where they cannot be read, or are damaged.
    """
    at, values = chunk.begin, 0
    while values < chunk.values:
        if not 0 <= at < 1 << 62:  # no file is as long
            raise OSError("a page is outside of the file")
        stream.seek(at)
        reader = _Thrift(stream.read(512))  # enough for most
        try:
            head = reader.value(_STRUCT, _PAGE)
        except IndexError:
            stream.seek(at)
            reader = _Thrift(stream.read(1 << 20))  # it has long statistics
            head = _parsed(reader, _PAGE)
        count = (head.get(5) or head.get(8) or {}).get(1, 0)
        size, packed = head.get(2, -1), head.get(3, -1)
        if min(count, size, packed) < 0:
            raise OSError("the head of a page contradicts itself")
        yield ColumnPage(head.get(1) == _DICTIONARY, size)
        at, values = at + reader.at + packed, values + count


_STRUCT: Final = 12
_LISTS: Final = (9, 10)
_BYTES: Final = 8
_KINDS: Final = {type: (4, 5, 6), dict: (_STRUCT,), list: _LISTS}
"""Types in the compact protocol of what may be wanted."""
_LONG_LIST: Final = 15
"""Instead of a list's size: that follows."""
_FIXED: Final = {1: 0, 2: 0, 3: 1, 7: 8}
"""Types of values in the compact protocol, and the bytes of those that are always as long."""


def _parsed(reader: "_Thrift", wanted: Any) -> dict[int, Any]:
    try:
        return dict(reader.value(_STRUCT, wanted))
    except IndexError as error:
        raise OSError("it is cut off, or damaged") from error


class _Thrift:
    """Values in the compact protocol, one behind the other; raises IndexError where the bytes end within one."""

    def __init__(self, data: bytes, structs: int = 1 << 10) -> None:
        """Read ``data``, in whose lists are so many structs at most."""
        self._data = data
        self._most = self._structs = structs
        self._depth = 0
        self.at = 0
        """Where the next value begins."""

    def value(self, kind: int, wanted: Any) -> Any:
        """Return the next value, of a struct the fields that are wanted; passes over it where it is not wanted."""
        if wanted is not None and kind not in _KINDS[type(wanted)]:
            raise OSError("it is damaged: a field is of another type")
        if kind in _FIXED:
            self.at += _FIXED[kind]
            return None
        if kind == _BYTES:
            size = self._number()  # which goes on from where this is
            self.at += size
            return None
        if kind not in (*_LISTS, _STRUCT):
            found = self._number()
            return found >> 1 ^ -(found & 1)
        self._depth += 1
        if self._depth > _DEEPEST:
            raise OSError("it is nested too deeply")
        made = self._struct(wanted) if kind == _STRUCT else self._list(wanted)
        self._depth -= 1
        return made

    def _struct(self, wanted: Any) -> dict[int, Any]:
        made, field = {}, 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self.value(4, None)
            inner = None if wanted is None else wanted.get(field)
            found = self.value(head & 15, inner)
            if inner is not None:
                made[field] = found
        return made

    def _list(self, wanted: Any) -> list[Any]:
        head = self._byte()
        size, kind = head >> 4, head & 15
        size = self._number() if size == _LONG_LIST else size
        if size > len(self._data) - self.at:  # each value takes a byte at least
            raise IndexError
        if kind == _STRUCT:
            self._structs -= size
            if self._structs < 0:
                size = (self._most - self._structs) * _STRUCT_BYTES
                TooMuchMemoryError.check("the list of columns", size, self._most * _STRUCT_BYTES)
        elif kind in (1, 2):
            kind = 3  # a byte each, in a list
        if wanted is None:
            for _ in range(size):
                self.value(kind, None)
            return []
        return [self.value(kind, wanted[0]) for _ in range(size)]

    def _byte(self) -> int:
        found = self._data[self.at]
        self.at += 1
        return found

    def _number(self) -> int:
        number = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte == byte & 127:
                return number
        raise OSError("a number is too long")
