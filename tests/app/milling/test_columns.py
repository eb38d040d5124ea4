"""A fetch in columns: where its records are, and that each record's outcome is what it is alone."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps import user_functions
from tests.mills import Source, make_source, text
from tests.strategies import record_lists, sources
from tokenmill.app.milling import columns as columns_module
from tokenmill.app.milling.columns import KeptDocuments, OutcomeColumns, RecordColumns
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.outcomes import Kind, Outcome
from tokenmill.app.milling.steps.custom import open_function
from tokenmill.app.milling.steps.protocol import Answer, Rejected, each_alone
from tokenmill.documents import Document, Limits
from tokenmill.errors import RecordError
from tokenmill.records import Record


@given(record_lists(), st.integers(0, 50))
def test_a_fetch_knows_where_an_offset_lies(records: list[Record], offset: int) -> None:
    """As many records lie below it as there are with smaller offsets, gaps or not."""
    found = RecordColumns.of(records)
    assert found.index(offset) == sum(record.offset < offset for record in records)
    assert found.offsets.tolist() == [record.offset for record in records]
    assert found.sizes.tolist() == [len(record.value or b"") for record in records]


@given(record_lists(), st.integers(1, 5), st.integers(0, 40))
def test_parts_are_bounded_and_leave_no_record_out(records: list[Record], most: int, size: int) -> None:
    """By their records and by the bytes of their values; a larger record stands alone, and no part could be longer."""
    with patch.object(columns_module, "PART_RECORDS", most), patch.object(columns_module, "PART_BYTES", size):
        parts = list(RecordColumns.of(records).parts())
    assert [low for low, _ in parts] + [len(records)] == [0, *(high for _, high in parts)]
    sizes = [len(record.value or b"") for record in records]
    for low, high in parts:
        assert 1 <= high - low <= most
        assert sum(sizes[low:high]) <= size or high - low == 1
    for (low, high), _ in pairwise(parts):
        assert high - low == most or sum(sizes[low : high + 1]) > size


def _outcomes(columns: OutcomeColumns) -> dict[int, Outcome]:
    """Return the outcomes by the index of their record."""
    found = dict(columns.others)
    for split, kept in columns.kept.items():
        assert len(kept.indices) == len(kept.documents)
        for at, index in enumerate(kept.indices.tolist()):
            assert index not in found
            found[index] = Outcome(columns.records[index], Kind.KEPT, split, document=kept.documents.at(at))
    return found


@given(sources, record_lists(), st.frozensets(st.integers(0, 12), max_size=3))
def test_outcomes_of_a_fetch_are_those_of_its_records(
    source: Source, records: list[Record], skips: frozenset[int]
) -> None:
    """Kept, filtered, refused, skipped, tombstone or flush; what no split owns is in no column."""
    columns = OutcomeColumns.sort(source.stages, RecordColumns.of(records), skips)
    found = _outcomes(columns)
    for index, record in enumerate(records):
        alone = source.stages.outcome(record, skips)
        assert found.get(index, Outcome(record, Kind.KEPT)) == alone
    assert [index for index, _ in columns.others] == sorted(index for index, _ in columns.others)
    assert columns.dead_letters == [o for _, o in columns.others if o.kind is Kind.DEAD_LETTERED]


@pytest.mark.parametrize(("name", "kind"), [("picky", Kind.FILTERED), ("careful", Kind.DEAD_LETTERED)])
def test_a_document_that_a_step_refuses_leaves_its_neighbours_alone(name: str, kind: Kind) -> None:
    """A user's function says no to one of three, or raises over it."""
    function = open_function(f"{user_functions.__name__}:{name}", metadata_fields=(), limits=Limits(1000, 20, 40))
    stages = replace(make_source().stages, steps=(function,))
    records = [text(0, "fine"), text(1, "spam"), text(2, "fine")]
    found = _outcomes(OutcomeColumns.sort(stages, RecordColumns.of(records)))
    assert [found[n].kind for n in range(3)] == [Kind.KEPT, kind, Kind.KEPT]
    assert found == {n: stages.outcome(record) for n, record in enumerate(records)}


@given(st.lists(st.integers(0, 30), unique=True).map(sorted), st.integers(-3, 33))
def test_kept_documents_since_a_record_are_those_of_it_and_later_ones(indices: list[int], first: int) -> None:
    """Documents go with their indices."""
    documents = DocumentColumns.of(Document(f"text {n}", n, {"n": n}) for n in indices)
    kept = KeptDocuments(np.array(indices, np.int64), documents).since(first)
    wanted = [n for n in indices if n >= first]
    assert kept.indices.tolist() == wanted
    assert kept.documents == DocumentColumns.of(Document(f"text {n}", n, {"n": n}) for n in wanted)


@dataclass(frozen=True)
class _Odd:
    """A step for tests: it changes, filters out or refuses the texts in which its letter stands."""

    letter: str
    does: str
    name: str = "odd"

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "letter": self.letter, "does": self.does}

    def __call__(self, document: Document) -> Document | Rejected:
        if self.letter not in document.text:
            return document
        match self.does:
            case "change":
                return document._replace(text=document.text.replace(self.letter, "ba", 1), id=None)
            case "filter":
                return Rejected("found", f"{document.text.count(self.letter)} times")
        raise RecordError("odd_failed", document.text)

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        return each_alone(self, documents)


_odd_steps = st.builds(_Odd, st.sampled_from("abé\n"), st.sampled_from(["change", "change", "filter", "refuse"]))


@given(
    sources, record_lists(), st.lists(st.tuples(_odd_steps, st.sampled_from(["odd", "even", "min_chars"])), max_size=5)
)
def test_steps_in_any_order_give_what_the_reference_gives(
    source: Source, records: list[Record], chosen: list[tuple[_Odd, str]]
) -> None:
    """Each sees what the ones before it left, and counts under its own label."""
    steps = tuple(replace(step, name=name) for step, name in chosen)
    stages = replace(source.stages, steps=(*steps[:2], *source.stages.steps, *steps[2:]))
    seen: list[int] = []
    columns = OutcomeColumns.sort(stages, RecordColumns.of(records), note=lambda low, high: seen.extend((low, high)))
    found = _outcomes(columns)
    for index, record in enumerate(records):
        assert found.get(index, Outcome(record, Kind.KEPT)) == stages.outcome(record)
    assert seen == []  # no function of a user is there


def test_equal_steps_are_counted_apart() -> None:
    """The second one of a name is numbered; short forms of the settings keep their reasons."""
    steps = (_Odd("x", "filter"), _Odd("y", "filter"), _Odd("z", "filter", name="min_chars"))
    stages = replace(make_source().stages, steps=steps)
    columns = OutcomeColumns.sort(stages, RecordColumns.of([text(n, value) for n, value in enumerate("xyz")]))
    assert [outcome.reason for _, outcome in columns.others] == ["odd.found", "odd_2.found", "found"]
    assert columns.others[0][1].detail == "1 times"


def test_a_step_changes_no_columns_that_another_step_was_given() -> None:
    """So what a step computed of them may be kept."""
    given_columns: list[DocumentColumns] = []

    class _Watching(_Odd):
        def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
            given_columns.append(documents)
            return super().many(documents)

    steps = (_Watching("a", "change"), _Watching("c", "filter"), _Watching("d", "change"))
    stages = replace(make_source().stages, steps=steps)
    OutcomeColumns.sort(stages, RecordColumns.of([text(0, "ad"), text(1, "c"), text(2, "d")]))
    assert [columns.texts for columns in given_columns] == [["ad", "c", "d"], ["bad", "c", "d"], ["bad", "d"]]
    assert given_columns[0].ids is not given_columns[1].ids


def test_the_note_names_each_record_that_a_function_sees() -> None:
    """And all records again when it has seen the last: what hangs after that is none of its doing."""
    function = open_function(f"{user_functions.__name__}:picky", metadata_fields=(), limits=Limits(1000, 20, 40))
    stages = replace(make_source().stages, steps=(_Odd("x", "filter"), function))
    records = [text(4, "a"), text(5, "x"), text(6, "b")]
    told: list[tuple[int, int]] = []
    OutcomeColumns.sort(stages, RecordColumns.of(records), note=lambda low, high: told.append((low, high)))
    assert told == [(4, 4), (6, 6), (4, 6)]
