"""Records and documents in columns, and what the figures of a chain count, by mill and reference alike."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps import user_functions
from tests.mills import RECIPE, Source, make_source, named, text
from tests.strategies import documents, record_lists, sources
from tokenmill.app.milling import columns, document_columns
from tokenmill.app.milling.columns import KeptDocuments, OutcomeColumns, RecordColumns, text_sizes
from tokenmill.app.milling.document_columns import DocumentColumns, Metas, document_metas, join_bounds
from tokenmill.app.milling.foreign_code import open_user_function
from tokenmill.app.milling.outcomes import Kind, Outcome
from tokenmill.app.milling.steps import Rejected, Step
from tokenmill.app.milling.steps.basic import CustomStep, MinChars, NotEmpty
from tokenmill.app.milling.steps.pipeline import open_pipeline
from tokenmill.app.milling.steps.protocol import Answer, each_alone
from tokenmill.documents import Document, Limits, Record, document_meta
from tokenmill.errors import RecordError
from tokenmill.wire.totals import Amount


@dataclass(frozen=True)
class Whims:
    """Drops, changes, refuses and labels documents by the length of their texts."""

    name: str
    every: int

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "every": self.every}

    def __call__(self, document: Document) -> Document | Rejected:
        match len(document.text) % self.every:
            case 0:
                return Rejected("even" if len(document.text) % 2 == 0 else "odd", f"{len(document.text)} characters")
            case 1:
                return document._replace(text=document.text + "é", id=None)
            case 2:
                return document._replace(text=document.text[:-1])
            case 3:
                raise RecordError("whim", "no answer")
            case 4:
                return document._replace(fields={"language": "de" if "a" in document.text else "en"})
        return document

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        return each_alone(self, documents)


REAL = open_pipeline(
    [{"name": "length", "max_chars": 9}, {"name": "sample", "rate": 0.5}, {"name": "replace_pii"}],
    limits=Limits(1000, 20, 40),
)
"""Steps that recipes may have, beside those that do everything there is."""
whims: st.SearchStrategy[Sequence[Step]] = st.lists(
    st.builds(Whims, st.sampled_from(["language", "whims", "whims"]), st.integers(5, 9)) | st.sampled_from(REAL),
    min_size=1,
    max_size=4,
).map(lambda drawn: [NotEmpty(), *drawn, NotEmpty(), MinChars(3)])


def with_steps(source: Source, steps: Sequence[Step]) -> Source:
    return replace(source, stages=replace(source.stages, steps=steps))


with_whims = st.builds(with_steps, sources, whims)


def test_each_step_has_what_the_one_before_passed_on() -> None:
    """In numbers: an empty text, one that is dropped, one that grows, one that nobody can answer for; and languages."""
    steps: list[Step] = [NotEmpty(), Whims("whims", 5), MinChars(4), Whims("language", 20)]
    source = with_steps(make_source(RECIPE), steps)
    values = ["", *("x" * length for length in range(5, 10))]
    records = [text(offset, value) for offset, value in enumerate(values)]
    mill = source.mill()
    mill.feed(records)
    totals = mill.chains["train"].totals
    empty, whim, short, language = totals.figures.steps
    assert (empty.taken, empty.filtered, empty.passed) == (Amount(6, 35), {"empty": Amount(1, 0)}, Amount(5, 35))
    assert whim.taken == empty.passed
    assert whim.filtered == {"whims.odd": Amount(1, 5)}
    assert whim.refused == Amount(1, 8)
    assert whim.passed == short.taken == short.passed == Amount(3, 23)  # 6 + 2 for é, 7 - 1, 9
    assert language.taken == language.passed == Amount(3, 23)
    assert totals.figures.languages == {"None": Amount(2, 16), "en": Amount(1, 10)}
    assert totals.filtered == {"empty": 1, "whims.odd": 1}
    assert totals.figures.token_lengths == {2: 1, 3: 2}  # 7, 9 and 10 tokens, each with its end
    assert totals.figures.text_lengths == {2: 1, 3: 2}
    assert totals.balanced


def test_a_document_that_is_lost_from_a_step_does_not_balance() -> None:
    source = with_steps(make_source(RECIPE), [NotEmpty(), Whims("whims", 5)])
    mill = source.mill()
    mill.feed([named(0, "a", "12345"), named(1, "b", "123456")])
    for name in ("taken", "passed", "refused"):
        totals = mill.chains["train"].totals.copy()
        step = totals.figures.steps[-1]
        setattr(step, name, getattr(step, name).plus(Amount(1)))
        assert not totals.balanced
    totals = mill.chains["train"].totals.copy()
    totals.figures.token_lengths[0] += 1
    assert not totals.balanced


@given(st.lists(st.text()))
def test_sizes_are_those_of_utf_8(texts: list[str]) -> None:
    assert text_sizes(texts).tolist() == [len(text.encode()) for text in texts]


@given(record_lists(), st.integers(0, 50), st.integers(1, 5), st.integers(0, 40))
def test_a_fetch_knows_its_offsets_and_is_divided(records: list[Record], offset: int, most: int, size: int) -> None:
    fetch = RecordColumns.of(records)
    assert fetch.index(offset) == sum(record.offset < offset for record in records)
    assert fetch.offsets.tolist() == [record.offset for record in records]
    assert fetch.sizes.tolist() == [len(record.value or b"") for record in records]
    with patch.object(columns, "PART_RECORDS", most), patch.object(columns, "PART_BYTES", size):
        assert list(fetch.parts()) == list(document_columns.divide(fetch.sizes, items=most, room=size))


def _outcomes(columns: OutcomeColumns) -> dict[int, Outcome]:
    found = dict(columns.others)
    for split, kept in columns.kept.items():
        assert len(kept.indices) == len(kept.documents)
        for at, index in enumerate(kept.indices.tolist()):
            assert index not in found
            found[index] = Outcome(columns.records[index], Kind.KEPT, split, document=kept.documents.at(at))
    return found


@given(with_whims, record_lists(), st.frozensets(st.integers(0, 12), max_size=3))
def test_a_fetch_has_the_outcomes_of_its_records(source: Source, records: list[Record], skips: frozenset[int]) -> None:
    """Kept, filtered, refused, skipped, tombstone or flush; what no split owns is in no column.

    With any steps: each sees what the ones before it left, and counts under its own label.
    """
    seen: list[int] = []
    fetch = RecordColumns.of(records)
    columns = OutcomeColumns.sort(source.stages, fetch, skips, note=lambda low, high: seen.extend((low, high)))
    found = _outcomes(columns)
    for index, record in enumerate(records):
        assert found.get(index, Outcome(record, Kind.KEPT)) == source.stages.outcome(record, skips)
    assert [index for index, _ in columns.others] == sorted(index for index, _ in columns.others)
    assert columns.dead_letters == [o for _, o in columns.others if o.kind is Kind.DEAD_LETTERED]
    assert seen == []  # no function of a user is there


@given(st.lists(st.integers(0, 30), unique=True).map(sorted), st.integers(-3, 33))
def test_kept_documents_since_a_record_are_those_of_it_and_later_ones(indices: list[int], first: int) -> None:
    documents = DocumentColumns.of(Document(f"text {n}", n, {"n": n}) for n in indices)
    kept = KeptDocuments(np.array(indices, np.int64), documents).since(first)
    wanted = [n for n in indices if n >= first]
    assert kept.indices.tolist() == wanted
    assert kept.documents == DocumentColumns.of(Document(f"text {n}", n, {"n": n}) for n in wanted)


def test_equal_steps_are_counted_apart() -> None:
    lengths = open_pipeline(
        [{"name": "length", "max_chars": 3}, {"name": "length", "max_words": 1}], limits=Limits(1000, 20, 40)
    )
    stages = replace(make_source().stages, steps=(*lengths, MinChars(2)))
    records = [text(number, value) for number, value in enumerate(("long", "a b", "c"))]
    found = OutcomeColumns.sort(stages, RecordColumns.of(records))
    assert [outcome.reason for _, outcome in found.others] == ["length.max_chars", "length_2.max_words", "min_chars"]
    assert found.others[2][1].detail == "1 chars, fewer than 2"


def test_a_step_changes_no_columns_that_another_step_was_given() -> None:
    """So what a step computed of them may be kept."""
    given_columns: list[DocumentColumns] = []

    class _Watching(Whims):
        def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
            given_columns.append(documents)
            return super().many(documents)

    stages = replace(make_source().stages, steps=(_Watching("one", 9), _Watching("two", 11), _Watching("three", 9)))
    OutcomeColumns.sort(stages, RecordColumns.of([text(0, "a" * 10), text(1, "b" * 16), text(2, "c" * 17)]))
    texts = ["a" * 10 + "é", "b" * 16, "c" * 17]
    assert [columns.texts for columns in given_columns] == [["a" * 10, *texts[1:]], texts, texts[1:]]
    assert given_columns[0].ids is not given_columns[1].ids


@pytest.mark.parametrize(("name", "kind"), [("picky", Kind.FILTERED), ("careful", Kind.DEAD_LETTERED)])
def test_the_note_names_each_record_that_a_function_sees(name: str, kind: Kind) -> None:
    """And all records again when it has seen the last: what hangs after that is none of its doing.

    A document that the function refuses leaves its neighbours alone.
    """
    function = CustomStep(open_user_function("function", replace(RECIPE, function=f"{user_functions.__name__}:{name}")))
    stages = replace(make_source().stages, steps=(NotEmpty(), function))
    records = [text(4, "a"), text(5, " "), text(6, "spam"), text(7, "b")]
    told: list[tuple[int, int]] = []
    found = OutcomeColumns.sort(stages, RecordColumns.of(records), note=lambda low, high: told.append((low, high)))
    assert told == [(4, 4), (6, 6), (7, 7), (4, 7)]
    outcomes = {n: stages.outcome(record) for n, record in enumerate(records)}
    assert _outcomes(found) == _outcomes(OutcomeColumns.sort(stages, RecordColumns.of(records))) == outcomes
    assert [outcomes[n].kind for n in range(4)] == [Kind.KEPT, Kind.FILTERED, kind, Kind.KEPT]


sizes = st.lists(st.integers(0, 9), max_size=8)


@given(st.lists(sizes, max_size=4), st.integers(0, 5))
def test_bounds_of_parts_are_those_of_all_their_items(parts: list[list[int]], begin: int) -> None:
    bounds = [np.cumsum([begin, *part], dtype=np.int64) for part in parts]
    assert join_bounds(bounds).tolist() == np.cumsum([0, *(size for part in parts for size in part)]).tolist()


@given(sizes, st.integers(1, 4), st.integers(0, 20))
def test_ranges_are_as_long_as_they_may_be(sizes: list[int], items: int, room: int) -> None:
    ranges = list(document_columns.divide(np.array(sizes, np.int64), items=items, room=room))
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
