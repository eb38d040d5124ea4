"""Parquet, some rows at a time, and of the columns only those that are needed."""

from collections.abc import Iterator
from typing import Any, Final

from ..extras import library
from ..items import Place
from .protocol import Bad, Entry, File, Needs
from .rows import rows_of, rows_within

BUFFER_BYTES: Final = 1 << 18
"""Read at once of each column that is needed. By default pyarrow reads all of a row group's, of any size."""


def read_parquet(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the rows, numbered from 1; whole row groups before ``start`` are not read."""
    arrow = library("pyarrow", "produce", "reading parquet")
    parquet = library("pyarrow.parquet", "produce", "reading parquet")
    number = start.entry
    try:
        with parquet.ParquetFile(file.path or file.stream, pre_buffer=False, buffer_size=BUFFER_BYTES) as opened:
            names = opened.schema_arrow.names
            if bad := needs.missing(names):
                yield 0, 0, bad
                return
            columns = names if needs.columns is None else [name for name in names if name in needs.columns]
            for batch in _batches(opened, columns, start.entry):
                for row in rows_of(batch):
                    number += 1
                    yield number, 0, row
                file.share = number / opened.metadata.num_rows
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        yield number + 1, 0, Bad(f"no parquet, or damaged: {error}", broken=True)


def _batches(opened: Any, columns: list[str], skip: int) -> Iterator[Any]:
    """Yield the rows behind the first ``skip`` as record batches, each of as many as may be in memory at once."""
    needed = frozenset(columns)
    for number in range(opened.metadata.num_row_groups):
        group = opened.metadata.row_group(number)
        if skip >= group.num_rows:
            skip -= group.num_rows
            continue
        rows = rows_within(_size(group, needed), group.num_rows)
        for batch in opened.iter_batches(rows, row_groups=[number], columns=columns):
            yield batch.slice(min(skip, batch.num_rows))
            skip = max(0, skip - batch.num_rows)


def _size(group: Any, columns: frozenset[str]) -> int:
    """Return the bytes of a row group's columns, decompressed; those of a struct are called ``column.field``."""
    chunks = map(group.column, range(group.num_columns))
    return sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema in columns or chunk.path_in_schema.partition(".")[0] in columns
    )
