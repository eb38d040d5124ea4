"""Arrow and Parquet: a bounded number of rows at a time, and only the columns that are needed.

A file may be unsound, and the libraries trust what they are given. An offset leads wherever it says: so nothing of a
batch is looked at before all of it is checked (`sound`). Of a dictionary, a run or a view, a few bytes are any number
of values: so rows are weighed as objects of Python. Buffers may be compressed, and say how many bytes they become, of a
kilobyte gigabytes; a footer that contradicts itself ends the process: so messages of Arrow, and what Parquet says of
row groups and pages, are read here before the library gets them. (Arrow columnar format: encapsulated messages, IPC
file format; flatbuffers: internals; parquet.thrift, in Thrift's compact protocol.)
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from io import SEEK_END, BufferedReader, FileIO
from itertools import chain, islice
from struct import iter_unpack, unpack_from
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ..items import MEMORY_BYTES, Bad, Entry, File, Needs, Place, TooMuchMemoryError, library

_ARROW: Final = b"ARROW1"
_SIZE_BYTES: Final = 4
_OF_DICTIONARY, _OF_BATCH = 2, 3


class Messages:
    """The bytes of messages, for the library: a head, then its body, without a copy."""

    closed = False

    def __init__(self, pieces: Iterator[Any]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, size: int) -> memoryview:
        """Return the next bytes, no more than belong together."""
        self._rest = self._rest or memoryview(next(self._pieces, b""))
        made, self._rest = self._rest[:size], self._rest[size:]
        return made

    def close(self) -> None:
        """Leave the stream open: it is somebody else's."""


def messages_of(stream: "BufferedReader[Any]", memory: int) -> Iterator[Any]:
    """Yield heads and bodies of all messages, the schema first; OSError where one is cut off, or too large."""
    try:
        begin = stream.read(_SIZE_BYTES)
        if begin == _ARROW[:_SIZE_BYTES]:
            for offset in (8, *_blocks(stream)):
                stream.seek(offset)
                yield from _message(stream.read(_SIZE_BYTES), stream, memory)
            return
        while message := _message(begin, stream, memory):
            yield from message
            begin = stream.read(_SIZE_BYTES)
    except (struct.error, ValueError, OverflowError) as error:
        raise OSError(f"a message contradicts itself: {error}") from error


def _blocks(stream: "BufferedReader[Any]") -> list[int]:
    end = stream.seek(-len(_ARROW) - _SIZE_BYTES, SEEK_END)
    size, magic = unpack_from("<i6s", stream.read(len(_ARROW) + _SIZE_BYTES))
    if magic != _ARROW or not 0 < size < end:
        raise OSError("it has not the end of an Arrow file")
    stream.seek(end - size)
    footer = _Flatbuffer.first(_room(stream, size))
    return [block[0] for field in (2, 3) for block in footer.structs(field, "<qiiq")]


def _message(begin: bytes, stream: "BufferedReader[Any]", memory: int) -> list[Any]:
    """Return the message that begins so, head and body; nothing at the end."""
    begin += stream.read(_SIZE_BYTES) if begin == b"\xff\xff\xff\xff" else b""  # since version 0.15
    size = int.from_bytes(begin[-_SIZE_BYTES:], "little")
    if not size:
        return []
    if size > 1 << 26:  # no schema, and no list of buffers is that long
        raise OSError("no message begins here")
    head = _room(stream, size)
    message = _Flatbuffer.first(head)
    length = message.number(3, "<q")
    if not 0 <= length < 1 << 42:  # no machine holds as many: damage says so
        raise OSError(f"a message of {length} bytes")
    TooMuchMemoryError.check("a record batch", length, memory)
    body = _room(stream, length)
    TooMuchMemoryError.check("a record batch", _bytes_of(message, body), memory)
    return [begin, head, body] if length else [begin, head]


def _room(stream: "BufferedReader[Any]", size: int) -> memoryview:
    """Return the next bytes; room that is not filled takes no memory."""
    room, at = memoryview(cast("Any", np.empty(size, np.uint8))), 0
    while at < size:
        count = stream.readinto(room[at:])
        if not count:
            raise OSError("it is cut off")
        at += count
    return room


def _bytes_of(message: "_Flatbuffer", body: memoryview) -> int:
    kind, batch = message.number(1, "<B"), message.table(2)
    if kind not in (_OF_DICTIONARY, _OF_BATCH):
        return 0
    batch = batch.table(1) if kind == _OF_DICTIONARY else batch
    if not batch.place(3):  # not compressed
        return len(body)
    sizes = [unpack_from("<q", body, begin)[0] for begin, length in batch.structs(2, "<qq") if length]
    return len(body) + sum(int(max(0, size)) for size in sizes)  # -1: it is as it is


class _Flatbuffer:
    """A table of a flatbuffer: its fields are where its list of places says."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._places = at - unpack_from("<i", data, at)[0]

    @classmethod
    def first(cls, data: memoryview) -> "_Flatbuffer":
        return cls(data, unpack_from("<I", data)[0])

    def place(self, field: int) -> int:
        size = unpack_from("<H", self._data, self._places)[0]
        offset = unpack_from("<H", self._data, self._places + 4 + 2 * field)[0] if 4 + 2 * field < size else 0
        return self._at + offset if offset else 0

    def number(self, field: int, kind: str) -> int:
        place = self.place(field)
        return int(unpack_from(kind, self._data, place)[0]) if place else 0

    def table(self, field: int) -> "_Flatbuffer":
        place = self.place(field)
        return _Flatbuffer(self._data, place + unpack_from("<I", self._data, place)[0])

    def structs(self, field: int, kind: str) -> Iterator[tuple[int, ...]]:
        place = self.place(field)
        if not place:
            return iter(())
        place += unpack_from("<I", self._data, place)[0]
        size = unpack_from("<I", self._data, place)[0] * {"<qq": 16, "<qiiq": 24}[kind]
        return iter_unpack(kind, self._data[place + 4 : place + 4 + size])


PARQUET_MAGIC: Final = b"PAR1"
_STRUCT_BYTES: Final = 1 << 10
"""What the library makes of a struct in a list: that of a column in a row group takes so much."""
_DEEPEST: Final = 32
_DICTIONARY_PAGE: Final = 2
_CHUNK: Final = {3: {5: int, 7: int, 9: int, 11: int}}
_FOOTER: Final = {4: [{1: [_CHUNK], 2: int, 3: int}]}
_PAGE: Final = {1: int, 2: int, 3: int, 5: {1: int}, 8: {1: int}}
"""The fields that are wanted of a footer, and of a page's head: numbers, structs, and lists of these."""


class _ColumnChunk(NamedTuple):
    values: int
    begin: int
    end: int


class RowGroup(NamedTuple):
    """A row group of a parquet file."""

    rows: int
    uncompressed_bytes: int
    chunks: list[_ColumnChunk]

    @property
    def begin(self) -> int:
        """First byte of the file that it is in."""
        return min((chunk.begin for chunk in self.chunks), default=0)

    @property
    def end(self) -> int:
        """Byte of the file behind it."""
        return max((chunk.end for chunk in self.chunks), default=0)


def row_groups_of(stream: Any, memory: int) -> list[RowGroup]:
    """Return a file's row groups; OSError where it is none, TooMuchMemoryError where they take over ``memory``."""
    end = stream.seek(0, SEEK_END) - 8
    stream.seek(max(0, end))
    tail = stream.read(8)
    size = int.from_bytes(tail[:4], "little")
    if tail[4:] != PARQUET_MAGIC or size > end:
        raise OSError("it has not the end of a parquet file")
    TooMuchMemoryError.check("the list of columns", size, memory)
    stream.seek(end - size)
    footer = _parsed(_Thrift(stream.read(size), memory // _STRUCT_BYTES), _FOOTER)
    groups = []
    for group in footer.get(4, ()):
        chunks = []
        for about in (chunk.get(3, {}) for chunk in group.get(1, ())):
            data, dictionary = about.get(9, 0), about.get(11, 0)
            begin = dictionary if 0 < dictionary < data else data
            chunks.append(_ColumnChunk(about.get(5, 0), begin, begin + about.get(7, 0)))
        groups.append(RowGroup(group.get(3, 0), group.get(2, 0), chunks))
    return groups


def pages_of(stream: Any, chunk: _ColumnChunk) -> Iterator[tuple[bool, int]]:
    """Yield of each page, decoding none, whether it is a dictionary, and its size decompressed; OSError: damage."""
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
        yield head.get(1) == _DICTIONARY_PAGE, size
        at, values = at + reader.at + packed, values + count


_STRUCT: Final = 12
_LISTS: Final = (9, 10)
_BYTES: Final = 8
_KINDS: Final = {type: (4, 5, 6), dict: (_STRUCT,), list: _LISTS}  # types in the compact protocol of what may be wanted
_LONG_LIST: Final = 15  # instead of a list's size: that follows
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
        self.at = 0  # where the next value begins

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


VALUE_BYTES: Final = 64.0
"""What an object of Python takes beside the bytes of its value, about."""

Weights: TypeAlias = float | npt.NDArray[np.float64]
"""Bytes of each value of an array, or of all alike. Floats: lists of lists may stand for more than there are atoms."""


def sound(batch: Any) -> Any:
    """Return a batch that leads nowhere out of its buffers, though text may be no UTF-8; else ArrowException."""
    for column in batch.columns:
        try:
            column.validate(full=True)
        except library("pyarrow", "produce", "reading Arrow files").ArrowInvalid:
            column.view(_bytes_for_text(column.type)).validate(full=True)
    return batch


def _bytes_for_text(kind: Any) -> Any:
    """Return the type of the same buffers in which all text is bytes."""
    arrow = library("pyarrow", "produce", "reading Arrow files")
    types, inner = arrow.types, _bytes_for_text
    if types.is_dictionary(kind):
        return arrow.dictionary(kind.index_type, inner(kind.value_type), kind.ordered)
    if types.is_struct(kind):
        return arrow.struct([field.with_type(inner(field.type)) for field in kind])
    if types.is_map(kind):
        return arrow.map_(inner(kind.key_type), inner(kind.item_type), kind.keys_sorted)
    if types.is_list(kind) or types.is_large_list(kind):
        make = arrow.list_ if types.is_list(kind) else arrow.large_list
        return make(kind.value_field.with_type(inner(kind.value_type)))
    texts = {"string": arrow.binary, "large_string": arrow.large_binary, "string_view": arrow.binary_view}
    return texts[str(kind)]() if str(kind) in texts else kind


def _weights(array: Any) -> Weights:
    types = library("pyarrow.types", "produce", "reading Arrow files")
    weigh = next((found for name, found in _BY_TYPE.items() if getattr(types, f"is_{name}")(array.type)), None)
    if weigh is not None:
        return weigh(array)
    if hasattr(array, "storage"):
        return _weights(array.storage)
    return VALUE_BYTES


def _of_dictionary(array: Any) -> Weights:
    entries = _weights(array.dictionary)
    if isinstance(entries, float):
        return entries
    indices = array.indices.cast("int64").fill_null(-1)  # of unsigned ones, none is negative
    return cast("Weights", np.append(entries, VALUE_BYTES)[indices.to_numpy(zero_copy_only=False)])


def _of_union(array: Any) -> Weights:
    kinds = range(array.type.num_fields)
    return VALUE_BYTES + max((_most(_weights(array.field(number))) for number in kinds), default=0.0)


def _of_offsets(array: Any, *values: Any) -> Weights:
    """Return the weights of lists, of which each has one value of each of these arrays in its place."""
    offsets = array.offsets.to_numpy()
    begin = int(offsets[0])
    own = [_weights(one.slice(begin, int(offsets[-1]) - begin)) for one in values]  # of those of the whole batch
    return _sums(own[0] if len(own) == 1 else _together(own), offsets[:-1] - begin, offsets[1:] - begin)


def _of_list_view(array: Any) -> Weights:
    begins = array.offsets.to_numpy()
    return _sums(_weights(array.values), begins, begins + array.sizes.to_numpy())


def _of_fixed_size_list(array: Any) -> Weights:
    values, size = _weights(array.values), array.type.list_size
    if isinstance(values, float) or not size:
        return VALUE_BYTES + float(size) * _most(values)
    whole: Weights = VALUE_BYTES + values.reshape(-1, size).sum(1)
    return whole if isinstance(whole, float) else whole[array.offset : array.offset + len(array)]


def _of_text(array: Any) -> Weights:
    lengths = library("pyarrow.compute", "produce", "reading Arrow files").binary_length(array).fill_null(0)
    return cast("Weights", VALUE_BYTES + lengths.to_numpy(zero_copy_only=False).astype(np.float64))


def _of_view(array: Any) -> Weights:
    views = np.frombuffer(array.buffers()[1] or b"", np.int32).reshape(-1, 4)  # each begins with its length
    return VALUE_BYTES + views[array.offset : array.offset + len(array), 0].astype(np.float64)


_BY_TYPE: Final[dict[str, Callable[[Any], Weights]]] = {
    **dict.fromkeys(("string", "large_string", "binary", "large_binary", "fixed_size_binary"), _of_text),
    **dict.fromkeys(("string_view", "binary_view"), _of_view),
    "dictionary": _of_dictionary,
    "struct": lambda array: _together([_weights(array.field(number)) for number in range(array.type.num_fields)]),
    "map": lambda array: _of_offsets(array, array.keys, array.items),
    **dict.fromkeys(("list", "large_list"), lambda array: _of_offsets(array, array.values)),
    **dict.fromkeys(("list_view", "large_list_view"), _of_list_view),
    "fixed_size_list": _of_fixed_size_list,
    "union": _of_union,
    "run_end_encoded": lambda array: _most(_weights(array.values)),
}


def _together(several: list[Any]) -> Weights:
    return cast("Weights", sum(several, VALUE_BYTES))


def _most(weights: Weights) -> float:
    return weights if isinstance(weights, float) else float(weights.max(initial=0.0))


def _sums(values: Weights, begins: Any, ends: Any) -> Weights:
    if isinstance(values, float):
        return cast("Weights", VALUE_BYTES + values * (ends - begins))
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return cast("Weights", VALUE_BYTES + sums[ends] - sums[begins])


ROWS: Final = 512
"""Rows that are objects of Python at once: enough that pyarrow's own cost for a batch does not count."""
ROWS_BYTES: Final = 1 << 20
"""Of these rows, where they are large, in bytes of their values: rows can be books."""
ROW_BYTES: Final = 256 << 20
"""Largest row, as an object of Python: sixteen times the largest record of the default settings."""
DICTIONARY_BYTES: Final = 64 << 20
"""Most bytes of a column that one entry of its dictionary may become at once: each row may be the longest of them."""
BUFFER_BYTES: Final = 1 << 18
"""Read at once of each column that is needed. By default pyarrow reads all of a row group's, of any size."""


def rows_within(size: int, rows: int) -> int:
    """Return how many of ``rows`` that take ``size`` bytes in all may be in memory at once: 1 to `ROWS`."""
    return max(1, min(ROWS, ROWS_BYTES * rows // max(1, size)))


def rows_of(batch: Any) -> Iterator[dict[str, Any] | Bad]:
    """Yield the rows of a sound record batch; one of which a value cannot be had is `Bad`, with the column's name."""
    step = max(1 << 16, batch.num_rows // 16 + 1)  # weighing takes some dozen bytes for each
    for begin in range(0, batch.num_rows, step):
        yield from _rows_of(batch.slice(begin, step))


def _rows_of(batch: Any) -> Iterator[dict[str, Any] | Bad]:
    # Of a sound batch, as objects of Python that share nothing, at least.
    begin, weights = 0, _together([_weights(column) for column in batch.columns])
    while begin < batch.num_rows:
        rows = min(ROWS, batch.num_rows - begin)
        if isinstance(weights, float):
            size, rows = weights, max(1, min(rows, int(ROWS_BYTES // weights)))
        else:
            size = weights[begin]
            rows = max(1, int(np.searchsorted(np.cumsum(weights[begin : begin + rows]), ROWS_BYTES, side="right")))
        if size > ROW_BYTES:
            yield Bad(f"a row of {size:,.0f} bytes: no more than {ROW_BYTES:,} are read")
        else:
            yield from _objects(batch.slice(begin, rows))
        begin += rows


def _objects(some: Any) -> list[dict[str, Any] | Bad]:
    try:
        return list(some.to_pylist())
    except Exception:  # noqa: BLE001 - types raise what they like (bad UTF-8, no such day or time zone): see `_row`
        return [_row(some.slice(number, 1)) for number in range(some.num_rows)]


def _row(one: Any) -> dict[str, Any] | Bad:
    row = {}
    for name, column in zip(one.schema.names, one.columns, strict=True):
        try:
            (row[name],) = column.to_pylist()
        except UnicodeDecodeError as error:
            return Bad(f"not UTF-8: {error.reason} at byte {error.start} of {name!r}")
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this value, and the next row may be well
            return Bad(f"{name!r} cannot be read: {error}")
    return row


def read_arrow(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the rows, numbered from 1."""
    arrow = library("pyarrow", "produce", "reading Arrow files")
    ipc = library("pyarrow.ipc", "produce", "reading Arrow files")
    number = 0
    try:
        pieces = messages_of(file.stream, needs.unpack_memory)
        first = [*islice(pieces, 2)]  # the schema's message has no body
        names = ipc.open_stream(arrow.PythonFile(Messages(iter(first)), "r")).schema.names
        if bad := needs.missing(names):
            yield 0, 0, bad
            return
        # By number, for names may be there twice.
        columns = [n for n, name in enumerate(names) if needs.columns is None or name in needs.columns]
        served = arrow.PythonFile(Messages(chain(first, pieces)), "r")
        for batch in ipc.open_stream(served, options=ipc.IpcReadOptions(included_fields=columns)):
            skip, end = max(0, start.entry - number), number + batch.num_rows
            before, number = min(number + skip, end), end
            if before < end:
                yield from _numbered("Arrow data", (sound(one).slice(skip) for one in [batch]), before, end)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        yield number + 1, 0, _broken("Arrow data", error)


def read_parquet(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the rows, numbered from 1; whole row groups before ``start`` are not read, nor those not of the file's."""
    arrow = library("pyarrow", "produce", "reading parquet")
    parquet = library("pyarrow.parquet", "produce", "reading parquet")
    try:
        with ExitStack() as stack:
            stream = stack.enter_context(nullcontext(file.stream) if file.path is None else FileIO(file.path))
            groups = row_groups_of(stream, needs.unpack_memory)  # before the library makes anything of them
            source = file.path or arrow.PythonFile(file.stream, "r")
            opened = stack.enter_context(parquet.ParquetFile(source, pre_buffer=False, buffer_size=BUFFER_BYTES))
            names = opened.schema_arrow.names
            if bad := needs.missing(names):
                yield 0, 0, bad
                return
            columns = names if needs.columns is None else [name for name in names if name in needs.columns]
            end = 0
            for place, group in enumerate(groups):
                begin, end = end, end + group.rows
                if end <= start.entry or (file.groups is not None and place not in file.groups):
                    continue
                rows = _rows_at_once(opened, stream, group, frozenset(columns), needs.unpack_memory)
                batches = opened.iter_batches(rows, row_groups=[place], columns=columns, use_threads=False)
                after = max(begin, start.entry)
                yield from _numbered("parquet", map(sound, _behind(batches, after - begin)), after, end)
                file.share = end / opened.metadata.num_rows
    except MemoryError:  # Arrow's, too
        raise
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        yield start.entry + 1, 0, _broken("parquet", error)


def _numbered(what: str, batches: Iterator[Any], number: int, end: int) -> Iterator[Entry]:
    """Yield the rows of sound batches, behind ``number`` up to ``end``; what is damaged harms none behind these."""
    try:
        for batch in batches:
            for row in rows_of(batch):
                number += 1
                yield number, 0, row
        if number < end:
            raise OSError("there are fewer than the file says")  # noqa: TRY301 - as the library says it
    except MemoryError:  # Arrow's, too
        raise
    except (library("pyarrow", "produce", f"reading {what}").ArrowException, OSError, UnicodeDecodeError) as error:
        yield end, 0, Bad(f"{_broken(what, error).why} (rows {number + 1:,} to {end:,} are lost)", broken=True)


def _broken(what: str, error: BaseException) -> Bad:
    return Bad(str(error) if isinstance(error, TooMuchMemoryError) else f"no {what}, or damaged: {error}", broken=True)


def row_groups(path: str) -> list[RowGroup]:
    """Return a parquet file's row groups, in order. Raises OSError where it is no parquet file, or cannot be read."""
    with FileIO(path) as stream:
        return row_groups_of(stream, MEMORY_BYTES)


def _rows_at_once(opened: Any, stream: Any, group: RowGroup, columns: frozenset[str], memory: int) -> int:
    """Return how many rows may be decoded at once: a page of each column is in memory, and what it becomes."""
    size = largest = entry = 0
    for number, chunk in enumerate(group.chunks):
        path = opened.metadata.schema.column(number).path
        if path in columns or path.partition(".")[0] in columns:  # of a struct, each field is a column
            most = {True: 0, False: 0}
            for is_dictionary, page in pages_of(stream, chunk):
                size += page
                most[is_dictionary] = max(most[is_dictionary], page)
            largest += sum(most.values())
            entry = max(entry, most[True])
    TooMuchMemoryError.check("a page of each column", 2 * largest, memory)
    few = min(DICTIONARY_BYTES // max(1, entry), memory // (2 * max(1, largest)))
    return max(1, min(rows_within(size, group.rows), few))


def _behind(batches: Iterable[Any], skip: int) -> Iterator[Any]:
    for batch in batches:
        yield batch.slice(min(skip, batch.num_rows))
        skip = max(0, skip - batch.num_rows)
