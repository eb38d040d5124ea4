"""Dead letters: what could not become a document, whole, with the reason and the place it came from."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from tokenmill.outcomes import Outcome

from .publisher import Send

PREFIX: Final = "tokenmill.dead-letter."
MAX_DETAIL_BYTES: Final = 1024
MAX_EXCEPTION_CHARACTERS: Final = 100
"""Of a type's name, which a user's function chooses."""
MAX_ORIGINAL_HEADERS_BYTES: Final = 2048
"""Original headers are copied up to here, so that a dead letter of the largest record still fits its topic."""

ABOUT: Final = ("reason", "exception", "detail", "topic", "partition", "offset", "timestamp")
"""What our headers tell, each under `PREFIX`."""

Place: TypeAlias = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class KafkaRecord(Protocol):
    """A record as a Kafka client gives it."""

    @property
    def key(self) -> bytes | None:
        """Its key."""
        ...

    @property
    def value(self) -> bytes | None:
        """Its value."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]:
        """Name and value of each header."""
        ...


def dead_letter_headers(topic: str, partition: int, outcome: Outcome) -> list[tuple[str, bytes]]:
    """Return the headers that say why and from where; original headers follow them, as far as they fit."""
    record = outcome.record
    about = {
        "reason": outcome.reason,
        "exception": outcome.exception[:MAX_EXCEPTION_CHARACTERS],
        "detail": outcome.detail.encode()[:MAX_DETAIL_BYTES].decode(errors="ignore"),
        "topic": topic,
        "partition": str(partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp),
    }
    headers = [(PREFIX + name, value.encode()) for name, value in about.items()]
    room = MAX_ORIGINAL_HEADERS_BYTES
    for name, value in record.headers:
        room -= len(name.encode()) + len(value or b"")
        if room < 0:
            break
        headers.append((name, value or b""))
    return headers


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as it stands on its topic."""

    topic: str
    """The raw topic; together with the next two, what a record is counted by."""
    partition: int
    offset: int
    timestamp: int
    """Of the original record, in milliseconds."""
    reason: str
    exception: str
    """Type of what was raised over the record, if anything was."""
    detail: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    """The original ones, as far as they were copied."""

    @property
    def place(self) -> Place:
        """Where the original record stood."""
        return self.topic, self.partition, self.offset


def place_name(place: Place) -> str:
    """Return ``TOPIC/PARTITION/OFFSET``."""
    return "/".join(map(str, place))


def parse_place(name: str) -> Place | None:
    """Return the place that `place_name` made this of; None if it is none."""
    topic, _, rest = name.partition("/")
    partition, _, offset = rest.partition("/")
    if not (topic and _is_number(partition) and _is_number(offset)):
        return None
    return topic, int(partition), int(offset)


def parse_dead_letter(record: KafkaRecord) -> DeadLetter | None:
    """Return the dead letter that a record is; None if it is none of ours.

    Our headers come first: an original one may have the same name.
    """
    about: dict[str, str] = {}
    original = []
    for name, value in record.headers:
        short = name.removeprefix(PREFIX)
        if short != name and short in ABOUT and short not in about:
            about[short] = (value or b"").decode(errors="replace")
        else:
            original.append((name, value or b""))
    place = parse_place("/".join(about.get(name, "") for name in ("topic", "partition", "offset")))
    if place is None or "reason" not in about:
        return None
    timestamp = about.get("timestamp", "")
    return DeadLetter(
        *place,
        timestamp=int(timestamp) if timestamp.lstrip("-").isdecimal() else -1,
        reason=about["reason"],
        exception=about.get("exception", ""),
        detail=about.get("detail", ""),
        key=record.key,
        value=record.value,
        headers=original,
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


async def send_dead_letters(
    send: Send, dead_letter_topic: str, topic: str, partition: int, outcomes: Sequence[Outcome]
) -> None:
    """Send the records with their reasons; when this returns, all are acknowledged.

    Key and value are the original bytes. They come at least once: a worker that resumes may send them again, and tools
    count them by (topic, partition, offset).
    """
    await asyncio.gather(
        *(
            send(
                dead_letter_topic,
                0,
                outcome.record.value,
                outcome.record.key,
                dead_letter_headers(topic, partition, outcome),
            )
            for outcome in outcomes
        )
    )
