"""Logs: one format for all lines, and no floods."""

import json
import logging

import pytest
import structlog
from aiokafka.errors import KafkaConnectionError, NodeNotReadyError

from tests.outages import Hands
from tokenmill.app.logs import LINES, HeldTrouble, RateLimit, set_up_logging


def record_at(second: float, name: str = "aiokafka.conn", said: str = "lost %s", *parts: object) -> logging.LogRecord:
    record = logging.LogRecord(name, logging.ERROR, __file__, 1, said, parts or ("node",), None)
    record.created = second
    return record


def test_floods_are_held_back_and_counted() -> None:
    limit = RateLimit(lines=2)
    assert [limit.filter(record_at(10.5)) for _ in range(5)] == [True, True, False, False, False]
    assert limit.filter(record_at(19.6, "other"))
    late = record_at(20.0)
    assert limit.filter(late)
    assert late.getMessage() == "lost node [3 lines held back]"
    after = record_at(20.5)
    assert limit.filter(after)
    assert after.getMessage() == "lost node"


def test_lines_are_json_with_fields(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("json")
    structlog.get_logger("tokenmill.test").info("milled", partition=3)
    logging.getLogger("aiokafka").warning("lost %s", "node")
    ours, theirs = map(json.loads, capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["partition"], ours["level"], ours["logger"]) == ("milled", 3, "info", "tokenmill.test")
    assert (theirs["event"], theirs["level"]) == ("lost node", "warning")


def test_noisy_libraries_are_limited_and_ours_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("json")
    for number in range(50):
        logging.getLogger("aiokafka.conn").error("lost %d", number)
        structlog.get_logger("tokenmill.test").info("step", number=number)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert sum(line["event"] == "step" for line in lines) == 50
    # At most two windows' worth, should the clock turn over in between.
    assert LINES <= sum(line["logger"] == "aiokafka.conn" for line in lines) <= 2 * LINES


OUTAGE = (
    ("aiokafka", "Unable connect to node with id %s: %s", (1, ConnectionRefusedError(111, "refused"))),
    ("aiokafka", "Unable to update metadata from %s", ([1],)),
    ("aiokafka.consumer.fetcher", "Failed fetch messages from %s: %s", (1, NodeNotReadyError("not ready"))),
    ("aiokafka.consumer.group_coordinator", "Group Coordinator Request failed: %s", (KafkaConnectionError("x"),)),
)
"""What aiokafka says again and again while no broker answers."""


def lines_of(filter_: HeldTrouble, second: float) -> list[str]:
    records = [record_at(second, name, words, *arguments) for name, words, arguments in OUTAGE]
    return [record.getMessage() for record in records if filter_.filter(record)]


def test_an_outage_is_not_told_by_libraries() -> None:
    hands = Hands()
    contact = hands.contact()
    held = HeldTrouble(contact)
    passed = []
    for _ in range(1200):
        hands.turn(0.25)
        passed += lines_of(held, hands.now)
    assert passed == []
    assert contact.trouble == "Group Coordinator Request failed: KafkaConnectionError: x"


def test_trouble_with_one_broker_of_several_is_a_line_a_minute() -> None:
    """No line of ours tells of it, because others answer; a trouble that has passed in seconds is told by nobody."""
    hands = Hands()
    contact = hands.contact()
    held = HeldTrouble(contact)
    passed: list[str] = []
    for _ in range(4 * 200):
        hands.turn(0.25)
        contact.heard()
        passed += lines_of(held, hands.now)
    assert len(passed) == 4
    assert all("lines held back" in line for line in passed)
    assert passed[0].startswith(("Unable connect to node with id 1: [Errno 111] refused", "Failed", "Group"))


def test_what_is_no_trouble_with_connections_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("json")
    theirs = logging.getLogger("aiokafka.producer.sender")
    for _, words, arguments in OUTAGE:
        theirs.error(words, *arguments)
    theirs.warning("Not authorized to read from topic %s.", "notes")
    try:
        int("a mistake")
    except ValueError:
        theirs.exception("Unexpected error in sender routine")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["event"] == "Not authorized to read from topic notes."
    assert "ValueError: invalid literal" in second["exception"]


def test_debug_shows_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """For whoever looks for what is wrong with a network."""
    set_up_logging("json", "debug")
    for name, words, arguments in OUTAGE:
        logging.getLogger(name).error(words, *arguments)
    assert len(capsys.readouterr().err.splitlines()) == len(OUTAGE)
