"""Messages as Kafka has them: records on a token topic, and what a reader makes of those that it cannot take."""

from typing import Final

from aiokafka import TopicPartition

from tokenmill.errors import DamagedError, DifferenceError, FingerprintError
from tokenmill.reading.acceptance import Acceptor, Dropped, Gap, Taken
from tokenmill.records import SourceRecord
from tokenmill.wire.ignoring import IgnoreList
from tokenmill.wire.message import HEADER_NAME, Message, decode_message

REFUSALS: Final = (DamagedError, DifferenceError, FingerprintError)
"""What a reader raises over a message that it can never take."""


def message_of(record: SourceRecord, tokens: TopicPartition) -> Message:
    """Return the message that a record of the token topic's partition ``tokens`` is.

    Raises:
        DamagedError: it is none of TokenMill's; names topic, partition and offset, and what to do.

    """
    try:
        return _decoded(record)
    except DamagedError as error:
        raise refused(error, tokens, record.offset) from error


def readable(record: SourceRecord, fingerprint: bytes | None = None) -> Message | None:
    """Return the message that a record is, None if it is none, or another stream's than the one of ``fingerprint``.

    For who looks for a place and accepts nothing there: whoever does meets the record again.
    """
    try:
        message = _decoded(record)
    except DamagedError:
        return None
    return message if fingerprint in {None, message.fingerprint} else None


def _decoded(record: SourceRecord) -> Message:
    return decode_message(dict(record.headers).get(HEADER_NAME) or b"", record.value)


def refused(error: Exception, tokens: TopicPartition, offset: int) -> Exception:
    """Return an error of the same kind that says as well at which offset it was met, and what a person can do."""
    place = f"{tokens.topic} {tokens.partition} {offset}"
    text = (
        f"offset {offset} of {tokens.topic}[{tokens.partition}]: {error}. What stands there can be seen with "
        f"`tokenmill inspect message {place}`; if it is not the mill's, `tokenmill ignore {place}` lets all readers "
        'pass it over, and they go on by themselves (docs/reliability.md, "Foreign messages")'
    )
    return type(error)(text)


def offered(
    acceptor: Acceptor, record: SourceRecord, tokens: TopicPartition, ignored: IgnoreList
) -> tuple[Message, Taken | Dropped | Gap] | None:
    """Offer a record to a chain; return its message and the verdict, None for one that is passed over (`ignored`).

    Every reader that accepts blocks does it here: the chain is asked first, and the list only about what it does not
    take. So no list changes which blocks are taken.

    Raises:
        DamagedError, DifferenceError, FingerprintError: the chain can never take it; names the offset.

    """
    try:
        message = _decoded(record)
        verdict = acceptor.offer(message)
    except REFUSALS as error:
        if ignored.names(tokens.partition, record):
            return None
        raise refused(error, tokens, record.offset) from error
    if isinstance(verdict, Gap) and ignored.names(tokens.partition, record):
        return None
    return message, verdict
