"""Arrow and Parquet: a bounded number of rows at a time, and only the columns that are needed.

Nobody who writes such a file is made to write a sound one. So nothing of a batch is looked at before all of it is
checked (`sound`), and how large rows are is counted as objects of Python: of a dictionary, a run or a view, a few bytes
are any number of values.
"""

import re
from collections.abc import Iterator
from io import BufferedReader
from typing import Any, Final, NamedTuple

import numpy as np

from ..items import Bad, Entry, File, Needs, Place, library
from .batches import row_weights, sound

ROWS: Final = 512
"""Rows that are objects of Python at once: enough that pyarrow's own cost for a batch does not count."""
ROWS_BYTES: Final = 1 << 20
"""Of these rows, where they are large, in bytes of their values: rows can be books."""
ROW_BYTES: Final = 256 << 20
"""Largest row, as an object of Python: sixteen times the largest record of the default settings."""
DICTIONARY_BYTES: Final = 64 << 20
"""Most bytes of a column that one entry of its dictionary may become at once: each row may be the longest of them."""
MAGIC: Final = b"ARROW1"
"""What a file begins with, and a stream does not (Arrow columnar format, IPC file format)."""
_NO_BATCH: Final = 1 << 42
"""No machine holds a batch of so many bytes."""
_ROOM_BYTES: Final = 1 << 26
"""Bytes for which room is made at once."""
BUFFER_BYTES: Final = 1 << 18
"""Read at once of each column that is needed. By default pyarrow reads all of a row group's, of any size."""


def rows_within(size: int, rows: int) -> int:
    """Return how many of ``rows`` that take ``size`` bytes in all may be in memory at once: 1 to `ROWS`."""
    return max(1, min(ROWS, ROWS_BYTES * rows // max(1, size)))


def rows_of(batch: Any) -> Iterator[dict[str, Any] | Bad]:
    """Yield the rows of a sound record batch; one of which a value cannot be had is `Bad`, with the column's name."""
    begin, weights = 0, row_weights(batch)
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
    """Return the row that a record batch of one is."""
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
    number = 0
    try:
        schema, batches = _open(library("pyarrow.ipc", "produce", "reading Arrow files"), file.stream)
        if bad := needs.missing(schema.names):
            yield 0, 0, bad
            return
        # By number, for names may be there twice.
        columns = [n for n, name in enumerate(schema.names) if needs.columns is None or name in needs.columns]
        for batch in batches:
            skip = min(max(0, start.entry - number), batch.num_rows)
            number += skip
            for row in rows_of(sound(batch.select(columns)).slice(skip)):
                number += 1
                yield number, 0, row
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError) and not _asks_for_too_much(error):
            raise
        yield number + 1, 0, Bad(f"no Arrow data, or damaged: {error}", broken=True)


def _asks_for_too_much(error: MemoryError) -> bool:
    """Return whether more was asked for than any machine has, which damage does and no batch."""
    return any(int(size) > _NO_BATCH for size in re.findall(r"size (\d+)", str(error)))


def _open(ipc: Any, stream: "BufferedReader[Any]") -> tuple[Any, Iterator[Any]]:
    """Return schema and record batches."""
    is_file = stream.peek(len(MAGIC)).startswith(MAGIC)
    file = library("pyarrow", "produce", "reading Arrow files").PythonFile(_Sparing(stream), "r")
    if not is_file:
        reader = ipc.open_stream(file)
        return reader.schema, iter(reader)
    reader = ipc.open_file(file)
    return reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))


class _Sparing:
    """A stream that makes room for what it has, whatever number of bytes a damaged file says that it has."""

    def __init__(self, stream: "BufferedReader[Any]") -> None:
        self._stream = stream
        self.closed = False
        self.seek = stream.seek
        self.tell = stream.tell
        self.close = stream.close

    def read(self, size: int) -> bytes:
        pieces = []
        while size > 0 and (piece := self._stream.read(min(size, _ROOM_BYTES))):
            pieces.append(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_parquet(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the rows, numbered from 1; whole row groups before ``start`` are not read, nor those not of the file's."""
    arrow = library("pyarrow", "produce", "reading parquet")
    parquet = library("pyarrow.parquet", "produce", "reading parquet")
    number = start.entry
    try:
        source = file.path or arrow.PythonFile(_Sparing(file.stream), "r")
        with parquet.ParquetFile(source, pre_buffer=False, buffer_size=BUFFER_BYTES) as opened:
            names = opened.schema_arrow.names
            if bad := needs.missing(names):
                yield 0, 0, bad
                return
            columns = names if needs.columns is None else [name for name in names if name in needs.columns]
            groups = file.groups or range(opened.metadata.num_row_groups)
            for batch in _batches(opened, file.stream, columns, start.entry, groups):
                for row in rows_of(sound(batch)):
                    number += 1
                    yield number, 0, row
                file.share = number / opened.metadata.num_rows
    except MemoryError:  # Arrow's, too
        raise
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        yield number + 1, 0, Bad(f"no parquet, or damaged: {error}", broken=True)


class RowGroup(NamedTuple):
    """A row group of a parquet file."""

    rows: int
    uncompressed_bytes: int
    """Of all its columns."""
    begin: int = 0
    end: int = 0
    """The bytes of the file that it is in; 0 where nobody asked."""


def row_groups(path: str, *, places: bool = False) -> list[RowGroup]:
    """Return a parquet file's row groups, in order; with ``places``, which reads a row of each, also where they are.

    Raises:
        ArrowException, OSError: it is no parquet file, or cannot be read.

    """
    with library("pyarrow.parquet", "produce", "reading parquet").ParquetFile(path) as opened:
        found = []
        for number in range(opened.metadata.num_row_groups):
            group = opened.metadata.row_group(number)
            chunks = _chunks(opened, number, opened.schema_arrow.names) if places else []
            begins = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
            ends = [begin + chunk.total_compressed_size for begin, chunk in zip(begins, chunks, strict=True)]
            found.append(RowGroup(group.num_rows, group.total_byte_size, min(begins, default=0), max(ends, default=0)))
        return found


def _chunks(opened: Any, number: int, columns: list[str]) -> list[Any]:
    """Return what the file says of these columns in a row group.

    A row is read first: that raises where damage lets the file contradict itself, and asking would end the process.
    """
    next(opened.iter_batches(1, row_groups=[number], columns=columns, use_threads=False), None)
    group, schema, needed = opened.metadata.row_group(number), opened.metadata.schema, frozenset(columns)
    paths = [schema.column(place).path for place in range(min(group.num_columns, opened.metadata.num_columns))]
    # of a struct, each field is a column
    return [
        group.column(place) for place, path in enumerate(paths) if path in needed or path.partition(".")[0] in needed
    ]


def _batches(opened: Any, stream: Any, columns: list[str], skip: int, groups: range) -> Iterator[Any]:
    """Yield the rows behind the first ``skip`` as record batches, each of as many as may be in memory at once."""
    for number in range(opened.metadata.num_row_groups):
        group = opened.metadata.row_group(number)
        if skip >= group.num_rows:
            skip -= group.num_rows
            continue
        if number not in groups:
            return
        chunks = _chunks(opened, number, columns)
        size = sum(chunk.total_uncompressed_size for chunk in chunks)
        entry = max((_dictionary_bytes(stream, chunk) for chunk in chunks), default=0)
        rows = max(1, min(rows_within(size, group.num_rows), DICTIONARY_BYTES // max(1, entry)))
        for batch in opened.iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
            yield batch.slice(min(skip, batch.num_rows))
            skip = max(0, skip - batch.num_rows)


def _dictionary_bytes(stream: Any, chunk: Any) -> int:
    """Return the bytes of a column's dictionary, as the head of its page says: no entry is longer."""
    if chunk.total_uncompressed_size * ROWS <= DICTIONARY_BYTES or not chunk.dictionary_page_offset:
        return 0
    stream.seek(chunk.dictionary_page_offset)
    head = _PAGE_HEAD.match(stream.read(16))
    size = sum((byte & 127) << 7 * place for place, byte in enumerate(head[1])) if head else 0
    return size >> 1  # zigzag


_PAGE_HEAD: Final = re.compile(rb"\x15.\x15([\x80-\xff]{0,4}[\0-\x7f])", re.DOTALL)
"""Type and size of a page: the first fields of a PageHeader, in Thrift's compact protocol (parquet.thrift)."""
