"""Reading eras from a log that changes between two fetches, one of which found no record."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from tests.simulation.era_kafka import STREAM, SimulatedConsumer, Topics, Written
from tests.store.chains import make_chain, make_info
from tests.store.eras import make_eras
from tokenmill.app.kafka.control_topic import read_eras
from tokenmill.eras import ERA_KEY, Era, EraFollower

INFO: Final = make_info()
CHAIN: Final = make_chain(INFO, 12)
ZERO: Final = make_eras(INFO, {0: CHAIN}, [{0: 3}])[0]
FIRST, SECOND = (make_eras(INFO, {0: CHAIN}, [{0: 3}, {0: stop}])[1] for stop in (9, 6))
"""Two that follow `ZERO`: whichever comes first on the log is the next era, and the other one is none."""


def record(era: Era) -> Written:
    """Return what stands on a control topic."""
    return Written(ERA_KEY, era.pack())


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


def test_a_topic_that_is_made_again_behind_an_empty_offset_is_read_again() -> None:
    """Offset 0 held nothing when it was fetched, and holds an era now: what follows it is no era."""
    topics = Topics(1)
    topics.control.append(Written(b"note", b"no era"), gap=1)

    def change() -> None:
        topics.control.recreate()
        for era in (ZERO, FIRST, SECOND):
            topics.control.append(record(era))

    assert eras_read(topics, change, at=1) == [ZERO, FIRST]


def test_a_tail_that_is_lost_behind_an_empty_offset_is_noticed() -> None:
    """The record before the empty offset is still there, so it says nothing of what came after it."""
    topics = Topics(1)
    topics.control.append(record(ZERO))
    topics.control.append(Written(b"note", b"no era"), gap=1)

    def change() -> None:
        topics.control.lose_tail(1)
        for era in (FIRST, SECOND):
            topics.control.append(record(era))

    assert eras_read(topics, change, at=2) == [ZERO, FIRST]


@pytest.mark.parametrize("gap", [0, 1, 3])
def test_empty_offsets_alone_change_nothing(gap: int) -> None:
    """They are read twice, and so is no era."""
    topics = Topics(1)
    for era in (ZERO, FIRST):
        topics.control.append(record(era), gap)
    assert eras_read(topics, lambda: None, at=1) == [ZERO, FIRST]
