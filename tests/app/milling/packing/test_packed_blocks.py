"""Packings that keep blocks open: the blocks of their plain references, whatever the calls; and what all share."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.mills import RECIPE
from tests.strategies import feed_sizes
from tokenmill.app.milling.document_columns import Metas
from tokenmill.app.milling.packing.document_shapes import DocumentShape, Frame
from tokenmill.app.milling.packing.fit_packing import FitPacking
from tokenmill.app.milling.packing.packed_blocks import ConcatPacking, PackedBlocks, Stretches, TokenizedDocuments
from tokenmill.app.milling.reference import ConcatReference, FitReference, LeavingBlock, ReferencePacking
from tokenmill.app.milling.tokenizers import TokenBatch
from tokenmill.wire.pieces import NO_BLOCKS, PADDING, Piece, decode_entry

UINT16 = np.dtype("<u2")
PAD = 65535
arrays = st.lists(st.lists(st.integers(0, 65_535), max_size=6), max_size=6)


@given(arrays, st.data())
def test_any_part_of_stretches_is_that_part_of_one_array(parts: list[list[int]], data: st.DataObject) -> None:
    whole = np.array([token for part in parts for token in part], UINT16)
    stretches = Stretches(np.array(part, UINT16) for part in parts)
    for _ in range(2):
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(start, len(whole)))
        stretches, whole = stretches.between(start, stop), whole[start:stop]
        assert len(stretches) == len(whole)
        assert stretches.tobytes() == whole.tobytes()
        assert [token for array in stretches for token in array.tolist()] == whole.tolist()
        assert all(len(array) for array in stretches)


class Document(NamedTuple):
    """A document at an offset; with no tokens, a flush."""

    offset: int
    tokens: Sequence[int]
    meta: bytes = b""

    @property
    def crc(self) -> int:
        return self.offset * 7 + 1


class Left(NamedTuple):
    """A block that left, and the state behind it, as both sides tell it."""

    tokens: list[int]
    pieces: list[Piece]
    figures: dict[str, int]
    offset: int
    taken: int
    finished: bool
    references: bytes


@st.composite
def histories(draw: st.DrawFn) -> list[Document]:
    offset, number = draw(st.integers(0, 3)), 0
    sizes = st.integers(0, 22) | st.integers(0, 4)
    found = []
    for size, gap, meta in draw(st.lists(st.tuples(sizes, st.integers(1, 4), st.integers(0, 2)), max_size=40)):
        found.append(Document(offset, range(number, number + size), b"m" * meta))
        offset, number = offset + gap, number + size
    return found


Shape = tuple[int, tuple[int, int] | None]
"""Tokens of a block; and for ``fit`` most open blocks, and their largest age in offsets."""
fit_shapes = st.tuples(st.integers(2, 9), st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 4, 10, 1000])))
shapes: st.SearchStrategy[Shape] = fit_shapes | st.tuples(st.integers(2, 9), st.none())
OpenPacking = ConcatPacking | FitPacking


def packing_of(shape: Shape, before: OpenPacking | None = None) -> OpenPacking:
    """Return the packing, which goes on with the open blocks of the one before."""
    size, fit = shape
    tokens, entries = (b"", b"") if before is None else before.open_block
    if fit is None:
        return ConcatPacking(size, UINT16, PAD, open_tokens=tokens, open_entry=entries)
    references = NO_BLOCKS if before is None else before.references
    most_open, age = fit
    return FitPacking(
        size, UINT16, PAD, open_blocks=most_open, max_age_offsets=age,
        references=references, open_tokens=tokens, open_entry=entries,
    )  # fmt: skip


def reference_of(shape: Shape) -> ReferencePacking:
    size, fit = shape
    recipe = replace(RECIPE, block_tokens=size, dtype="uint16", padding=PAD)
    if fit is None:
        return ConcatReference(recipe)
    parameters = dict(zip(("open_blocks", "max_age_offsets"), fit, strict=True))
    return FitReference(replace(recipe, packing="fit", packing_parameters=parameters))


def expected_of(reference: ReferencePacking, documents: Sequence[Document]) -> Iterator[Left]:
    for document in documents:
        found: Iterator[LeavingBlock] = reference.flush(document.offset)
        if document.tokens:
            found = reference.add(document.offset, document.tokens, document.meta, document.crc)
        for block in found:
            pieces = [Piece(*piece) for piece in block.pieces]
            state = (document.offset, block.taken, block.finished, reference.references())
            yield Left(list(block.tokens), pieces, dict(block.figures), *state)


def columns(documents: Sequence[Document], before: Sequence[int] = (1, 2)) -> TokenizedDocuments:
    """Put documents into columns, in several arrays, of which the first is none of theirs."""
    return TokenizedDocuments(
        np.array([document.offset for document in documents], np.int64),
        Stretches(np.array(part, UINT16) for part in (before, *(document.tokens for document in documents))),
        np.cumsum([len(before), *(len(document.tokens) for document in documents)]),
        Metas.join(document.meta for document in documents),
        crc=lambda at: documents[at].crc,
    )


def left_of(packed: PackedBlocks, offsets: Sequence[int], size: int) -> Iterator[Left]:
    for n, entry in enumerate(packed.entries):
        tokens = np.frombuffer(packed.tokens.between(n * size, (n + 1) * size).tobytes(), UINT16).tolist()
        state = (offsets[packed.documents[n]], packed.taken[n], packed.finished[n], packed.references(n + 1))
        figures = {name: int(numbers[n]) for name, numbers in packed.figures.items()}
        yield Left(tokens, decode_entry(entry), figures, *state)


def run(packing: OpenPacking, documents: Sequence[Document], size: int, calls: Sequence[int]) -> Iterator[Left]:
    at = 0
    for count in [*calls, len(documents)]:
        part = list(documents[at : at + count])
        at += len(part)
        while part:
            stop = next((n for n, document in enumerate(part) if not document.tokens), len(part))
            if stop:
                offsets = [document.offset for document in part[:stop]]
                yield from left_of(packing.add(columns(part[:stop])), offsets, size)
            else:
                yield from left_of(packing.fill(part[0].offset), [part[0].offset], size)
            part = part[max(stop, 1) :]


@given(histories(), shapes, feed_sizes, st.integers(0, 40))
@example([Document(0, range(3)), Document(9, range(3))], (4, (2, 3)), [], 0)
def test_any_calls_give_the_reference_blocks(
    documents: list[Document], shape: Shape, calls: list[int], at: int
) -> None:
    """Also where another packing goes on with the open blocks by value, after any document: a carry holds no more."""
    before, whole, reference, size = packing_of(shape), packing_of(shape), reference_of(shape), shape[0]
    left = list(run(before, documents[:at], size, calls))
    packing = packing_of(shape, before)
    assert (packing.open_block, packing.references) == (before.open_block, before.references)
    left += run(packing, documents[at:], size, calls)
    assert left == list(run(whole, documents, size, [])) == list(expected_of(reference, documents))
    assert packing.open_block == whole.open_block
    assert packing.references == reference.references()
    tokens, _ = packing.open_block
    assert np.frombuffer(tokens, UINT16).tolist() == [token for block in reference.blocks for token in block.tokens]


_around = st.lists(st.integers(0, 200), max_size=3)


@given(
    st.lists(st.lists(st.integers(0, 200), max_size=5), max_size=5),
    st.sampled_from(["<u1", "<u2", "<u4"]),
    _around,
    _around,
)
def test_documents_have_their_ids_around_them_in_the_dtype_of_the_stream(
    texts: list[list[int]], dtype: str, before: list[int], after: list[int]
) -> None:
    ids = np.array([token for text in texts for token in text], np.uint32)
    given = DocumentShape(Frame(before, after, np.dtype(dtype))).give(TokenBatch(ids, np.cumsum([0, *map(len, texts)])))
    assert given.tokens.dtype == np.dtype(dtype)
    assert [given.tokens[low:high].tolist() for low, high in pairwise(given.bounds.tolist())] == [
        [*before, *t, *after] for t in texts
    ]


@given(histories(), feed_sizes)
def test_documents_of_parts_are_those_of_the_whole(documents: list[Document], calls: list[int]) -> None:
    bounds = np.minimum(np.cumsum([0, *calls, len(documents)]), len(documents)).tolist()
    one = TokenizedDocuments.concatenate([columns(documents[low:high], ()) for low, high in pairwise(bounds)])
    whole = columns(documents, ())
    assert one.offsets.tolist() == whole.offsets.tolist()
    assert one.tokens.tobytes() == whole.tokens.tobytes()
    assert one.bounds.tolist() == whole.bounds.tolist()
    assert (one.metas.data, one.metas.bounds.tolist()) == (whole.metas.data, whole.metas.bounds.tolist())


def test_what_was_packed_stays_when_more_is_added() -> None:
    """And the open block is a copy: it holds no fetch."""
    ids = np.arange(7, dtype=np.uint16)
    packing = ConcatPacking(3, UINT16, PAD)
    packed = packing.add(TokenizedDocuments(np.array([0]), Stretches([ids]), np.array([0, 7]), Metas.join([b""])))
    blocks, opened = packed.tokens.tobytes(), packing.open_block
    assert (blocks, opened[0]) == (ids[:6].tobytes(), ids[6:].tobytes())
    ids[6:] = 9
    assert packing.open_block == opened
    packing.add(columns([Document(1, range(5)), Document(2, range(5))]))
    assert packed.tokens.tobytes() == blocks


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
