"""Rows of Arrow's record batches as objects of Python: a bounded number at once, and a bad one harms no other."""

from collections.abc import Iterator
from typing import Any, Final

from .protocol import Bad

ROWS: Final = 512
"""Rows that are objects of Python at once: enough that pyarrow's own cost for a batch does not count."""
ROWS_BYTES: Final = 1 << 20
"""Of these rows, where they are large, as Arrow holds them: rows can be books."""


def rows_within(size: int, rows: int) -> int:
    """Return how many of ``rows`` that take ``size`` bytes in all may be in memory at once: 1 to `ROWS`."""
    return max(1, min(ROWS, ROWS_BYTES * rows // max(1, size)))


def rows_of(batch: Any) -> Iterator[dict[str, Any] | Bad]:
    """Yield the rows of a record batch; one of which a value cannot be had is `Bad`, with the column's name."""
    step = rows_within(batch.nbytes, batch.num_rows)
    for begin in range(0, batch.num_rows, step):
        some = batch.slice(begin, step)
        try:
            rows = some.to_pylist()
        except Exception:  # noqa: BLE001 - types raise what they like (bad UTF-8, no such day or time zone): see `_row`
            rows = [_row(some.slice(number, 1)) for number in range(some.num_rows)]
        yield from rows


def _row(one: Any) -> dict[str, Any] | Bad:
    """Return the row that a record batch of one is."""
    row = {}
    for name, column in zip(one.schema.names, one.columns, strict=True):
        try:
            (row[name],) = column.to_pylist()
        except UnicodeDecodeError as error:
            return Bad(f"not UTF-8: {error.reason} at byte {error.start} of {name!r}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this value, and the next row may be well
            return Bad(f"{name!r} cannot be read: {error}")
    return row
