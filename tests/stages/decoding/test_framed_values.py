"""Frames, and what is asked of a registry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stages.decoding.opened import answer, opened
from tests.stages.decoding.registered import AVRO, Registry, avro, framed, written
from tests.strategies import nasty_bytes
from tokenmill.documents import Document
from tokenmill.errors import RecordError, RegistryError, SettingsError
from tokenmill.stages.decoding import FORMATS, REASONS, FramedDecoder, RegisteredSchema
from tokenmill.stages.decoding.framed_values import schema_number

TEXT = {"type": "record", "name": "T", "fields": [{"name": "text", "type": "string"}]}


def framed_decoder(registry: Registry, mode: str = "avro") -> FramedDecoder:
    """Return a decoder that asks a registry."""
    decoder = opened(mode, schemas=registry)
    assert isinstance(decoder, FramedDecoder)
    return decoder


@given(st.sampled_from(sorted(FORMATS)), nasty_bytes | st.binary(max_size=60))
def test_any_bytes_behind_a_frame_are_a_document_or_have_a_reason(mode: str, payload: bytes) -> None:
    """Nothing else is raised, and the same bytes give the same answer."""
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
    """From behind the zero byte, whatever follows."""
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
        ("avro", avro({"type": "array", "items": "null"})),
        ("protobuf", RegisteredSchema("PROTOBUF", "message")),
        ("protobuf", RegisteredSchema("PROTOBUF", 'syntax = "proto3"; import "away.proto";')),
        ("protobuf", RegisteredSchema("PROTOBUF", "", (("../outside.proto", RegisteredSchema("PROTOBUF", "")),))),
        ("json_schema", RegisteredSchema("JSON", "[")),
        ("json_schema", RegisteredSchema("JSON", '{"type": "nothing"}')),
        ("json_schema", RegisteredSchema("JSON", '{"$ref": "http://127.0.0.1/away.json"}')),
    ],
)
def test_schema_that_cannot_be_used_waits_for_a_person(mode: str, schema: RegisteredSchema) -> None:
    """A later version of a library may know how; the message names the schema, and the way out."""
    with pytest.raises(RegistryError, match=r"schema 7 cannot be used.*tokenmill skip") as raised:
        framed_decoder(Registry({7: schema}), mode).learn(7)
    assert raised.value.definite


@pytest.mark.parametrize("mode", sorted(FORMATS))
def test_schema_of_another_kind_is_a_reason(mode: str) -> None:
    """What an id stands for never changes, so this is a fact about the bytes."""
    decoder = framed_decoder(Registry({1: RegisteredSchema("XML", "")}), mode)
    with pytest.raises(RecordError, match="kind XML, and decode wants") as raised:
        decoder(framed(b""))
    assert raised.value.reason == "schema_mismatch"


@pytest.mark.parametrize("mode", sorted(FORMATS))
def test_modes_with_schemas_want_a_registry(mode: str) -> None:
    """The message names the setting."""
    with pytest.raises(SettingsError, match="set schema_registry_url"):
        opened(mode, schemas=None)


@pytest.mark.parametrize("mode", sorted(FORMATS))
def test_extra_that_is_not_installed_is_named(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads plain text need not install it."""

    def lacking(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("tokenmill.stages.decoding.import_module", lacking)
    with pytest.raises(SettingsError, match=r"pip install '\.\[registry\]'"):
        opened(mode, schemas=Registry({1: avro(AVRO)}))
