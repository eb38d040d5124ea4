"""What the rows of an export must be, whatever its format."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.milled_store import STREAM, MilledStore, TrueDocument
from tokenmill.store import DocumentPiece, open_partition


def spelled(value: str | int | None) -> str | None:
    return None if value is None else str(value)


def assert_blocks(rows: list[dict[str, Any]], store: MilledStore, stop: int | None = None) -> None:
    """Check that the rows are all blocks of sealed segments, or all that there are at the end, with their documents."""
    found = {(row["partition"], row["block"]): row for row in rows}
    wanted = [(partition, number) for partition in store.blocks for number in range(store.exported(partition, stop))]
    assert sorted(found) == wanted
    assert len(rows) == len(wanted)
    for partition in store.blocks:
        tokens, reader = store.tokens(partition), open_partition(store.path, STREAM, partition)
        for number in range(store.exported(partition, stop)):
            row = found[partition, number]
            assert list(row["tokens"]) == tokens[number].tolist()
            pieces = reader.documents(number)
            names = ("start", "stop", "offset", "position")
            told = [tuple(piece[name] for name in names) for piece in row["documents"]]
            assert told == [tuple(getattr(piece, name) for name in names) for piece in pieces]
            assert [spelled(piece["id"]) for piece in row["documents"]] == [spelled(piece.id) for piece in pieces]


def begun(
    store: MilledStore, waiting: Sequence[str] = (), stop: int | None = None
) -> dict[tuple[int, int], TrueDocument]:
    """Return the documents of segments that do not wait, by partition and offset; where all has ended, whole ones."""
    found: dict[tuple[int, int], TrueDocument] = {}
    for partition, documents in store.documents.items():
        reader = open_partition(store.path, STREAM, partition)
        numbers = [n for n in range(store.exported(partition, stop)) if f"{partition}/{n - n % 16}" not in waiting]
        pieces = [piece for number in numbers for piece in reader.documents(number)]
        offsets = {piece.offset for piece in pieces if piece.position == 0}
        cut = _left_open(documents, pieces) if store.ended else set[int]()
        found |= {(partition, one.offset): one for one in documents if one.offset in offsets - cut}
    return found


def _left_open(documents: Sequence[TrueDocument], pieces: Sequence[DocumentPiece]) -> set[int]:
    """Return the offsets of documents of which not all tokens are in blocks; what rows repeat counts more than once."""
    held = Counter[int]()
    for piece in pieces:
        held[piece.offset] += piece.stop - piece.start
    return {one.offset for one in documents if held[one.offset] < len(one.tokens)}


def assert_documents(rows: list[dict[str, Any]], wanted: dict[tuple[int, int], TrueDocument]) -> None:
    assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(wanted)
    for row in rows:
        document = wanted[row["partition"], row["offset"]]
        assert list(row["tokens"]) == document.tokens
        assert row["id"] == spelled(document.id)
        assert json.loads(row["fields"] or "{}") == ({"label": document.label} if document.label else {})
