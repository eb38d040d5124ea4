"""Outcomes: what becomes of each kind of record, and that it depends on the record alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mills import RECIPE, Source, chain_outcomes, flush, make_source, named, text, tombstone
from tests.plain_rules import PlainRules
from tests.strategies import record_lists, sources
from tokenmill.app.milling.outcomes import SKIPPED, Kind
from tokenmill.documents import FLUSH_HEADER, Record, is_flush
from tokenmill.wire.totals import Totals

TWO = replace(RECIPE, shards=2, splits=(("train", 1), ("validation", 1)), min_chars=2)
STAGES, RULES = make_source(TWO).stages, PlainRules(TWO.to_dict())
SPLITS = ("train", "validation")


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


@pytest.mark.parametrize("normalize", ["none", "NFD"])
def test_an_outcome_is_what_the_page_of_records_says(normalize: str) -> None:
    """The split is that of the id, the text, or the bytes where there is no document; no step moves it to another."""
    recipe = replace(TWO, normalize=normalize)
    stages, rules = make_source(recipe).stages, PlainRules(recipe.to_dict())
    records = [
        *(named(0, name, "some text") for n in range(-5, 20) for name in (n, str(n), f"x{n}")),
        *(text(0, value) for value in ("", " ", "a", "ab", *(f"é{n}" for n in range(20)))),
        *(Record(n, 0, None, b"\xff" + bytes([n])) for n in range(20)),
    ]
    for record in records:
        outcome, expected = stages.outcome(record), rules.outcome(record.value)
        assert (outcome.kind.value, outcome.split, outcome.reason) == expected[:3]
        assert (outcome.document and outcome.document.text) == (expected.document and expected.document.text)
        assert outcome.detail or outcome.kind is not Kind.DEAD_LETTERED
        kinds = [outcome.kind_in(split) for split in SPLITS]
        assert kinds == [outcome.kind if split == outcome.split else Kind.OTHER_SPLIT for split in SPLITS]


def test_a_skipped_record_is_not_even_decoded() -> None:
    record = named(5, "x", "some text")
    outcome = STAGES.outcome(record, {5})
    assert (outcome.kind, outcome.reason) == (Kind.DEAD_LETTERED, SKIPPED)
    assert outcome.split == RULES.split(record.value or b"")
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
    recipe = replace(TWO, function="tests.app.milling.steps.user_functions:failing")
    outcome = make_source(recipe).stages.outcome(named(0, "x", "some text"))
    assert (outcome.kind, outcome.reason, outcome.split) == (Kind.DEAD_LETTERED, "function_failed", RULES.split(b"x"))
