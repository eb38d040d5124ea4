"""What settles a stream: the first genesis on its control topic."""

import json
from typing import Any

import pytest

from tests.mills import RECIPE
from tokenmill.app.kafka.control_log import ControlLog
from tokenmill.errors import DamagedError, FingerprintError
from tokenmill.recipe import GENESIS_KEY, Genesis

FIRST = Genesis("raw-text.train", RECIPE, (0, 7), 4096, {"numpy": "2"})


def test_the_first_genesis_wins() -> None:
    """Whatever stood there before, a second worker wrote, or something else later, the stream is settled."""
    second = Genesis("raw-text.train", RECIPE, (5, 5), 8)
    log = ControlLog("raw-text.train")
    for value in (b"garbage", FIRST.pack(), second.pack(), b"more"):
        log.add(GENESIS_KEY, value)
    assert log.genesis == FIRST


def test_a_genesis_survives_its_bytes() -> None:
    assert Genesis.from_dict(json.loads(FIRST.pack())) == FIRST


def test_a_partition_that_was_added_later_starts_at_0() -> None:
    assert [FIRST.start(partition) for partition in range(4)] == [0, 7, 0, 0]


def test_a_genesis_that_was_changed_by_hand_is_none() -> None:
    values = FIRST.to_dict()
    values["recipe"]["min_chars"] = 7
    with pytest.raises(DamagedError, match="changed by hand"):
        Genesis.from_dict(values)
    log = ControlLog()
    assert "changed by hand" in (log.add(GENESIS_KEY, json.dumps(values).encode()) or "")
    assert log.genesis is None


def test_the_genesis_of_another_stream_is_none_here() -> None:
    log = ControlLog("raw-text.validation")
    assert "not of 'raw-text.validation'" in (log.add(GENESIS_KEY, FIRST.pack()) or "")
    assert log.genesis is None


def test_a_genesis_of_another_format_is_refused() -> None:
    """With the version that is needed; it is no junk, for another one behind it would settle the stream again."""
    values: dict[str, Any] = FIRST.to_dict()
    values["recipe"]["format"] = 2
    with pytest.raises(FingerprintError, match="format 2"):
        ControlLog().add(GENESIS_KEY, json.dumps(values).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recipe", []), ("recipe", None), ("recipe", "x"), ("recipe", {}), ("starts", "07"), ("starts", [-1]),
        ("starts", [0.5]), ("starts", [True]), ("segment_blocks", 0), ("segment_blocks", "7"), ("stream", 7),
        ("versions", []), ("starts", [0] * 70_000),
    ],
)  # fmt: skip
def test_what_no_mill_writes_is_no_genesis(name: str, value: object) -> None:
    log = ControlLog()
    assert log.add(GENESIS_KEY, json.dumps({**FIRST.to_dict(), name: value}).encode())
    assert log.genesis is None
    assert log.add(GENESIS_KEY, FIRST.pack()) is None
    assert log.genesis == FIRST
