"""Arrow and Parquet: a bounded number of rows at a time, and only the columns that are needed.

Nobody who writes such a file is made to write a sound one. So nothing of a batch is looked at before all of it is
checked (`sound`), and how large rows are is counted as objects of Python: of a dictionary, a run or a view, a few bytes
are any number of values.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext
from io import FileIO
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import numpy as np

from ..items import MEMORY_BYTES, Bad, Entry, File, Needs, Place, TooMuchMemoryError, library
from .arrow_messages import Messages, messages_of
from .batches import row_weights, sound
from .parquet_pages import RowGroup, pages_of, row_groups_of

ROWS: Final = 512
"""Rows that are objects of Python at once: enough that pyarrow's own cost for a batch does not count."""
ROWS_BYTES: Final = 1 << 20
"""Of these rows, where they are large, in bytes of their values: rows can be books."""
ROW_BYTES: Final = 256 << 20
"""Largest row, as an object of Python: sixteen times the largest record of the default settings."""
DICTIONARY_BYTES: Final = 64 << 20
"""Most bytes of a column that one entry of its dictionary may become at once: each row may be the longest of them."""
_WEIGHED_ROWS: Final = 1 << 16
_WEIGHED_PARTS: Final = 16
"""Rows are weighed in so many parts of a batch, or so many at once: that takes some dozen bytes for each."""
BUFFER_BYTES: Final = 1 << 18
"""Read at once of each column that is needed. By default pyarrow reads all of a row group's, of any size."""


def rows_within(size: int, rows: int) -> int:
    """Return how many of ``rows`` that take ``size`` bytes in all may be in memory at once: 1 to `ROWS`."""
    return max(1, min(ROWS, ROWS_BYTES * rows // max(1, size)))


def rows_of(batch: Any) -> Iterator[dict[str, Any] | Bad]:
    """Yield the rows of a sound record batch; one of which a value cannot be had is `Bad`, with the column's name."""
    step = max(_WEIGHED_ROWS, batch.num_rows // _WEIGHED_PARTS + 1)
    for begin in range(0, batch.num_rows, step):
        yield from _rows_of(batch.slice(begin, step))


def _rows_of(batch: Any) -> Iterator[dict[str, Any] | Bad]:
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
            number = min(number + skip, end)
            if number == end:
                continue
            try:
                for row in rows_of(sound(batch).slice(skip)):
                    number += 1
                    yield number, 0, row
            except arrow.ArrowException as error:  # the next one may be well
                yield _rest("Arrow data", error, number, end)
                number = end
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        yield number + 1, 0, _broken("Arrow data", error)


def read_parquet(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the rows, numbered from 1; whole row groups before ``start`` are not read, nor those not of the file's."""
    arrow = library("pyarrow", "produce", "reading parquet")
    parquet = library("pyarrow.parquet", "produce", "reading parquet")
    damage = (arrow.ArrowException, OSError, UnicodeDecodeError)
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
            checked = _Checked(opened, stream, groups, needs.unpack_memory)
            end = 0
            for place, group in enumerate(groups):
                begin, end = end, end + group.rows
                if end <= start.entry or (file.groups is not None and place not in file.groups):
                    continue
                number, skip = max(begin, start.entry), max(0, start.entry - begin)
                try:
                    for batch in checked.batches(place, columns, skip):
                        for row in rows_of(sound(batch)):
                            number += 1
                            yield number, 0, row
                    if number < end:
                        raise OSError("there are fewer than the file says")
                except damage as error:  # the next one may be well
                    yield _rest("parquet", error, number, end)
                file.share = end / opened.metadata.num_rows
    except MemoryError:  # Arrow's, too
        raise
    except damage as error:
        yield start.entry + 1, 0, _broken("parquet", error)


def _rest(what: str, error: BaseException, number: int, end: int) -> Entry:
    """Return the refusal of the rows behind ``number`` up to ``end``."""
    if isinstance(error, MemoryError):  # Arrow's, too
        raise error
    return end, 0, Bad(f"{_broken(what, error).why} (rows {number + 1:,} to {end:,} are lost)", broken=True)


def _broken(what: str, error: BaseException) -> Bad:
    why = str(error)
    return Bad(why if isinstance(error, TooMuchMemoryError) else f"no {what}, or damaged: {why}", broken=True)


def row_groups(path: str) -> list[RowGroup]:
    """Return a parquet file's row groups, in order. Raises OSError where it is no parquet file, or cannot be read."""
    with FileIO(path) as stream:
        return row_groups_of(stream, MEMORY_BYTES)


class _Checked(NamedTuple):
    """An open file, of which nothing is decoded that takes too much memory."""

    opened: Any
    stream: Any
    """Where the heads of its pages are read."""
    groups: list[RowGroup]
    memory: int

    def rows_at_once(self, group: RowGroup, columns: Iterable[int]) -> int:
        """Return how many rows of a group may be decoded at once, with these of its columns.

        Raises no TooMuchMemoryError: a page of each column is in memory, and what its values become.
        """
        size = largest = entry = 0
        for number in columns:
            most = {True: 0, False: 0}
            for page in pages_of(self.stream, group.chunks[number]):
                size += page.size
                most[page.is_dictionary] = max(most[page.is_dictionary], page.size)
            largest += sum(most.values())
            entry = max(entry, most[True])
        TooMuchMemoryError.check("a page of each column", 2 * largest, self.memory)
        few = min(DICTIONARY_BYTES // max(1, entry), self.memory // (2 * max(1, largest)))
        return max(1, min(rows_within(size, group.rows), few))

    def batches(self, number: int, columns: list[str], skip: int) -> Iterator[Any]:
        """Yield the rows of a group behind the first ``skip`` as record batches, each as large as memory allows."""
        about, needed, group = self.opened.metadata, frozenset(columns), self.groups[number]
        paths = [about.schema.column(place).path for place in range(len(group.chunks))]
        # of a struct, each field is a column
        places = [place for place, path in enumerate(paths) if path in needed or path.partition(".")[0] in needed]
        rows = self.rows_at_once(group, places)
        for batch in self.opened.iter_batches(rows, row_groups=[number], columns=columns, use_threads=False):
            yield batch.slice(min(skip, batch.num_rows))
            skip = max(0, skip - batch.num_rows)
