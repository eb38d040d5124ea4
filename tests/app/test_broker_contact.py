"""Whether brokers answer, by what was heard of them; which errors say that they do not; and what the log says of it."""

import asyncio

import structlog
from aiokafka import errors
from structlog.testing import capture_logs

from tests.outages import Hands
from tokenmill.app import broker_contact
from tokenmill.app.broker_contact import OF_AIOKAFKA, OutageLog, is_broken_connection, is_unreached, no_answer
from tokenmill.errors import BrokerError, TopicError


def test_brokers_are_away_since_their_last_answer() -> None:
    hands = Hands()
    contact = hands.contact()
    hands.turn(broker_contact.QUIET_SECONDS - 0.1)
    found = [contact.away_since]
    contact.heard()
    hands.turn(broker_contact.QUIET_SECONDS)
    found.append(contact.away_since)
    contact.heard()
    assert [*found, contact.away_since] == [None, 1000 + broker_contact.QUIET_SECONDS - 0.1, None]
    assert broker_contact.QUIET_SECONDS < 10


def test_silence_while_nobody_could_ask_is_no_outage() -> None:
    """The event loop stood still, or the process did; if brokers still say nothing then, they are away since before."""
    hands = Hands()
    contact = hands.contact()
    found = []
    for seconds in (1, 60, 1, 1, 1, 1, 1, 1):
        hands.turn(seconds)
        contact.turn()
        found.append(contact.away_since)
    assert found == [None] * 7 + [1000]


def test_an_outage_is_a_line_when_it_begins_one_a_minute_and_one_when_it_ends() -> None:
    hands = Hands()
    contact = hands.contact()
    outage = OutageLog("broker:9092", contact, hands)
    structlog.reset_defaults()
    with capture_logs() as lines:
        for second in range(300):
            hands.turn(1)
            if second < 20 or second >= 220:
                contact.heard()
            contact.trouble = "Connect call failed"
            outage.look()
    assert [line["event"] for line in lines] == [*["no broker answers"] * 4, "a broker answers again"]
    assert [line["seconds"] for line in lines[:-1]] == [6, 66, 126, 186]
    assert {line["since"] for line in lines[:-1]} == {"1970-01-01T00:17:00Z"}
    assert {line["error"] for line in lines[:-1]} == {"Connect call failed"}
    assert lines[-1]["after_seconds"] == 201


def test_an_address_that_brokers_name_is_unreached_while_none_has_ever_answered_there() -> None:
    """Not before any has answered, and not where one has, which is away. Nor for an attempt that has just begun."""
    hands = Hands()
    contact = hands.contact()

    def unreached() -> str | None:
        return contact.unreached

    contact.connects("kafka:9092")
    contact.refused("kafka:9092", "no such name")
    assert unreached() is None
    assert no_answer("host:1", None, contact) == "no broker answers at host:1"
    contact.answered("host:1")
    assert unreached() == "kafka:9092 (no such name)"
    assert no_answer("other:1", None, contact) == "no broker answers at other:1"
    hands.turn(broker_contact.REPEAT_SECONDS)  # nobody goes there any more
    assert unreached() is None
    contact.connects("kafka:9092")
    assert unreached() is None
    hands.turn(broker_contact.STILL_SECONDS)
    assert unreached() == "kafka:9092 (no answer in 3 s)"
    assert no_answer("host:1", 1000.0, contact).startswith("a broker answers at host:1, and names an address at which")
    contact.answered("kafka:9092")
    contact.refused("kafka:9092", "refused")
    assert unreached() is None


def test_every_name_is_one_of_aiokafka() -> None:
    """A name that a new version changes would be silent."""
    assert {name for name in OF_AIOKAFKA if not issubclass(getattr(errors, name, int), errors.KafkaError)} == set()


def test_what_connections_end_with_is_no_more_than_that() -> None:
    caused = errors.KafkaError("NodeNotReadyError()")
    caused.__cause__ = errors.NodeNotReadyError()
    unreached = [
        *(errors.KafkaConnectionError("x"), errors.KafkaTimeoutError(), errors.NodeNotReadyError),
        *(errors.KafkaError("Unable to get cluster metadata over all known brokers"), caused, BrokerError("no answer")),
    ]
    sockets = [ConnectionRefusedError(), ConnectionResetError(), TimeoutError(), asyncio.IncompleteReadError(b"", 4)]
    assert [error for error in unreached if not is_unreached(error)] == []
    assert [error for error in unreached + sockets if not is_broken_connection(error)] == []


def test_everything_else_is_more() -> None:
    more = [
        *(errors.KafkaError("odd"), errors.TopicAuthorizationFailedError(), errors.InvalidTimestampError),
        OSError(28, "No space left on device"),
        *(TopicError("x"), ValueError("x"), KeyError("Unable connect"), None),
    ]
    assert [error for error in more if is_unreached(error)] == []
