"""The packing ``fit``: whole documents, and a bounded age. Its blocks are compared in `test_packed_blocks`."""

from itertools import pairwise

import pytest
from hypothesis import given

from tests.app.milling.packing.test_packed_blocks import PAD, Document, fit_shapes, histories, packing_of, run
from tokenmill.wire.pieces import PADDING, Piece


@given(histories(), fit_shapes)
def test_what_fits_a_block_is_never_cut_and_nothing_is_lost(
    documents: list[Document], shape: tuple[int, tuple[int, int]]
) -> None:
    """Every token once, in its document's order; offsets within the bound, and those of last pieces rise."""
    size, (_, age) = shape
    end = documents[-1].offset + 1 if documents else 0
    left = list(run(packing_of(shape), [*documents, Document(end, ())], size, []))
    found: dict[int, list[tuple[int, list[int]]]] = {}
    for block in left:
        for piece, after in pairwise([*block.pieces, Piece(size, 0, 0, b"")]):
            if piece.position != PADDING:
                found.setdefault(piece.offset, []).append((piece.position, block.tokens[piece.start : after.start]))
    for document in documents:
        pieces = sorted(found.pop(document.offset, []))
        assert [token for _, tokens in pieces for token in tokens] == list(document.tokens)
        assert len(pieces) == -(-len(document.tokens) // size)
    assert not found
    last = [block.pieces[-1].offset for block in left]
    assert last == sorted(last)
    for block in left:
        assert all(block.pieces[-1].offset - age - 1 <= piece.offset for piece in block.pieces)


@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [
        ([3, 2, 1], [[0, 0, 0, 2]]),
        ([2, 3, 1, 2], [[1, 1, 1, 2], [0, 0, 3, 3]]),
        ([2, 2], [[0, 0, 1, 1]]),
        ([9, 3], [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]]),
        ([4], [[0, 0, 0, 0]]),
        ([2, 3, 3, 3], [[1, 1, 1, None], [2, 2, 2, None]]),
    ],
)
def test_by_hand(sizes: list[int], blocks: list[list[int | None]]) -> None:
    """The least sufficient room, the fullest block closed: with two open blocks of four tokens."""
    documents = [Document(n, [n] * size) for n, size in enumerate(sizes)]
    left = run(packing_of((4, (2, 100))), documents, 4, [])
    found = [[None if token == PAD else token for token in block.tokens] for block in left]
    assert found == blocks
