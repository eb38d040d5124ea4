"""What becomes of each kind of record, and which split it belongs to."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.mills import RECIPE, Source, chain_outcomes, flush, make_source, named, text, tombstone
from tests.plain_rules import PlainRules
from tests.strategies import documents, record_lists, sources
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.outcomes import SKIPPED, Kind
from tokenmill.app.milling.splits import UNUSED, SplitRule, division
from tokenmill.documents import FLUSH_HEADER, Document, Record, is_flush
from tokenmill.errors import SettingsError
from tokenmill.wire.totals import Totals

TWO = replace(RECIPE, shards=2, splits=(("train", 1), ("validation", 1)), min_chars=2)
STAGES, RULES = make_source(TWO).stages, PlainRules(TWO.to_dict())
SPLITS = ("train", "validation")


@given(sources, record_lists(), st.frozensets(st.integers(0, 12), max_size=3))
def test_a_record_has_one_outcome_always_the_same(source: Source, records: list[Record], skips: frozenset[int]) -> None:
    """No bytes raise; a kept record has a document and a split that owns it or none; lost ones have a reason."""
    for record in records:
        outcome = source.stages.outcome(record, skips)
        again = source.stages.outcome(record._replace(timestamp=5, key=b"other"), skips)
        assert again._replace(record=record, detail=outcome.detail) == outcome
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


rules = st.builds(
    lambda sizes, rest, by: SplitRule(sum(sizes) + rest, {f"split{i}": size for i, size in enumerate(sizes)}, by),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(0, 20),
    st.sampled_from(["id", "content"]),
)


def _owner(rule: SplitRule, key: bytes) -> str | None:
    return PlainRules({"splits": [*rule.splits.items()], "shards": rule.shards}).split(key)


def _splits(rule: SplitRule, documents: list[Document]) -> list[str | None]:
    names = [*rule.splits, None]
    return [names[owner] for owner in rule.owners(DocumentColumns.of(documents)).tolist()]


NUMBERS = [Document("", number) for number in range(2000)]


@given(rules, st.lists(documents), st.binary())
@example(SplitRule(10, {"all": 10}), NUMBERS, b"")  # nothing is hashed
@example(SplitRule(10, {"all": 9}), NUMBERS, b"")
def test_documents_and_bytes_have_the_owner_of_their_shard(rule: SplitRule, many: list[Document], value: bytes) -> None:
    assert rule.split_of_bytes(value) == _owner(rule, value)
    for document in many:
        if rule.by == "content" or document.id is None:
            key = document.text
        else:
            key = document.id if isinstance(document.id, str) else f"{document.id:d}"
        assert rule.split_of_document(document) == _owner(rule, key.encode())
    assert _splits(rule, many) == [rule.split_of_document(document) for document in many]


def test_the_most_shards_are_counted_without_overflow() -> None:
    rule = SplitRule(2**31, {"low": 2**30, "high": 2**29})
    assert _splits(rule, NUMBERS) == [rule.split_of_document(document) for document in NUMBERS]


def test_known_keys_have_known_splits() -> None:
    """Figures by md5sum and a calculator, for who writes a reader of the log in another language."""
    assert int("098f6bcd4621d373cade4e832627b4f6", 16) % 1000 == 374  # md5 of "test"
    assert int("6974ce5ac660610b44d9b9fed0ff9548", 16) % 1000 == 992  # md5 of "103"
    rule = SplitRule(1000, {"low": 374, "that": 1, "high": 617, "this": 1})
    assert rule.split_of_document(Document("any", "test")) == "that"
    assert rule.split_of_document(Document("test")) == "that"
    assert rule.split_of_document(Document("any", 103)) == "this"
    assert rule.split_of_document(Document("any", "103")) == "this"
    assert rule.split_of_bytes(b"103") == "this"
    assert SplitRule().split_of_document(Document("any", 103)) == "validation"
    assert SplitRule().split_of_document(Document("any", "test")) == "train"


@pytest.mark.parametrize(
    ("shards", "splits", "rule"),
    [
        (None, {"train": 980, "validation": 20}, (1000, {"train": 980, "validation": 20})),
        (1000, {"train": 980, "validation": 20}, (1000, {"train": 980, "validation": 20})),
        (None, {"train": 98, "validation": 2}, (100, {"train": 98, "validation": 2})),
        (None, {"train": 620, "validation": 10}, (630, {"train": 620, "validation": 10})),
        (None, {"train": 10, UNUSED: 90}, (100, {"train": 10})),
        (1000, {"train": 630, UNUSED: 370}, (1000, {"train": 630})),
    ],
)
def test_sizes_are_shares_of_their_sum(
    shards: int | None, splits: dict[str, int], rule: tuple[int, dict[str, int]]
) -> None:
    assert division(shards, splits) == rule


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4), st.sampled_from([None, "sum"]), documents)
def test_no_document_is_left_out_that_nobody_left_out(sizes: list[int], said: str | None, document: Document) -> None:
    splits = {f"split{i}": size for i, size in enumerate(sizes)}
    rule = SplitRule(*division(sum(sizes) if said else None, splits))
    assert rule.split_of_document(document) is not None


@pytest.mark.parametrize(
    ("shards", "splits", "said"),
    [
        (1000, {"train": 98, "validation": 2}, "90.0% of all documents would be in no split.*_unused=900"),
        (1000, {"train": 620, "validation": 10}, "37.0% of all documents"),
        (1000, {UNUSED: 10, "train": 990}, "name it last"),
        (None, {"train": 10, UNUSED: 0}, "_unused = 0"),
    ],
)
def test_what_no_split_takes_is_refused_unless_asked_for(shards: int | None, splits: dict[str, int], said: str) -> None:
    with pytest.raises(SettingsError, match=f"^splits: .*{said}"):
        division(shards, splits)


@pytest.mark.parametrize(
    ("shards", "splits", "by", "named"),
    [
        (1000, {"train": 1000}, "hash", "split_by"),
        (0, {"train": 1}, "id", "shards"),
        (2**31 + 1, {"low": 1}, "id", "shards"),
        (1000, {}, "id", "splits"),
        (1000, {"train": 0}, "id", "splits"),
        (1000, {"train": 900, "validation": 101}, "id", "splits"),
        (1000, {"../train": 1}, "id", "splits"),
        (1000, {"a.b": 1}, "id", "splits"),
        (1000, {"": 1}, "id", "splits"),
        (1000, {UNUSED: 1000}, "id", "splits: .* is no name"),
    ],
)
def test_wrong_settings_are_named(shards: int, splits: dict[str, int], by: str, named: str) -> None:
    with pytest.raises(SettingsError, match=f"^{named}"):
        SplitRule(shards, splits, by)
