"""What a writer makes of its acknowledgements: it ends when the log below its message is not the one it knew."""

from collections.abc import Sequence

import pytest

from tests.histories import History, make_history
from tokenmill.app.mill.publisher import LogEnd
from tokenmill.reading.continuing import FIRST_TAIL
from tokenmill.wire.message import Message

TRUE = make_history(8)
LAST = (TRUE.message(0, 2), TRUE.message(2, 4))
LEADER, OTHER = "leader", "another leader, or a new connection to it"


async def _lost(
    offset: int, *, leader: str = LEADER, last: Sequence[Message] = LAST, found: Sequence[Message] = ()
) -> tuple[str | None, list[tuple[int, int]]]:
    """Return what is said of an acknowledgement after the partition ended at offset 5, and what was read for it."""
    asked: list[tuple[int, int]] = []

    async def read(start: int, end: int) -> Sequence[tuple[int, Message]]:
        asked.append((start, end))
        return list(zip(range(5 - len(found), 5), found, strict=True))

    end = LogEnd(5, last, LEADER)
    return await end.acknowledged(offset, leader, TRUE.message(4, 5), read), asked


async def test_what_follows_directly_costs_nothing() -> None:
    """Nothing is read, whatever stands there."""
    assert await _lost(5) == (None, [])


@pytest.mark.parametrize("offset", [0, 4])
async def test_an_offset_that_was_taken_before_is_a_lost_tail(offset: int) -> None:
    """At once: nothing needs to be read."""
    reason, asked = await _lost(offset, leader=OTHER)
    assert reason == f"acknowledged offset {offset}, below 5"
    assert not asked


@pytest.mark.parametrize(("offset", "leader"), [(6, LEADER), (9, OTHER), (5, OTHER)])
async def test_in_doubt_the_last_messages_are_read_again(offset: int, leader: str) -> None:
    """At one go, after a jump or another leader's answer; another message among them, or none, is a lost tail."""
    reason, asked = await _lost(offset, leader=leader, found=LAST)
    assert reason is None
    assert asked == [(5 - FIRST_TAIL, offset)]
    other: History = make_history(8, other_from=2)
    wrong = (
        (LAST[0], other.message(2, 4)),
        (LAST[0], TRUE.message(3, 4)),
        (TRUE.message(1, 2), LAST[1]),  # an equal one at the end proves nothing
        (),
    )
    for found in wrong:
        reason, _ = await _lost(offset, leader=leader, found=found)
        assert reason == "holds other messages below offset 5 than before"


@pytest.mark.parametrize("found", [LAST[1:], (TRUE.message(0, 1), *LAST)])
async def test_what_retention_took_or_nobody_knew_tells_nothing(found: Sequence[Message]) -> None:
    """Only what both hold is compared."""
    assert (await _lost(5, leader=OTHER, found=found))[0] is None


async def test_a_partition_without_messages_can_lose_none() -> None:
    """There is nothing to be read again."""
    assert (await _lost(7, leader=OTHER, last=()))[0] is None


async def test_each_acknowledgement_is_the_next_ones_past() -> None:
    """What is compared are the messages that were acknowledged, and those that others wrote in between."""
    log = {4: TRUE.message(2, 4), 5: TRUE.message(4, 5), 6: TRUE.message(0, 2), 7: TRUE.message(0, 2)}

    async def read(start: int, end: int) -> Sequence[tuple[int, Message]]:
        return [(at, log[at]) for at in range(start, end) if at in log]

    end = LogEnd(5, LAST[1:], LEADER)
    for at, message in ((5, log[5]), (8, TRUE.message(5, 6)), (9, TRUE.message(6, 7))):
        log[at] = message
        assert await end.acknowledged(at, OTHER, message, read) is None
    log[6] = TRUE.message(0, 1)
    assert await end.acknowledged(10, LEADER, TRUE.message(7, 8), read) is not None
