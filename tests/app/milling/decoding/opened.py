"""Decoders with the usual settings, schemas in a registry that is a mapping, and values framed with their ids."""

import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import fastavro

from tests.mills import RECIPE
from tokenmill.app.milling.decoding import Decoder, RegisteredSchema, open_decoder
from tokenmill.documents import Document
from tokenmill.errors import RecordError, RegistryError

AVRO: Any = {
    "type": "record",
    "name": "Page",
    "namespace": "crawl",
    "fields": [
        {"name": "text", "type": ["null", "string"]},
        {"name": "id", "type": "string"},
        {"name": "label", "type": {"type": "enum", "name": "Label", "symbols": ["good", "bad"]}},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "score", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "links", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": ["null", "boolean", "int"]}},
    ],
}
PROTO = """
syntax = "proto3";
package crawl;
import "google/protobuf/timestamp.proto";
message Host { string text = 1; }
message Page {
  map<string, int64> counts = 1;
  enum Label { UNKNOWN = 0; GOOD = 1; }
  message Part { string text = 1; int64 id = 2; }
  string text = 2;
  uint64 id = 3;
  Label label = 4;
  bytes raw = 5;
  double score = 6;
  repeated Part parts = 7;
  google.protobuf.Timestamp seen = 8;
  optional string title = 9;
}
"""
JSON: Any = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 100}, "label": {"enum": ["good", "bad"]}},
    "required": ["text"],
}


class Registry:
    """A registry with schemas by id, or one under each; how often each was asked for is in ``asked``."""

    def __init__(self, schemas: Mapping[int, RegisteredSchema], every: RegisteredSchema | None = None) -> None:
        self.schemas, self._every = dict(schemas), every
        self.asked: Counter[int] = Counter()

    def schema(self, number: int) -> RegisteredSchema:
        self.asked[number] += 1
        found = self.schemas.get(number, self._every)
        if found is None:
            raise RegistryError(f"schema {number} is not there", definite=True)
        return found

    def subjects(self, number: int) -> str:
        return f"pages-{number}" if self._every or number in self.schemas else ""


def avro(schema: Any, *references: tuple[str, RegisteredSchema]) -> RegisteredSchema:
    return RegisteredSchema("AVRO", json.dumps(schema), references)


EVERY_ID = {
    "avro": Registry({}, avro(AVRO)),
    "protobuf": Registry({}, RegisteredSchema("PROTOBUF", PROTO)),
    "json_schema": Registry({}, RegisteredSchema("JSON", json.dumps(JSON))),
}


def framed(payload: bytes, number: int = 1) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


def written(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def opened(mode: str, **changed: Any) -> Decoder:
    schemas = changed.pop("schemas", EVERY_ID.get(mode))
    rules = changed.pop("rules", None)
    steps = () if rules is None else ({"name": "decode", "rules": rules},)
    usual = replace(RECIPE, decode=mode, steps=steps, max_text_bytes=1 << 20, max_id_bytes=128, max_fields_bytes=256)
    return open_decoder(replace(usual, **changed), schemas)


def answer(decoder: Decoder, value: bytes) -> Document | str:
    try:
        return decoder(value)
    except RecordError as error:
        return error.reason
