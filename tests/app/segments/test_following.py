"""Where a reader begins, and what it does about a block that is missing."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from tests.app.segments.mirror.memory_kafka import MemoryClient, MemoryKafka
from tests.histories import BLOCK_BYTES, FINGERPRINT, PARTITION, make_history
from tokenmill.app.kafka.control_log import IgnoreList
from tokenmill.app.segments import following
from tokenmill.app.segments.following import GapSearch, find_start, hint_holds, late_start
from tokenmill.reading import FIRST_TAIL, Gap
from tokenmill.store import Start
from tokenmill.wire.message import Message

CASES = {
    "the border is not there yet": ([(5, 9), (9, 15)], None),
    "a message ends at it": ([(5, 9), (9, 16)], 16),
    "in the middle of a message": ([(5, 9), (9, 20)], 16),
    "the first message begins at it": ([(16, 18)], 16),
    "blocks that came twice": ([(5, 9), (5, 9), (7, 12), (12, 18)], 16),
    "a zombie's last words before a gap": ([(2, 4), (17, 20), (20, 40)], 32),
    "nothing": ([], None),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_store_begins_at_the_first_border_that_is_retained(case: str) -> None:
    spans, border = CASES[case]
    kafka, tokens, history = MemoryKafka(), TopicPartition("tokens", PARTITION), make_history(40)
    kafka.logs[tokens] = []
    kafka.send(tokens.topic, tokens.partition, [history.message(*span) for span in spans])
    client: Any = MemoryClient(kafka)
    recipe: Any = SimpleNamespace(fingerprint=FINGERPRINT, block_bytes=BLOCK_BYTES)
    found = await late_start(client, tokens, recipe, 16, IgnoreList())
    assert found == (None if border is None else Start(border, history.chains[border]))


LENGTH = 10 + FIRST_TAIL
TRUE = make_history(LENGTH)
GAP = Gap(wanted=2, found=4)


async def _start(log: dict[int, Message], held: tuple[int, int], block: int, hint: int) -> tuple[int, Message | None]:
    async def first_message(offset: int) -> Message | None:
        return next((log[at] for at in range(offset, held[1]) if at in log), None)

    return await find_start(held, block, TRUE.chains[block], hint, first_message)


@given(st.integers(0, 5), st.integers(0, LENGTH), st.integers(-1, 30))
async def test_one_writers_log_is_read_from_the_wanted_block(first: int, block: int, hint: int) -> None:
    """By number, or from a hint that is true: no message that holds the block lies below, and not all are read."""
    log = {first + number: TRUE.message(number, number + 1) for number in range(LENGTH)}
    start, message = await _start(log, (first, first + LENGTH), block, hint)
    assert start in {first + min(at, LENGTH - FIRST_TAIL) for at in (block, max(0, block - 1))}
    assert message == (log[hint] if hint == first + block - 1 >= first else None)


async def test_a_zombies_message_at_the_end_hides_nothing() -> None:
    """The last message has the wanted block, and one below it has the next ones as well: that one is read."""
    log = {0: TRUE.message(0, 3), 1: TRUE.message(0, 1)}
    for block, hint in ((0, -1), (1, 1)):
        assert (await _start(log, (0, 2), block, hint))[0] == 0


def test_a_hint_is_believed_only_where_it_is_true() -> None:
    other = make_history(LENGTH, other_from=1)
    assert hint_holds(TRUE.message(2, 5), 5, TRUE.chains[5])
    assert hint_holds(TRUE.message(2, 6), 5, TRUE.chains[5])
    assert not hint_holds(other.message(2, 5), 5, TRUE.chains[5])
    assert not hint_holds(TRUE.message(2, 4), 5, TRUE.chains[5])
    assert not hint_holds(TRUE.message(5, 7), 5, TRUE.chains[5])


def test_a_search_ends_where_the_log_ended() -> None:
    search = GapSearch()
    assert not search.is_over(99)
    assert search.miss(GAP, 7)
    assert not search.miss(Gap(2, 9), 20)
    assert [search.is_over(position) for position in (6, 7)] == [False, True]
    search.began(cut=True)
    assert search.missing is None


def test_a_block_is_given_up_only_when_all_retained_messages_are_higher() -> None:
    """The first one alone does not tell: a later one may hold lower blocks, and without retention all may come."""
    for cut, firsts, hopeless in (
        (True, (4, 5), True),
        (True, (4, 2), False),
        (True, (4, 1, 5), False),
        (False, (4, 5), False),
        (True, (), False),
    ):
        search = GapSearch()
        search.began(cut=cut)
        for first in firsts:
            search.saw(TRUE.message(first, first + 1))
        assert search.is_hopeless(2) == hopeless, (cut, firsts)


def test_the_wait_before_a_look_grows_until_one_finds_something() -> None:
    search = GapSearch()
    waits = []
    for from_first in (False, True, True):
        search.began(cut=False, from_first=from_first)
        search.miss(GAP, 7)
        waits.append((search.pause(GAP.wanted), search.vain_looks))
    assert waits == [(following.GAP_SECONDS, 0), (2 * following.GAP_SECONDS, 1), (4 * following.GAP_SECONDS, 2)]
    for _ in range(9):
        longest = search.pause(GAP.wanted)
    assert longest == following.LONGEST_GAP_SECONDS
    assert (search.pause(GAP.wanted + 1), search.vain_looks) == (0.0, 0)
    assert search.pause(GAP.wanted) == following.GAP_SECONDS
