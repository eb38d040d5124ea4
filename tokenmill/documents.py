"""A record of a raw topic, as the pure code sees it, and the document that its bytes mean.

A small part of a document travels with its tokens, its *meta*.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias

import orjson

from tokenmill.errors import RecordError
from tokenmill.recipe import Recipe, canonical_json

FLUSH_HEADER: Final = ("tokenmill", b"flush")
"""A record with this header and no value fills the open blocks of its partition, where the recipe allows it."""


class SourceRecord(Protocol):
    """Everything that a record's outcome and the cursor may depend on; records of Kafka clients have it."""

    @property
    def offset(self) -> int:
        """Its offset in its partition."""

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch, as Kafka has it; -1 when it has none."""

    @property
    def key(self) -> bytes | None:
        """Its key, if it has one."""

    @property
    def value(self) -> bytes | None:
        """None is a tombstone, or a flush when the header says so and the recipe allows it."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Name and value of each header."""


class Record(NamedTuple):
    """A plain source record; see `SourceRecord`."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def index_at(records: Sequence[SourceRecord], offset: int) -> int:
    """Return the index of the first record at an offset, or behind it."""
    return bisect_left(records, offset, key=attrgetter("offset"))


def is_flush(record: SourceRecord) -> bool:
    """Return whether the record asks for the open blocks to be filled; the recipe says whether it may."""
    return record.value is None and FLUSH_HEADER in record.headers


Scalar: TypeAlias = str | int | float | bool | None
"""A JSON value without parts. An int is within `INTEGERS`; a float is finite."""
INTEGERS: Final = range(-(2**63), 2**64)
"""What JSON parsers of other languages read as an integer, and ours."""

MAX_TEXT_BYTES: Final = 4 << 20
"""Default limit of a text whose bytes are the tokens, which takes little memory."""
MAX_TOKENIZED_BYTES: Final = 3 << 19
"""Default limit with a tokenizer file, 1.5 MiB. The library takes up to 300 bytes for each byte of the worst text,
together with two engines with large vocabularies, and a worker has to stay below 1 GiB: 2 MiB took Tekken 975 MiB."""

TOO_LARGE: Final = "too_large"
ID_TOO_LONG: Final = "id_too_long"
FIELDS_TOO_LONG: Final = "fields_too_long"
OVER_A_LIMIT: Final = {TOO_LARGE: "max_text_bytes", ID_TOO_LONG: "max_id_bytes", FIELDS_TOO_LONG: "max_fields_bytes"}
"""The reasons for which a document is too long, each with the setting that has its limit."""

NO_FIELDS: Final[Mapping[str, Scalar]] = MappingProxyType({})


class Document(NamedTuple):
    """A text with its id and the fields that its stream carries. Nothing in it is a path, a label or a format."""

    text: str
    """Any Unicode text without lone surrogates, so it always has a UTF-8 form."""
    id: str | int | None = None
    """What the producer calls it: a string that is not empty, an integer, or None."""
    fields: Mapping[str, Scalar] = NO_FIELDS
    """The carried fields that the record has, by name."""

    def __hash__(self) -> int:
        """Hash text and id; a mapping of fields has no hash."""
        return hash((self.text, self.id))


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the parts of a document may be. They decide what is dead-lettered, so the fingerprint covers them."""

    max_text_bytes: int
    max_id_bytes: int
    """Of the id in canonical JSON, without quotes, as it is stored with every piece: so it bounds a message."""
    max_fields_bytes: int
    """Of the object of carried fields in canonical JSON, braces included."""

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """Return those of a recipe."""
        return cls(recipe.max_text_bytes, recipe.max_id_bytes, recipe.max_fields_bytes)

    @property
    def max_meta_bytes(self) -> int:
        """The length of the longest meta that passes `check_id` and `check_fields`."""
        return len('{"fields":,"id":""}') + self.max_id_bytes + self.max_fields_bytes

    @property
    def surely_short_text(self) -> int:
        """A text of at most this many characters passes `check_text`, whatever they are."""
        return self.max_text_bytes // 4  # bytes of the longest in UTF-8

    @property
    def surely_short_id(self) -> int:
        """An id of at most this many characters passes `check_id`, whatever they are."""
        return self.max_id_bytes // 6  # bytes of a control character in canonical JSON: \\u0000

    def check_text(self, text: str) -> None:
        """Raise `RecordError` (`TOO_LARGE`) if the text is too long."""
        length = len(text)
        if length <= self.surely_short_text:
            return
        if length > self.max_text_bytes or (not text.isascii() and len(text.encode()) > self.max_text_bytes):
            raise RecordError(TOO_LARGE, f"the text is longer than {self.max_text_bytes} bytes (max_text_bytes)")

    def check_id(self, value: str | int | None) -> None:
        """Raise `RecordError` (`ID_TOO_LONG`) if the id is too long."""
        if value is None:
            return
        if isinstance(value, str):
            if len(value) <= self.surely_short_id:
                return
            length = len(orjson.dumps(value)) - 2
        else:
            length = len(str(value))
        if length > self.max_id_bytes:
            raise RecordError(ID_TOO_LONG, f"the id takes {length} bytes, over {self.max_id_bytes} (max_id_bytes)")

    def check_fields(self, fields: Mapping[str, Scalar]) -> None:
        """Raise `RecordError` (`FIELDS_TOO_LONG`) if the fields together are too long."""
        length = len(_canonical(dict(fields), fields)) if fields else 0
        if length > self.max_fields_bytes:
            limit = f"{self.max_fields_bytes} (max_fields_bytes)"
            raise RecordError(FIELDS_TOO_LONG, f"the carried fields take {length} bytes, over {limit}")


def document_meta(document: Document, carried: Sequence[str]) -> bytes:
    """Return the canonical JSON of a document's id and of its fields in ``carried``; ``b""`` where it has neither."""
    meta: dict[str, object] = {}
    fields = {name: document.fields[name] for name in carried if name in document.fields}
    if fields:
        meta["fields"] = fields
    if document.id is not None:
        meta["id"] = document.id
    if not meta:
        return b""
    return _canonical(meta, fields) if fields else orjson.dumps(meta)


def _canonical(value: dict[str, Any], fields: Mapping[str, Scalar]) -> bytes:
    # orjson writes what canonical_json writes, many times faster, except that its floats have changed with its versions
    has_float = any(isinstance(one, float) for one in fields.values())
    return canonical_json(value) if has_float else orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
