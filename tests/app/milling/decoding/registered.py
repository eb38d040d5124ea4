"""Schemas in a registry that is a mapping, and values framed as Confluent's serializers frame them."""

import io
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import fastavro

from tokenmill.app.milling.decoding import RegisteredSchema
from tokenmill.errors import RegistryError

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
    """A registry with schemas by id; how often each was asked for is in ``asked``."""

    def __init__(self, schemas: Mapping[int, RegisteredSchema]) -> None:
        """Have these."""
        self.schemas = dict(schemas)
        self.asked: Counter[int] = Counter()

    def schema(self, number: int) -> RegisteredSchema:
        """Return one, or say that it is not there."""
        self.asked[number] += 1
        if number not in self.schemas:
            raise RegistryError(f"schema {number} is not there", definite=True)
        return self.schemas[number]

    def subjects(self, number: int) -> str:
        """Return the subject of each schema that is there."""
        return f"pages-{number}" if number in self.schemas else ""


class _Every:
    """A registry that has one schema under each id."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._schema = schema

    def schema(self, number: int) -> RegisteredSchema:
        """Return it."""
        assert number >= 0
        return self._schema

    def subjects(self, number: int) -> str:
        """Return a subject."""
        return f"pages-{number}"


def avro(schema: Any, *references: tuple[str, RegisteredSchema]) -> RegisteredSchema:
    """Return an Avro schema as a registry has it."""
    return RegisteredSchema("AVRO", json.dumps(schema), references)


EVERY_ID = {
    "avro": _Every(avro(AVRO)),
    "protobuf": _Every(RegisteredSchema("PROTOBUF", PROTO)),
    "json_schema": _Every(RegisteredSchema("JSON", json.dumps(JSON))),
}


def framed(payload: bytes, number: int = 1) -> bytes:
    """Return a value with the id of its schema."""
    return b"\0" + number.to_bytes(4, "big") + payload


def written(schema: Any, value: Any) -> bytes:
    """Return a value in Avro's encoding, as fastavro writes it."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()
