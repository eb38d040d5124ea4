"""What a source yields: documents with the bytes to send, or the reason why there is none."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Protocol

import orjson

from tokenmill.decoding import Decoder, open_decoder
from tokenmill.documents import Document, Limits
from tokenmill.errors import RecordError

from ..settings import Settings

_CUT = "…"


class Item(NamedTuple):
    """One document from a source."""

    where: str
    """File and, where it has lines, line, for people."""
    value: bytes
    """The record's value, as it is sent."""
    document: Document


class Refused(NamedTuple):
    """Something in a source that is no document."""

    where: str
    why: str


class Format(Protocol):
    """A way to read documents; the next one is a new module with such a function, and a line in `sources.FORMATS`."""

    def __call__(self, stream: BinaryIO, name: str, options: "Options") -> Iterator[Item | Refused]:
        """Yield the documents of one open file, in order, in bounded memory; ``name`` is the file's, for ids.

        What cannot be used is yielded as `Refused` and harms no other document.
        """


@dataclass(frozen=True, slots=True)
class Options:
    """How sources are read (`options_for`)."""

    decoder: Decoder
    """Tells of a JSON object which document the mill will see in it."""
    limits: Limits
    text_field: str
    id_field: str
    max_record_bytes: int
    plain: bool
    """Send the text alone: no JSON object around it, no id."""

    def object_item(self, where: str, value: bytes) -> Item | Refused:
        """Return the document that a JSON object is; its bytes are sent as they are."""
        try:
            document = self.decoder(value)
        except RecordError as error:
            return Refused(where, str(error))
        return Item(where, document.text.encode() if self.plain else value, document)

    def text_item(self, where: str, name: str, data: bytes) -> Item | Refused:
        """Return the document of a text: ``{"id": name, "text": …}``, or with ``plain`` the text as it is."""
        if b"\0" in data:
            return Refused(where, "not text: it holds NUL bytes")
        try:
            document = Document(data.decode("utf-8-sig"), fit_id(name, self.limits.max_id_bytes))
            self.limits.check_text(document.text)
        except UnicodeDecodeError as error:
            return Refused(where, f"not UTF-8: {error.reason} at byte {error.start}")
        except RecordError as error:
            return Refused(where, str(error))
        if self.plain:
            value = document.text.encode()
        else:
            value = orjson.dumps({self.id_field: document.id, self.text_field: document.text})
        if len(value) > self.max_record_bytes:
            return self.too_long(where)
        return Item(where, value, document)

    def too_long(self, where: str) -> Refused:
        """Return the refusal of what is longer than a record may be."""
        return Refused(where, f"longer than {self.max_record_bytes} bytes (max_record_bytes)")


def options_for(settings: Settings, topic: str, *, plain: bool = False, key: str | None = None) -> Options:
    """Return the options for a raw topic's documents, by the settings of that topic.

    A topic that is decoded as ``text`` gets plain text whatever ``plain`` says: JSON would be tokenized as it is.
    ``key`` names a field whose values are wanted beside those that the stream carries.
    """
    own = settings.for_topic(topic)
    decoder = open_decoder(
        "json",
        text_fields=own.text_fields,
        id_field=own.id_field,
        carry=own.carry if key is None or key in own.carry else (*own.carry, key),
        max_text_bytes=own.max_text_bytes,
        max_id_bytes=own.max_id_bytes,
        max_fields_bytes=own.max_fields_bytes,
    )
    return Options(
        decoder=decoder,
        limits=Limits(own.max_text_bytes, own.max_id_bytes, own.max_fields_bytes),
        text_field=own.text_fields[0],
        id_field=own.id_field,
        max_record_bytes=settings.max_record_bytes,
        plain=plain or own.decode == "text",
    )


def fit_id(name: str, max_id_bytes: int) -> str:
    """Return the name, cut on the left where it is too long for an id: a path's end tells more than its start."""
    name = name.encode("utf-8", "replace").decode()
    if _id_bytes(name) <= max_id_bytes:
        return name
    while name and _id_bytes(_CUT + name) > max_id_bytes:
        name = name[1:]
    return _CUT + name


def _id_bytes(name: str) -> int:
    return len(orjson.dumps(name)) - 2  # without the quotes: as `Limits` counts
