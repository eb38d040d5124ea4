"""Reading a token partition: what is accepted of what writers left there, and where a reader goes on."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.histories import BLOCK_BYTES, FINGERPRINT, History, make_history
from tests.mills import PARTITION, Source, assert_follow, make_source, text, write
from tests.strategies import feed_sizes, record_lists, sources
from tokenmill import reading
from tokenmill.documents import Record
from tokenmill.errors import DamagedError, DifferenceError, FingerprintError
from tokenmill.reading import Acceptor, Blocks, Dropped, Gap, Run, RunFinder, Taken, resume_point
from tokenmill.recipe import Recipe
from tokenmill.wire.chain import Cursor, genesis_hash, roll
from tokenmill.wire.message import Message, decode_message, encode_header

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


def _after(block: int) -> Acceptor:
    acceptor = TRUE.acceptor()
    acceptor.offer(TRUE.message(0, block))
    return acceptor


@given(other_from=st.integers(0, LENGTH - 1), in_entries=st.booleans(), block=st.integers(0, LENGTH), span=spans)
def test_a_message_of_another_history_is_a_difference(
    *, other_from: int, in_entries: bool, block: int, span: tuple[int, int]
) -> None:
    """Whether all, some or none of its blocks were taken before, carries included; what both share is accepted."""
    other = make_history(LENGTH, other_from=other_from, in_entries=in_entries)
    acceptor = _after(block)
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


def test_messages_of_other_streams_partitions_and_block_sizes_are_refused() -> None:
    for first in (0, 5):
        foreign = replace(TRUE.message(first, first + 1), fingerprint=b"x" * 16)
        with pytest.raises(FingerprintError, match=(b"x" * 16).hex()):
            TRUE.acceptor().offer(foreign)
    with pytest.raises(DifferenceError):
        Acceptor(FINGERPRINT, PARTITION + 1, BLOCK_BYTES).offer(TRUE.message(0, 1))
    with pytest.raises(DamagedError, match="1 blocks of 8 bytes"):
        Acceptor(FINGERPRINT, PARTITION, 2 * BLOCK_BYTES).offer(TRUE.message(0, 1))


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
    acceptor = _after(2)
    for span in ((0, 2), (1, 4), (2, 4)):
        with pytest.raises(DamagedError):
            acceptor.offer(change(TRUE.message(*span)))
    assert acceptor.next_block == 2
    with pytest.raises(DamagedError):  # a carry, which holds no block: nothing lies between before and after
        TRUE.acceptor().offer(replace(TRUE.message(0, 0), after=bytes(16)))


def _runs(messages: Sequence[Message], recipe: Recipe | None = None, *, whole: bool = True) -> list[Run]:
    """Find the runs in messages of a recipe's stream, that of `TRUE` if none is named."""
    stream = (FINGERPRINT, BLOCK_BYTES) if recipe is None else (recipe.fingerprint, recipe.block_bytes)

    def new_acceptor(block: int, chain: bytes | None) -> Acceptor:
        return Acceptor(stream[0], PARTITION, stream[1], block=block, chain=chain)

    finder = RunFinder(new_acceptor, whole=whole)
    for message in messages:
        finder.add(message)
    return finder.runs()


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
    kept = [message for number, message in enumerate(log) if number not in lost]
    log = [decode_message(encode_header(message), bytes(message.tokens)) for message in kept]
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
    found = _runs([TRUE.message(*span) for span in cut], whole=whole)
    assert [(run.first, run.point.cursor) for run in found] == [
        (first, Cursor(10 * end, 0, end)) for first, end in expected
    ]


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
    """However far the later run has gone on, it still knows where it began."""
    other = make_history(LENGTH, other_from=1)
    for memory in (2, 3, 4096):
        monkeypatch.setattr(reading, "MEMORY", memory)
        later = [other.message(first, first + 1) for first in range(4, LENGTH)]
        for gap in ([(2, 4)], [(3, 4), (2, 3)], [(2, 5)], [(2, 4), (4, 5)]):
            with pytest.raises(DifferenceError):
                _runs([TRUE.message(0, 2), *later, *(TRUE.message(*span) for span in gap)])


def test_runs_that_overlap_must_hold_the_same_blocks() -> None:
    """They begin in one history and part later: whichever of them has come further."""
    other = make_history(LENGTH, other_from=5)
    for end in (6, 7, 8):
        messages = [TRUE.message(0, 3), other.message(4, 7), TRUE.message(3, end)]
        for log in (messages, [messages[1], messages[0], messages[2]]):
            with pytest.raises(DifferenceError):
                _runs(log)


def test_block_0_must_begin_the_chain_of_this_partition() -> None:
    """Where the whole partition is read: what another partition begins with begins nothing here."""
    message = TRUE.message(0, 1)
    before = genesis_hash(FINGERPRINT, PARTITION + 1)
    (after,) = roll(before, message.tokens, message.entries)
    with pytest.raises(DifferenceError):
        _runs([replace(message, before=before, after=after)])


@pytest.mark.parametrize("whole", [True, False])
def test_tails_of_other_streams_and_other_histories_are_refused(*, whole: bool) -> None:
    first = TRUE.message(0, 4)
    with pytest.raises(DifferenceError):
        _runs([first, make_history(LENGTH, other_from=2).message(2, 6)], whole=whole)
    with pytest.raises(FingerprintError):
        _runs([first, replace(TRUE.message(4, 6), fingerprint=bytes(16))], whole=whole)
