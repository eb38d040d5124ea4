"""Dead letters: what could not become a document, whole, with the reason and the place it came from."""

import asyncio
from collections.abc import Sequence
from typing import Final

from tokenmill.outcomes import Outcome

from .publisher import Send

PREFIX: Final = "tokenmill.dead-letter."
MAX_DETAIL_BYTES: Final = 1024
MAX_ORIGINAL_HEADERS_BYTES: Final = 2048
"""Original headers are copied up to here, so that a dead letter of the largest record still fits its topic."""


def dead_letter_headers(topic: str, partition: int, outcome: Outcome) -> list[tuple[str, bytes]]:
    """Return the headers that say why and from where; original headers follow them, as far as they fit."""
    record = outcome.record
    about = {
        "reason": outcome.reason,
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
