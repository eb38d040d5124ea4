"""Rows of record batches."""

import tracemalloc

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.tools.produce.formats.rows import ROWS, ROWS_BYTES, rows_of, rows_within


@given(size=st.integers(0, 2**40), rows=st.integers(1, 2**30))
def test_as_many_rows_are_taken_as_are_small_enough(size: int, rows: int) -> None:
    """At least one, at most so many, and of more than one no more bytes than there may be."""
    found = rows_within(size, rows)

    assert 1 <= found <= ROWS
    assert found == 1 or found * size <= ROWS_BYTES * rows
    assert found == ROWS or (found + 1) * size > ROWS_BYTES * rows


def test_a_batch_of_books_is_made_into_objects_a_few_at_a_time() -> None:
    """Whatever the number of rows in it, and wherever it was cut out of another one."""
    batch = pa.record_batch({"text": [f"{number:0100000}" for number in range(300)]}).slice(100)
    tracemalloc.start()
    try:
        ends = [int(row["text"][-9:]) for row in rows_of(batch) if isinstance(row, dict)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert ends == list(range(100, 300))
    assert peak < 3 * ROWS_BYTES
