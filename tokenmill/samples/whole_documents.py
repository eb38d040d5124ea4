"""The whole documents that begin in a range of a partition's blocks, found by the pieces of the document tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenmill.errors import DamagedError
from tokenmill.store import DocumentPiece, PartitionReader
from tokenmill.wire.pieces import PADDING


@dataclass(slots=True)
class WholeDocument:
    """A document, and where its tokens are."""

    offset: int
    """Of its Kafka record."""
    id: str | int | None
    fields: Mapping[str, Any]
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """Block, and the tokens ``[start, stop)`` of it, from the document's first token to its last."""
    tokens: int = 0


def whole_documents(
    reader: PartitionReader, first: int, stop: int, *, reach: int | None = None
) -> list[WholeDocument] | None:
    """Return the documents whose first token is in the blocks ``[first, stop)``, in the order of these tokens.

    They are a function of the chain: later blocks are read as far as the documents go on. Their tokens are all that the
    stream has of them; of documents that a packing cut short, what it left.

    Args:
        reader: the partition.
        first: number of the first block.
        stop: number of the block after the last one.
        reach: where pieces of a document may be apart: the rest of a document is in a block before the first one that
            has a piece of a record more than so many offsets later. None: each block continues where the one before
            ended, so a document goes on in the next block or not at all.

    Returns:
        None where it is not known yet how all of them end.

    Raises:
        InputError: the blocks are not (or no longer) in the store.
        DamagedError: an entry is not what was committed.

    """
    found: list[WholeDocument] = []
    open_ones: dict[int, WholeDocument] = {}
    number = first
    while number < stop or open_ones:
        if number >= reader.blocks:
            return None
        for piece in reader.documents(number):
            if piece.position == PADDING:
                continue
            _end_those_before(open_ones, piece, reach)
            if piece.position == 0 and number < stop:
                document = WholeDocument(piece.offset, piece.id, piece.fields)
                found.append(document)
                open_ones[piece.offset] = document
            elif piece.offset not in open_ones:
                continue  # of a document that began before, or begins after
            _take(open_ones, number, piece, reader.block_tokens, reach)
        if reach is None:
            for offset in [o for o, one in open_ones.items() if one.places[-1][0] < number]:
                del open_ones[offset]
        number += 1
    return found


def _take(
    open_ones: dict[int, WholeDocument], number: int, piece: DocumentPiece, block_tokens: int, reach: int | None
) -> None:
    """Give a piece to its document, and close it where nothing can follow."""
    document = open_ones[piece.offset]
    if piece.position != document.tokens:
        raise DamagedError(
            f"block {number}: record {piece.offset} goes on at its token {piece.position}, not {document.tokens}",
            "`tokenmill verify` says where the stream and its source differ",
        )
    document.places.append((number, piece.start, piece.stop))
    document.tokens += piece.stop - piece.start
    whole = piece.stop == block_tokens and (reach is None or piece.start == 0)
    if not whole:
        del open_ones[piece.offset]


def _end_those_before(open_ones: dict[int, WholeDocument], piece: DocumentPiece, reach: int | None) -> None:
    if reach is not None:
        for offset in [offset for offset in open_ones if piece.offset > offset + reach]:
            del open_ones[offset]
