"""The formats of an export: rows, the blocks of a segment or the documents that begin in it, and what each writes.

A file is written beside its place: it is whole, or not there.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.samples.document_index import DocumentIndex
from tokenmill.store import PartitionReader
from tokenmill.store.layout import TEMPORARY, sync_directory
from tokenmill.store.sealing import index_of_lengths

from ...sources.items import library

What = Literal["blocks", "documents"]

ROWS_BYTES: Final = 16 << 20
"""Bytes of tokens that are in memory at once, and of a row group, batch or shard: the files depend on it."""


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file of an export; its name is a function of the segment."""

    name: str
    """Relative to the folder."""
    rows: int
    tokens: int
    size: int


class ExportContent(NamedTuple):
    """What an export holds."""

    files: Sequence[ExportedFile]
    identity: str
    """16 hexadecimal digits, which are others for other rows."""


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file beside its place; then it is durable, and has its name. A crash leaves a name that readers skip."""
    temporary = hidden(path)
    path.parent.mkdir(exist_ok=True)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def hidden(path: Path) -> Path:
    """Return where a file is written before it has its name."""
    return path.with_name(f".{path.name}{TEMPORARY}")


def put_index(path: Path, data: bytes) -> None:
    """Replace an index file; readers see the old one or the new one, whole."""
    with new_file(path) as file:
        file.write(data)
    sync_directory(path.parent)


@dataclass(frozen=True, slots=True)
class RowShape:
    """What all rows of an export have in common."""

    what: What
    dtype: "np.dtype[np.unsignedinteger]"
    block_tokens: int | None
    """Tokens of every row; None: documents, each of its own length."""

    @property
    def number(self) -> str:
        """Name of the column with a row's place in its partition: a block's number, or the offset of a record."""
        return "block" if self.what == "blocks" else "offset"

    @property
    def about(self) -> str:
        """Name of what `ExportRows.about` has of a row."""
        return "document" if self.what == "documents" else "documents"


@dataclass(frozen=True, slots=True)
class ExportRows:
    """Consecutive rows of one segment."""

    partition: int
    numbers: list[int]
    """Of each block, or the offset of each document's record."""
    lengths: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.unsignedinteger]
    """Of all rows, back to back."""
    about: list[Any]
    """Of a document: an object with ``id`` and ``fields``. Of a block: a list with such an object for each piece, which
    also has ``start``, ``stop``, ``offset`` and ``position``, as in docs/format.md."""

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def pieces(self) -> list[npt.NDArray[np.unsignedinteger]]:
        """The tokens of each row: views."""
        return np.split(self.tokens, np.cumsum(self.lengths)[:-1])


_PIECE: Final = ("start", "stop", "offset", "position", "id", "fields")


def block_rows(reader: PartitionReader, first: int, stop: int) -> Iterator[ExportRows]:
    """Yield the blocks ``[first, stop)``; raises DamagedError where one is not what was committed."""
    step = max(1, ROWS_BYTES // reader.info.block_bytes)
    for begin in range(first, stop, step):
        numbers = np.arange(begin, min(begin + step, stop))
        (part,) = reader.parts(numbers)
        tokens, lengths = part.tokens[part.rows[0] : part.rows[-1] + 1], np.full(len(numbers), reader.block_tokens)
        documents = map(reader.documents, numbers.tolist())
        about = [[{name: getattr(piece, name) for name in _PIECE} for piece in pieces] for pieces in documents]
        yield ExportRows(reader.partition, numbers.tolist(), lengths, tokens.reshape(-1), about)


def document_rows(reader: PartitionReader, index: DocumentIndex, count: int) -> Iterator[ExportRows]:
    """Yield the first ``count`` documents of an index, in chunks that depend on their lengths alone."""
    limit = ROWS_BYTES // reader.dtype.itemsize
    begin = size = 0
    for number, tokens in enumerate(index.lengths[:count].tolist()):
        if size and size + tokens > limit:
            yield _documents(reader, index, np.arange(begin, number))
            begin, size = number, 0
        size += tokens
    if count:
        yield _documents(reader, index, np.arange(begin, count))


def _documents(reader: PartitionReader, index: DocumentIndex, documents: npt.NDArray[np.int64]) -> ExportRows:
    pieces = index.pieces_of(documents)
    blocks = {number: reader.read(number) for number in np.unique(pieces.blocks).tolist()}
    places = zip(pieces.blocks.tolist(), pieces.starts.tolist(), pieces.lengths.tolist(), strict=True)
    parts = [blocks[block][start : start + length] for block, start, length in places]
    first_blocks, starts = index.first_pieces(documents)
    heads = list(zip(first_blocks.tolist(), starts.tolist(), strict=True))
    told = {block: {piece.start: piece for piece in reader.documents(block)} for block in {one[0] for one in heads}}
    first_pieces = [told[block][start] for block, start in heads]
    numbers, about = [piece.offset for piece in first_pieces], [{"id": p.id, "fields": p.fields} for p in first_pieces]
    lengths = index.lengths[documents].astype(np.int64)
    return ExportRows(reader.partition, numbers, lengths, np.concatenate(parts), about)


class ExportFormat:
    """A way to write rows into the folder ``out``; another format is a class like this, and a line in `BY_NAME`."""

    def __init__(self, out: Path, shape: RowShape) -> None:
        self.out, self.shape = out, shape

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        """Write one segment's files; names and content are a function of ``name`` and the rows; durable on return."""
        raise NotImplementedError

    def index(self, content: ExportContent) -> None:
        """Write what names all files of the folder, where the format has such; atomic, and durable on return."""


_ABOUT: Final = ("id", "fields")


def _text(value: Any) -> str | None:
    """Return an id as text and fields as JSON; None for those that are not there."""
    if isinstance(value, dict):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() if value else None
    return None if value is None else str(value)


class _Tables(ExportFormat):
    """Files of record batches, one file for each segment; an id that is a number becomes text, and fields are JSON."""

    suffix: str
    extra = "export"

    def __init__(self, out: Path, shape: RowShape) -> None:
        super().__init__(out, shape)
        self._arrow = arrow = library("pyarrow", self.extra, "this export")
        value = arrow.from_numpy_dtype(shape.dtype.newbyteorder("="))
        tokens = arrow.list_(value) if shape.block_tokens is None else arrow.list_(value, shape.block_tokens)
        about = [(name, arrow.string()) for name in _ABOUT]
        piece = [("start", arrow.int32()), ("stop", arrow.int32()), ("offset", arrow.int64())]
        piece += [("position", arrow.int64()), *about]
        more = about if shape.what == "documents" else [("documents", arrow.list_(arrow.struct(piece)))]
        columns = [("tokens", tokens), ("partition", arrow.int32()), (shape.number, arrow.int64()), *more]
        self.schema = arrow.schema(columns)

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        path = self.out / f"{name}.{self.suffix}"
        with new_file(path) as file, self.open(file) as writer:
            written = self.fill(writer, rows)
        return [ExportedFile(path.name, *written, path.stat().st_size)]

    def open(self, file: BinaryIO) -> Any:
        """Return the library's writer, a context manager."""
        raise NotImplementedError

    def fill(self, writer: Any, rows: Iterator[ExportRows]) -> tuple[int, int]:
        """Write all rows; return how many they are, and their tokens."""
        count = tokens = 0
        for chunk in rows:
            writer.write_batch(self._batch(chunk))
            count, tokens = count + len(chunk), tokens + len(chunk.tokens)
        return count, tokens

    def _batch(self, rows: ExportRows) -> Any:
        """Return rows as a record batch; the tokens are not copied, unless there are more than 2³¹ of them."""
        arrow, values = self._arrow, self._arrow.array(rows.tokens)
        if self.shape.block_tokens is None:
            offsets = [0, *rows.lengths.cumsum().tolist()]
            tokens = arrow.ListArray.from_arrays(arrow.array(offsets, arrow.int32()), values)
        else:
            tokens = arrow.FixedSizeListArray.from_arrays(values, self.shape.block_tokens)
        columns = [tokens, arrow.array([rows.partition] * len(rows), arrow.int32()), arrow.array(rows.numbers)]
        if self.shape.what == "documents":
            columns += [arrow.array([_text(one[name]) for one in rows.about], arrow.string()) for name in _ABOUT]
        else:
            spelled = [[piece | {name: _text(piece[name]) for name in _ABOUT} for piece in one] for one in rows.about]
            columns.append(arrow.array(spelled, self.schema.field("documents").type))
        return arrow.record_batch(columns, schema=self.schema)


class _ParquetFiles(_Tables):
    """Parquet, compressed with zstd; a row group for each chunk of rows."""

    suffix = "parquet"

    def open(self, file: BinaryIO) -> Any:
        return library("pyarrow.parquet", self.extra, "Parquet").ParquetWriter(file, self.schema, compression="zstd")


class _ArrowFiles(_Tables):
    """Arrow's file format (IPC), which is mapped into memory as it is."""

    suffix = "arrow"

    def open(self, file: BinaryIO) -> Any:
        return library("pyarrow.ipc", self.extra, "Arrow").new_file(file, self.schema)


class _HuggingFaceFiles(_Tables):
    """What ``datasets.load_from_disk`` reads: streams of Arrow (IPC), and two files that describe them."""

    suffix = "arrow"

    def open(self, file: BinaryIO) -> Any:
        return library("pyarrow.ipc", self.extra, "data sets of Hugging Face").new_stream(file, self.schema)

    def index(self, content: ExportContent) -> None:
        """Write ``dataset_info.json``, in which the library finds the columns' types by itself, and ``state.json``."""
        if not content.files:  # the library fails on a data set without any, and says of a folder that it is none
            return
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


_LANCE: Final = "2.2"
"""Version of Lance's data files: all of a data set have the same."""
_DATA: Final = "data"


class _LanceFiles(_Tables):
    """A Lance data set: a file and a fragment for each segment; the version that a run commits names whole ones."""

    extra = "lance"

    def __init__(self, out: Path, shape: RowShape) -> None:
        self._lance = library("lance", self.extra, "a Lance data set")
        self._file = library("lance.file", self.extra, "a Lance data set")
        super().__init__(out, shape)

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        path = self.out / _DATA / f"{name}.lance"
        path.parent.mkdir(exist_ok=True)
        temporary = hidden(path)
        with self._file.LanceFileWriter(str(temporary), self.schema, version=_LANCE) as writer:
            written = self.fill(writer, rows)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.rename(path)
        return [ExportedFile(f"{_DATA}/{path.name}", *written, path.stat().st_size)]

    def index(self, content: ExportContent) -> None:
        """Commit a version with the files that the one before lacks: rows keep their numbers, new ones come behind."""
        try:
            opened = self._lance.dataset(str(self.out))
        except ValueError:  # there is none yet
            opened = self._lance.write_dataset(self.schema.empty_table(), str(self.out), data_storage_version=_LANCE)
        known = {file.path for fragment in opened.get_fragments() for file in fragment.data_files()}
        new = [file for file in content.files if file.name.removeprefix(f"{_DATA}/") not in known]
        if not new:
            return
        like = self._fragment(self.out / new[0].name)
        append = self._lance.LanceOperation.Append([_renamed(like, file) for file in new])
        self._lance.LanceDataset.commit(str(self.out), append, read_version=opened.version)

    def _fragment(self, file: Path) -> Any:
        """Return how Lance itself describes a file of this schema: its numbers of fields and columns."""
        row = self._file.LanceFileReader(str(file)).read_range(0, 1).to_table()
        with TemporaryDirectory() as folder:
            (fragment,) = self._lance.fragment.write_fragments(row, folder, mode="create", data_storage_version=_LANCE)
        return fragment


def _renamed(fragment: Any, file: ExportedFile) -> Any:
    (data,) = fragment.files
    path, major, minor = file.name.removeprefix(f"{_DATA}/"), data.file_major_version, data.file_minor_version
    described = type(data)(path, data.fields, data.column_indices, major, minor, file.size)
    return replace(fragment, files=[described], physical_rows=file.rows)


_INDEX: Final = "index.json"
_I8: Final = Struct("<q")


class _Shards(ExportFormat):
    """A file for each chunk of rows: bytes behind a table of 32-bit offsets, and an ``index.json`` for all.

    Not written by mosaicml-streaming and litData, which write an index once, under names of their own, and need torch.
    """

    suffix: str

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        files = []
        for number, chunk in enumerate(rows):
            path = self.out / f"{name}-{number:03d}.{self.suffix}"
            encoded = list(map(b"".join, self.encoded(chunk)))
            header = self.header(chunk)
            sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
            begin = 4 * (len(encoded) + 2) + len(header)
            offsets = begin + np.concatenate([[0], np.cumsum(sizes)])
            with new_file(path) as file:
                file.write(np.array([len(encoded), *offsets], "<u4").tobytes() + header)
                file.writelines(encoded)
            files.append(ExportedFile(path.name, len(chunk), len(chunk.tokens), path.stat().st_size))
        return files

    def encoded(self, rows: ExportRows) -> Iterator[Sequence[bytes]]:
        """Yield the parts of each row."""
        raise NotImplementedError

    def header(self, rows: ExportRows) -> bytes:
        """Return what is between the offsets and the rows."""
        raise NotImplementedError


class _MosaicShards(_Shards):
    """MDS, as `streaming.StreamingDataset` reads it: ``tokens`` as an array, ``document`` or ``documents`` as JSON."""

    suffix = "mds"

    def __init__(self, out: Path, shape: RowShape) -> None:
        super().__init__(out, shape)
        dtype = f"ndarray:{shape.dtype.name}"
        tokens: tuple[str, int | None] = (dtype, None)
        if shape.block_tokens is not None:
            tokens = (f"{dtype}:{shape.block_tokens}", shape.block_tokens * shape.dtype.itemsize)
        columns: dict[str, tuple[str, int | None]] = {shape.about: ("json", None), shape.number: ("int", 8)}
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
        return json.dumps(self._config, sort_keys=True).encode()

    def encoded(self, rows: ExportRows) -> Iterator[Sequence[bytes]]:
        """Yield the sizes of the columns that have none of their own, and all columns."""
        for number, tokens, about in zip(rows.numbers, rows.pieces, rows.about, strict=True):
            values = {
                self.shape.about: orjson.dumps(about),
                self.shape.number: _I8.pack(number),
                "partition": _I8.pack(rows.partition),
                "tokens": (b"" if self.shape.block_tokens else _shape_of(len(tokens))) + tokens.tobytes(),
            }
            sizes = np.array([len(values[name]) for name in self._dynamic], "<u4")
            yield sizes.tobytes(), *(values[name] for name in self._names)

    def index(self, content: ExportContent) -> None:
        shards = [
            {
                **self._config,
                "raw_data": {"basename": file.name, "bytes": file.size, "hashes": {}},
                "samples": file.rows,
                "zip_data": None,
            }
            for file in content.files
        ]
        put_index(self.out / _INDEX, json.dumps({"version": 2, "shards": shards}, sort_keys=True).encode())


def _shape_of(length: int) -> bytes:
    """Return how MDS spells the shape of an array of one dimension: ndim and width of the length, then the length."""
    code, dtype = next((c, d) for c, d in enumerate(("<u1", "<u2", "<u4", "<u8")) if length <= np.iinfo(d).max)
    return bytes([1 << 2 | code]) + np.array([length], dtype).tobytes()


class _LitDataShards(_Shards):
    """What `litdata.StreamingDataset` reads: rows are dicts with ``tokens`` as an array, and ids and fields as JSON.

    All tokens are in front of the rows once more, back to back, for litData's ``TokensLoader``.
    """

    suffix = "bin"

    def header(self, rows: ExportRows) -> bytes:
        return rows.tokens.tobytes()

    def encoded(self, rows: ExportRows) -> Iterator[Sequence[bytes]]:
        """Yield the sizes of all values, and the values."""
        for number, tokens, about in zip(rows.numbers, rows.pieces, rows.about, strict=True):
            values = [tokens.tobytes(), _I8.pack(rows.partition), _I8.pack(number), orjson.dumps(about)]
            yield np.array(list(map(len, values)), "<u4").tobytes(), *values

    def index(self, content: ExportContent) -> None:
        names = ["tokens", "partition", self.shape.number, self.shape.about]
        dtype = {"uint8": 4, "uint16": 5, "uint32": 6}[self.shape.dtype.name]  # as in litdata.constants
        leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
        spec = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [leaf] * len(names)}
        config = {
            "chunk_bytes": None,
            "chunk_size": None,
            "compression": None,
            "data_format": [f"no_header_numpy:{dtype}", "int", "int", "str"],
            "data_spec": json.dumps([1, spec]),
            "encryption": None,
        }
        chunks = [
            {"chunk_bytes": file.size, "chunk_size": file.rows, "dim": file.tokens, "filename": file.name}
            for file in content.files
        ]
        found = {"chunks": chunks, "config": config, "updated_at": content.identity}  # by which copies are kept or not
        put_index(self.out / _INDEX, json.dumps(found, sort_keys=True).encode())


class _NanoGptFiles(ExportFormat):
    """``<segment>.bin``: tokens, little-endian; and ``<segment>.jsonl``, with a line for each row and what it is."""

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        return self.with_lengths(name, rows)[0]

    def with_lengths(self, name: str, rows: Iterator[ExportRows]) -> tuple[list[ExportedFile], "np.ndarray[Any, Any]"]:
        found = []
        bin_path, line_path = self.out / f"{name}.bin", self.out / f"{name}.jsonl"
        with new_file(bin_path) as tokens, new_file(line_path) as lines:
            for chunk in rows:
                tokens.write(chunk.tokens.data)
                for number, length, one in zip(chunk.numbers, chunk.lengths.tolist(), chunk.about, strict=True):
                    row = {"partition": chunk.partition, self.shape.number: number}
                    lines.write(orjson.dumps(row | {"tokens": length, self.shape.about: one}) + b"\n")
                found.append(chunk.lengths)
        lengths = np.concatenate(found)
        count, total = len(lengths), int(lengths.sum())
        return [ExportedFile(p.name, count, total, p.stat().st_size) for p in (bin_path, line_path)], lengths


class _MegatronFiles(_NanoGptFiles):
    """The same, and ``<segment>.idx``: ``<segment>`` is an `IndexedDataset`, whose sequences are the rows."""

    def write(self, name: str, rows: Iterator[ExportRows]) -> list[ExportedFile]:
        files, lengths = self.with_lengths(name, rows)
        path = self.out / f"{name}.idx"
        with new_file(path) as file:
            file.write(index_of_lengths(lengths, self.shape.dtype))
        return [*files, ExportedFile(path.name, files[0].rows, files[0].tokens, path.stat().st_size)]


FormatChoice = Literal["parquet", "arrow", "lance", "hf", "mds", "litdata", "megatron", "nanogpt"]
FORMATS: Final = get_args(FormatChoice)
LATER_FILES: Final[dict[FormatChoice, dict[str, int]]] = {"litdata": {"format": 2}}
"""Formats whose files are other ones than those of `exporting.FORMAT`: to a folder of one kind, none of the other are
added."""
BY_NAME: Final[dict[FormatChoice, Callable[[Path, RowShape], ExportFormat]]] = {
    "parquet": _ParquetFiles,
    "arrow": _ArrowFiles,
    "lance": _LanceFiles,
    "hf": _HuggingFaceFiles,
    "mds": _MosaicShards,
    "litdata": _LitDataShards,
    "megatron": _MegatronFiles,
    "nanogpt": _NanoGptFiles,
}
