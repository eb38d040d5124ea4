"""Opening a decoder, a user's own one, and what holds for all of them."""

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.app.milling.decoding.opened import answer, opened
from tests.mills import RAW, RECIPE, make_source, mill_as_reference, text
from tests.plain_rules import PlainRules, Refused
from tests.strategies import json_bytes, json_fragments, nasty_bytes
from tokenmill.app.milling.columns import OutcomeColumns, RecordColumns
from tokenmill.app.milling.decoding import MODES
from tokenmill.app.milling.decoding.protocol import RULES
from tokenmill.app.milling.outcomes import Kind
from tokenmill.app.milling.recipe_stages import complete, reopen_stages
from tokenmill.documents import Document, Record
from tokenmill.errors import FingerprintError, RecordError, SettingsError

SMALL: Final[dict[str, Any]] = {
    "metadata_fields": ("label", "score"),
    "max_text_bytes": 100,
    "max_id_bytes": 5,
    "max_fields_bytes": 20,
}


@given(st.sampled_from(["auto", "json", "text"]), nasty_bytes | json_fragments)
@example("json", b'{"a": "\\ud83d\\ude00\\ud83d"}')
@example("json", b'{"a": "\\\\ud800"}')
@example("json", b'{"\\ud800": 1, "text": "a"}')
@example("json", b'{"text": "\\ud800", "text": "a"}')
@example("json", b'{"text": "\\ud800}')
@example("text", b"\xef\xbb\xbf\xef\xbb\xbf{}")
@example("text", b"\xed\xa0\x80")
def test_modes_without_schemas_answer_as_their_page_says(mode: str, value: bytes) -> None:
    """A document within the limits, or the reason; `PlainRules` knows docs/record_to_tokens.md and no code of ours."""
    expected: Document | str
    try:
        expected = Document(*getattr(PlainRules(RECIPE.to_dict() | SMALL), mode)(value))
    except Refused as refused:
        expected = str(refused)
    assert answer(opened(mode, **SMALL), value) == expected


TEXT, ID = st.text("a\U0001f600", max_size=3), st.text("a\1", max_size=2)
"""As long as the limits below let pass, and a little longer, in characters or in bytes only."""
NAMED = st.fixed_dictionaries({"text": TEXT}, optional={"id": ID | st.integers() | st.none(), "content": TEXT})
named = NAMED.map(json_bytes)
many = st.lists(named, max_size=8) | st.lists(named | st.binary(max_size=8), max_size=8) | st.lists(nasty_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("metadata_fields", [(), ("content",)])
@given(values=many)
def test_many_values_are_what_each_is_alone(mode: str, metadata_fields: tuple[str, ...], values: list[bytes]) -> None:
    decoder = opened(mode, metadata_fields=metadata_fields, max_text_bytes=8, max_id_bytes=7, max_fields_bytes=24)
    documents, refused = decoder.many(values)
    found: list[Document | str] = [documents.at(index) for index in range(len(documents))]
    for index, error in refused:
        found.insert(index, error.reason)
    assert found == [answer(decoder, value) for value in values]


def test_rules_that_changed_say_their_version() -> None:
    """So streams that were made by the earlier ones are noticed; those of plain text never changed."""
    assert opened("auto").describe() == opened("json").describe() == ({"name": "decode", "rules": RULES.number},)
    assert opened("text").describe() == ()


@pytest.mark.parametrize(
    ("mode", "changed", "named"),
    [
        ("jsonl", {}, "decode"),
        ("json", {"text_fields": ()}, "text_fields"),
        ("auto", {"max_text_bytes": 0}, "max_text_bytes"),
        ("text", {"max_id_bytes": 0}, "max_id_bytes"),
        ("json", {"metadata_fields": ("label",), "max_fields_bytes": 1}, "max_fields_bytes"),
    ],
)
def test_wrong_settings_are_named(mode: str, changed: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=f"^{named}"):
        opened(mode, **changed)


HERE = __name__


def latin_1(value: bytes) -> Document | str | None:
    """Return the text in another encoding, with an id and a field; or a reason, declared or not."""
    if value in (b"short", b"undeclared", b"none"):
        return {b"short": "short", b"undeclared": "something"}.get(value)
    return Document(value.decode("latin-1"), len(value), {"label": "l1", "secret": "dropped"})


latin_1.version = "2"  # type: ignore[attr-defined]
latin_1.reasons = ("short",)  # type: ignore[attr-defined]


def failing(value: bytes) -> Document:
    raise ValueError(f"cannot read {value!r}")


failing.version = "1"  # type: ignore[attr-defined]


def unversioned(value: bytes) -> Document:
    """Return the text; its author forgot the version."""
    return Document(value.decode())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"caf\xe9", Document("café", 4, {"label": "l1"})),
        (b"short", "short"),
        (b"undeclared", "rejected"),
        (b"none", "rejected"),
    ],
)
def test_it_makes_a_document_of_raw_bytes_or_has_a_declared_reason(value: bytes, expected: Document | str) -> None:
    assert answer(opened(f"{HERE}:latin_1", metadata_fields=("label",)), value) == expected


@given(nasty_bytes)
def test_whatever_it_raises_is_a_dead_letter(value: bytes) -> None:
    with pytest.raises(RecordError, match="ValueError: cannot read") as caught:
        opened(f"{HERE}:failing")(value)
    assert caught.value.reason == "function_failed"
    assert caught.value.detail.isascii()
    assert len(caught.value.detail) <= 500


def test_a_function_without_a_version_is_refused_at_start() -> None:
    with pytest.raises(SettingsError, match=r'^decode = .*unversioned\.version = "1"'):
        opened(f"{HERE}:unversioned")


def test_path_and_version_are_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new version is another stream, and one that was made with the old version is refused."""
    draft = replace(RECIPE, decode=f"{HERE}:latin_1")
    recipe, _ = complete(draft, RAW, None)
    assert recipe.steps[0] == {"name": "decode", "path": f"{HERE}:latin_1", "version": "2"}
    monkeypatch.setattr(latin_1, "version", "3")
    assert complete(draft, RAW, None)[0].fingerprint != recipe.fingerprint
    with pytest.raises(FingerprintError, match=r"decode: the stream has .*version 2.*version 3"):
        reopen_stages(recipe, RAW)


def test_mill_and_reference_agree() -> None:
    source = make_source(replace(RECIPE, decode=f"{HERE}:latin_1"))
    records = [Record(n, 0, None, value) for n, value in enumerate([b"caf\xe9", b"short", b"none", b"abcdefgh"])]
    _, (milled,) = mill_as_reference(source, records)
    dead = {outcome.record.offset: outcome.reason for outcome in milled.dead_letters}
    assert dead == {1: "short", 2: "rejected"}
    assert source.stages.outcome(records[1]).kind is Kind.DEAD_LETTERED


def test_each_record_is_noted_before_the_function_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So one that hangs or kills is named, as with a step of the user's own."""
    seen: list[Any] = []

    def spying(value: bytes) -> Document:
        seen.append(value)
        return Document("a")

    spying.version = "1"  # type: ignore[attr-defined]
    monkeypatch.setitem(globals(), "spying", spying)
    stages = make_source(replace(RECIPE, decode=f"{HERE}:spying")).stages
    records = [text(3, "a"), Record(4, 0, None, None), text(7, "b"), text(9, "c")]

    columns = OutcomeColumns.sort(stages, RecordColumns.of(records), {9}, lambda low, high: seen.append((low, high)))

    assert seen == [(3, 3), b"a", (7, 7), b"b"]
    assert columns.kept["train"].indices.tolist() == [0, 2]
