"""Reading eras from a log that changes between two fetches, one of which found no record."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import AsyncMock

import pytest

from tests.simulation.era_kafka import STREAM, SimulatedConsumer, Topics, Written
from tests.store.chains import make_chain, make_info
from tests.store.eras import make_eras
from tokenmill.app.kafka import control_topic
from tokenmill.app.kafka.control_topic import read_eras
from tokenmill.eras import ERA_KEY, Era, EraFollower, LogRecord
from tokenmill.errors import DifferenceError

INFO: Final = make_info()
CHAIN: Final = make_chain(INFO, 12)
ZERO: Final = make_eras(INFO, {0: CHAIN}, [{0: 3}])[0]
FIRST, SECOND = (make_eras(INFO, {0: CHAIN}, [{0: 3}, {0: stop}])[1] for stop in (9, 6))
"""Two that follow `ZERO`: whichever comes first on the log is the next era, and the other one is none."""
AFTER_FIRST: Final = make_eras(INFO, {0: CHAIN}, [{0: 3}, {0: 9}, {0: 11}])[2]
NOTE: Final = Written(b"note", b"no era")
_is_still_there = control_topic._is_still_there


@pytest.fixture
def topics() -> Topics:
    return Topics(1)


def record(era: Era) -> Written:
    return Written(ERA_KEY, era.pack())


def filled(topics: Topics, *records: Written, then: tuple[Era, ...]) -> Callable[[], None]:
    """Fill the control topic; return what replaces all behind its first record by other eras."""
    for each in records:
        topics.control.append(each)

    def change() -> None:
        topics.control.lose_tail(1)
        for era in then:
            topics.control.append(record(era))

    return change


def eras_read(topics: Topics, change: Callable[[], None], at: int) -> list[Era]:
    """Read all eras, one offset in a fetch; ``change`` the log once offset ``at`` is to be fetched next."""
    one = cast("Any", SimpleNamespace(randint=lambda *_: 1))
    client = SimulatedConsumer(topics, one)
    follower = EraFollower(STREAM.name, INFO.fingerprint)

    async def look() -> list[Era]:
        found = read_eras(cast("Any", client), STREAM.control_topic, follower)
        return [era async for eras in found for era, _ in eras]

    looking, changed = look(), False
    while True:
        try:
            looking.send(None)
        except StopIteration as ended:
            assert changed
            return cast("list[Era]", ended.value)
        if not changed and client._position == at:
            changed = True
            change()


def test_a_topic_that_is_made_again_behind_an_empty_offset_is_read_again(topics: Topics) -> None:
    """Offset 0 held nothing when it was fetched, and holds an era now: what follows it is no era."""
    topics.control.append(NOTE, gap=1)

    def change() -> None:
        topics.control.recreate()
        for era in (ZERO, FIRST, SECOND):
            topics.control.append(record(era))

    assert eras_read(topics, change, at=1) == [ZERO, FIRST]


def test_a_tail_that_is_lost_behind_an_empty_offset_is_noticed(topics: Topics) -> None:
    """The record before the empty offset is still there, so it says nothing of what came after it."""
    change = filled(topics, record(ZERO), then=(FIRST, SECOND))
    topics.control.append(NOTE, gap=1)
    assert eras_read(topics, change, at=2) == [ZERO, FIRST]


@pytest.mark.parametrize("gap", [0, 1, 3])
def test_empty_offsets_alone_change_nothing(topics: Topics, gap: int) -> None:
    for era in (ZERO, FIRST):
        topics.control.append(record(era), gap)
    assert eras_read(topics, lambda: None, at=1) == [ZERO, FIRST]


def era_lost(topics: Topics) -> Callable[[], None]:
    """Prepare a log whose offset 1 has one era before offset 2 is fetched, and another one then."""
    return filled(topics, record(ZERO), record(FIRST), NOTE, then=(SECOND, AFTER_FIRST))


def note_lost(topics: Topics) -> Callable[[], None]:
    """Prepare one whose offset 1 has no era before offset 2 is fetched, and an era then."""
    return filled(topics, record(ZERO), NOTE, NOTE, then=(FIRST, SECOND))


def test_an_era_that_is_lost_between_two_fetches_is_noticed(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the second fetch brings continues the era that was lost, and not the one that is there now."""
    with pytest.raises(DifferenceError, match="not on its control topic any more"):
        eras_read(topics, era_lost(topics), at=2)
    monkeypatch.setattr(control_topic, "_is_still_there", AsyncMock(return_value=True))
    again = Topics(1)
    assert eras_read(again, era_lost(again), at=2) == [ZERO, FIRST, AFTER_FIRST]  # so the rule is needed


def test_a_record_that_was_ignored_is_looked_at_again_too(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it was, the next era is now; what the second fetch brings came too late."""
    assert eras_read(topics, note_lost(topics), at=2) == [ZERO, FIRST]
    monkeypatch.setattr(control_topic, "_is_still_there", _eras_are)
    again = Topics(1)
    assert eras_read(again, note_lost(again), at=2) == [ZERO, SECOND]  # so the rule is needed


async def _eras_are(client: Any, partition: Any, last: LogRecord) -> bool:
    return last.key != ERA_KEY or await _is_still_there(client, partition, last)
