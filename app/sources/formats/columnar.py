"""Arrow and Parquet: a bounded number of rows at a time, and only the columns that are needed.

A file may be unsound, and the libraries trust what they are given: an offset leads wherever it says. So
nothing of a batch is looked at before all of it is checked (`sound`), and the size of rows is counted as objects of
Python: of a dictionary, a run or a view, a few bytes are any number of values.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from io import FileIO
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ..items import MEMORY_BYTES, Bad, Entry, File, Needs, Place, TooMuchMemoryError, library
from .arrow_messages import Messages, messages_of
from .parquet_pages import RowGroup, pages_of, row_groups_of

VALUE_BYTES: Final = 64.0
"""What an object of Python takes beside the bytes of its value, about."""

Weights: TypeAlias = float | npt.NDArray[np.float64]
"""Bytes of each value of an array, or of all alike. Floats: lists of lists may stand for more than there are atoms."""


def sound(batch: Any) -> Any:
    """Return a record batch of which nothing leads out of its buffers, and all may be asked for.

    It may hold text that is no UTF-8: Python says so of each value, and that harms no other. Raises ArrowException
    where it is damaged, or made to do harm.
    """
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


def _of_list(array: Any) -> Weights:
    return _of_offsets(array, array.values)


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
    "string": _of_text,
    "large_string": _of_text,
    "binary": _of_text,
    "large_binary": _of_text,
    "string_view": _of_view,
    "binary_view": _of_view,
    "fixed_size_binary": _of_text,
    "dictionary": _of_dictionary,
    "struct": lambda array: _together([_weights(array.field(number)) for number in range(array.type.num_fields)]),
    "map": lambda array: _of_offsets(array, array.keys, array.items),
    "list": _of_list,
    "large_list": _of_list,
    "list_view": _of_list_view,
    "large_list_view": _of_list_view,
    "fixed_size_list": _of_fixed_size_list,
    "union": _of_union,
    "run_end_encoded": lambda array: _most(_weights(array.values)),
}


def _together(several: list[Weights]) -> Weights:
    """Return the weights of objects that have one value of each."""
    total: Weights = VALUE_BYTES
    for weights in several:
        total = total + weights
    return total


def _most(weights: Weights) -> float:
    return weights if isinstance(weights, float) else float(weights.max(initial=0.0))


def _sums(values: Weights, begins: Any, ends: Any) -> Weights:
    """Return the weights of lists that begin and end at these places."""
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
                batches = map(sound, checked.batches(place, columns, max(0, start.entry - begin)))
                yield from _numbered("parquet", batches, max(begin, start.entry), end)
                file.share = end / opened.metadata.num_rows
    except MemoryError:  # Arrow's, too
        raise
    except damage as error:
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
