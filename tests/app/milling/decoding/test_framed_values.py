"""Frames, and what is asked of a registry."""

import json
import subprocess
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.app.milling.decoding.opened import AVRO, EVERY_ID, Registry, answer, avro, framed, opened, written
from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tests.strategies import nasty_bytes
from tokenmill.app.milling.decoding import FORMATS, REASONS, FramedDecoder, RegisteredSchema
from tokenmill.app.milling.decoding.framed_values import schema_number
from tokenmill.app.milling.decoding.protocol import RULES, DecodingRules
from tokenmill.documents import Document
from tokenmill.errors import RecordError, RegistryError, SettingsError

TEXT = {"type": "record", "name": "T", "fields": [{"name": "text", "type": "string"}]}


def framed_decoder(registry: Registry, mode: str = "avro") -> FramedDecoder:
    decoder = opened(mode, schemas=registry)
    assert isinstance(decoder, FramedDecoder)
    return decoder


@given(st.sampled_from(sorted(FORMATS)), nasty_bytes | st.binary(max_size=60))
def test_any_bytes_behind_a_frame_are_a_document_or_have_a_reason(mode: str, payload: bytes) -> None:
    decoder = DECODERS[mode]
    result = answer(decoder, framed(payload))
    assert result == answer(decoder, framed(payload))
    assert isinstance(result, Document) or result in REASONS


DECODERS = {mode: opened(mode, metadata_fields=("label", "score", "raw"), max_text_bytes=1000) for mode in FORMATS}


@pytest.mark.parametrize("value", [b"", b"\0", b"\0\0\0\0", b"\1\0\0\0\1text", b'{"text": "a"}', b"\0\xff\xff\xff\xff"])
def test_values_without_a_frame_are_refused(value: bytes) -> None:
    """Also those whose id no registry can give, for it counts in Java's int; nobody is asked."""
    registry = Registry({})
    assert answer(framed_decoder(registry), value) == "not_framed"
    assert not registry.asked


@given(st.integers(0, 2**31 - 1), st.binary(max_size=4))
def test_ids_are_read_in_network_order(number: int, payload: bytes) -> None:
    assert schema_number(framed(payload, number)) == number


def test_schema_is_asked_for_once_and_its_values_are_then_decoded_without_the_registry() -> None:
    """It cannot change under its id."""
    registry = Registry({1: avro(TEXT), 2: avro(TEXT)})
    decoder = framed_decoder(registry)
    values = [framed(written(TEXT, {"text": "a"}), number) for number in (1, 2, 1, 1)]
    assert decoder.unknown([b"plain", *values, b""]) == [1, 2]
    documents, refused = decoder.many(values)
    assert (documents.texts, refused) == (["a"] * 4, [])
    assert decoder.unknown(values) == []
    registry.schemas.clear()
    assert len(decoder.many(values).documents) == len(values)
    assert registry.asked == {1: 1, 2: 1}


def test_schema_that_is_not_there_is_no_answer() -> None:
    """Its values are no dead letters: it may come, and they would be documents then."""
    registry = Registry({})
    decoder = framed_decoder(registry)
    value = framed(written(TEXT, {"text": "a"}))
    with pytest.raises(RegistryError):
        decoder.many([value])
    registry.schemas[1] = avro(TEXT)
    assert decoder(value).text == "a"


@pytest.mark.parametrize(
    ("mode", "schema"),
    [
        ("avro", RegisteredSchema("AVRO", "{")),
        ("avro", avro({"type": "record", "name": "A", "fields": [{"name": "b", "type": "B"}]})),
        ("avro", RegisteredSchema("AVRO", "[" * 5000)),
        ("avro", RegisteredSchema("AVRO", '{"type": "array", "items": ' * 5000 + '"int"' + "}" * 5000)),
        ("avro", RegisteredSchema("AVRO", '{"type": "array", "items": ' * 200 + '"int"' + "}" * 200)),
        ("avro", RegisteredSchema("AVRO", f'{{"type": "string", "doc": "{"a" * RULES.most_schema_characters}"}}')),
        ("avro", avro({"type": "record", "name": "A", "fields": [{"type": "string"}]})),
        ("avro", avro({"type": "fixed", "name": "A", "size": -1})),
        ("avro", avro([["null"]])),
        ("avro", avro({"name": "A"})),
        ("avro", avro(7)),
        ("protobuf", RegisteredSchema("PROTOBUF", "message")),
        ("protobuf", RegisteredSchema("PROTOBUF", "message A { optional string \ud800 = 1; }")),
        ("protobuf", RegisteredSchema("PROTOBUF", "message A {" + "optional group B = 1 {" * 6000)),
        ("protobuf", RegisteredSchema("PROTOBUF", 'syntax = "proto3"; import "away.proto";')),
        ("json_schema", RegisteredSchema("JSON", "[")),
        ("json_schema", RegisteredSchema("JSON", '{"type": "nothing"}')),
        ("json_schema", RegisteredSchema("JSON", '{"$ref": "http://127.0.0.1/away.json"}')),
        ("json_schema", RegisteredSchema("JSON", '{"not": ' * 5000 + "{}" + "}" * 5000)),
        ("json_schema", RegisteredSchema("JSON", '{"allOf": [{"$ref": "#"}]}')),
        ("json_schema", RegisteredSchema("JSON", '{"$recursiveRef": "#"}')),
    ],
)
def test_values_of_an_unusable_schema_are_refused_and_their_neighbours_not(mode: str, schema: RegisteredSchema) -> None:
    good = EVERY_ID[mode].schema(1)
    decoder = framed_decoder(Registry({1: good, 7: schema}), mode)
    decoder.learn(7)
    with pytest.raises(RecordError, match=r"^unusable_schema: schema 7 of pages-7 cannot be used: ") as raised:
        decoder(framed(b"", 7))
    assert raised.value.detail.isascii()
    assert decoder(GOOD[mode]).text == "a"


GOOD = {
    "avro": framed(b"\2\2a\2x\0\0" + bytes(8) + b"\0\0\0"),
    "protobuf": framed(b"\2\2\x12\x01a"),
    "json_schema": framed(b'{"text": "a"}'),
}


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "a//b", "./a", "../a", "a/..", "a\0", "\ud800", "a" * 256, "/".join(["a" * 200] * 6)),
        *("tokenmill-registered-schema.proto", "b/c", "b/c/d/e"),
    ],
)
def test_any_name_of_a_reference_belongs_to_its_schema_alone(name: str) -> None:
    empty = RegisteredSchema("PROTOBUF", 'syntax = "proto3";')
    schema = RegisteredSchema("PROTOBUF", "message A {}", ((name, empty), ("b/c/d", empty)))
    decoder = framed_decoder(Registry({7: schema}), "protobuf")
    decoder.learn(7)
    assert answer(decoder, framed(b"\0", 7)) == "unusable_schema"


@pytest.mark.parametrize("mode", sorted(FORMATS))
def test_schemas_that_refer_to_each_other_often_are_learned_once(mode: str) -> None:
    """Each of thirty refers to the next one twice: to follow each reference would take a thousand million steps."""
    kind = EVERY_ID[mode].schema(1).kind
    schema = RegisteredSchema(kind, {"AVRO": '"string"', "JSON": "true", "PROTOBUF": ""}[kind])
    for level in range(30):
        schema = RegisteredSchema(kind, schema.text, ((f"a{level}", schema), (f"b{level}", schema)))
    assert len(schema.needed()) == 60
    framed_decoder(Registry({7: schema}), mode).learn(7)


def decoder_with(learns: Callable[[], Any], reads: Callable[[], Any] = str) -> FramedDecoder:
    """Return a decoder of a format whose library calls the one for a schema, and the other for a value."""

    def reader(schema: RegisteredSchema, rules: DecodingRules) -> Callable[[bytes], Any]:
        assert schema.kind == "AVRO"
        assert rules is RULES
        learns()
        return lambda _: reads()

    decoder = framed_decoder(Registry({1: avro("string")}))
    return FramedDecoder(decoder.fields, "AVRO", reader, decoder.source)


def panic() -> None:
    """Fail in native code, which passes every ``except Exception`` otherwise."""
    Tokenizer.from_str(panicking().decode()).encode(HARMFUL)


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        (Mock(side_effect=RuntimeError("odd")), "schema_mismatch"),
        (Mock(side_effect=AttributeError), "schema_mismatch"),
        (Mock(side_effect=AssertionError), "schema_mismatch"),
        (Mock(side_effect=RecursionError), "too_deep"),
        (panic, "schema_mismatch"),
    ],
)
def test_whatever_a_library_raises_belongs_to_the_schema_or_to_the_record(fail: Callable[[], Any], reason: str) -> None:
    assert answer(decoder_with(fail), framed(b"")) == "unusable_schema"
    assert answer(decoder_with(str, fail), framed(b"")) == reason


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), subprocess.TimeoutExpired("protoc", 60)])
def test_what_a_machine_cannot_do_now_is_no_answer(error: Exception) -> None:
    """It is tried again, and is no word about the schema."""
    with pytest.raises(RegistryError, match="schema 1 cannot be prepared on this machine now") as raised:
        decoder_with(Mock(side_effect=error)).learn(1)
    assert not raised.value.definite


def test_lack_of_memory_is_no_answer() -> None:
    """The same record is a document on a larger machine."""
    full = Mock(side_effect=MemoryError)
    with pytest.raises(MemoryError):
        decoder_with(full).learn(1)
    with pytest.raises(MemoryError):
        decoder_with(str, full).many([framed(b"")])


@pytest.mark.parametrize("mode", sorted(FORMATS))
def test_schema_of_another_kind_is_a_reason(mode: str) -> None:
    """What an id stands for never changes, so this is a fact about the bytes."""
    decoder = framed_decoder(Registry({1: RegisteredSchema("XML", "")}), mode)
    with pytest.raises(RecordError, match=r"^schema_mismatch: .*kind XML, and decode wants"):
        decoder(framed(b""))


@pytest.mark.parametrize("mode", sorted(FORMATS))
def test_modes_with_schemas_want_a_registry_and_an_extra(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="set schema_registry_url"):
        opened(mode, schemas=None)
    lacking = Mock(side_effect=ModuleNotFoundError(name="some.library"))
    monkeypatch.setattr("tokenmill.app.milling.decoding.import_module", lacking)
    with pytest.raises(SettingsError, match=r"pip install '\.\[registry\]'"):
        opened(mode, schemas=Registry({1: avro(AVRO)}))


@pytest.mark.parametrize(("mode", "kind"), [("avro", "AVRO"), ("json_schema", "JSON")])
@pytest.mark.parametrize(("levels", "expected"), [(200, Document("a")), (700, "unusable_schema")])
def test_how_deep_a_schema_may_be_nested_is_no_matter_of_who_calls(
    mode: str, kind: str, levels: int, expected: Document | str
) -> None:
    """Python's parser takes fewer levels the more functions wait for it, so a bound of ours is below."""
    text = json.dumps({**TEXT, "type": "record" if mode == "avro" else "object"})
    schema = f'{text[:-1]}, "default": {"[" * levels}{"]" * levels}}}'
    value = framed(written(TEXT, {"text": "a"}) if mode == "avro" else b'{"text":"a"}')

    def answer_below(functions: int) -> Document | str:
        if functions:
            return answer_below(functions - 1)
        return answer(framed_decoder(Registry({1: RegisteredSchema(kind, schema)}), mode), value)

    assert answer_below(0) == expected
    assert answer_below(250) == expected
