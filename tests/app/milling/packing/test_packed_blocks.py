"""The packing ``concat``: all tokens, in order, whatever the calls; every piece where it belongs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import feed_sizes
from tokenmill.app.milling.document_columns import Metas
from tokenmill.app.milling.packing.document_shapes import DocumentShape, Frame
from tokenmill.app.milling.packing.packed_blocks import ConcatPacking, PackedBlocks, Stretches, TokenizedDocuments
from tokenmill.app.milling.tokenizers import TokenBatch
from tokenmill.wire.pieces import PADDING, Piece, decode_entry

UINT16 = np.dtype("<u2")
arrays = st.lists(st.lists(st.integers(0, 65_535), max_size=6), max_size=6)


@given(arrays, st.data())
def test_any_part_of_stretches_is_that_part_of_one_array(parts: list[list[int]], data: st.DataObject) -> None:
    """In whichever of the arrays it begins and ends; a part of a part, too."""
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


END = 255

lengths = st.lists(st.integers(0, 12), max_size=10)
block_sizes = st.integers(2, 7)


class Document(NamedTuple):
    """One document, as `TokenizedDocuments` holds many."""

    offset: int
    tokens: npt.NDArray[np.integer]
    meta: bytes
    taken: int = 0


def _columns(documents: Sequence[Document]) -> TokenizedDocuments:
    """Put the documents into columns; their tokens do not begin at the array's first."""
    return TokenizedDocuments(
        np.array([document.offset for document in documents], np.int64),
        Stretches(np.array(part, UINT16) for part in [[7], *([*document.tokens, END] for document in documents)]),
        np.cumsum([1, *(len(document.tokens) + 1 for document in documents)]),
        Metas.join(document.meta for document in documents),
        documents[0].taken if documents else 0,
    )


def _documents(sizes: Sequence[int]) -> list[Document]:
    """Make documents whose tokens are all different, as far as 16 bits go."""
    starts = np.cumsum([0, *sizes])
    return [
        Document(10 * n, np.arange(start, start + size, dtype=np.uint32) + 256, b"m" * (n % 3))
        for n, (start, size) in enumerate(zip(starts.tolist(), sizes, strict=False))
    ]


@dataclass
class Expected:
    """The same, one token at a time."""

    size: int
    blocks: list[tuple[list[int], list[Piece]]] = field(default_factory=lambda: [([], [])])
    """The last one is open."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """For each full block, the document of its last token and how much of it is taken."""

    def add(self, number: int, document: Document) -> None:
        """Append a document."""
        tokens = [*document.tokens.tolist(), END]
        for position in range(document.taken, len(tokens)):
            is_last = position + 1 == len(tokens)
            taken = 0 if is_last else position + 1
            self._append(tokens[position], document.offset, position, document.meta, (number, taken))

    def fill(self, offset: int) -> None:
        """Fill the open block."""
        while self.blocks[-1][0]:
            self._append(END, offset, PADDING, b"", (0, 0))

    def _append(self, token: int, offset: int, position: int, meta: bytes, end: tuple[int, int]) -> None:
        tokens, pieces = self.blocks[-1]
        if not pieces or (pieces[-1].offset, pieces[-1].position < 0) != (offset, position < 0):
            pieces.append(Piece(len(tokens), offset, position, meta))
        tokens.append(token)
        if len(tokens) == self.size:
            self.blocks.append(([], []))
            self.ends.append(end)


def _blocks(packed: PackedBlocks) -> list[list[int]]:
    tokens = np.frombuffer(packed.tokens.tobytes(), UINT16)
    return tokens.reshape(len(packed.entries), -1).tolist() if packed.entries else tokens.tolist()


def _read(packed: Sequence[PackedBlocks]) -> list[tuple[list[int], list[Piece]]]:
    return [
        (tokens, decode_entry(entry))
        for part in packed
        for tokens, entry in zip(_blocks(part), part.entries, strict=True)
    ]


def _open_of(packing: ConcatPacking) -> tuple[list[int], list[Piece]]:
    tokens, entry = packing.open_block
    return np.frombuffer(tokens, UINT16).tolist(), decode_entry(entry) if entry else []


@given(lengths, block_sizes, feed_sizes)
def test_every_token_is_packed_in_order_with_its_piece(sizes: list[int], block: int, calls: list[int]) -> None:
    """For any division into calls, empty documents included: blocks, pieces, the open block, and where blocks end."""
    documents = _documents(sizes)
    packing = ConcatPacking(block, UINT16, END)
    expected = Expected(block)
    start = 0
    for count in [*calls, len(documents), 0]:
        expected.ends.clear()
        before = len(expected.blocks) - 1
        part = documents[start : start + count]
        for number, document in enumerate(part):
            expected.add(number, document)
        packed = packing.add(_columns(part))
        assert _read([packed]) == expected.blocks[before:-1]
        assert list(zip(packed.documents, packed.taken, strict=True)) == expected.ends
        assert _open_of(packing) == expected.blocks[-1]
        start += count


@given(lengths, block_sizes, st.integers(0, 12))
def test_a_document_continues_after_what_is_taken(sizes: list[int], block: int, taken: int) -> None:
    """Positions count from the document's beginning; its separator can be all that is left."""
    first, *rest = _documents([max(12, taken), *sizes])
    documents = [Document(first.offset, first.tokens, first.meta, taken), *rest]
    packing = ConcatPacking(block, UINT16, END)
    expected = Expected(block)
    for number, document in enumerate(documents):
        expected.add(number, document)
    packed = packing.add(_columns(documents))
    assert _read([packed]) == expected.blocks[:-1]
    assert list(zip(packed.documents, packed.taken, strict=True)) == expected.ends
    assert _open_of(packing) == expected.blocks[-1]


@given(lengths, lengths, block_sizes)
def test_a_flush_fills_the_open_block_with_padding(sizes: list[int], later: list[int], block: int) -> None:
    """One block at most, which belongs to the flush; what comes later begins a new one."""
    packing = ConcatPacking(block, UINT16, END)
    expected = Expected(block)
    documents = _documents([*sizes, *later])
    for document in documents[: len(sizes)]:
        expected.add(0, document)
    expected.fill(7)
    for document in documents[len(sizes) :]:
        expected.add(0, document)
    added = packing.add(_columns(documents[: len(sizes)]))
    filled = packing.fill(7)
    assert packing.open_block == (b"", b"")
    assert len(filled.entries) == len(filled.documents) == len(filled.taken) == bool((sum(sizes) + len(sizes)) % block)
    assert (list(filled.documents), list(filled.taken)) in (([], []), ([0], [0]))
    assert not packing.fill(8).entries
    assert _read([added, filled, packing.add(_columns(documents[len(sizes) :]))]) == expected.blocks[:-1]


@given(lengths, lengths, block_sizes)
def test_an_open_block_goes_on_in_another_packing(sizes: list[int], later: list[int], block: int) -> None:
    """What a carry holds is all that the next owner needs."""
    documents = _documents([*sizes, *later])
    packing = ConcatPacking(block, UINT16, END)
    packing.add(_columns(documents[: len(sizes)]))
    tokens, entry = packing.open_block
    assert len(tokens) < block * UINT16.itemsize
    other = ConcatPacking(block, UINT16, END, open_tokens=tokens, open_entry=entry)
    assert other.open_block == (tokens, entry)
    rest = documents[len(sizes) :]
    one, two = packing.add(_columns(rest)), other.add(_columns(rest))
    assert _read([one]) == _read([two])
    assert packing.open_block == other.open_block
    other.fill(9)
    packing.fill(9)
    assert packing.open_block == other.open_block == (b"", b"")


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
    """Empty ones, too, and none at all; whatever dtype the engine's ids have."""
    ids = np.array([token for text in texts for token in text], np.uint32)
    given = DocumentShape(Frame(before, after, np.dtype(dtype))).give(TokenBatch(ids, np.cumsum([0, *map(len, texts)])))
    assert given.tokens.dtype == np.dtype(dtype)
    assert [given.tokens[low:high].tolist() for low, high in pairwise(given.bounds.tolist())] == [
        [*before, *t, *after] for t in texts
    ]


@given(lengths, feed_sizes)
def test_documents_of_parts_are_those_of_the_whole(sizes: list[int], calls: list[int]) -> None:
    """However a fetch is divided: offsets, tokens and metas go one behind the other."""
    documents = _documents(sizes)
    parts, start = [], 0
    for count in [*calls, len(documents)]:
        some = documents[start : start + count]
        ids = np.concatenate([np.empty(0, np.uint32), *(document.tokens for document in some)]).astype(np.uint32)
        batch = TokenBatch(ids, np.cumsum([0, *(len(document.tokens) for document in some)]))
        metas = Metas.join(document.meta for document in some)
        offsets = np.array([document.offset for document in some], np.int64)
        tokens, bounds = Frame((), (END,), UINT16).around(batch.ids, batch.offsets)
        parts.append(TokenizedDocuments(offsets, Stretches([tokens]), bounds, metas))
        start += count
    one = TokenizedDocuments.concatenate(parts)
    whole = _columns(documents)
    assert one.offsets.tolist() == whole.offsets.tolist()
    assert one.tokens.tobytes() == whole.tokens.tobytes()[UINT16.itemsize :]
    assert one.bounds.tolist() == (whole.bounds - 1).tolist()
    assert (one.metas.data, one.metas.bounds.tolist()) == (whole.metas.data, whole.metas.bounds.tolist())


def test_what_was_packed_stays_when_more_is_added() -> None:
    """And the open block is a copy: it holds no fetch."""
    ids = np.arange(7, dtype=np.uint16)
    packing = ConcatPacking(3, UINT16, END)
    packed = packing.add(TokenizedDocuments(np.array([0]), Stretches([ids]), np.array([0, 7]), Metas.join([b""])))
    blocks, opened = _blocks(packed), packing.open_block
    assert (blocks, opened[0]) == ([[0, 1, 2], [3, 4, 5]], ids[6:].tobytes())
    ids[6:] = 9
    assert packing.open_block == opened
    packing.add(_columns(_documents([5, 5])))
    assert _blocks(packed) == blocks
