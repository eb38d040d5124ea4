"""Parquet and Arrow: schemas that differ, nulls, damage."""

import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.sources.files import write_arrow, write_parquet, write_stream
from tests.app.sources.reading import found_in, peak_of, reading_of, refusals, values
from tokenmill.app.sources import Refused
from tokenmill.app.sources.file_sources import FileSource
from tokenmill.app.sources.formats.columnar import (
    ROWS,
    ROWS_BYTES,
    read_arrow,
    read_parquet,
    rows_of,
    rows_within,
    sound,
)
from tokenmill.app.sources.items import Bad, File, Needs, Place

Write = Callable[[Path, list[dict[str, Any]]], None]
each = pytest.mark.parametrize(
    ("name", "write"), [("a.parquet", write_parquet), ("a.arrow", write_arrow), ("a.arrows", write_stream)]
)


@each
def test_a_null_is_refused_with_its_row(name: str, write: Write, tmp_path: Path) -> None:
    write(tmp_path / name, [{"text": "one"}, {"text": None}, {"text": "three"}])
    found = found_in(reading_of(), tmp_path / name)
    assert [json.loads(value)["text"] for value in values(found)] == ["one", "three"]
    assert json.loads(values(found)[1])["id"].endswith(f"{name}:3")
    assert refusals(found) == [(f"{name}:2", "wrong_type: 'text' is null, not a string")]


@each
def test_files_of_another_schema_are_named(name: str, write: Write, tmp_path: Path) -> None:
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
    write(tmp_path / name, [{"text": "one " * 100}] * 100)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 3])
    found = found_in(reading_of(), tmp_path / name)
    assert found[-1].broken  # type: ignore[union-attr]
    assert "or damaged" in refusals(found)[-1][1]


@pytest.mark.parametrize("write", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_record_batch_that_is_none_loses_no_other(write: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"text": [f"text {n}" for n in range(30)]})
    with write(path, table.schema) as writer:
        writer.write_table(table, 10)
    data = path.read_bytes()
    offset = data.index(np.arange(0, 77, 7, dtype=np.int32).tobytes()) + 8  # of the second batch, the first such
    path.write_bytes(data[:offset] + b"\xff\xff\xff\x7f" + data[offset + 4 :])
    (chunk,) = FileSource(str(path), reading_of()).chunks(Place())
    assert [number for _, (_, number) in chunk.placed()] == [*range(1, 11), 20, *range(21, 31)]
    (refused,) = [item for item in chunk.items if isinstance(item, Refused)]
    assert "(rows 11 to 20 are lost)" in refused.why
    for entry in (5, 10, 12, 20):
        (rest,) = FileSource(str(path), reading_of()).chunks(Place(entry))
        numbers = [number for _, (_, number) in rest.placed()]
        assert numbers == [*range(entry + 1, 11), *([20] if entry < 20 else []), *range(21, 31)]


def test_nested_and_foreign_values_can_be_had(tmp_path: Path) -> None:
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
    days = pa.array([0, 2**40, 0], pa.timestamp("s"))
    TABLES[name](tmp_path / name, pa.table({"text": ["one", "two", "three"], "day": days}))
    found = found_in(reading_of(metadata_fields=["day"]), tmp_path / name)
    assert [json.loads(value)["day"] for value in values(found)] == ["1970-01-01 00:00:00"] * 2
    assert refusals(found) == [(f"{name}:2", "'day' cannot be read: date value out of range")]
    assert values(found_in(reading_of(plain=True), tmp_path / name)) == [b"one", b"two", b"three"]


@every
@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.uint32(), pa.uint64()])
def test_entries_of_a_dictionary_are_found_by_numbers_of_any_kind(name: str, kind: pa.DataType, tmp_path: Path) -> None:
    """Polars writes unsigned ones; a null is none of them."""
    entries = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], kind), ["one", "two"])
    TABLES[name](tmp_path / name, pa.table({"text": entries}))
    found = found_in(reading_of(plain=True), tmp_path / name)
    assert values(found) == [b"two", b"one"]
    assert [where for where, _ in refusals(found)] == [f"{name}:2"]


def test_columns_of_one_name_are_refused_where_they_are_needed(tmp_path: Path) -> None:
    """Arrow allows them; the last one would count, in silence."""
    TABLES["a.parquet"](tmp_path / "a.parquet", pa.table([["one"], ["two"]], names=["text", "text"]))
    TABLES["a.arrow"](tmp_path / "b.arrow", pa.table([["one"], ["two"]], names=["text", "text"]))
    told = refusals(found_in(reading_of(plain=True), tmp_path))
    assert len(told) == 2
    assert all("the column 'text' is there twice" in why for _, why in told)


def rows_of_parquet(path: Path, needs: Needs, make: Callable[[str], Any]) -> tuple[list[Any], int]:
    """Return what is made of each row's text, and the most bytes that pyarrow held at one time."""
    before, most, made = pa.total_allocated_bytes(), 0, []
    with path.open("rb") as file:
        for _, _, content in read_parquet(File("a", file, str(path)), needs, Place()):
            most = max(most, pa.total_allocated_bytes() - before)
            assert isinstance(content, dict)
            made.append(make(content["text"]))
    return made, most


def test_a_row_group_of_books_is_never_in_memory(tmp_path: Path) -> None:
    count, size = 480, 100_000
    path = tmp_path / "a.parquet"
    TABLES["a.parquet"](path, pa.table({"text": [f"{number:0{size}}" for number in range(count)]}))
    ends, most = rows_of_parquet(path, Needs(size), lambda text: int(text[-9:]))
    assert ends == list(range(count))
    assert most < 8 << 20


@given(size=st.integers(0, 2**40), rows=st.integers(1, 2**30))
def test_as_many_rows_are_taken_as_are_small_enough(size: int, rows: int) -> None:
    found = rows_within(size, rows)
    assert 1 <= found <= ROWS
    assert found == 1 or found * size <= ROWS_BYTES * rows
    assert found == ROWS or (found + 1) * size > ROWS_BYTES * rows


def test_a_batch_of_books_is_made_into_objects_a_few_at_a_time() -> None:
    batch = pa.record_batch({"text": [f"{number:0100000}" for number in range(300)]}).slice(100)
    ends, peak = peak_of(lambda: [int(row["text"][-9:]) for row in rows_of(batch) if isinstance(row, dict)])
    assert ends == list(range(100, 300))
    assert peak < 3 * ROWS_BYTES


def bare(kind: pa.DataType, length: int, *buffers: bytes | None, children: list[pa.Array] | None = None) -> pa.Array:
    found = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, length, found, children=children)


def int32(*numbers: int) -> bytes:
    return np.array(numbers, np.int32).tobytes()


ITEMS = pa.StructArray.from_arrays(
    [pa.array(["k"]), pa.array(["v"])],
    fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())],
)
FAR = 1 << 28
"""Bytes from the buffer, about a quarter of a gigabyte: another's memory, or none."""
HARMFUL: dict[str, Callable[[], pa.Array]] = {
    "a text behind its buffer": lambda: bare(pa.string(), 2, None, int32(0, FAR, 4), b"text"),
    "a text before its buffer": lambda: bare(pa.string(), 2, None, int32(0, -FAR, 4), b"text"),
    "bytes behind their buffer": lambda: bare(
        pa.large_binary(), 2, None, np.array([0, FAR, 4], np.int64).tobytes(), b"text"
    ),
    "a view behind its buffer": lambda: bare(pa.string_view(), 1, None, int32(36_000, 0x74786574, 0, FAR), b"text"),
    "a view of no buffer": lambda: bare(pa.string_view(), 1, None, int32(36_000, 0x74786574, 77, 0), b"text"),
    "a list behind its values": lambda: bare(
        pa.list_(pa.string()), 2, None, int32(0, FAR, 1), children=[pa.array(["text"])]
    ),
    "a view of a list behind its values": lambda: bare(
        pa.list_view(pa.string()), 1, None, int32(FAR), int32(9), children=[pa.array(["text"])]
    ),
    "a map behind its items": lambda: bare(
        pa.map_(pa.string(), pa.string()), 2, None, int32(0, FAR, 1), children=[ITEMS]
    ),
    "an index behind its dictionary": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, FAR], pa.int32()), ["text"], safe=False
    ),
    "an index before its dictionary": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, -FAR], pa.int32()), ["text"], safe=False
    ),
    "a member of a struct": lambda: pa.StructArray.from_arrays(
        [bare(pa.string(), 2, None, int32(0, FAR, 4), b"text")], ["inner"]
    ),
    "a dictionary whose text is behind its buffer": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0], pa.int32()), bare(pa.string(), 2, None, int32(0, FAR, 4), b"text"), safe=False
    ),
    "a kind that a union has not": lambda: bare(
        pa.dense_union([pa.field("a", pa.int32())]), 1, None, b"\x63", int32(0), children=[pa.array([1], pa.int32())]
    ),
    "a value behind those of a union": lambda: bare(
        pa.dense_union([pa.field("a", pa.string())]), 1, None, b"\0", int32(FAR), children=[pa.array(["a"])]
    ),
}
"""By what is wrong with one of its values."""


@pytest.mark.parametrize("options", [None, "zstd"])
@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("harm", HARMFUL)
def test_nothing_outside_of_a_buffer_is_read(harm: str, make: Callable[..., Any], options: str, tmp_path: Path) -> None:
    """It became a document, or ended the process: 36 kB gave others' memory away, 336 bytes sufficed for SIGSEGV."""
    column = HARMFUL[harm]()
    schema = pa.schema({"text": pa.string(), "odd": column.type})
    texts = pa.array(["text"] * len(column))
    with make(tmp_path / "a.arrow", schema, options=pa.ipc.IpcWriteOptions(compression=options)) as writer:
        writer.write_batch(pa.record_batch([texts, column], schema))
    (refused,) = found_in(reading_of(metadata_fields=["odd"]), tmp_path / "a.arrow")
    assert isinstance(refused, Refused)
    assert refused.why.startswith("no Arrow data, or damaged: ")
    assert refused.broken
    assert len(values(found_in(reading_of(plain=True), tmp_path / "a.arrow"))) == len(column), "nobody needs the column"


BOMBS: dict[str, Callable[[int], pa.Array]] = {
    "an entry of a dictionary": lambda rows: pa.DictionaryArray.from_arrays(pa.array([0] * rows), ["x" * 2_000_000]),
    "a view": lambda rows: bare(
        pa.string_view(), rows, None, int32(2_000_000, 0x78787878, 0, 0) * rows, b"x" * 2_000_000
    ),
    "a view of a list": lambda rows: bare(
        pa.list_view(pa.string()),
        rows,
        None,
        int32(0) * rows,
        int32(20) * rows,
        children=[pa.array(["x" * 100_000] * 20)],
    ),
    "a run": lambda rows: pa.RunEndEncodedArray.from_arrays(pa.array([rows], pa.int32()), ["x" * 2_000_000]),
    "a list of entries": lambda rows: pa.ListArray.from_arrays(
        range(0, 20 * rows + 1, 20), pa.DictionaryArray.from_arrays(pa.array([0] * 20 * rows), ["x" * 100_000])
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.cases(2)
def test_what_stands_for_many_values_is_made_into_objects_a_few_at_a_time(bomb: str) -> None:
    batch = pa.record_batch({"text": BOMBS[bomb](500)})
    count, peak = peak_of(lambda: sum(1 for row in rows_of(sound(batch)) if isinstance(row, dict)))
    assert count == 500
    assert peak < 16 << 20


def test_a_row_that_stands_for_more_than_a_machine_has_is_refused() -> None:
    """Lists of lists, each a view of all of the same one; or a list of as many nulls. Its neighbours are read."""
    nested = pa.array(["x"], pa.string())
    for _ in range(7):
        whole = (int32(0) * 1000, int32(len(nested)) * 1000)
        nested = bare(pa.list_view(nested.type), 1000, None, *whole, children=[nested])
    views = bare(pa.list_view(nested.type), 3, None, int32(0, 0, 0), int32(0, len(nested), 0), children=[nested])
    nulls = bare(pa.list_(pa.null()), 3, None, int32(0, 0, 2**30, 2**30), children=[pa.nulls(2**30)])
    for odd in (views, nulls):
        one, two, three = rows_of(sound(pa.record_batch({"text": ["one", "two", "three"], "odd": odd})))
        assert (one, three) == ({"text": "one", "odd": []}, {"text": "three", "odd": []})
        assert isinstance(two, Bad)
        assert two.why.endswith("no more than 268,435,456 are read")


@given(data=st.data())
def test_an_arrow_file_that_was_changed_anywhere_ends_no_process(data: st.DataObject) -> None:
    table = pa.table(
        {
            "text": ["one", "two", None],
            "entry": pa.array(["x", "y", "x"]).dictionary_encode(),
            "view": pa.array(["longer than twelve bytes", "x", None], pa.string_view()),
            "list": [[{"role": "user", "content": "hi"}], [], None],
            "views": pa.array([["x", "y"], [], ["z"]], pa.list_view(pa.string())),
        }
    )
    make = data.draw(st.sampled_from([pa.ipc.new_file, pa.ipc.new_stream]))
    sink = io.BytesIO()
    with make(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=data.draw(st.sampled_from([None, "lz4"])))
    ) as writer:
        writer.write_table(table)
    changed = bytearray(sink.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))

    stream = io.BufferedReader(io.BytesIO(changed))
    for _, _, content in itertools.islice(read_arrow(File("a", stream), Needs(1000), Place()), 1000):
        assert isinstance(content, dict | Bad)


@pytest.mark.needs("minutes")
def test_a_dictionary_of_books_is_decoded_a_few_rows_at_a_time(tmp_path: Path) -> None:
    """Of some hundred bytes, 160 rows of two megabytes: what a row group has in all says nothing of its longest row."""
    text = "x" * 2_000_000
    pa.parquet.write_table(pa.table({"text": [text] * 160}), tmp_path / "a.parquet", compression="brotli")
    found, most = rows_of_parquet(tmp_path / "a.parquet", Needs(10**9), text.__eq__)
    assert found == [True] * 160
    assert most < 128 << 20
