"""Rows of an export: the blocks of a sealed segment, or the documents that begin in it."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from tokenmill.samples.document_index import DocumentIndex
from tokenmill.store import PartitionReader, StreamInfo

What = Literal["blocks", "documents"]

ROWS_BYTES: Final = 16 << 20
"""Bytes of tokens that are in memory at once, and of a row group, batch or shard: the files depend on it."""


@dataclass(frozen=True, slots=True)
class RowShape:
    """What all rows of an export have in common."""

    what: What
    dtype: "np.dtype[np.unsignedinteger]"
    block_tokens: int | None
    """Tokens of every row; None: documents, each of its own length."""

    @classmethod
    def of(cls, info: StreamInfo, what: What) -> "RowShape":
        """Return the shape of a stream's blocks or documents."""
        return cls(what, info.dtype, info.block_tokens if what == "blocks" else None)

    @property
    def number(self) -> str:
        """Name of the column that says where in its partition a row is: of a block its number, of a document the
        offset of its Kafka record.
        """  # noqa: D205 - one sentence
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
    """Tokens of each row."""
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
_values: Final = attrgetter(*_PIECE)


def block_rows(reader: PartitionReader, first: int, stop: int) -> Iterator[ExportRows]:
    """Yield the blocks ``[first, stop)``; each is held against its checksums.

    Raises:
        DamagedError: a block is not what was committed.

    """
    step = max(1, ROWS_BYTES // reader.info.block_bytes)
    for begin in range(first, stop, step):
        numbers = np.arange(begin, min(begin + step, stop))
        (part,) = reader.parts(numbers)
        yield ExportRows(
            partition=reader.partition,
            numbers=numbers.tolist(),
            lengths=np.full(len(numbers), reader.block_tokens),
            tokens=part.tokens[part.rows[0] : part.rows[-1] + 1].reshape(-1),
            about=[
                [dict(zip(_PIECE, _values(piece), strict=True)) for piece in reader.documents(number)]
                for number in numbers.tolist()
            ],
        )


def document_rows(reader: PartitionReader, index: DocumentIndex, count: int) -> Iterator[ExportRows]:
    """Yield the first ``count`` documents of an index, in chunks that depend on their lengths alone.

    Raises:
        DamagedError: a block is not what was committed.

    """
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
    return ExportRows(
        partition=reader.partition,
        numbers=[piece.offset for piece in first_pieces],
        lengths=index.lengths[documents].astype(np.int64),
        tokens=np.concatenate(parts),
        about=[{"id": piece.id, "fields": piece.fields} for piece in first_pieces],
    )
