"""Exports that are tables: Parquet, Arrow and data sets of Hugging Face, and the record batches of all of these."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from ...sources.items import library
from .folder import ExportContent, ExportedFile, new_file, put_index
from .rows import ExportRows, RowShape

EXTRA: Final = "export"


class Table:
    """The schema of an export, and its record batches.

    A block's column ``tokens`` is a list of fixed size, a document's one of any; ``documents`` of a block are structs.
    An id that is a number becomes its decimal spelling, and fields are JSON.
    """

    def __init__(self, shape: RowShape, extra: str = EXTRA) -> None:
        """Load pyarrow.

        Raises:
            InputError: it is not installed.

        """
        self.arrow = arrow = library("pyarrow", extra, "this export")
        self._shape = shape
        value = arrow.from_numpy_dtype(shape.dtype.newbyteorder("="))
        tokens = arrow.list_(value) if shape.block_tokens is None else arrow.list_(value, shape.block_tokens)
        about = [("id", arrow.string()), ("fields", arrow.string())]
        piece = [("start", arrow.int32()), ("stop", arrow.int32()), ("offset", arrow.int64())]
        piece += [("position", arrow.int64()), *about]
        more = about if shape.what == "documents" else [("documents", arrow.list_(arrow.struct(piece)))]
        self.schema = arrow.schema(
            [("tokens", tokens), ("partition", arrow.int32()), (shape.number, arrow.int64()), *more]
        )

    def batch(self, rows: ExportRows) -> Any:
        """Return rows as a record batch; the tokens are not copied, unless there are more than 2³¹ of them."""
        arrow, schema = self.arrow, self.schema
        values = arrow.array(rows.tokens)
        if self._shape.block_tokens is None:
            offsets = [0, *rows.lengths.cumsum().tolist()]
            tokens = arrow.ListArray.from_arrays(arrow.array(offsets, arrow.int32()), values)
        else:
            tokens = arrow.FixedSizeListArray.from_arrays(values, self._shape.block_tokens)
        columns = [tokens, arrow.array([rows.partition] * len(rows), arrow.int32()), arrow.array(rows.numbers)]
        if self._shape.what == "documents":
            columns += [arrow.array([_text(one[name]) for one in rows.about], arrow.string()) for name in _ABOUT]
        else:
            spelled = [
                [{**piece, **{name: _text(piece[name]) for name in _ABOUT}} for piece in one] for one in rows.about
            ]
            columns.append(arrow.array(spelled, schema.field("documents").type))
        return arrow.record_batch(columns, schema=schema)


_ABOUT: Final = ("id", "fields")


def _text(value: Any) -> str | None:
    """Return an id as text and fields as JSON; None for those that are not there."""
    if isinstance(value, dict):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() if value else None
    return None if value is None else str(value)


class _TableFiles:
    """A file for each segment, with a batch for each chunk of rows."""

    suffix: str

    def __init__(self, out: Path, shape: RowShape) -> None:
        self.table = Table(shape)
        self.out = out

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        """Write the file of a segment."""
        path = self.out / f"{name}.{self.suffix}"
        count = tokens = 0
        with new_file(path) as file, self.open(file) as writer:
            for chunk in rows:
                writer.write_batch(self.table.batch(chunk))
                count, tokens = count + len(chunk), tokens + len(chunk.tokens)
        return [ExportedFile(path.name, count, tokens, path.stat().st_size)]

    def open(self, file: BinaryIO) -> Any:
        """Return the library's writer, a context manager."""
        raise NotImplementedError

    def index(self, content: ExportContent) -> None:
        """Write nothing: a folder of such files is a data set."""


class ParquetFiles(_TableFiles):
    """Parquet, compressed with zstd; a row group for each chunk of rows."""

    suffix = "parquet"

    def open(self, file: BinaryIO) -> Any:
        """Return a writer of Parquet."""
        return library("pyarrow.parquet", EXTRA, "Parquet").ParquetWriter(file, self.table.schema, compression="zstd")


class ArrowFiles(_TableFiles):
    """Arrow's file format (IPC), which is mapped into memory as it is."""

    suffix = "arrow"

    def open(self, file: BinaryIO) -> Any:
        """Return a writer of Arrow files."""
        return library("pyarrow.ipc", EXTRA, "Arrow").new_file(file, self.table.schema)


class HuggingFaceFiles(_TableFiles):
    """What ``datasets.load_from_disk`` reads: streams of Arrow (IPC), and two files that describe them."""

    suffix = "arrow"

    def open(self, file: BinaryIO) -> Any:
        """Return a writer of Arrow streams."""
        return library("pyarrow.ipc", EXTRA, "data sets of Hugging Face").new_stream(file, self.table.schema)

    def index(self, content: ExportContent) -> None:
        """Write ``dataset_info.json``, in which the library finds the columns' types by itself, and ``state.json``."""
        state: dict[str, Any] = {
            "_data_files": [{"filename": file.name} for file in content.files],
            "_fingerprint": content.identity,
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        put_index(self.out / "dataset_info.json", json.dumps({"citation": "", "description": ""}).encode())
        put_index(self.out / "state.json", json.dumps(state, indent=2).encode())
