"""A whole fetch at once: each record's outcome is what it is alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mills import Source, make_source, text
from tests.stages.steps import user_functions
from tests.strategies import record_lists, sources
from tokenmill.documents import Document, Limits
from tokenmill.milling.columns import Columns, Kept
from tokenmill.milling.fetch import Fetch
from tokenmill.milling.outcomes import Kind, Outcome
from tokenmill.records import Record
from tokenmill.stages.document_columns import DocumentColumns
from tokenmill.stages.steps.custom import open_function


def _outcomes(columns: Columns) -> dict[int, Outcome]:
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
    columns = Columns.sort(source.stages, Fetch.of(records), skips)
    found = _outcomes(columns)
    for index, record in enumerate(records):
        alone = source.stages.outcome(record, skips)
        assert found.get(index, Outcome(record, Kind.KEPT)) == alone
    assert [index for index, _ in columns.others] == sorted(index for index, _ in columns.others)
    assert columns.dead_letters == [o for _, o in columns.others if o.kind is Kind.DEAD_LETTERED]


@pytest.mark.parametrize(("name", "kind"), [("picky", Kind.FILTERED), ("careful", Kind.DEAD_LETTERED)])
def test_a_document_that_a_step_refuses_leaves_its_neighbours_alone(name: str, kind: Kind) -> None:
    """A user's function says no to one of three, or raises over it."""
    function = open_function(f"{user_functions.__name__}:{name}", carry=(), limits=Limits(1000, 20, 40))
    stages = replace(make_source().stages, steps=(function,))
    records = [text(0, "fine"), text(1, "spam"), text(2, "fine")]
    found = _outcomes(Columns.sort(stages, Fetch.of(records)))
    assert [found[n].kind for n in range(3)] == [Kind.KEPT, kind, Kind.KEPT]
    assert found == {n: stages.outcome(record) for n, record in enumerate(records)}


@given(st.lists(st.integers(0, 30), unique=True).map(sorted), st.integers(-3, 33))
def test_kept_documents_since_a_record_are_those_of_it_and_later_ones(indices: list[int], first: int) -> None:
    """Documents go with their indices."""
    documents = DocumentColumns.of(Document(f"text {n}", n, {"n": n}) for n in indices)
    kept = Kept(np.array(indices, np.int64), documents).since(first)
    wanted = [n for n in indices if n >= first]
    assert kept.indices.tolist() == wanted
    assert kept.documents == DocumentColumns.of(Document(f"text {n}", n, {"n": n}) for n in wanted)
