"""Messages as Kafka has them: records on a token topic."""

from tokenmill.errors import DamagedError
from tokenmill.message import HEADER_NAME, Message, decode_message


def message_of(record: object) -> Message:
    """Return the message that a Kafka record on a token topic is.

    Raises:
        DamagedError: it is none of TokenMill's; names topic, partition and offset.

    """
    headers = dict(getattr(record, "headers", ()))
    try:
        return decode_message(headers.get(HEADER_NAME, b""), getattr(record, "value", None))
    except DamagedError as error:
        where = f"{getattr(record, 'topic', '?')}[{getattr(record, 'partition', '?')}]"
        raise DamagedError(f"offset {getattr(record, 'offset', '?')} of {where}: {error}") from error
