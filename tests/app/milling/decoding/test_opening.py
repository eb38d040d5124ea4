"""Opening a decoder, and what holds for all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.decoding.opened import answer, opened
from tests.strategies import nasty_bytes
from tokenmill.app.milling.decoding import MODES, REASONS
from tokenmill.app.milling.decoding.protocol import RULES
from tokenmill.documents import Document
from tokenmill.errors import SettingsError


@given(st.sampled_from(MODES), nasty_bytes)
def test_any_bytes_are_a_document_or_have_a_reason(mode: str, value: bytes) -> None:
    """Nothing else is raised; a document's parts have a UTF-8 form, and the same bytes give the same answer."""
    decoder = opened(mode, metadata_fields=("label", "score"), max_text_bytes=100, max_id_bytes=5, max_fields_bytes=20)
    result = answer(decoder, value)
    assert result == answer(decoder, value)
    if isinstance(result, Document):
        assert len(result.text.encode()) <= 100
        assert len(str(result.id or "").encode()) <= 5
        assert set(result.fields) <= {"label", "score"}
    else:
        assert result in REASONS


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
    """The message begins with the setting to change."""
    with pytest.raises(SettingsError, match=f"^{named}"):
        opened(mode, **changed)
