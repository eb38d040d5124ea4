"""What a writer makes of its acknowledgements: it ends when the log below its message is not the one it knew."""

import pytest

from tests.histories import History, make_history
from tokenmill.log_end import LogEnd
from tokenmill.message import Message

TRUE = make_history(8)
LAST = TRUE.message(2, 4)
LEADER, OTHER = "leader", "another leader, or a new connection to it"


async def _lost(
    offset: int, *, leader: str = LEADER, last: Message | None = LAST, found: Message | None = None
) -> tuple[str | None, list[int]]:
    """Return what is said of an acknowledgement after the partition ended at offset 5, and what was read for it."""
    read: list[int] = []

    async def message_at(at: int) -> Message | None:
        read.append(at)
        return found

    end = LogEnd(5, last, LEADER)
    return await end.acknowledged(offset, leader, TRUE.message(4, 5), message_at), read


async def test_what_follows_directly_costs_nothing() -> None:
    """Nothing is read, whatever stands there."""
    assert await _lost(5) == (None, [])


@pytest.mark.parametrize("offset", [0, 4])
async def test_an_offset_that_was_taken_before_is_a_lost_tail(offset: int) -> None:
    """At once: nothing needs to be read."""
    reason, read = await _lost(offset, leader=OTHER)
    assert reason == f"acknowledged offset {offset}, below 5"
    assert not read


@pytest.mark.parametrize(("offset", "leader"), [(6, LEADER), (9, OTHER), (5, OTHER)])
async def test_in_doubt_the_last_message_is_read_again(offset: int, leader: str) -> None:
    """After a jump, and after another leader answered; another message there, or none, is a lost tail."""
    assert await _lost(offset, leader=leader, found=TRUE.message(2, 4)) == (None, [4])
    other: History = make_history(8, other_from=2)
    for found in (other.message(2, 4), TRUE.message(3, 4), TRUE.message(4, 4), None):
        reason, read = await _lost(offset, leader=leader, found=found)
        assert reason == "holds another message at offset 4 than before"
        assert read == [4]


async def test_a_partition_without_messages_can_lose_none() -> None:
    """There is nothing to be read again."""
    assert await _lost(7, leader=OTHER, last=None) == (None, [])


async def test_each_acknowledgement_is_the_next_ones_past() -> None:
    """What is read again is the message that was acknowledged last."""
    read: list[int] = []

    async def message_at(at: int) -> Message | None:
        read.append(at)
        return TRUE.message(4, 5)

    end = LogEnd(5, TRUE.message(2, 4), LEADER)
    assert await end.acknowledged(5, LEADER, TRUE.message(4, 5), message_at) is None
    assert await end.acknowledged(8, OTHER, TRUE.message(5, 6), message_at) is None
    assert await end.acknowledged(9, OTHER, TRUE.message(6, 7), message_at) is None
    assert read == [5]
