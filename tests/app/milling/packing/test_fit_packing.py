"""The packing ``fit``: the same blocks as its plain reference, whatever the calls; whole documents, bounded age."""

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
from tokenmill.app.milling.packing.fit_packing import FitPacking
from tokenmill.app.milling.packing.packed_blocks import PackedBlocks, Stretches, TokenizedDocuments
from tokenmill.app.milling.reference import FitReference, LeavingBlock
from tokenmill.wire.pieces import PADDING, Piece, decode_entry, split_references

UINT16 = np.dtype("<u2")
PAD = 65535


class Document(NamedTuple):
    """A document at an offset; with no tokens, a flush."""

    offset: int
    tokens: Sequence[int]
    meta: bytes = b""

    @property
    def crc(self) -> int:
        """Stands for that of its record."""
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
    """Draw documents of up to three blocks and flushes, with gaps between their offsets."""
    offset, number = draw(st.integers(0, 3)), 0
    found = []
    for size, gap, meta in draw(
        st.lists(st.tuples(st.integers(0, 22) | st.integers(1, 4), st.integers(1, 4), st.integers(0, 2)), max_size=40)
    ):
        found.append(Document(offset, range(number, number + size), b"m" * meta))
        offset, number = offset + gap, number + size
    return found


shapes = st.tuples(st.integers(2, 9), st.integers(1, 5), st.sampled_from([1, 2, 4, 10, 1000]))


def make_reference(size: int, most_open: int, age: int) -> FitReference:
    """Return the reference of blocks of so many tokens."""
    parameters = {"open_blocks": most_open, "max_age_offsets": age}
    recipe = replace(
        RECIPE, packing="fit", packing_parameters=parameters, block_tokens=size, dtype="uint16", padding=PAD
    )
    return FitReference(recipe)


def expected_of(reference: FitReference, documents: Sequence[Document]) -> Iterator[Left]:
    """Yield what the reference makes of documents."""
    for document in documents:
        found: Iterator[LeavingBlock] = reference.flush(document.offset)
        if document.tokens:
            found = reference.add(document.offset, document.tokens, document.meta, document.crc)
        for block in found:
            pieces = [Piece(*piece) for piece in block.pieces]
            state = (document.offset, block.taken, block.finished, reference.references())
            yield Left(list(block.tokens), pieces, dict(block.figures), *state)


def columns(documents: Sequence[Document], taken: int = 0) -> TokenizedDocuments:
    """Put documents into columns, in two arrays that do not begin with theirs."""
    half = len(documents) // 2
    arrays = [np.array([1, 2], UINT16)]
    arrays += [
        np.concatenate([np.array(d.tokens, UINT16) for d in p]) for p in (documents[:half], documents[half:]) if p
    ]
    return TokenizedDocuments(
        np.array([document.offset for document in documents], np.int64),
        Stretches(arrays),
        np.cumsum([2, *(len(document.tokens) for document in documents)]),
        Metas.join(document.meta for document in documents),
        taken,
        lambda at: documents[at].crc,
    )


def left_of(packed: PackedBlocks, offsets: Sequence[int], size: int) -> list[Left]:
    """Return the blocks of a call, each cut out by itself."""
    found = []
    for n, entry in enumerate(packed.entries):
        tokens = np.frombuffer(packed.tokens.between(n * size, (n + 1) * size).tobytes(), UINT16).tolist()
        state = (offsets[packed.documents[n]], packed.taken[n], packed.finished[n], packed.references(n + 1))
        figures = {name: int(numbers[n]) for name, numbers in packed.figures.items()}
        found.append(Left(tokens, decode_entry(entry), figures, *state))
    return found


def run(packing: FitPacking, documents: Sequence[Document], size: int, calls: Sequence[int]) -> Iterator[Left]:
    """Yield what the packing makes of documents, so many at a time."""
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


@given(histories(), shapes, feed_sizes)
@example([Document(0, range(3)), Document(9, range(3))], (4, 2, 3), [])
def test_it_is_the_reference_for_any_calls(
    documents: list[Document], shape: tuple[int, int, int], calls: list[int]
) -> None:
    """Blocks, pieces, padding, where the chain is after each, and the open blocks."""
    size, most_open, age = shape
    packing = FitPacking(size, UINT16, PAD, open_blocks=most_open, max_age_offsets=age)
    reference = make_reference(size, most_open, age)
    assert list(run(packing, documents, size, calls)) == list(expected_of(reference, documents))
    assert packing.references == reference.references()
    tokens, _ = packing.open_block
    assert np.frombuffer(tokens, UINT16).tolist() == [token for block in reference.blocks for token in block.tokens]


@given(histories(), shapes, st.integers(0, 40))
def test_it_goes_on_from_any_state(documents: list[Document], shape: tuple[int, int, int], at: int) -> None:
    """With the open blocks by value, after any document."""
    size, most_open, age = shape
    whole = FitPacking(size, UINT16, PAD, open_blocks=most_open, max_age_offsets=age)
    list(run(whole, documents[:at], size, []))
    tokens, entries = whole.open_block
    again = FitPacking(
        size, UINT16, PAD, open_blocks=most_open, max_age_offsets=age,
        references=whole.references, open_tokens=tokens, open_entry=entries,
    )  # fmt: skip
    assert (again.open_block, again.references) == (whole.open_block, whole.references)
    assert list(run(again, documents[at:], size, [1])) == list(run(whole, documents[at:], size, []))


@given(histories(), shapes, st.data())
def test_it_goes_on_after_any_block(
    documents: list[Document], shape: tuple[int, int, int], data: st.DataObject
) -> None:
    """In the middle of a document or a flush as well: the state after a block is enough."""
    size, most_open, age = shape
    left = list(expected_of(make_reference(size, most_open, age), documents))
    if not left:
        return
    at = data.draw(st.integers(0, len(left) - 1))
    by_offset = {document.offset: document for document in documents}
    state = left[at]
    tokens, entries = by_value(state.references, by_offset)
    again = FitPacking(
        size, UINT16, PAD, open_blocks=most_open, max_age_offsets=age,
        references=state.references, open_tokens=tokens, open_entry=entries,
    )  # fmt: skip
    later = [d for d in documents if d.offset > state.offset or (d.offset == state.offset and not state.finished)]
    found = []
    if state.taken:
        packed = again.add(columns(later[:1], state.taken))
        found, later = left_of(packed, [state.offset], size), later[1:]
    assert [*found, *run(again, later, size, [])] == left[at + 1 :]


def by_value(references: bytes, documents: dict[int, Document]) -> tuple[bytes, bytes]:
    """Return tokens and entries of the open blocks that are referred to."""
    from tokenmill.wire.pieces import encode_entry  # noqa: PLC0415 - for this alone

    counts, rows = split_references(references)
    tokens, entries, at = b"", b"", 0
    for count in counts:
        pieces, start = [], 0
        for offset, first, size, crc in rows[at : at + count].tolist():
            document = documents[offset]
            assert crc == document.crc
            pieces.append(Piece(start, offset, first, document.meta))
            tokens += np.array(document.tokens[first : first + size], UINT16).tobytes()
            start += size
        entries += encode_entry(pieces)
        at += count
    return tokens, entries


@given(histories(), shapes)
def test_what_fits_a_block_is_never_cut_and_nothing_is_lost(
    documents: list[Document], shape: tuple[int, int, int]
) -> None:
    """Every token once, in its document's order; offsets within the bound, and those of last pieces rise."""
    size, most_open, age = shape
    packing = FitPacking(size, UINT16, PAD, open_blocks=most_open, max_age_offsets=age)
    end = documents[-1].offset + 1 if documents else 0
    left = list(run(packing, [*documents, Document(end, ())], size, []))
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
    packing = FitPacking(4, UINT16, PAD, open_blocks=2, max_age_offsets=100)
    documents = [Document(n, [n] * size) for n, size in enumerate(sizes)]
    found = [[None if token == PAD else token for token in block.tokens] for block in run(packing, documents, 4, [])]
    assert found == blocks
