"""Logs: one format for all lines, and no floods."""

import json
import logging

import pytest
import structlog

from tokenmill.app.logs import LINES, RateLimit, set_up_logging

pytestmark = pytest.mark.usefixtures("logging_restored")


def record_at(second: float, name: str = "aiokafka.conn") -> logging.LogRecord:
    """Return a record that was made at this moment."""
    record = logging.LogRecord(name, logging.ERROR, __file__, 1, "lost %s", ("node",), None)
    record.created = second
    return record


def test_floods_are_held_back_and_counted() -> None:
    """A logger may say so many lines in ten seconds; the next line that passes says how many were not said."""
    limit = RateLimit(lines=2)

    assert [limit.filter(record_at(10.5)) for _ in range(5)] == [True, True, False, False, False]
    assert limit.filter(record_at(19.6, "other"))
    assert limit.held_back() == 3
    late = record_at(20.0)
    assert limit.filter(late)
    assert late.getMessage() == "lost node [3 lines held back]"
    assert limit.held_back() == 0


def test_lines_are_json_with_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """Our events and a library's lines are JSON objects on standard error."""
    set_up_logging("json")

    structlog.get_logger("tokenmill.test").info("milled", partition=3)
    logging.getLogger("aiokafka").warning("lost %s", "node")

    ours, theirs = map(json.loads, capsys.readouterr().err.splitlines())
    assert (ours["event"], ours["partition"], ours["level"], ours["logger"]) == ("milled", 3, "info", "tokenmill.test")
    assert (theirs["event"], theirs["level"]) == ("lost node", "warning")


def test_noisy_libraries_are_limited_and_ours_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    """An outage does not fill the disk, and nothing of ours is lost."""
    set_up_logging("json")

    for number in range(50):
        logging.getLogger("aiokafka.conn").error("lost %d", number)
        structlog.get_logger("tokenmill.test").info("step", number=number)

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert sum(line["event"] == "step" for line in lines) == 50
    # At most two windows' worth, should the clock turn over in between.
    assert LINES <= sum(line["logger"] == "aiokafka.conn" for line in lines) <= 2 * LINES
