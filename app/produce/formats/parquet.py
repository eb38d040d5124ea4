"""Parquet, some rows at a time, and of the columns only those that are needed."""

from collections.abc import Iterator
from typing import Any, Final

from ..extras import library
from ..items import Place
from .protocol import Bad, Entry, File, Needs

ROWS: Final = 512
"""Rows that are objects of Python at once: enough that pyarrow's own cost for a batch does not count."""


def read_parquet(file: File, needs: Needs, start: Place) -> Iterator[Entry]:
    """Yield the rows, numbered from 1; whole row groups before ``start`` are not read."""
    arrow = library("pyarrow", "produce", "reading parquet")
    parquet = library("pyarrow.parquet", "produce", "reading parquet")
    number = start.entry
    try:
        with parquet.ParquetFile(file.path or file.stream) as opened:
            names = opened.schema_arrow.names
            if bad := needs.missing(names):
                yield 0, 0, bad
                return
            columns = names if needs.columns is None else [name for name in names if name in needs.columns]
            first, before = _first_group(opened.metadata, start.entry)
            groups = range(first, opened.metadata.num_row_groups)
            skip = start.entry - before
            for batch in opened.iter_batches(ROWS, row_groups=list(groups), columns=columns):
                for row in batch.slice(min(skip, batch.num_rows)).to_pylist():
                    number += 1
                    yield number, 0, row
                skip = max(0, skip - batch.num_rows)
                file.share = number / opened.metadata.num_rows
    except (arrow.ArrowException, OSError) as error:
        yield number + 1, 0, Bad(f"no parquet, or damaged: {error}", broken=True)


def _first_group(metadata: Any, row: int) -> tuple[int, int]:
    """Return the row group that holds a row, and the number of rows before the group."""
    before = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if before + rows > row:
            return group, before
        before += rows
    return metadata.num_row_groups, before
