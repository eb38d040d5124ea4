"""Acceptance: whatever two writers leave in the log, a reader takes each block once, in order, or stops loudly."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.histories import BLOCK_BYTES, FINGERPRINT, PARTITION, History, make_history
from tokenmill import reading
from tokenmill.errors import DamagedError, DifferenceError, FingerprintError
from tokenmill.reading import Acceptor, Blocks, Dropped, Gap, Taken
from tokenmill.wire.message import Message

LENGTH = 12
TRUE = make_history(LENGTH)

spans = st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(lambda ends: (min(ends), max(ends)))
"""Blocks of a message; a carry where both ends are equal."""


@st.composite
def writers(draw: st.DrawFn, first: int = 0) -> list[tuple[int, int]]:
    """Draw what one writer sends from block ``first`` on: cut in its own way, carries between, some of it lost."""
    sent = []
    while first < LENGTH:
        if draw(st.integers(0, 4)) == 0:
            sent.append((first, first))
        end = min(LENGTH, first + draw(st.integers(1, 5)))
        sent.append((first, end))
        first = end
    holes = draw(st.frozensets(st.integers(0, len(sent) - 1), max_size=2)) if sent else frozenset()
    sent = [span for number, span in enumerate(sent) if number not in holes]
    return sent[: draw(st.integers(0, len(sent)))]


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Two writers, the second somewhere below the first and perhaps a zombie, their messages landing in any mixture."""
    one, other = draw(writers()), draw(writers(draw(st.integers(0, LENGTH))))
    log = []
    while one or other:
        from_one = bool(one) and (not other or draw(st.booleans()))
        log.append((one if from_one else other).pop(0))
    return log


def _take(taken: list[Blocks], verdict: Taken | Dropped | Gap) -> None:
    if isinstance(verdict, Taken) and verdict.blocks.entries:
        taken.append(verdict.blocks)


def _assert_prefix(taken: list[Blocks], history: History, end: int, first: int = 0) -> None:
    """Check that exactly the blocks ``[first, end)`` were taken: once each, in order, with their entries and hashes."""
    assert [block.first for block in taken] == [first, *(block.end for block in taken)][: len(taken)]
    assert b"".join(bytes(block.tokens) for block in taken) == b"".join(history.blocks[first:end])
    assert [entry for block in taken for entry in block.entries] == list(history.entries[first:end])
    assert [chain for block in taken for chain in block.chains] == list(history.chains[first + 1 : end + 1])


@given(logs() | st.lists(spans, max_size=12))
def test_what_is_accepted_is_a_prefix_of_the_chain(log: list[tuple[int, int]]) -> None:
    acceptor = TRUE.acceptor()
    wanted = 0
    taken: list[Blocks] = []
    for first, end in log:
        verdict = acceptor.offer(TRUE.message(first, end))
        if first > wanted:
            assert verdict == Gap(wanted, first)
        elif end > wanted or first == end == wanted:
            assert isinstance(verdict, Taken)
            assert verdict.dropped == wanted - first
            assert (verdict.blocks.first, verdict.blocks.end) == (wanted, end)
            wanted = end
        else:
            assert verdict == Dropped(end - first, checked=True)
        _take(taken, verdict)
        assert (acceptor.next_block, acceptor.chain) == (wanted, TRUE.chains[wanted])
    _assert_prefix(taken, TRUE, wanted)


@given(logs(), logs())
def test_looking_again_heals_every_gap_that_the_log_can_heal(
    log: list[tuple[int, int]], later: list[tuple[int, int]]
) -> None:
    acceptor = TRUE.acceptor()
    taken: list[Blocks] = []
    for part in (log, log + later):
        before = -1
        while before != acceptor.next_block:
            before = acceptor.next_block
            for span in part:
                _take(taken, acceptor.offer(TRUE.message(*span)))
        held = {number for first, end in part for number in range(first, end)}
        assert acceptor.next_block == min(set(range(LENGTH + 1)) - held)
    _assert_prefix(taken, TRUE, acceptor.next_block)


@given(st.integers(0, LENGTH), logs())
def test_a_reader_that_was_restarted_goes_on_where_its_store_ends(block: int, log: list[tuple[int, int]]) -> None:
    acceptor = TRUE.acceptor(block)
    taken: list[Blocks] = []
    for span in log:
        _take(taken, acceptor.offer(TRUE.message(*span)))
    _assert_prefix(taken, TRUE, acceptor.next_block, block)


def _after(history: History, block: int) -> Acceptor:
    acceptor = history.acceptor()
    acceptor.offer(history.message(0, block))
    return acceptor


@given(other_from=st.integers(0, LENGTH - 1), in_entries=st.booleans(), block=st.integers(0, LENGTH), span=spans)
def test_a_message_of_another_history_is_a_difference(
    *, other_from: int, in_entries: bool, block: int, span: tuple[int, int]
) -> None:
    """Whether all, some or none of its blocks were taken before, carries included; what both share is accepted."""
    other = make_history(LENGTH, other_from=other_from, in_entries=in_entries)
    acceptor = _after(TRUE, block)
    first, end = span
    message = other.message(first, end)
    if first > block:
        assert acceptor.offer(message) == Gap(block, first)
    elif other_from < min(block, end):
        with pytest.raises(DifferenceError, match=rf"block {first} \(partition {PARTITION}\)"):
            acceptor.offer(message)
    else:
        acceptor.offer(message)
        if other_from < end:  # it was the first to tell block `other_from`, so now the true one is the difference
            assert (acceptor.next_block, acceptor.chain) == (end, other.chains[end])
            with pytest.raises(DifferenceError):
                acceptor.offer(TRUE.message(first, end))
            return
    assert acceptor.chain == TRUE.chains[acceptor.next_block]


@given(logs(), st.integers(0, LENGTH - 1), logs(), st.integers(0, 12))
def test_no_log_of_two_histories_is_accepted_in_part_from_each(
    log: list[tuple[int, int]], other_from: int, other_log: list[tuple[int, int]], start: int
) -> None:
    """What a reader has taken is always the beginning of one history, also when it stops at a difference."""
    other = make_history(LENGTH, other_from=other_from)
    messages = [TRUE.message(*span) for span in log]
    messages[start:start] = [other.message(*span) for span in other_log]
    acceptor = TRUE.acceptor()
    taken: list[Blocks] = []
    for message in messages:
        try:
            _take(taken, acceptor.offer(message))
        except DifferenceError:
            break
    end = acceptor.next_block
    history = TRUE if acceptor.chain == TRUE.chains[end] else other
    _assert_prefix(taken, history, end)


@given(memory=st.integers(1, 4), span=spans, block=st.sampled_from([LENGTH, 7]), is_other=st.booleans())
def test_duplicates_beyond_memory_are_reported_as_unchecked(
    *, memory: int, span: tuple[int, int], block: int, is_other: bool
) -> None:
    """A reader remembers the last hashes only; a duplicate with a border among these is compared, an older one not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MEMORY", memory)
        acceptor = TRUE.acceptor()
        for number in range(block):
            acceptor.offer(TRUE.message(number, number + 1))
    first, end = span
    if end > block or (first == end == block):
        return
    history = make_history(LENGTH, other_from=0) if is_other else TRUE
    known = end > block - memory
    if is_other and known and end > 0:
        with pytest.raises(DifferenceError):
            acceptor.offer(history.message(first, end))
    else:
        assert acceptor.offer(history.message(first, end)) == Dropped(end - first, checked=known)


@given(span=spans, is_other=st.booleans())
def test_what_the_reader_forgot_is_recalled_from_its_own_bytes(*, span: tuple[int, int], is_other: bool) -> None:
    """A reader that was restarted remembers nothing but its place; its store tells the older hashes."""
    recalled: dict[int, bytes] = dict(enumerate(TRUE.chains))
    acceptor = Acceptor(
        FINGERPRINT, PARTITION, BLOCK_BYTES, block=LENGTH, chain=TRUE.chains[LENGTH], recall=recalled.get
    )
    first, end = span
    if first == LENGTH:
        return
    message = (make_history(LENGTH, other_from=0) if is_other else TRUE).message(first, end)
    if is_other and end > 0:
        with pytest.raises(DifferenceError):
            acceptor.offer(message)
    else:
        assert acceptor.offer(message) == Dropped(end - first, checked=True)


def test_a_message_of_another_stream_is_refused() -> None:
    for first in (0, 5):
        foreign = replace(TRUE.message(first, first + 1), fingerprint=b"x" * 16)
        with pytest.raises(FingerprintError, match=(b"x" * 16).hex()):
            TRUE.acceptor().offer(foreign)


def test_a_message_of_another_partition_is_a_difference() -> None:
    with pytest.raises(DifferenceError):
        Acceptor(FINGERPRINT, PARTITION + 1, BLOCK_BYTES).offer(TRUE.message(0, 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda message: replace(message, tokens=message.tokens[:-1]),
        lambda message: replace(message, tokens=b""),
        lambda message: replace(message, tokens=message.tokens + bytes(BLOCK_BYTES)),
        lambda message: replace(message, tokens=b"\xff" + message.tokens[1:]),
        lambda message: replace(message, entries=[*message.entries[:-1], b""]),
        lambda message: replace(message, after=bytes(16)),
        lambda message: replace(message, before=bytes(16)),
        lambda message: replace(message, cursor=replace(message.cursor, block=9)),
    ],
)
def test_a_message_that_contradicts_itself_is_damaged(change: Callable[[Message], Message]) -> None:
    acceptor = _after(TRUE, 2)
    for span in ((0, 2), (1, 4), (2, 4)):
        with pytest.raises(DamagedError):
            acceptor.offer(change(TRUE.message(*span)))
    assert acceptor.next_block == len((0, 1))


def test_a_carry_whose_hashes_differ_is_damaged() -> None:
    with pytest.raises(DamagedError):
        TRUE.acceptor().offer(replace(TRUE.message(0, 0), after=bytes(16)))


def test_a_reader_of_other_blocks_refuses_the_message() -> None:
    with pytest.raises(DamagedError, match="1 blocks of 8 bytes"):
        Acceptor(FINGERPRINT, PARTITION, 2 * BLOCK_BYTES).offer(TRUE.message(0, 1))
