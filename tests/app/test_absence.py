"""Which errors mean that a broker was not reached."""

import asyncio

from aiokafka import errors

from tokenmill.app.absence import OF_AIOKAFKA, is_broken_connection, is_unreached
from tokenmill.errors import BrokerError, TopicError


def test_every_name_is_one_of_aiokafka() -> None:
    """A name that a new version changes would be silent."""
    assert {name for name in OF_AIOKAFKA if not issubclass(getattr(errors, name, int), errors.KafkaError)} == set()


def caused(error: Exception, cause: Exception) -> Exception:
    """Return an error with its cause."""
    error.__cause__ = cause
    return error


def test_what_connections_end_with_is_no_more_than_that() -> None:
    """Refused, reset, unanswered, or told by aiokafka as its most general error."""
    unreached = [
        *(errors.KafkaConnectionError("x"), errors.KafkaTimeoutError(), errors.NodeNotReadyError),
        errors.KafkaError("Unable to get cluster metadata over all known brokers"),
        caused(errors.KafkaError("NodeNotReadyError()"), errors.NodeNotReadyError()),
        BrokerError("no broker answers"),
    ]
    sockets = [ConnectionRefusedError(), ConnectionResetError(), TimeoutError(), asyncio.IncompleteReadError(b"", 4)]
    assert [error for error in unreached if not is_unreached(error)] == []
    assert [error for error in unreached + sockets if not is_broken_connection(error)] == []


def test_everything_else_is_more() -> None:
    """What brokers answer, what we raise, and what is a mistake in a program."""
    more = [
        *(errors.KafkaError("odd"), errors.TopicAuthorizationFailedError(), errors.InvalidTimestampError),
        OSError(28, "No space left on device"),
        *(TopicError("x"), ValueError("x"), KeyError("Unable connect"), None),
    ]
    assert [error for error in more if is_unreached(error)] == []
