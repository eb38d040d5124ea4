"""Consecutive items: their bounds together, and how they are divided."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import documents
from tokenmill.app.milling.document_columns import DocumentColumns, Metas, divide, document_metas, join_bounds
from tokenmill.documents import Document, document_meta

sizes = st.lists(st.integers(0, 9), max_size=8)


@given(st.lists(sizes, max_size=4), st.integers(0, 5))
def test_bounds_of_parts_are_those_of_all_their_items(parts: list[list[int]], begin: int) -> None:
    bounds = [np.cumsum([begin, *part], dtype=np.int64) for part in parts]
    assert join_bounds(bounds).tolist() == np.cumsum([0, *(size for part in parts for size in part)]).tolist()


@given(sizes, st.integers(1, 4), st.integers(0, 20))
def test_ranges_are_as_long_as_they_may_be(sizes: list[int], items: int, room: int) -> None:
    ranges = list(divide(np.array(sizes, np.int64), items=items, room=room))
    assert [low for low, _ in ranges] + [len(sizes)] == [0, *(high for _, high in ranges)]
    for low, high in ranges:
        assert 1 <= high - low <= items
        assert sum(sizes[low:high]) <= room or high - low == 1
    for (low, high), _ in pairwise(ranges):
        assert high - low == items or sum(sizes[low : high + 1]) > room


CARRIED = ("score", "label")


def _each(columns: DocumentColumns) -> list[Document]:
    return [columns.at(index) for index in range(len(columns))]


@given(st.lists(documents, max_size=6), st.data())
def test_columns_hold_documents(many: list[Document], data: st.DataObject) -> None:
    columns = DocumentColumns.of(many)
    assert _each(columns) == many
    choice = np.array([data.draw(st.booleans()) for _ in many], np.bool_)
    assert _each(columns.chosen(choice)) == [document for document, chosen in zip(many, choice, strict=True) if chosen]
    first = data.draw(st.integers(0, len(many)))
    assert _each(columns.since(first)) == many[first:]
    columns.append(Document("added", 7))
    columns = columns.changed({first: Document("put", 8, {"a": 1})})
    expected = [*many, Document("added", 7)]
    expected[first] = Document("put", 8, {"a": 1})
    assert _each(columns) == expected


def _metas(metas: Metas) -> list[bytes]:
    assert len(metas.data) == metas.bounds[-1]
    return [metas.data[low:high] for low, high in pairwise(metas.bounds.tolist())]


names = st.none() | st.integers(0, 99) | st.text(max_size=8) | st.text('a",:\\{', max_size=5)


@given(st.lists(names, max_size=6) | st.lists(st.text('a",:', max_size=4), max_size=6), st.sampled_from([(), CARRIED]))
def test_metas_of_many_are_those_of_each(ids: list[str | int | None], carried: tuple[str, ...]) -> None:
    documents = [Document("text", name, {CARRIED[0]: 1}) for name in ids]
    metas = document_metas(DocumentColumns.of(documents), carried)
    assert _metas(metas) == [document_meta(document, carried) for document in documents]


@given(st.lists(st.lists(st.binary(max_size=3), max_size=4), min_size=1, max_size=4))
def test_metas_are_put_together(parts: list[list[bytes]]) -> None:
    metas = Metas.concatenate([Metas.join(part) for part in parts])
    assert _metas(metas) == [meta for part in parts for meta in part]
    low = 0
    for part in parts:
        data, bounds = metas.part(low, low + len(part))
        assert [data[start:end] for start, end in pairwise(bounds.tolist())] == part
        low += len(part)
