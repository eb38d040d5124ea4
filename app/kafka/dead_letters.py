"""The codec of dead letters: what could not become a document, with the reason and the place it came from.

There are two writers: the mill, for a record on a raw topic, and `tokenmill produce`, for an item of a source that
never became a record. Only the headers that name the place differ. A topic limits what is on the wire, so a record that
was compressed may be far larger than its topic takes: its letter holds the beginning of its value, and of its key where
that alone is too long, and in its headers their whole size and hash.
"""

import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self, TypeAlias

from tokenmill.documents import SourceRecord

PREFIX: Final = "tokenmill.dead-letter."
NOTE: Final = f"{PREFIX}resent"
"""Header of a note on a dead-letter topic that this record was sent back."""
MAX_SOURCE_BYTES: Final = 1024
MAX_EXCEPTION_CHARACTERS: Final = 100
MAX_DETAIL_BYTES: Final = 1024
MAX_ORIGINAL_HEADERS_BYTES: Final = 2048
"""Original headers are copied up to here, so that a dead letter of the largest record still fits its topic."""
LENGTHS_BYTES: Final = 10
"""What the lengths of a name and a value take, at most: there may be a million empty headers."""

LONGEST_NUMBER: Final = 19
"""Digits of the largest offset."""

BATCH_BYTES: Final = 128
"""What a batch of one record takes in addition to its key, value and headers, at most."""

_WHY: Final = ("reason", "exception", "detail")
_RECORD: Final = ("topic", "partition", "offset")
_SOURCE: Final = ("topic", "run", "source")
OWN_HEADERS: Final = len((*_WHY, *_RECORD, "timestamp"))
"""Headers that each letter has, before those of the record: as many where it is a source's."""
CUT_HEADERS_BYTES: Final = 512
"""What is said of what was cut, at most."""
_CUT: Final = ("value-bytes", "value-sha256", "key-bytes", "key-sha256")
"""Come before all others, which a record's own headers never do."""


class RecordPlace(NamedTuple):
    """The place of a raw record; dead letters of the mill are counted by it."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class SourcePlace(NamedTuple):
    """The place of an item that `produce` read; its dead letters are counted by it."""

    topic: str
    run: str
    """Hexadecimal digits: another run over the same source, or one that was started again on purpose, has others."""
    source: str
    """``FILE:LINE``, or the file alone."""

    def __str__(self) -> str:
        return f"{self.topic}:{self.run}:{self.source}"


Place: TypeAlias = RecordPlace | SourcePlace


class LetterTopic(NamedTuple):
    """A topic for dead letters, or for what is filtered out."""

    name: str
    partitions: int
    most_bytes: int
    """Of a batch on its way to the topic."""


class Whole(NamedTuple):
    """What was cut, as it was."""

    bytes: int
    sha256: str


class WrittenLetter(NamedTuple):
    """A letter as it is sent."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter on its topic."""

    place: Place
    timestamp: int
    """Of the original record, or when `produce` read the item: milliseconds since 1970; -1 if unknown."""
    reason: str
    """One word of docs/record_to_tokens.md, or ``not_produced``."""
    exception: str
    detail: str
    """Why, for people; at most `MAX_DETAIL_BYTES` bytes."""
    key: bytes | None
    """The original one, or its beginning; so is the value."""
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    whole_value: Whole | None = None
    """Of which `value` is the beginning; None where it is all of it."""
    whole_key: Whole | None = None

    @property
    def has_value(self) -> bool:
        """Whether there is a value to send again: not where it was cut, or where `produce` could not hold the item."""
        return self.whole_value is None and (isinstance(self.place, RecordPlace) or bool(self.value))

    def as_json(self) -> dict[str, Any]:
        """Return the letter as JSON types, key and value in base64."""
        return {
            "place": str(self.place),
            **self.place._asdict(),
            "timestamp": self.timestamp,
            "reason": self.reason,
            "exception": self.exception,
            "detail": self.detail,
            "key": _base64(self.key),
            "headers": [[name, value.decode(errors="replace")] for name, value in self.headers],
            "value": _base64(self.value),
            "value_bytes": len(self.value or b""),
            "whole_value": self.whole_value and self.whole_value._asdict(),
            "whole_key": self.whole_key and self.whole_key._asdict(),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Return the letter that `as_json` told; raises KeyError, TypeError or ValueError where it is none."""
        place = parse_place(told["place"])
        if place is None:
            raise ValueError("it has no place")
        key, value = (None if told[name] is None else b64decode(told[name]) for name in ("key", "value"))
        whole_value, whole_key = (told[name] and Whole(**told[name]) for name in ("whole_value", "whole_key"))
        headers = [(name, text.encode()) for name, text in told["headers"]]
        words = (told["reason"], told["exception"], told["detail"])
        return cls(place, told["timestamp"], *words, key, value, headers, whole_value, whole_key)


def parse_place(name: str) -> Place | None:
    """Return the place that ``name``, the text of one, spells; None if it spells none."""
    topic, slash, rest = name.partition("/")
    if slash and topic and ":" not in topic:
        partition, _, offset = rest.partition("/")
        return RecordPlace(topic, int(partition), int(offset)) if _is_number(partition) and _is_number(offset) else None
    topic, _, rest = name.partition(":")
    run, _, source = rest.partition(":")
    return SourcePlace(topic, run, source) if topic and source and re.fullmatch("[0-9a-f]+", run) else None


def letter_partition(place: Place, partitions: int) -> int:
    """Return the partition of a dead-letter topic for a place: the same one as long as the topic has as many."""
    number = place.partition if isinstance(place, RecordPlace) else zlib.crc32(str(place).encode(errors="replace"))
    return number % partitions


def encode_dead_letter(
    place: Place,
    *,
    reason: str,
    detail: str,
    timestamp: int,
    exception: str = "",
    original: Iterable[tuple[str, bytes | None]] = (),
) -> list[tuple[str, bytes]]:
    """Return the headers for reason and place, then the original headers, as far as they fit."""
    why = (reason, exception[:MAX_EXCEPTION_CHARACTERS], _utf8(detail)[:MAX_DETAIL_BYTES].decode(errors="ignore"))
    if isinstance(place, RecordPlace):
        where = dict(zip(_RECORD, map(str, place), strict=True))
    else:
        source = _utf8(place.source)[-MAX_SOURCE_BYTES:].decode(errors="ignore")  # the line number is at the end
        where = dict(zip(_SOURCE, (place.topic, place.run, source), strict=True))
    about = {**dict(zip(_WHY, why, strict=True)), **where, "timestamp": str(timestamp)}
    headers = [(PREFIX + name, _utf8(value)) for name, value in about.items()]
    room = MAX_ORIGINAL_HEADERS_BYTES
    for name, value in original:
        room -= len(name.encode()) + len(value or b"") + LENGTHS_BYTES
        if room < 0:
            break
        headers.append((name, value or b""))
    return headers


def cut_letter(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]], most_bytes: int
) -> WrittenLetter:
    """Return a letter with the headers of `encode_dead_letter` that fits a batch of ``most_bytes``.

    A key keeps up to half of the room, and the value the rest; the record's own headers are left out from their end.
    """
    headers, content_bytes = list(headers), len(key or b"") + len(value or b"")
    room = most_bytes - BATCH_BYTES - sum(map(_header_bytes, headers))
    if content_bytes > room:
        while room < CUT_HEADERS_BYTES and len(headers) > OWN_HEADERS:
            room += _header_bytes(headers.pop())
    if content_bytes <= room:
        return WrittenLetter(key, value, headers)
    room = max(0, room - CUT_HEADERS_BYTES)
    short_key = key if key is None else key[: room // 2]
    short_value = value if value is None else value[: room - len(short_key or b"")]
    about = [*_about_cut("value", value, short_value), *_about_cut("key", key, short_key)]
    return WrittenLetter(short_key, short_value, [*about, *headers])


def _header_bytes(header: tuple[str, bytes]) -> int:
    return len(header[0].encode()) + len(header[1]) + LENGTHS_BYTES


def _about_cut(name: str, content: bytes | None, kept: bytes | None) -> list[tuple[str, bytes]]:
    if content is None or kept is None or len(kept) == len(content):
        return []
    size, digest = str(len(content)).encode(), sha256(content).hexdigest().encode()
    return [(f"{PREFIX}{name}-bytes", size), (f"{PREFIX}{name}-sha256", digest)]


def decode_dead_letter(record: SourceRecord) -> DeadLetter | None:
    """Return the dead letter in a record, whose headers begin with ours; None if TokenMill did not write it."""
    names = {name for name, _ in record.headers}
    ours = {*_WHY, *(_RECORD if f"{PREFIX}partition" in names else _SOURCE), "timestamp"}
    about: dict[str, str] = {}
    original = []
    for name, value in record.headers:
        short = name.removeprefix(PREFIX)
        known = ours if "reason" in about else {*ours, *_CUT}
        if short != name and short in known and short not in about:
            about[short] = (value or b"").decode(errors="replace")
        else:
            original.append((name, value or b""))
    parts, sign = (_RECORD, "/") if "partition" in about else (_SOURCE, ":")
    place = parse_place(sign.join(about.get(part, "") for part in parts))
    if place is None or "reason" not in about:
        return None
    timestamp = about.get("timestamp", "")
    when = int(timestamp) if _is_number(timestamp.removeprefix("-")) else -1
    words = (about["reason"], about.get("exception", ""), about.get("detail", ""))
    wholes = _whole(about, "value"), _whole(about, "key")
    return DeadLetter(place, when, *words, record.key, record.value, original, *wholes)


def _whole(about: Mapping[str, str], name: str) -> Whole | None:
    size = about.get(f"{name}-bytes", "")
    return Whole(int(size), about.get(f"{name}-sha256", "")) if _is_number(size) else None


def _base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _utf8(text: str) -> bytes:
    return text.encode(errors="replace")


def _is_number(text: str) -> bool:
    return len(text) <= LONGEST_NUMBER and text.isascii() and text.isdecimal()
