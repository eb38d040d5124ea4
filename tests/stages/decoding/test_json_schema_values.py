"""Mode ``json_schema``."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stages.decoding.opened import answer, opened
from tests.stages.decoding.registered import Registry, framed
from tests.strategies import json_bytes, nasty_bytes
from tokenmill.documents import Document
from tokenmill.errors import RecordError
from tokenmill.stages.decoding import RegisteredSchema

ANYTHING = Registry({1: RegisteredSchema("JSON", "{}")})


@given(nasty_bytes | st.fixed_dictionaries({"text": st.text(max_size=9)}).map(json_bytes))
def test_what_fits_its_schema_is_what_json_says(value: bytes) -> None:
    """Without the frame, and without a byte order mark, which serializers do not write."""
    expected = "malformed_json" if value[:3] == b"\xef\xbb\xbf" else answer(opened("json"), value)
    assert answer(opened("json_schema", schemas=ANYTHING), framed(value)) in (expected, "invalid_utf8")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"text": "a", "label": "good"}, Document("a", None, {"label": "good"})),
        ({"text": "a", "label": "new"}, "schema_mismatch"),
        ({"label": "good"}, "schema_mismatch"),
        ({"text": "a" * 101}, "schema_mismatch"),
        ([], "schema_mismatch"),
    ],
)
def test_value_must_be_what_its_schema_says(value: Any, expected: Document | str) -> None:
    """Also where a document could be made of it."""
    assert answer(opened("json_schema", metadata_fields=("label",)), framed(json.dumps(value).encode())) == expected


def test_detail_names_the_rule_and_not_the_text() -> None:
    """A text may be long, and is in the dead letter anyway."""
    with pytest.raises(RecordError, match="at /text it breaks the rule /properties/text/maxLength") as raised:
        opened("json_schema")(framed(json.dumps({"text": "secret " * 100}).encode()))
    assert "secret" not in raised.value.detail


def test_references_are_resolved_from_the_registry_alone() -> None:
    """By their names; nothing is fetched from an address."""
    label = RegisteredSchema("JSON", '{"type": "string", "maxLength": 3}')
    schema = RegisteredSchema("JSON", '{"properties": {"label": {"$ref": "label.json"}}}', (("label.json", label),))
    decoder = opened("json_schema", schemas=Registry({1: schema}))
    assert decoder(framed(b'{"text": "a", "label": "abc"}')).text == "a"
    assert answer(decoder, framed(b'{"text": "a", "label": "abcd"}')) == "schema_mismatch"


def test_deep_nesting_is_followed_as_far_as_the_parser_does() -> None:
    """By a schema that contains itself."""
    decoder = opened(
        "json_schema", schemas=Registry({1: RegisteredSchema("JSON", '{"additionalProperties": {"$ref": "#"}}')})
    )
    deep = b'{"a":' * 900 + b'{"text": "b"}' + b"}" * 900
    assert answer(decoder, framed(deep)) in ("missing_text", "too_deep")
    assert answer(decoder, framed(b'{"a":' * 2000 + b"{}" + b"}" * 2000)) == "too_deep"
