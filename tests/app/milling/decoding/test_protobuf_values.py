"""Mode ``protobuf``."""

from base64 import b64encode
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, json_format, message_factory, struct_pb2
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.decoding.opened import PROTO, Registry, answer, framed, opened
from tokenmill.app.milling.decoding import RegisteredSchema
from tokenmill.app.milling.decoding.protobuf_values import MOST_NUMBERS, compiled, value_reader
from tokenmill.app.milling.decoding.protocol import RULES
from tokenmill.documents import Document

SCHEMA = RegisteredSchema("PROTOBUF", PROTO)
FILE = compiled(SCHEMA)
PAGE, PART = b"\2\2", b"\4\2\0"
"""The second type of the file, and the first that is in it: what the compiler makes for the map is not counted."""
DECODER = opened("protobuf", metadata_fields=("label", "score", "title"))


def proto3(text: str, *references: tuple[str, RegisteredSchema]) -> RegisteredSchema:
    return RegisteredSchema("PROTOBUF", f'syntax = "proto3"; {text}', references)


def message(**values: Any) -> Message:
    return message_factory.GetMessageClass(FILE.message_types_by_name["Page"])(**values)


@given(st.text(max_size=20), st.integers(1, 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False))
def test_messages_come_out_as_they_went_in(text: str, number: int, score: float) -> None:
    value = framed(PAGE + message(text=text, id=number, score=score, label=1).SerializeToString())
    assert DECODER(value) == Document(text, number, {"label": "GOOD", "score": score})


def test_message_becomes_plain_values() -> None:
    page = message(
        text="a", counts={"x": 1}, label=7, raw=b"\xff", parts=[{"text": "b", "id": -1}], seen={"seconds": 4}
    )
    read = value_reader(SCHEMA, RULES)
    plain = {"counts": {"x": 1}, "text": "a", "id": 0, "label": 7, "raw": b"\xff", "score": 0.0}
    parts = {"parts": [{"text": "b", "id": -1}], "seen": {"seconds": 4, "nanos": 0}}
    assert read(PAGE + page.SerializeToString()) == plain | parts


@pytest.mark.parametrize(
    ("numbers", "text"), [(b"\0", "of a host"), (b"\2\0", "of a host"), (PAGE, "of a page"), (PART, "of a part")]
)
def test_numbers_lead_to_the_type(numbers: bytes, text: str) -> None:
    """A single zero is short for the first one; types in types count from zero again."""
    field = 2 if numbers == PAGE else 1
    payload = bytes([field << 3 | 2, len(text)]) + text.encode()
    assert opened("protobuf")(framed(numbers + payload)).text == text


@pytest.mark.slow
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x80",
        b"\x80" * 9,
        b"\1",  # a negative count
        b"\2\1",  # a negative number
        b"\2\4",  # no third type
        b"\4\2\2",  # no second type in the second
        b"\2",
        bytes([2 * (MOST_NUMBERS + 1)]) + b"\0" * (MOST_NUMBERS + 1),
        PAGE + b"\x12\x05abc",
        PAGE + b"\x12\x01\xff",
        PAGE + b"\xff",
    ],
)
def test_bytes_that_are_no_message_do_not_fit(payload: bytes) -> None:
    assert answer(opened("protobuf"), framed(payload)) == "schema_mismatch"


def test_bytes_are_no_text_and_are_not_carried() -> None:
    value = framed(PAGE + message(text="a", raw=b"abc").SerializeToString())
    assert answer(opened("protobuf", text_fields=("raw",)), value) == "wrong_type"
    assert answer(opened("protobuf", metadata_fields=("raw",)), value) == "wrong_type"


def test_strings_of_proto2_are_utf8_as_well() -> None:
    """There the library looks at them late."""
    schema = RegisteredSchema("PROTOBUF", 'syntax = "proto2"; message T { optional string text = 1; }')
    decoder = opened("protobuf", schemas=Registry({1: schema}))
    assert decoder(framed(b"\0\x0a\x02hi")).text == "hi"
    assert answer(decoder, framed(b"\0\x0a\x01\xff")) == "invalid_utf8"


def test_imports_are_resolved_as_far_as_they_go() -> None:
    inner = proto3("package deep; message Inner { string text = 1; }")
    middle = proto3('import "a/b/inner.proto"; message Middle { deep.Inner inner = 1; }', ("a/b/inner.proto", inner))
    outer = proto3(
        'import "middle.proto"; message Outer { Middle middle = 1; string text = 2; }', ("middle.proto", middle)
    )
    read = value_reader(outer, RULES)
    assert read(b"\0\x0a\x06\x0a\x04\x0a\x02hi\x12\x01x") == {"middle": {"inner": {"text": "hi"}}, "text": "x"}


NAMES = (
    *("HasField", "DESCRIPTOR", "ListFields", "FromString", "MergeFromString"),
    *("__class__", "__init__", "Clear", "self"),
)


def test_fields_may_have_any_name() -> None:
    fields = "".join(f"string {name} = {number};" for number, name in enumerate(NAMES, 1))
    schema = proto3(f"message T {{ {fields} }}")
    payload = b"".join(bytes([number << 3 | 2, 1, 64 + number]) for number in range(1, len(NAMES) + 1))
    values = {name: chr(64 + number) for number, name in enumerate(NAMES, 1)}
    assert value_reader(schema, RULES)(b"\0" + payload) == values
    types = "".join(f"message {name} {{}} enum E{number} {{ {name}_ = 0; }}" for number, name in enumerate(NAMES))
    schema = proto3(f"message T {{ {types} oneof ByteSize {{ string text = 1; }} }}")
    assert value_reader(schema, RULES)(b"\0\x0a\1a") == {"text": "a"}


def test_any_json_in_a_message_is_plain() -> None:
    """Google's Struct: whoever carries a part of it gets that part, and an object in it is refused."""
    schema = proto3('import "google/protobuf/struct.proto"; message T { google.protobuf.Struct s = 1; }')
    struct = struct_pb2.Struct()
    struct.update({"text": "a", "n": 1.5, "b": True, "z": None, "o": {"text": "b", "l": [1, {"x": None}]}, "l": [{}]})
    payload = b"\0" + field(1, struct.SerializeToString())
    assert value_reader(schema, RULES)(payload) == {"s": json_format.MessageToDict(struct)}
    at = {"schemas": Registry({1: schema}), "text_fields": ("s.text",)}
    decoder = opened("protobuf", metadata_fields=("s.n", "s.b", "s.z", "s.o.text"), **at)
    assert decoder(framed(payload)).fields == {"s.n": 1.5, "s.b": True, "s.z": None, "s.o.text": "b"}
    for name in ("s.o", "s.l", "s"):
        assert answer(opened("protobuf", metadata_fields=(name,), **at), framed(payload)) == "wrong_type"


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(number: int) -> bytes:
    head = bytes([number & 0x7F | 0x80]) if number > 0x7F else bytes([number])
    return head + varint(number >> 7) if number > 0x7F else head


BOMB = """
syntax = "proto2";
message T {
  repeated T t = 1;
  repeated int32 packed = 2 [packed = true];
  repeated double doubles = 3 [packed = true];
  repeated group G = 4 { optional string a = 1; optional string b = 2; }
  map<int32, string> m = 5;
  optional string text = 6;
  repeated string strings = 7;
  optional Wide wide = 8;
  extensions 100 to 200;
}
message Wide { WIDE }
extend T { repeated T more = 100; }
""".replace("WIDE", "".join(f"optional int32 f{number} = {number};" for number in range(1, 1001)))
EMPTY = b"\x0a\0"
MANY = RULES.most_values


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (EMPTY * (MANY // 10), "too_many_values"),
        (EMPTY * 1000, "missing_text"),
        (field(1, field(1, EMPTY * (MANY // 10))), "too_many_values"),
        (field(1, EMPTY * (MANY // 10)), "too_many_values"),
        (field(2, b"\1" * MANY), "too_many_values"),
        (field(2, b"\x80\1" * (MANY // 2)), "missing_text"),
        (field(2, b"\xff" * MANY), "schema_mismatch"),
        (field(3, bytes(8 * MANY)), "too_many_values"),
        (field(3, bytes(7 * MANY)), "missing_text"),
        (b"\x23\x24" * (MANY // 3), "too_many_values"),
        (b"\x2a\0" * (MANY // 3), "too_many_values"),
        (b"\x42\0" * 1000, "too_many_values"),
        (b"\x3a\0" * MANY, "too_many_values"),
        (field(100, b"") * (MANY // 10), "too_many_values"),
        (field(99, b"") * (MANY - 10), "missing_text"),
        (field(99, b"") * MANY, "too_many_values"),
        (field(6, b"a" * (2 * MANY)), "too_large"),
        (b"\x23" * MANY, "too_many_values"),
        (b"\x24" * MANY, "schema_mismatch"),
    ],
)
@pytest.mark.cases(3)
def test_values_are_counted_before_the_library_makes_room_for_them(payload: bytes, expected: str) -> None:
    decoder = opened("protobuf", schemas=Registry({1: RegisteredSchema("PROTOBUF", BOMB)}))
    assert answer(decoder, framed(b"\0" + payload)) == expected


def test_many_values_are_a_document_where_the_recipe_has_earlier_rules() -> None:
    value = framed(b"\0" + field(6, b"a") + field(2, b"\1" * MANY))
    schemas = Registry({1: RegisteredSchema("PROTOBUF", BOMB)})
    assert answer(opened("protobuf", schemas=schemas, text_fields=("text",)), value) == "too_many_values"
    assert answer(opened("protobuf", schemas=schemas, text_fields=("text",), rules=2), value) == Document("a")


def test_endless_nesting_is_refused() -> None:
    """By the library, at a depth that never changes with the caller."""
    schema = proto3("message T { T t = 1; string text = 2; }")
    decoder = opened("protobuf", schemas=Registry({1: schema}))
    payload = b"\x12\x01a"
    for _ in range(3000):
        payload = field(1, payload)
    assert answer(decoder, framed(b"\0" + payload)) == "schema_mismatch"


def test_files_may_be_compiled_already() -> None:
    """As clients in Python register them; with text or without, in any order."""
    inner = proto3("message Inner { string text = 1; }")
    for first in (inner, RegisteredSchema("PROTOBUF", serialized(inner))):
        text = 'import "inner.proto"; import "google/protobuf/any.proto"; message O { Inner i = 1; }'
        outer = proto3(text, ("inner.proto", first))
        for schema in (outer, RegisteredSchema("PROTOBUF", serialized(outer), outer.references)):
            assert value_reader(schema, RULES)(b"\0\x0a\x04\x0a\x02hi") == {"i": {"text": "hi"}}


def serialized(schema: RegisteredSchema) -> str:
    file = descriptor_pb2.FileDescriptorProto()
    compiled(schema).CopyToProto(file)
    return b64encode(file.SerializeToString()).decode()
