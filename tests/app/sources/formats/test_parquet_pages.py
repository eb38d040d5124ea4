"""What a Parquet file says of its pages, found as the library finds it, and before it decodes anything."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.sources.formats.columnar import PARQUET_MAGIC, pages_of, row_groups_of
from tokenmill.app.sources.items import MEMORY_BYTES, TooMuchMemoryError

TABLE = pa.table(
    {
        "text": [None, *(f"text {number % 7}" * number for number in range(500))],
        "list": [[number] * (number % 4) for number in range(501)],
        "struct": [{"a": number / 3, "b": str(number)} for number in range(501)],
    }
)


@given(
    compression=st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]),
    version=st.sampled_from(["1.0", "2.0"]),
    dictionary=st.booleans(),
    group=st.integers(20, 600),
    page=st.integers(1, 5000),
    statistics=st.booleans(),
)
def test_pages_are_those_that_the_library_wrote(**options: Any) -> None:
    """All bytes of each column are pages, and their sizes are what the file says of all of them."""
    made = io.BytesIO()
    pa.parquet.write_table(
        TABLE,
        made,
        compression=options["compression"],
        data_page_version=options["version"],
        use_dictionary=options["dictionary"],
        row_group_size=options["group"],
        data_page_size=options["page"],
        write_statistics=options["statistics"],
        write_page_index=options["statistics"],
        write_batch_size=16,
    )
    told = pa.parquet.ParquetFile(io.BytesIO(made.getvalue())).metadata

    groups = row_groups_of(made, MEMORY_BYTES)

    assert len(groups) == told.num_row_groups
    for number, group in enumerate(groups):
        own = told.row_group(number)
        assert (group.rows, group.uncompressed_bytes, len(group.chunks)) == (
            own.num_rows,
            own.total_byte_size,
            own.num_columns,
        )
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


def _pages(path: Path, table: pa.Table) -> None:
    pa.parquet.write_table(
        table, path, compression="brotli", use_dictionary=False, data_page_size=1, write_batch_size=1
    )


def _batches(path: Path, table: pa.Table, compression: str | None = None) -> None:
    make = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
    with make(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)


FILES: dict[str, Callable[[Path], None]] = {
    "a value.parquet": lambda path: _pages(path, _values(1, 200_000_000)),
    "values.parquet": lambda path: _pages(path, _values(6, 60_000_000)),
    "batch.arrow": lambda path: _batches(path, _values(3000, 100_000), "zstd"),
    "batch.arrows": lambda path: _batches(path, _values(3000, 100_000), "lz4"),
    "plain.arrow": lambda path: _batches(path, _values(600, 200_000)),
    "many.arrow": lambda path: _batches(path, pa.table({"text": pa.nulls(4_000_000, pa.string())})),
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
    FILES[name](tmp_path / name)
    ran = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / name], capture_output=True, check=True)
    kilobytes, rows, why = json.loads(ran.stdout)
    assert (rows == 0) == (name in REFUSED)
    assert kilobytes << 10 < (32 << 20 if name in REFUSED else MEMORY_BYTES + (64 << 20))
    assert not rows or not why
    assert rows or "--unpack-memory 1GiB allows that" in why
