"""Opening a decoder, and what holds for all of them."""

from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.app.milling.decoding.opened import answer, opened
from tests.mills import RECIPE
from tests.plain_rules import PlainRules, Refused
from tests.strategies import json_bytes, json_fragments, nasty_bytes
from tokenmill.app.milling.decoding import MODES
from tokenmill.app.milling.decoding.protocol import RULES
from tokenmill.documents import Document
from tokenmill.errors import SettingsError

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
