"""Parquet and Arrow: schemas that differ, nulls, damage."""

import io
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.files import write_arrow, write_parquet, write_stream
from tests.sources.reading import found_in, reading_of, refusals, values
from tokenmill.sources.formats import File, Needs
from tokenmill.sources.formats.columnar import ROWS, ROWS_BYTES, read_parquet, rows_of, rows_within
from tokenmill.sources.items import Place

Write = Callable[[Path, list[dict[str, Any]]], None]
each = pytest.mark.parametrize(
    ("name", "write"), [("a.parquet", write_parquet), ("a.arrow", write_arrow), ("a.arrows", write_stream)]
)


@each
def test_a_null_is_refused_with_its_row(name: str, write: Write, tmp_path: Path) -> None:
    """The other rows are documents; one without an id is called after its row."""
    write(tmp_path / name, [{"text": "one"}, {"text": None}, {"text": "three"}])

    found = found_in(reading_of(), tmp_path / name)

    assert [json.loads(value)["text"] for value in values(found)] == ["one", "three"]
    assert json.loads(values(found)[1])["id"].endswith(f"{name}:3")
    assert refusals(found) == [(f"{name}:2", "wrong_type: 'text' is null, not a string")]


@each
def test_files_of_another_schema_are_named(name: str, write: Write, tmp_path: Path) -> None:
    """One file lacks the column, and is broken; the others are read."""
    write(tmp_path / f"1{name}", [{"text": "one", "n": 1}])
    write(tmp_path / f"2{name}", [{"body": "two"}])
    write(tmp_path / f"3{name}", [{"content": "three", "n": "x"}])

    found = found_in(reading_of(), tmp_path)

    assert [json.loads(value)["text"] for value in values(found)] == ["one", "three"]
    ((where, why),) = refusals(found)
    assert where == f"2{name}"
    assert why.startswith("no column 'text' or 'content'; there are: 'body'")


@each
def test_damage_is_named(name: str, write: Write, tmp_path: Path) -> None:
    """A file that is cut off, or something else altogether."""
    write(tmp_path / name, [{"text": "one " * 100}] * 100)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 3])

    found = found_in(reading_of(), tmp_path / name)

    assert found[-1].broken  # type: ignore[union-attr]
    assert "or damaged" in refusals(found)[-1][1]


def test_nested_and_foreign_values_can_be_had(tmp_path: Path) -> None:
    """A field of a struct by its path; a date is carried as text; bytes are text if they are UTF-8."""
    rows = pa.table(
        {
            "meta": [{"body": "one", "lang": "de"}],
            "when": pa.array([0], pa.date32()),
            "raw": pa.array([b"gr\xc3\xbcn"], pa.binary()),
        }
    )
    pa.parquet.write_table(rows, tmp_path / "a.parquet")

    found = found_in(reading_of(fields=["meta.body"], metadata_fields=["meta.lang", "when"]), tmp_path / "a.parquet")
    name = f"{tmp_path / 'a.parquet'}:1"
    assert [json.loads(value) for value in values(found)] == [
        {"id": name, "text": "one", "meta.lang": "de", "when": "1970-01-01"}
    ]
    found = found_in(reading_of(fields=["raw"], plain=True), tmp_path / "a.parquet")
    assert values(found) == ["grün".encode()]


def strings(values: list[bytes]) -> pa.Array:
    """Return a column of strings, whatever their bytes: nobody who writes one is made to check."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


TABLES: dict[str, Callable[[Path, pa.Table], None]] = {
    "a.parquet": lambda path, table: pa.parquet.write_table(
        table, path, write_batch_size=4, row_group_size=600, compression="none"
    ),
    "a.arrow": lambda path, table: pa.feather.write_feather(table, path, compression="uncompressed"),
}
every = pytest.mark.parametrize("name", [*TABLES])


@every
def test_a_row_that_is_no_text_is_refused_and_the_others_are_read(name: str, tmp_path: Path) -> None:
    """Bytes that are no UTF-8 in a column of strings, of which the libraries make an error for a whole batch."""
    texts = [b"text %d" % number for number in range(1500)]
    texts[700] = b"gr\xfcn"
    TABLES[name](tmp_path / name, pa.table({"n": range(1500), "text": strings(texts)}))

    found = found_in(reading_of(plain=True), tmp_path / name)

    assert values(found) == texts[:700] + texts[701:]
    assert refusals(found) == [(f"{name}:701", "not UTF-8: invalid start byte at byte 2 of 'text'")]
    assert not found[700].broken  # type: ignore[union-attr]


@every
def test_a_value_that_python_does_not_have_is_refused(name: str, tmp_path: Path) -> None:
    """A day in the year 36812: the rows with other days are read, and without that column all are."""
    days = pa.array([0, 2**40, 0], pa.timestamp("s"))
    TABLES[name](tmp_path / name, pa.table({"text": ["one", "two", "three"], "day": days}))

    found = found_in(reading_of(metadata_fields=["day"]), tmp_path / name)

    assert [json.loads(value)["day"] for value in values(found)] == ["1970-01-01 00:00:00"] * 2
    assert refusals(found) == [(f"{name}:2", "'day' cannot be read: date value out of range")]
    assert values(found_in(reading_of(plain=True), tmp_path / name)) == [b"one", b"two", b"three"]


def test_columns_of_one_name_are_no_harm(tmp_path: Path) -> None:
    """Arrow allows them; the last one counts."""
    TABLES["a.parquet"](tmp_path / "a.parquet", pa.table([["one"], ["two"]], names=["text", "text"]))
    TABLES["a.arrow"](tmp_path / "b.arrow", pa.table([["one"], ["two"]], names=["text", "text"]))

    assert values(found_in(reading_of(plain=True), tmp_path)) == [b"two", b"two"]


def test_a_row_group_of_books_is_never_in_memory(tmp_path: Path) -> None:
    """Pyarrow holds some megabytes of it at once, as small as its pages are."""
    count, size = 480, 100_000
    path = tmp_path / "a.parquet"
    TABLES["a.parquet"](path, pa.table({"text": [f"{number:0{size}}" for number in range(count)]}))
    file = File("a", io.BufferedReader(io.BytesIO()), str(path))
    before, most, ends = pa.total_allocated_bytes(), 0, []

    for _, _, content in read_parquet(file, Needs(size), Place()):
        most = max(most, pa.total_allocated_bytes() - before)
        assert isinstance(content, dict)
        ends.append(int(content["text"][-9:]))

    assert ends == list(range(count))
    assert most < 8 << 20


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
