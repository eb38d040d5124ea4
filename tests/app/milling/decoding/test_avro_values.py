"""Mode ``avro``."""

import json
import subprocess
import sys
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.decoding.opened import AVRO, Registry, answer, avro, framed, opened, written
from tokenmill.app.milling.decoding.avro_values import MAX_RECURSION, value_reader
from tokenmill.app.milling.decoding.protocol import RULES
from tokenmill.documents import Document
from tokenmill.errors import RecordError

TEXT: Final[Any] = {"name": "text", "type": "string"}


def record(*fields: Any, name: str = "B") -> Any:
    return {"type": "record", "name": name, "fields": [*fields]}


NODE: Final = record(TEXT, {"name": "next", "type": ["null", "Node"]}, name="Node")
AS_STORED = {**AVRO, "fields": [{**f, "type": "long"} if f["name"] == "seen" else f for f in AVRO["fields"]]}
INT64 = st.integers(-(2**63), 2**63 - 1)
pages = st.fixed_dictionaries(
    {
        "text": st.text(max_size=20),
        "id": st.text(min_size=1, max_size=5),
        "label": st.sampled_from(["good", "bad"]),
        "seen": INT64,
        "score": st.floats(allow_nan=False, allow_infinity=False),
        "raw": st.binary(max_size=5),
        "links": st.lists(st.text(max_size=5), max_size=3),
        "more": st.dictionaries(st.text(max_size=3), st.none() | st.booleans() | st.integers(-9, 9), max_size=3),
    }
)


@given(pages)
def test_records_come_out_as_they_went_in(page: dict[str, Any]) -> None:
    payload, carried = written(AS_STORED, page), ("label", "seen", "score")
    assert value_reader(avro(AVRO), RULES)(payload) == page
    document = opened("avro", metadata_fields=carried)(framed(payload))
    assert document == Document(page["text"], page["id"], {name: page[name] for name in carried})


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        (record({"name": "text", "type": "bytes"}), b"\x02a", "wrong_type"),
        (record({"name": "text", "type": "null"}), b"", "wrong_type"),
        (record({"name": "body", "type": "string"}), b"\x02a", "missing_text"),
        (record(TEXT), b"\x02\xff", "invalid_utf8"),
        (record(TEXT), b"\x04a", "schema_mismatch"),
        (record(TEXT), b"\x02ab", "schema_mismatch"),
        (record(TEXT), b"", "schema_mismatch"),
        ("string", b"\x02a", "not_an_object"),
    ],
)
def test_what_is_no_document_has_a_reason(schema: Any, payload: bytes, reason: str) -> None:
    assert answer(opened("avro", schemas=Registry({1: avro(schema)})), framed(payload)) == reason


@pytest.mark.parametrize("name", ["raw", "links", "score"])
def test_carried_fields_are_what_json_has(name: str) -> None:
    """Bytes, lists and numbers that are not finite are refused, for somebody asked for the field by name."""
    page = {"text": "a", "id": "x", "label": "good", "seen": 1, "score": float("nan"), "raw": b"\xff", "links": []}
    value = framed(written({**AVRO, "fields": [f for f in AVRO["fields"] if f["name"] != "more"]}, page) + b"\0")
    assert isinstance(answer(opened("avro"), value), Document)
    assert answer(opened("avro", metadata_fields=(name,)), value) == "wrong_type"


def test_references_are_resolved_as_far_as_they_go() -> None:
    inner = avro(record(TEXT, name="x.Inner"))
    outer = avro(record({"name": "inner", "type": "Inner"}, name="x.Outer"), ("x.Inner", inner))
    union = avro(["x.Outer", "x.Inner"], ("x.Outer", outer), ("x.Inner", inner))
    read = value_reader(union, RULES)
    assert read(b"\0\x04hi") == {"inner": {"text": "hi"}}
    assert read(b"\x02\x04hi") == {"text": "hi"}
    assert value_reader(avro("x.Inner", ("x.Inner", inner)), RULES)(b"\x04hi") == {"text": "hi"}


@pytest.mark.parametrize("depth", [1, MAX_RECURSION, MAX_RECURSION + 1, 5000])
def test_values_of_a_schema_in_itself_have_a_deepest_nesting(depth: int) -> None:
    """The same for every caller, however much of the stack is used already."""
    value = framed(b"\x02a\x02" * (depth - 1) + b"\x02a\0")
    decoder = opened("avro", schemas=Registry({1: avro(NODE)}))

    def from_deep(frames: int) -> Document | str:
        return answer(decoder, value) if frames == 0 else from_deep(frames - 1)

    expected = Document("a") if depth <= MAX_RECURSION else "too_deep"
    assert answer(decoder, value) == from_deep(200) == expected


def beside(kind: Any, **said: Any) -> list[Any]:
    return [TEXT, {"name": "b", "type": kind, **said}]


ODD: dict[str, tuple[list[Any], bytes]] = {
    "default-null": ([{**TEXT, "default": None}], b""),
    "default-of-another-type": ([{**TEXT, "default": {"a": [1]}}], b""),
    "default-of-a-union": (beside(["null", "int"], default=5), b"\0"),
    "default-of-a-record": (beside(record({"name": "c", "type": "int"}), default={}), b"\0"),
    "default-of-an-enum": (beside({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, default="C"), b"\0"),
    "default-of-bytes": (beside("bytes", default="\u1234"), b"\0"),
    "default-of-an-array": (beside({"type": "array", "items": "int", "default": 7}, default="x"), b"\0"),
    "name-of-a-field": ([TEXT, {"name": "my-field.é \0", "type": "int"}], b"\0"),
    "name-of-a-type": (beside({"type": "fixed", "name": "9.my-type", "namespace": "a..b-c", "size": 1}), b"\0"),
    "no-name": (beside({"type": "fixed", "size": 1}), b"\0"),
    "aliases": ([{**TEXT, "aliases": "no list", "order": "sideways"}], b""),
    "logical-type": ([{**TEXT, "type": {"type": "string", "logicalType": ["decimal"]}}], b""),
    "decimal-without-precision": (beside({"type": "bytes", "logicalType": "decimal", "scale": -3}), b"\0"),
    "symbols": (beside({"type": "enum", "name": "E", "symbols": ["a b", "a b", "1", ""]}), b"\0"),
    "empty-union": (beside({"type": "array", "items": []}), b"\0"),
    "union-of-one-type-twice": (beside({"type": "array", "items": ["int", "int"]}), b"\0"),
    "defined-twice": ([{"name": "a", "type": record()}, {**TEXT, "type": record()}, TEXT], b""),
    "wrapped": ([{**TEXT, "type": {"type": {"type": "string"}}}], b""),
    "attributes": ([{**TEXT, "type": {"type": "string", "avro.java.string": "String", "items": 7}, "doc": 5}], b""),
    "a-field-twice": ([TEXT, TEXT], b"\x14Odd schema"),
}
"""Fields of writers' schemas that some registry takes, most by mistake of somebody; and what follows the text."""


@pytest.mark.parametrize("name", ODD)
def test_only_the_structure_of_a_schema_counts(name: str) -> None:
    fields, rest = ODD[name]
    schema = record(*fields, name="R")
    decoder = opened("avro", schemas=Registry({1: avro(schema), 2: avro({**schema, "name": "my-ns.é.R"})}))
    for number in (1, 2):
        assert decoder(framed(b"\x14Odd schema" + rest, number)).text == "Odd schema"


def number(value: int) -> bytes:
    return written("long", value)


def doubled(levels: int, last: Any) -> Any:
    """Return a record with two fields of a record with two fields, and so on, each defined once."""
    schema: Any = last
    for level in range(levels):
        fields = [{"name": "text", "type": schema}, {"name": "b", "type": f"R{level - 1}" if level else last}]
        schema = record(*fields, name=f"R{level}")
    return schema


SMALL = record({"name": "a", "type": "int"}, {"name": "b", "type": "boolean"})
INTS = {"type": "array", "items": "int"}
MANY = RULES.most_values


@pytest.mark.parametrize(
    ("schema", "payload", "expected"),
    [
        ({"type": "array", "items": "null"}, number(1 << 62), "too_many_values"),
        ({"type": "array", "items": "null"}, number(-(1 << 63)) + number(0), "too_many_values"),
        ({"type": "array", "items": "null"}, number(MANY) + b"\0", "not_an_object"),
        ({"type": "array", "items": "null"}, number(MANY) + number(1) + b"\0", "too_many_values"),
        ({"type": "array", "items": "null"}, number(1) * (MANY + 1) + b"\0", "too_many_values"),
        ({"type": "array", "items": record()}, number(9**9), "too_many_values"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, number(9**9), "too_many_values"),
        ({"type": "map", "values": "null"}, number(9**9) + b"\2a" * MANY * 2, "too_many_values"),
        ({"type": "map", "values": "null"}, number(9**9) + b"\2a", "schema_mismatch"),
        ({"type": "array", "items": SMALL}, number(9**9) + b"\2\1" * MANY, "too_many_values"),
        ({"type": "array", "items": SMALL}, number(MANY // 3) + b"\2\1" * (MANY // 3) + b"\0", "not_an_object"),
        ({"type": "array", "items": INTS}, number(9**9) + b"\0" * 2 * MANY, "too_many_values"),
        (doubled(40, "null"), b"", "too_many_values"),
        (doubled(40, ["null", "string"]), b"", "schema_mismatch"),
        ("long", b"\xff" * 5_000_000, "schema_mismatch"),
        ("bytes", number(1 << 62), "schema_mismatch"),
        ("string", number(-(1 << 62)), "schema_mismatch"),
        ({"type": "fixed", "name": "F", "size": 1 << 70}, b"a", "schema_mismatch"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.cases(6)
def test_values_are_counted_however_few_bytes_they_take(schema: Any, payload: bytes, expected: str) -> None:
    """What a block claims to hold is no reason to make room for it."""
    assert answer(opened("avro", schemas=Registry({1: avro(schema)})), framed(payload)) == expected


def test_many_values_are_a_document_where_the_recipe_has_earlier_rules() -> None:
    schema = record(TEXT, {"name": "more", "type": {"type": "array", "items": "null"}})
    value = framed(b"\2a" + number(MANY) + b"\0")
    schemas = Registry({1: avro(schema)})
    assert answer(opened("avro", schemas=schemas), value) == "too_many_values"
    assert answer(opened("avro", schemas=schemas, rules=2), value) == Document("a")


HOSTILE = """
import json, sys
from tests.app.milling.decoding.opened import answer, opened
from tests.app.milling.decoding.opened import Registry, avro, framed
decoder = opened("avro", schemas=Registry({1: avro(json.loads(sys.argv[1]))}))
print(answer(decoder, framed(b"\\x02a\\x02" * 1_000_000)))
"""


def test_endless_nesting_does_not_end_the_process() -> None:
    """Compiled code would follow it until the stack overflows."""
    command = [sys.executable, "-c", HOSTILE, json.dumps(NODE)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "too_deep"), done.stderr


@pytest.mark.parametrize("kind", [["null", "string"], {"type": "enum", "name": "E", "symbols": ["a", "b"]}])
def test_a_branch_or_symbol_below_zero_is_none(kind: Any) -> None:
    """Only damaged bytes have one; by rules 3 it is counted from the end, and a stream that has these keeps them."""
    schemas = Registry({1: avro(record({"name": "text", "type": kind}))})
    value = framed(number(-1) + (number(1) + b"b") * isinstance(kind, list))
    assert answer(opened("avro", schemas=schemas), value) == "schema_mismatch"
    assert answer(opened("avro", schemas=schemas, rules=3), value) == Document("b")


def test_what_does_not_fit_is_told_apart_from_what_is_no_text() -> None:
    with pytest.raises(RecordError, match="1 bytes follow the value"):
        opened("avro", schemas=Registry({1: avro(record(TEXT))}))(framed(b"\x02ab"))
