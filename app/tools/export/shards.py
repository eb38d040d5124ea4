"""Exports for loaders that read shards: those of mosaicml-streaming (MDS) and of litData.

Both are rows of bytes behind a table of 32-bit offsets, and an ``index.json``. They are written here and not by these
libraries, which write an index once, under names of their own, and need torch and other versions of numpy.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from .folder import ExportContent, ExportedFile, new_file, put_index
from .rows import ExportRows, RowShape

INDEX: Final = "index.json"
_INTEGERS: Final = {"uint8": 4, "uint16": 5, "uint32": 6}
"""litData's numbers of dtypes (``litdata.constants``)."""


class _Shards:
    """A file for each chunk of rows: ``<segment>-<number of the chunk>.<suffix>``."""

    suffix: str

    def __init__(self, out: Path, shape: RowShape) -> None:
        self.out = out
        self.shape = shape

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        """Write the shards of a segment."""
        files = []
        for number, chunk in enumerate(rows):
            path = self.out / f"{name}-{number:03d}.{self.suffix}"
            encoded = list(map(b"".join, self.encoded(chunk)))
            header = self.header(chunk)
            sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
            begin = 4 * (len(encoded) + 2) + len(header)
            offsets = begin + np.concatenate([[0], np.cumsum(sizes)])
            with new_file(path) as file:
                file.write(np.array([len(encoded)], "<u4").tobytes() + offsets.astype("<u4").tobytes() + header)
                file.writelines(encoded)
            files.append(ExportedFile(path.name, len(chunk), len(chunk.tokens), path.stat().st_size))
        return files

    def encoded(self, rows: ExportRows) -> Iterator[Sequence[bytes]]:
        """Yield the parts of each row."""
        raise NotImplementedError

    def header(self, rows: ExportRows) -> bytes:
        """Return what is between the offsets and the rows."""
        raise NotImplementedError


class MosaicShards(_Shards):
    """MDS, as `streaming.StreamingDataset` reads it: ``tokens`` as an array, ``document`` or ``documents`` as JSON."""

    suffix = "mds"

    def __init__(self, out: Path, shape: RowShape) -> None:
        """Settle the columns, which the format has in the order of their names."""
        super().__init__(out, shape)
        dtype, about = f"ndarray:{shape.dtype.name}", _about(shape)
        tokens: tuple[str, int | None] = (dtype, None)
        if shape.block_tokens is not None:
            tokens = (f"{dtype}:{shape.block_tokens}", shape.block_tokens * shape.dtype.itemsize)
        columns: dict[str, tuple[str, int | None]] = {about: ("json", None), shape.number: ("int", 8)}
        columns |= {"partition": ("int", 8), "tokens": tokens}
        self._names = sorted(columns)
        self._config = {
            "version": 2,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": None,
            "column_names": self._names,
            "column_encodings": [columns[name][0] for name in self._names],
            "column_sizes": [columns[name][1] for name in self._names],
        }
        self._dynamic = [name for name in self._names if columns[name][1] is None]

    def header(self, rows: ExportRows) -> bytes:  # noqa: ARG002 - the columns are those of all rows
        """Return the columns, as JSON."""
        return json.dumps(self._config, sort_keys=True).encode()

    def encoded(self, rows: ExportRows) -> Iterator[Sequence[bytes]]:
        """Yield the sizes of the columns that have none of their own, and all columns."""
        partition = np.array([rows.partition], "<i8").tobytes()
        for number, tokens, about in zip(rows.numbers, rows.pieces, rows.about, strict=True):
            shape = _shape_of(len(tokens)) if self.shape.block_tokens is None else b""
            values = {
                _about(self.shape): orjson.dumps(about),
                self.shape.number: np.array([number], "<i8").tobytes(),
                "partition": partition,
                "tokens": shape + tokens.tobytes(),
            }
            sizes = np.array([len(values[name]) for name in self._dynamic], "<u4")
            yield sizes.tobytes(), *(values[name] for name in self._names)

    def index(self, content: ExportContent) -> None:
        """Write ``index.json``, with all shards."""
        shards = [
            {
                **self._config,
                "raw_data": {"basename": file.name, "bytes": file.size, "hashes": {}},
                "samples": file.rows,
                "zip_data": None,
            }
            for file in content.files
        ]
        put_index(self.out / INDEX, json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode())


def _about(shape: RowShape) -> str:
    return "document" if shape.what == "documents" else "documents"


def _shape_of(length: int) -> bytes:
    """Return how MDS spells the shape of an array of one dimension: ndim and width of the length, then the length."""
    code, dtype = next((c, d) for c, d in enumerate(("<u1", "<u2", "<u4", "<u8")) if length <= np.iinfo(d).max)
    return bytes([1 << 2 | code]) + np.array([length], dtype).tobytes()


class LitDataShards(_Shards):
    """What `litdata.StreamingDataset` reads: rows are dicts with ``tokens`` as an array, and ids and fields as JSON.

    All tokens are in front of the rows once more, back to back: so litData's ``TokensLoader``, which wants no more than
    that, reads the same files.
    """

    suffix = "bin"

    def header(self, rows: ExportRows) -> bytes:
        """Return the tokens."""
        return rows.tokens.tobytes()

    def encoded(self, rows: ExportRows) -> Iterator[Sequence[bytes]]:
        """Yield the sizes of all values, and the values."""
        partition = np.array([rows.partition], "<i8").tobytes()
        for number, tokens, about in zip(rows.numbers, rows.pieces, rows.about, strict=True):
            values = [tokens.tobytes(), partition, np.array([number], "<i8").tobytes(), orjson.dumps(about)]
            yield np.array(list(map(len, values)), "<u4").tobytes(), *values

    def index(self, content: ExportContent) -> None:
        """Write ``index.json``, with all shards."""
        names = ["tokens", "partition", self.shape.number, _about(self.shape)]
        leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
        spec = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [leaf] * len(names)}
        config = {
            "chunk_bytes": None,
            "chunk_size": None,
            "compression": None,
            "data_format": [f"no_header_numpy:{_INTEGERS[self.shape.dtype.name]}", "int", "int", "str"],
            "data_spec": json.dumps([1, spec]),
            "encryption": None,
        }
        chunks = [
            {"chunk_bytes": file.size, "chunk_size": file.rows, "dim": file.tokens, "filename": file.name}
            for file in content.files
        ]
        found = {"chunks": chunks, "config": config, "updated_at": content.identity}  # by which copies are kept or not
        put_index(self.out / INDEX, json.dumps(found, sort_keys=True).encode())
