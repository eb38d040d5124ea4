"""Mode ``json_schema``."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.decoding.opened import Registry, answer, framed, opened
from tests.strategies import json_bytes, nasty_bytes
from tokenmill.app.milling.decoding import RegisteredSchema
from tokenmill.app.milling.decoding.protocol import RULES
from tokenmill.documents import Document
from tokenmill.errors import RecordError

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
    assert answer(opened("json_schema", metadata_fields=("label",)), framed(json.dumps(value).encode())) == expected


def test_detail_names_the_rule_and_not_the_text() -> None:
    """A text may be long, and is in the dead letter anyway."""
    with pytest.raises(RecordError, match="at /text it breaks the rule /properties/text/maxLength") as raised:
        opened("json_schema")(framed(json.dumps({"text": "secret " * 100}).encode()))
    assert "secret" not in raised.value.detail


def test_references_are_resolved_from_the_registry_alone() -> None:
    label = RegisteredSchema("JSON", '{"type": "string", "maxLength": 3}')
    schema = RegisteredSchema("JSON", '{"properties": {"label": {"$ref": "label.json"}}}', (("label.json", label),))
    decoder = opened("json_schema", schemas=Registry({1: schema}))
    assert decoder(framed(b'{"text": "a", "label": "abc"}')).text == "a"
    assert answer(decoder, framed(b'{"text": "a", "label": "abcd"}')) == "schema_mismatch"


def test_deep_nesting_is_followed_as_far_as_the_parser_does() -> None:
    decoder = opened("json_schema", schemas=registered({"additionalProperties": {"$ref": "#"}}))
    deep = b'{"a":' * 900 + b'{"text": "b"}' + b"}" * 900
    assert answer(decoder, framed(deep)) in ("missing_text", "too_deep")
    assert answer(decoder, framed(b'{"a":' * 2000 + b"{}" + b"}" * 2000)) == "too_deep"


def registered(schema: Any) -> Registry:
    return Registry({1: RegisteredSchema("JSON", json.dumps(schema))})


def nested(depth: int) -> bytes:
    """Return objects in each other, of which the innermost is unlike all that is asked for."""
    return framed(b'{"text": "a", "a": ' * depth + b'{"k": 3}' + b"}" * depth)


BRANCHES = [{"properties": {"a": {"$ref": "#"}, "k": {"const": number}}} for number in (1, 2)]
DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": BRANCHES},
        {"oneOf": BRANCHES},
        {"not": {"not": {"anyOf": BRANCHES}}},
        {"allOf": [{"anyOf": BRANCHES}, {"anyOf": BRANCHES[::-1]}]},
        {"if": BRANCHES[0], "then": BRANCHES[1], "else": BRANCHES[1]},
        {**DRAFT, "anyOf": BRANCHES, "unevaluatedProperties": False},
        {**DRAFT, "anyOf": BRANCHES, "unevaluatedItems": {"$ref": "#"}},
    ],
)
def test_a_schema_that_contains_itself_more_than_once_is_validated_in_bounded_time(schema: Any) -> None:
    """Each level would double the time, and the memory of the messages about all branches."""
    decoder = opened("json_schema", schemas=registered(schema))
    assert answer(decoder, nested(300)) == "schema_mismatch"


def around(levels: int, kind: str, last: Any) -> Any:
    """Return a schema of parts each of which refers to the next one twice."""
    parts = {f"d{n}": {kind: [{"$ref": f"#/definitions/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/definitions/d0", "definitions": {**parts, f"d{levels}": last}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"definitions": {"a": {"not": {"$ref": "#/definitions/b"}}, "b": {"$ref": "#/definitions/a"}}}
        | {"properties": {"a": {"$ref": "#/definitions/a"}}},
        around(40, "allOf", {}),
        around(40, "anyOf", {"properties": {"a": {"$ref": "#"}}}),
        {**DRAFT, "$dynamicAnchor": "x", "properties": {"a": {"$dynamicRef": "#x"}}},
        {"pattern": "(?:a{0,1000}){0,1000}x"},
        {"properties": {"a": {"pattern": "(?:(?:a{100}){100}){100}"}}},
        {"enum": list(range(RULES.most_schema_characters))},
    ],
)
def test_a_schema_whose_steps_have_no_bound_is_refused(schema: Any) -> None:
    assert answer(opened("json_schema", schemas=registered(schema)), framed(b'{"text": "a"}')) == "unusable_schema"


WORDS = {f"k{number}": f"x{number}" for number in range(10_000)}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"additionalProperties": {"enum": [f"x{n}" for n in range(20_000)]}}, WORDS),
        ({"additionalProperties": {"enum": [[n] for n in range(20_000)]}}, WORDS),
        ({"patternProperties": {f"x{n}$": {} for n in range(3000)}}, WORDS),
        ({"additionalProperties": {"oneOf": [{"const": n} for n in range(2000)]}}, WORDS),
        ({"additionalProperties": {"multipleOf": 1e-7}}, dict.fromkeys(WORDS, 1e308) | {"x": [1] * 100_000}),
        ({"properties": {"a": {"pattern": "(?=(a+)+$)b"}}}, {"a": "a" * 1_000_000}),
        ({"properties": {"a": {"pattern": r"(a*)*\1b"}}}, {"a": "a" * 1_000_000}),
        ({"properties": {"a": {"pattern": "[ab]*a[ab]{3000}$"}}}, {"a": "ab" * 500_000}),
    ],
)
@pytest.mark.cases(3)
def test_a_value_with_too_many_steps_is_refused_before_they_are_taken(schema: Any, value: Any) -> None:
    """The library counts none, and lets nothing else run meanwhile."""
    data = json.dumps({"text": "a", **value}).encode()
    assert answer(opened("json_schema", schemas=registered(schema)), framed(data)) == "too_many_steps"


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|a)*$", "^(?=(a+)+$)b", r"^(a*)*\1$", "(.*)(.*)(.*)x"])
def test_patterns_take_bounded_time(pattern: str) -> None:
    data = json.dumps({"text": "a" * 30_000 + "!"}).encode()
    schema = {"properties": {"text": {"pattern": pattern}}}
    assert answer(opened("json_schema", schemas=registered(schema)), framed(data)) == "schema_mismatch"


def test_large_documents_of_usual_schemas_are_validated() -> None:
    node = {
        "anyOf": [
            {"type": "object", "required": ["type"], "properties": {"type": {"const": kind}, "content": LIST}}
            for kind in ("document", "paragraph", "list", "item", "link", "text", "table", "row", "cell", "image")
        ]
    }
    schema = {
        "properties": {
            "text": {"type": "string", "pattern": r"^(?!\s*$).+", "maxLength": 1 << 20},
            "id": {"pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
            "tokens": {"items": {"properties": {"start": {"minimum": 0}, "end": {"minimum": 0}}}},
            "tree": {"$ref": "#/definitions/node"},
        },
        "definitions": {"node": node},
    }
    tree: Any = {"type": "text"}
    for _ in range(50):
        tree = {"type": "paragraph", "content": [tree, {"type": "link"}]}
    value = {"text": "word " * 30_000, "id": "01234567-89ab-cdef-0123-456789abcdef", "tree": tree}
    value["tokens"] = [{"start": n, "end": n + 1} for n in range(30_000)]
    assert opened("json_schema", schemas=registered(schema))(framed(json.dumps(value).encode())).id == value["id"]


LIST = {"type": "array", "items": {"$ref": "#/definitions/node"}}


def test_earlier_rules_count_no_steps() -> None:
    """What a stream has begun with it keeps: what is valid is a document, what is not is none."""
    schema = {"properties": {"k": {"enum": [[n] for n in range(300)]}}, "$recursiveRef": "#"}
    decoder = opened("json_schema", schemas=registered(schema), rules=2)
    assert answer(decoder, framed(b'{"text": "a", "k": [7]}')) == Document("a")
    assert answer(decoder, framed(b'{"text": "a", "k": [-7]}')) == "schema_mismatch"
