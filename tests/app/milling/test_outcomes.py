"""Outcomes: what becomes of each kind of record, and that it depends on the record alone."""

from dataclasses import replace
from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mills import RECIPE, Source, chain_outcomes, flush, make_source, named, text, tombstone
from tests.strategies import record_lists, sources
from tokenmill.app.milling.outcomes import SKIPPED, Kind
from tokenmill.documents import FLUSH_HEADER, Document, Record, is_flush
from tokenmill.wire.totals import Totals

TWO = replace(RECIPE, shards=2, splits=(("train", 1), ("validation", 1)), min_chars=2)
STAGES = make_source(TWO).stages
SPLITS = ("train", "validation")


def _owner(key: bytes) -> str:
    return SPLITS[int(md5(key, usedforsecurity=False).hexdigest(), 16) % 2]


@given(sources, record_lists(), st.frozensets(st.integers(0, 12), max_size=3))
def test_every_record_has_one_outcome_and_always_the_same(
    source: Source, records: list[Record], skips: frozenset[int]
) -> None:
    """No bytes raise; a kept record has a document and a split that owns it or none; lost ones have a reason."""
    for record in records:
        outcome = source.stages.outcome(record, skips)
        again = source.stages.outcome(record._replace(timestamp=5, key=b"other"), skips)
        assert (again.kind, again.split, again.reason, again.document) == (
            outcome.kind,
            outcome.split,
            outcome.reason,
            outcome.document,
        )
        assert bool(outcome.reason) == (outcome.kind in (Kind.FILTERED, Kind.DEAD_LETTERED))
        assert (outcome.document is not None) == (outcome.kind is Kind.KEPT and outcome.split is not None)
        owners = [recipe.split for recipe in source.recipes if outcome.kind_in(recipe.split) is not Kind.OTHER_SPLIT]
        everyone = [recipe.split for recipe in source.recipes]
        if record.value is None:
            assert owners == everyone
        else:
            assert owners == [split for split in everyone if split == outcome.split]


@pytest.mark.parametrize("record", [named(0, "x", "some text"), text(0, "some text"), text(0, "a"), text(0, "")])
def test_a_document_belongs_to_the_split_of_its_id_or_its_text(record: Record) -> None:
    """Kept or filtered; in the other chain it is of another split."""
    outcome = STAGES.outcome(record)
    document = Document("some text", "x") if b"id" in (record.value or b"") else None
    key = b"x" if document else record.value or b""
    assert outcome.split == _owner(key)
    assert outcome.kind_in(outcome.split or "") is outcome.kind
    assert outcome.kind_in(next(split for split in SPLITS if split != outcome.split)) is Kind.OTHER_SPLIT


def test_an_integer_id_counts_as_its_decimal() -> None:
    """The same id as a number and as a string is in the same split."""
    for number in range(-5, 20):
        expected = _owner(str(number).encode())
        assert STAGES.outcome(named(0, number, "some")).split == expected
        assert STAGES.outcome(named(0, str(number), "text")).split == expected


def test_filters_give_their_reason() -> None:
    """The first that rejects; its split is the document's."""
    assert [STAGES.outcome(text(0, value)).reason for value in ("", " ", "a", "ab")] == [
        "empty",
        "empty",
        "min_chars",
        "",
    ]


def test_the_split_is_decided_before_any_step() -> None:
    """Normalisation does not move a document to another split."""
    stages = make_source(replace(TWO, normalize="NFD")).stages
    outcomes = [stages.outcome(text(0, f"é{n}")) for n in range(20)]
    assert [outcome.split for outcome in outcomes] == [_owner(f"é{n}".encode()) for n in range(20)]
    assert [outcome.document for outcome in outcomes] == [Document(f"e\u0301{n}") for n in range(20)]


def test_a_record_that_is_no_document_belongs_to_the_split_of_its_bytes() -> None:
    """It is dead-lettered with its reason; what exactly was wrong is for people."""
    for n in range(20):
        value = b"\xff" + bytes([n])
        outcome = STAGES.outcome(Record(n, 0, None, value))
        assert (outcome.kind, outcome.reason, outcome.split) == (Kind.DEAD_LETTERED, "invalid_utf8", _owner(value))
        assert outcome.detail


def test_a_skipped_record_is_not_even_decoded() -> None:
    """Its split is that of its bytes, for nobody looks inside."""
    record = named(5, "x", "some text")
    outcome = STAGES.outcome(record, {5})
    assert (outcome.kind, outcome.reason) == (Kind.DEAD_LETTERED, SKIPPED)
    assert outcome.split == _owner(record.value or b"")
    assert STAGES.outcome(record, {4, 6}).kind is Kind.KEPT


def test_tombstones_and_flushes_are_no_documents() -> None:
    """A flush needs the header and no value; on the skip list or not."""
    outcomes = [STAGES.outcome(record, {0}).kind for record in (tombstone(0), flush(0), tombstone(1), flush(1))]
    assert outcomes == [Kind.TOMBSTONE, Kind.FLUSH] * 2
    almost = [
        Record(0, 0, None, None, (("tokenmill", b"flush "),)),
        Record(0, 0, None, None, (("tokenmill", None),)),
        Record(0, 0, None, b"", (FLUSH_HEADER,)),
        Record(0, 0, b"key", None, (("other", b""), FLUSH_HEADER)),
    ]
    assert [is_flush(record) for record in almost] == [False, False, False, True]
    kinds = [STAGES.outcome(record).kind for record in almost]
    assert kinds == [Kind.TOMBSTONE, Kind.TOMBSTONE, Kind.FILTERED, Kind.FLUSH]


def test_a_flush_is_a_tombstone_where_the_recipe_allows_none() -> None:
    """One by one and in a fetch, and the chain's open block stays open."""
    source = make_source(replace(RECIPE, allow_flush=False))
    records = [text(0, "a"), flush(1), tombstone(2)]
    assert [source.stages.outcome(record).kind for record in records[1:]] == [Kind.TOMBSTONE] * 2
    totals = Totals()
    chain_outcomes(source, source.recipes[0], records, [2]).count(totals, 0, 3)
    assert (totals.kept, totals.tombstones, totals.flushes) == (1, 2, 0)
    assert source.blocks(source.recipes[0], records) == []
    assert len(make_source().blocks(RECIPE, records)) == 1


def test_what_no_split_owns_is_of_another_split_for_all() -> None:
    """Kept or not: only a record that cannot be read is still dead-lettered, once for all chains."""
    stages = make_source(replace(RECIPE, shards=10**9)).stages
    for record in (text(0, "some text"), text(0, "")):
        outcome = stages.outcome(record)
        assert (outcome.split, outcome.document) == (None, None)
        assert outcome.kind_in("train") is Kind.OTHER_SPLIT
    outcome = stages.outcome(Record(0, 0, None, b"\xff"))
    assert (outcome.kind, outcome.split, outcome.kind_in("train")) == (Kind.DEAD_LETTERED, None, Kind.OTHER_SPLIT)


def test_a_step_that_fails_dead_letters_the_record() -> None:
    """A user's function that raises: the document's split counts it."""
    recipe = replace(TWO, function="tests.app.milling.steps.user_functions:failing")
    outcome = make_source(recipe).stages.outcome(named(0, "x", "some text"))
    assert (outcome.kind, outcome.reason, outcome.split) == (Kind.DEAD_LETTERED, "function_failed", _owner(b"x"))
