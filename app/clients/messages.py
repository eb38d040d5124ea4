"""Messages as Kafka has them: records on a token topic."""

from aiokafka import TopicPartition

from tokenmill.errors import DamagedError
from tokenmill.message import HEADER_NAME, Message, decode_message
from tokenmill.records import SourceRecord


def message_of(record: SourceRecord, tokens: TopicPartition) -> Message:
    """Return the message that a record of the token topic's partition ``tokens`` is.

    Raises:
        DamagedError: it is none of TokenMill's; names topic, partition and offset.

    """
    headers = dict(record.headers)
    try:
        return decode_message(headers.get(HEADER_NAME) or b"", record.value)
    except DamagedError as error:
        where = f"offset {record.offset} of {tokens.topic}[{tokens.partition}]"
        raise DamagedError(f"{where}: {error}") from error
