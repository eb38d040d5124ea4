"""Parquet and Arrow: schemas that differ, nulls, damage; messages and pages, weighed before anything is decoded."""

import io
import itertools
import json
import subprocess
import sys
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

from tests.app.sources.files import WRITERS
from tests.app.sources.reading import found_in, peak_of, reading_of, refusals, values
from tests.app.sources.test_encodings import Drops
from tokenmill.app.sources import Refused
from tokenmill.app.sources.file_sources import FileSource
from tokenmill.app.sources.formats.columnar import (
    PARQUET_MAGIC,
    ROWS,
    ROWS_BYTES,
    Messages,
    messages_of,
    pages_of,
    read_arrow,
    read_parquet,
    row_groups_of,
    rows_of,
    rows_within,
    sound,
)
from tokenmill.app.sources.items import MEMORY_BYTES, Bad, File, Needs, Place, TooMuchMemoryError

each = pytest.mark.parametrize("name", ["e.parquet", "f.arrow", "g.arrows"])
FILE_OR_STREAM = (pa.ipc.new_file, pa.ipc.new_stream)


def arrow(
    of: pa.Table, make: Any, compression: str | None = None, rows: int | None = None, *, old: bool = False
) -> bytes:
    """Return a table as an Arrow file or stream, in batches of so many rows, in the present format or an old one."""
    made = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_legacy_format=old)
    with make(made, of.schema, options=options) as writer:
        writer.write_table(of, max_chunksize=rows)
    return made.getvalue()


@each
def test_a_null_is_refused_with_its_row(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name, [{"text": "one"}, {"text": None}, {"text": "three"}])
    found = found_in(reading_of(), tmp_path / name)
    assert [json.loads(value)["text"] for value in values(found)] == ["one", "three"]
    assert json.loads(values(found)[1])["id"].endswith(f"{name}:3")
    assert refusals(found) == [(f"{name}:2", "wrong_type: 'text' is null, not a string")]


@each
def test_files_of_another_schema_are_named(name: str, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": "one", "n": 1}, {"body": "two"}, {"content": "three", "n": "x"}]
    for number, row in enumerate(rows, 1):
        WRITERS[name](tmp_path / f"{number}{name}", [row])
    found = found_in(reading_of(), tmp_path)
    assert [json.loads(value)["text"] for value in values(found)] == ["one", "three"]
    ((where, why),) = refusals(found)
    assert where == f"2{name}"
    assert why.startswith("no column 'text' or 'content'; there are: 'body'")


@each
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name, [{"text": "one " * 100}] * 100)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 3])
    found = found_in(reading_of(), tmp_path / name)
    assert found[-1].broken  # type: ignore[union-attr]
    assert "or damaged" in refusals(found)[-1][1]


@pytest.mark.parametrize("make", FILE_OR_STREAM)
def test_a_record_batch_that_is_none_loses_no_other(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    data = arrow(pa.table({"text": [f"text {n}" for n in range(30)]}), make, rows=10)
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
    meta, when, raw = (
        [{"body": "one", "lang": "de"}],
        pa.array([0], pa.date32()),
        pa.array([b"gr\xc3\xbcn"], pa.binary()),
    )
    pa.parquet.write_table(pa.table({"meta": meta, "when": when, "raw": raw}), tmp_path / "a.parquet")
    found = found_in(reading_of(fields=["meta.body"], metadata_fields=["meta.lang", "when"]), tmp_path / "a.parquet")
    row = {"id": f"{tmp_path / 'a.parquet'}:1", "text": "one", "meta.lang": "de", "when": "1970-01-01"}
    assert [json.loads(value) for value in values(found)] == [row]
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


def bare(kind: pa.DataType, length: int, *parts: Any) -> pa.Array:
    """Return an array of these buffers and children, which nobody checks."""
    buffers = [part and pa.py_buffer(part) for part in parts if not isinstance(part, pa.Array)]
    children = [part for part in parts if isinstance(part, pa.Array)]
    return pa.Array.from_buffers(kind, length, buffers, children=children or None)


def int32(*numbers: int) -> bytes:
    return np.array(numbers, np.int32).tobytes()


FAR = 1 << 28  # bytes from the buffer, about a quarter of a gigabyte: another's memory, or none
TEXT = pa.array(["text"])
BEHIND = bare(pa.string(), 2, None, int32(0, FAR, 4), b"text")
ITEMS = pa.StructArray.from_arrays(
    [TEXT, TEXT], fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]
)


def entries(*indices: int, of: pa.Array = TEXT) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), of, safe=False)


def union_of(kind: bytes, place: int) -> pa.Array:
    return bare(pa.dense_union([pa.field("a", pa.string())]), 1, None, kind, int32(place), TEXT)


HARMFUL: dict[str, pa.Array] = {
    "a text behind its buffer": BEHIND,
    "a text before its buffer": bare(pa.string(), 2, None, int32(0, -FAR, 4), b"text"),
    "bytes behind their buffer": bare(pa.large_binary(), 2, None, np.array([0, FAR, 4], np.int64).tobytes(), b"text"),
    "a view behind its buffer": bare(pa.string_view(), 1, None, int32(36_000, 0x74786574, 0, FAR), b"text"),
    "a view of no buffer": bare(pa.string_view(), 1, None, int32(36_000, 0x74786574, 77, 0), b"text"),
    "a list behind its values": bare(pa.list_(pa.string()), 2, None, int32(0, FAR, 1), TEXT),
    "a view of a list behind its values": bare(pa.list_view(pa.string()), 1, None, int32(FAR), int32(9), TEXT),
    "a map behind its items": bare(pa.map_(pa.string(), pa.string()), 2, None, int32(0, FAR, 1), ITEMS),
    "an index behind its dictionary": entries(0, FAR),
    "an index before its dictionary": entries(0, -FAR),
    "a member of a struct": pa.StructArray.from_arrays([BEHIND], ["inner"]),
    "a dictionary whose text is behind its buffer": entries(0, of=BEHIND),
    "a kind that a union has not": union_of(b"\x63", 0),
    "a value behind those of a union": union_of(b"\0", FAR),
}
"""By what is wrong with one of its values."""


@pytest.mark.parametrize("options", [None, "zstd"])
@pytest.mark.parametrize("make", FILE_OR_STREAM)
@pytest.mark.parametrize("harm", HARMFUL)
def test_nothing_outside_of_a_buffer_is_read(harm: str, make: Callable[..., Any], options: str, tmp_path: Path) -> None:
    """It became a document, or ended the process: 36 kB gave others' memory away, 336 bytes sufficed for SIGSEGV."""
    column = HARMFUL[harm]
    batch = pa.record_batch({"text": ["text"] * len(column), "odd": column})
    (tmp_path / "a.arrow").write_bytes(arrow(pa.Table.from_batches([batch]), make, options))
    (refused,) = found_in(reading_of(metadata_fields=["odd"]), tmp_path / "a.arrow")
    assert isinstance(refused, Refused)
    assert refused.why.startswith("no Arrow data, or damaged: ")
    assert refused.broken
    assert len(values(found_in(reading_of(plain=True), tmp_path / "a.arrow"))) == len(column), "nobody needs the column"


BOMBS: dict[str, Callable[[int], pa.Array]] = {
    "an entry of a dictionary": lambda rows: pa.DictionaryArray.from_arrays(pa.array([0] * rows), ["x" * 2_000_000]),
    "a view": lambda n: bare(pa.string_view(), n, None, int32(2_000_000, 0x78787878, 0, 0) * n, b"x" * 2_000_000),
    "a view of a list": lambda rows: bare(
        pa.list_view(pa.string()), rows, None, int32(0) * rows, int32(20) * rows, pa.array(["x" * 100_000] * 20)
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
        nested = bare(pa.list_view(nested.type), 1000, None, *whole, nested)
    views = bare(pa.list_view(nested.type), 3, None, int32(0, 0, 0), int32(0, len(nested), 0), nested)
    nulls = bare(pa.list_(pa.null()), 3, None, int32(0, 0, 2**30, 2**30), pa.nulls(2**30))
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
    make, compression = data.draw(st.sampled_from(FILE_OR_STREAM)), data.draw(st.sampled_from([None, "lz4"]))
    changed = bytearray(arrow(table, make, compression))
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


MESSAGES = pa.table(
    {
        "text": [None, *(f"text {number}" * number for number in range(200))],
        "entry": pa.array([None, *(f"entry {number % 9}" for number in range(200))]).dictionary_encode(),
        "list": [[{"a": number}] * (number % 4) for number in range(201)],
    }
)


@given(
    make=st.sampled_from(FILE_OR_STREAM),
    compression=st.sampled_from([None, "lz4", "zstd"]),
    rows=st.integers(1, 300),
    old=st.booleans(),
)
def test_all_messages_are_served(**options: Any) -> None:
    stream = io.BufferedReader(Drops(arrow(MESSAGES, **options)), 64)
    found = pa.ipc.open_stream(pa.PythonFile(Messages(messages_of(stream, MEMORY_BYTES)), "r")).read_all()
    assert found.equals(MESSAGES)


@pytest.mark.parametrize("make", FILE_OR_STREAM)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_batch_is_weighed_before_it_is_served(compression: str | None, make: Any) -> None:
    data = arrow(MESSAGES, make, compression)
    size = pa.Table.from_batches(MESSAGES.to_batches()).nbytes
    served = [*messages_of(io.BufferedReader(io.BytesIO(data)), MEMORY_BYTES)]
    assert len(served) in {8, 9}
    with pytest.raises(TooMuchMemoryError, match=r"a record batch takes .* bytes of memory, over"):
        list(messages_of(io.BufferedReader(io.BytesIO(data)), size - 10_000))


@pytest.mark.parametrize("data", [b"text", b"FEA1\0\0\0\0", b"\xff\xff\xff\xff\x08\0\0\0\xff\xff\xff\xff\0\0\0\0"])
def test_what_is_no_message_is_said(data: bytes) -> None:
    with pytest.raises(OSError, match=r"no message begins here|contradicts itself|cut off"):
        list(messages_of(io.BufferedReader(io.BytesIO(data)), MEMORY_BYTES))


COLUMNS = pa.table(
    {
        "text": [None, *(f"text {number % 7}" * number for number in range(500))],
        "list": [[number] * (number % 4) for number in range(501)],
        "struct": [{"a": number / 3, "b": str(number)} for number in range(501)],
    }
)


@given(
    compression=st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]),
    data_page_version=st.sampled_from(["1.0", "2.0"]),
    use_dictionary=st.booleans(),
    row_group_size=st.integers(20, 600),
    data_page_size=st.integers(1, 5000),
    write_statistics=st.booleans(),
)
def test_pages_are_those_that_the_library_wrote(**options: Any) -> None:
    made = io.BytesIO()
    more = {"write_page_index": options["write_statistics"], "write_batch_size": 16}
    pa.parquet.write_table(COLUMNS, made, **options, **more)
    told = pa.parquet.ParquetFile(io.BytesIO(made.getvalue())).metadata
    groups = row_groups_of(made, MEMORY_BYTES)
    assert len(groups) == told.num_row_groups
    for number, group in enumerate(groups):
        own = told.row_group(number)
        found = (group.rows, group.uncompressed_bytes, len(group.chunks))
        assert found == (own.num_rows, own.total_byte_size, own.num_columns)
        for place, chunk in enumerate(group.chunks):
            pages = [*pages_of(made, chunk)]
            column = own.column(place)
            assert chunk.values == column.num_values
            assert chunk.end - chunk.begin == column.total_compressed_size
            assert sum(is_dictionary for is_dictionary, _ in pages) == column.has_dictionary_page
            heads = column.total_uncompressed_size - sum(size for _, size in pages)
            assert 0 < heads <= 400 * len(pages)


def test_a_list_of_columns_that_takes_too_much_is_refused() -> None:
    """The library takes a kilobyte for a struct of a byte, and there may be a million of them in a megabyte."""
    many = 1_000_000
    footer = b"\x49\x1c\x19\xfc" + bytes([many & 127 | 128, many >> 7 & 127 | 128, many >> 14]) + bytes(many + 2)
    made = io.BytesIO(PARQUET_MAGIC + footer + len(footer).to_bytes(4, "little") + PARQUET_MAGIC)
    with pytest.raises(TooMuchMemoryError, match="--unpack-memory 1GiB"):
        row_groups_of(made, MEMORY_BYTES)


@given(data=st.binary(max_size=200))
def test_what_is_no_footer_is_said_in_time(data: bytes) -> None:
    made = io.BytesIO(PARQUET_MAGIC + data + len(data).to_bytes(4, "little") + PARQUET_MAGIC)
    try:
        for group in row_groups_of(made, MEMORY_BYTES):
            for chunk in group.chunks:
                assert len([*pages_of(made, chunk)]) <= len(made.getvalue())
    except OSError:
        pass


def _values(count: int, size: int) -> pa.Table:
    return pa.table({"text": ["x" * size] * count})


def _pages(table: pa.Table) -> bytes:
    made = io.BytesIO()
    options = {"use_dictionary": False, "data_page_size": 1, "write_batch_size": 1}
    pa.parquet.write_table(table, made, compression="brotli", **options)
    return made.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "a value.parquet": lambda: _pages(_values(1, 200_000_000)),
    "values.parquet": lambda: _pages(_values(6, 60_000_000)),
    "batch.arrow": lambda: arrow(_values(3000, 100_000), pa.ipc.new_file, "zstd"),
    "batch.arrows": lambda: arrow(_values(3000, 100_000), pa.ipc.new_stream, "lz4"),
    "plain.arrow": lambda: arrow(_values(600, 200_000), pa.ipc.new_file),
    "many.arrow": lambda: arrow(pa.table({"text": pa.nulls(4_000_000, pa.string())}), pa.ipc.new_file),
}
REFUSED = {"a value.parquet", "batch.arrow", "batch.arrows"}
PROGRAM = """
import json, resource, sys
import pyarrow.compute, pyarrow.ipc, pyarrow.parquet
from tokenmill.app.sources.formats.columnar import read_arrow, read_parquet
from tokenmill.app.sources.items import Bad, File, Needs, Place
path, read = sys.argv[1], read_parquet if sys.argv[1].endswith("parquet") else read_arrow
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open(path, "rb") as stream:
    rows = whys = 0
    for _, _, found in read(File("a", stream, path), Needs(1 << 24, ("text",), frozenset(["text"])), Place()):
        rows += not isinstance(found, Bad)
        whys = found.why if isinstance(found, Bad) else whys
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, rows, whys]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.cases(2)
def test_memory_is_bounded_by_the_option_whatever_a_file_becomes(name: str, tmp_path: Path) -> None:
    """A row above it; kilobytes became a gigabyte. What is refused is not decoded at all."""
    (tmp_path / name).write_bytes(FILES[name]())
    ran = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / name], capture_output=True, check=True)
    kilobytes, rows, why = json.loads(ran.stdout)
    assert (rows == 0) == (name in REFUSED)
    assert kilobytes << 10 < (32 << 20 if name in REFUSED else MEMORY_BYTES + (64 << 20))
    assert not rows or not why
    assert rows or "--unpack-memory 1GiB allows that" in why
