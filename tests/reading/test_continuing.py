"""Resuming from the tail of a token partition: every point that is found is a true one, and the furthest there is."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.histories import BLOCK_BYTES, FINGERPRINT, make_history, runs
from tests.mills import PARTITION, Source, assert_follow, make_source, text, write
from tests.strategies import feed_sizes, record_lists, sources
from tokenmill import reading
from tokenmill.documents import Record
from tokenmill.errors import DifferenceError, FingerprintError
from tokenmill.reading import Acceptor, Run, resume_point
from tokenmill.recipe import Recipe
from tokenmill.wire.chain import Cursor, genesis_hash, roll
from tokenmill.wire.message import Message, decode_message, encode_header

LENGTH = 10
TRUE = make_history(LENGTH)


def _runs(messages: Sequence[Message], recipe: Recipe, *, whole: bool) -> list[Run]:
    def new_acceptor(block: int, chain: bytes | None) -> Acceptor:
        return Acceptor(recipe.fingerprint, PARTITION, recipe.block_bytes, block=block, chain=chain)

    return runs(messages, new_acceptor, whole=whole)


def _acceptor_of_true(block: int, chain: bytes | None) -> Acceptor:
    return Acceptor(FINGERPRINT, PARTITION, BLOCK_BYTES, block=block, chain=chain)


def _history_runs(spans: Sequence[tuple[int, int]], *, whole: bool) -> list[tuple[int, Cursor]]:
    found = runs([TRUE.message(*span) for span in spans], _acceptor_of_true, whole=whole)
    return [(run.first, run.point.cursor) for run in found]


def _wire(message: Message) -> Message:
    return decode_message(encode_header(message), bytes(message.tokens))


@st.composite
def tails(draw: st.DrawFn) -> tuple[Source, list[Record], list[Message], bool]:
    """Draw a source, its records, and what a few writers left at the end of the first chain's partition.

    Each writer began after any message of those before it; their messages landed in any order, and some are lost.
    """
    source, records = draw(sources), draw(record_lists(max_size=10))
    recipe = source.recipes[0]
    log: list[Message] = []
    for _ in range(draw(st.integers(1, 3))):
        after = draw(st.sampled_from([None, *log]))
        carries = draw(st.lists(st.booleans(), min_size=1, max_size=3))
        size = draw(st.sampled_from([1, 400, 10**6]))
        log += write(source, recipe, records, draw(feed_sizes), message_bytes=size, carries=carries, after=after)
    lost = draw(st.frozensets(st.integers(0, 20), max_size=3))
    log = [_wire(message) for number, message in enumerate(log) if number not in lost]
    if draw(st.booleans()):
        log = draw(st.permutations(log))
    cut = draw(st.integers(0, len(log))) if draw(st.booleans()) else 0
    return source, records, log[cut:], cut == 0


@given(tails(), feed_sizes)
@pytest.mark.slow
def test_every_run_ends_in_a_true_state_of_the_chain(
    tail: tuple[Source, list[Record], list[Message], bool], sizes: list[int]
) -> None:
    source, records, log, whole = tail
    recipe = source.recipes[0]
    blocks = source.blocks(recipe, records)
    for run in _runs(log, recipe, whole=whole):
        cursor = run.point.cursor
        rest = [record for record in records if record.offset >= cursor.next_offset]
        (message,) = [m for m in log if resume_point(m) == run.point][:1]
        assert_follow(write(source, recipe, rest, sizes, after=message), blocks, recipe, first=cursor.block)


@given(tails())
def test_a_run_ends_at_its_furthest_cursor(tail: tuple[Source, list[Record], list[Message], bool]) -> None:
    """Not at its last message; runs are in the order of their blocks, apart, and hold all messages between them."""
    source, _, log, whole = tail
    found = _runs(log, source.recipes[0], whole=whole)
    for run in found:
        places = [m.cursor.place for m in log if run.first <= m.first and m.end <= run.point.cursor.block]
        assert run.point.cursor.place == max(places)
    borders = [border for run in found for border in (run.first, run.point.cursor.block)]
    assert borders == sorted(borders)
    assert all(run.point.cursor.block < after.first for run, after in pairwise(found))
    for message in log:
        assert any(run.first <= message.first and message.end <= run.point.cursor.block for run in found)


@given(spans=st.lists(st.tuples(st.integers(0, LENGTH), st.integers(0, 4)), max_size=8), whole=st.booleans())
@example(spans=[], whole=True)
@example(spans=[], whole=False)
@example(spans=[(0, 3), (3, 4), (0, 2), (2, 0), (2, 2)], whole=True).via(
    "an older writer's blocks and carry at the end"
)
@example(spans=[(3, 4), (2, 2), (4, 0)], whole=False).via("the same, without the first block")
@example(spans=[(5, 2), (3, 2), (0, 3)], whole=True).via("blocks that were written again below close the gap")
@example(spans=[(3, 2), (5, 1)], whole=True).via("no run begins at 0, though all messages are known")
def test_runs_are_what_the_numbers_say(*, spans: list[tuple[int, int]], whole: bool) -> None:
    """Messages that touch or overlap are one run; with `whole`, the first begins at 0 and only there."""
    cut = [(first, min(LENGTH, first + count)) for first, count in spans]
    expected: list[list[int]] = []
    for first, end in sorted(cut):
        if expected and first <= expected[-1][1]:
            expected[-1][1] = max(expected[-1][1], end)
        else:
            expected.append([first, end])
    assert _history_runs(cut, whole=whole) == [(first, Cursor(10 * end, 0, end)) for first, end in expected]


def test_a_carry_is_further_than_the_block_before_it() -> None:
    """It went on over records that filled none, or to the document's end; the open block comes with it."""
    source = make_source()
    recipe = source.recipes[0]
    records = [text(0, "abcdef"), text(1, "g")]
    block, carry, *_ = write(source, recipe, records, carries=(True,))
    assert block.cursor.taken
    assert carry.is_carry
    for log in ([block, carry], [carry, block]):
        (run,) = _runs(log, recipe, whole=True)
        assert run.point == resume_point(carry)
        assert run.point.open_tokens == b"ef\0"


def test_runs_of_two_histories_are_not_joined_over_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_history(LENGTH, other_from=1)
    for memory in (2, 3, 4096):
        monkeypatch.setattr(reading, "MEMORY", memory)
        later = [other.message(first, first + 1) for first in range(4, LENGTH)]
        for gap in ([(2, 4)], [(3, 4), (2, 3)], [(2, 5)], [(2, 4), (4, 5)]):
            messages = [TRUE.message(0, 2), *later, *(TRUE.message(*span) for span in gap)]
            with pytest.raises(DifferenceError):
                runs(messages, _acceptor_of_true, whole=True)


def test_runs_that_overlap_must_hold_the_same_blocks() -> None:
    other = make_history(LENGTH, other_from=5)
    for end in (6, 7, 8):
        messages = [TRUE.message(0, 3), other.message(4, 7), TRUE.message(3, end)]
        for log in (messages, [messages[1], messages[0], messages[2]]):
            with pytest.raises(DifferenceError):
                runs(log, _acceptor_of_true, whole=True)


def test_block_0_must_begin_the_chain_of_this_partition() -> None:
    message = TRUE.message(0, 1)
    before = genesis_hash(FINGERPRINT, PARTITION + 1)
    (after,) = roll(before, message.tokens, message.entries)
    with pytest.raises(DifferenceError):
        runs([replace(message, before=before, after=after)], _acceptor_of_true, whole=True)


def test_tails_of_other_streams_and_other_histories_are_refused() -> None:
    other = make_history(LENGTH, other_from=2)
    for whole in (True, False):
        with pytest.raises(DifferenceError):
            runs([TRUE.message(0, 4), other.message(2, 6)], _acceptor_of_true, whole=whole)
        with pytest.raises(FingerprintError):
            runs(
                [TRUE.message(0, 4), replace(TRUE.message(4, 6), fingerprint=bytes(16))], _acceptor_of_true, whole=whole
            )
