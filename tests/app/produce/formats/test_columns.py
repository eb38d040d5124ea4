"""Parquet and Arrow: schemas that differ, nulls, damage."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.app.produce.files import write_arrow, write_parquet, write_stream
from tests.app.produce.reading import found_in, reading_of, refusals, values

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

    found = found_in(reading_of(fields=["meta.body"], carry=["meta.lang", "when"]), tmp_path / "a.parquet")
    name = f"{tmp_path / 'a.parquet'}:1"
    assert [json.loads(value) for value in values(found)] == [
        {"id": name, "text": "one", "meta.lang": "de", "when": "1970-01-01"}
    ]
    found = found_in(reading_of(fields=["raw"], plain=True), tmp_path / "a.parquet")
    assert values(found) == ["grün".encode()]
