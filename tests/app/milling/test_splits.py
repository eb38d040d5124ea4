"""The split rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plain_rules import PlainRules
from tests.strategies import documents
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.splits import UNUSED, SplitRule, division
from tokenmill.documents import Document
from tokenmill.errors import SettingsError

rules = st.builds(
    lambda sizes, rest, by: SplitRule(sum(sizes) + rest, {f"split{i}": size for i, size in enumerate(sizes)}, by),
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(0, 20),
    st.sampled_from(["id", "content"]),
)


def _owner(rule: SplitRule, key: bytes) -> str | None:
    return PlainRules({"splits": [*rule.splits.items()], "shards": rule.shards}).split(key)


@given(rules, documents)
def test_a_document_belongs_to_the_owner_of_its_shard(rule: SplitRule, document: Document) -> None:
    if rule.by == "content" or document.id is None:
        key = document.text
    else:
        key = document.id if isinstance(document.id, str) else f"{document.id:d}"
    assert rule.split_of_document(document) == _owner(rule, key.encode())


def _splits(rule: SplitRule, documents: list[Document]) -> list[str | None]:
    names = [*rule.splits, None]
    return [names[owner] for owner in rule.owners(DocumentColumns.of(documents)).tolist()]


@given(rules, st.lists(documents))
def test_many_documents_are_divided_as_each_alone(rule: SplitRule, many: list[Document]) -> None:
    assert _splits(rule, many) == [rule.split_of_document(document) for document in many]


def test_the_most_shards_are_counted_without_overflow() -> None:
    rule = SplitRule(2**31, {"low": 2**30, "high": 2**29})
    many = [Document("", number) for number in range(2000)]
    assert _splits(rule, many) == [rule.split_of_document(document) for document in many]
    with pytest.raises(SettingsError, match="shards"):
        SplitRule(2**31 + 1, {"low": 1})


@given(rules, st.binary())
def test_what_is_no_document_belongs_to_the_owner_of_its_bytes(rule: SplitRule, value: bytes) -> None:
    assert rule.split_of_bytes(value) == _owner(rule, value)


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


def test_one_split_that_owns_all_gets_all() -> None:
    """Nothing is hashed; with a shard less, some records belong to nobody."""
    everything = SplitRule(10, {"all": 10})
    nearly = SplitRule(10, {"all": 9})
    numbers = [Document("", number) for number in range(200)]
    assert {everything.split_of_document(document) for document in numbers} == {"all"}
    assert everything.split_of_bytes(b"") == "all"
    assert {nearly.split_of_document(document) for document in numbers} == {"all", None}


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
def test_what_no_split_takes_is_an_error_unless_asked_for(
    shards: int | None, splits: dict[str, int], said: str
) -> None:
    with pytest.raises(SettingsError, match=f"^splits: .*{said}"):
        division(shards, splits)


def test_no_split_can_be_called_as_what_is_left_out() -> None:
    with pytest.raises(SettingsError, match="is no name"):
        SplitRule(1000, {UNUSED: 1000})


@pytest.mark.parametrize(
    ("shards", "splits", "by", "named"),
    [
        (1000, {"train": 1000}, "hash", "split_by"),
        (0, {"train": 1}, "id", "shards"),
        (1000, {}, "id", "splits"),
        (1000, {"train": 0}, "id", "splits"),
        (1000, {"train": 900, "validation": 101}, "id", "splits"),
        (1000, {"../train": 1}, "id", "splits"),
        (1000, {"a.b": 1}, "id", "splits"),
        (1000, {"": 1}, "id", "splits"),
    ],
)
def test_wrong_settings_are_named(shards: int, splits: dict[str, int], by: str, named: str) -> None:
    with pytest.raises(SettingsError, match=f"^{named}"):
        SplitRule(shards, splits, by)
