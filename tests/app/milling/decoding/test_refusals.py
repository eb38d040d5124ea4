"""What the dead letter of an object without a text says: what it looks like, and where its text may be."""

from typing import Any

import pytest

from tokenmill.app.milling.decoding.plain_values import without_text


@pytest.mark.parametrize(
    ("value", "reason", "said"),
    [
        ({}, "missing_text", "no fields"),
        ({"body": 1}, "missing_text", "the object has: 'body'"),
        ({"a": {"b": {"content": "x"}}}, "missing_text", 'text_fields = "a.b.content"'),
        ({"a": {"text": 5}, "b": {"text": "x"}}, "missing_text", 'text_fields = "b.text"'),
        ({"op": "c", "after": {"x": "a", "longer": "aa"}}, "debezium_envelope", 'text_fields = "after.longer"'),
        ({"payload": {"op": "r", "after": {"x": "a"}}}, "debezium_envelope", 'text_fields = "payload.after.x"'),
        ({"payload": {"op": "u", "after": {"x": 1}}}, "debezium_envelope", "as payload.after.body"),
        ({"payload": {"op": "d", "before": {"x": "a"}, "after": None}}, "debezium_envelope", "without a row"),
        ({"op": "c", "after": {"a.b": "x"}}, "debezium_envelope", "as after.body"),
        ({"op": "copy", "after": {}}, "missing_text", "'op', 'after'"),
        ({"op": "c"}, "missing_text", "'op'"),
        ({"op": ["c"], "after": {}}, "missing_text", "'op', 'after'"),
    ],
)
def test_the_reason_and_what_is_said(value: dict[str, Any], reason: str, said: str) -> None:
    error = without_text(value, ("text", "content"))
    assert error.reason == reason
    assert said in error.detail


def test_a_path_of_settings_is_looked_for_by_its_last_name() -> None:
    """Where ``payload.text`` is set and the producer now writes ``record.value.text``."""
    error = without_text({"record": {"value": {"text": "a"}}}, ("payload.text",))
    assert 'text_fields = "record.value.text"' in error.detail


def test_names_that_could_harm_a_log_are_not_shown_as_a_path() -> None:
    for name in ("\x1b[31m", "é", "x" * 1000):
        error = without_text({name: {"text": "a"}}, ("text",))
        assert "text_fields =" not in error.detail
        assert error.detail.isascii()
        assert len(error.detail) < 500
