"""The token topic's side: what is taken, dropped, missing or refused, whatever order messages stand in."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.app.segments.mirror.memory_kafka import MemoryClient
from tests.app.tools.verify.memory_stream import MemoryVerification
from tokenmill.app.kafka.control_log import IgnoreList, record_hash
from tokenmill.app.tools.verify import sides
from tokenmill.app.tools.verify.sides import RogueMessageError, TokenTopic
from tokenmill.app.tools.verify.verify_bounds import VerifiedChain
from tokenmill.app.tools.verify.verify_result import BlockRun
from tokenmill.wire.message import Message

ALL = 1 << 40
"""An offset that no source reaches, and a block that no chain does."""


def messages(stream: MemoryVerification) -> list[Message]:
    """Return the first six messages, of two blocks each."""
    return stream.milled(2)[:6]


def topic(
    stream: MemoryVerification,
    span: tuple[int, int] | None = None,
    *,
    since: VerifiedChain | None = None,
    ignored: IgnoreList | None = None,
) -> TokenTopic:
    """Return the side over all that the token topic holds, unless a ``span`` is given."""
    span = span or (0, len(stream.kafka.logs[stream.tokens]))
    client = MemoryClient(stream.kafka)
    return TokenTopic(client, stream.tokens, stream.recipe, span, ignored or IgnoreList(), since=since)


async def taken(side: TokenTopic) -> list[BlockRun]:
    """Read all; return the runs that were taken, up to what is refused."""
    await side.start()
    await side.read_to(ALL)
    runs = []
    while (run := side.take(0, ALL)) is not None:
        runs.append(run)
    return runs


def at_block(stream: MemoryVerification, block: int, token_offset: int) -> VerifiedChain:
    """Return what a verification left that ended before a block: its carry's hash and number are the chain's."""
    before = next(m for m in stream.milled(2) if m.first == block)
    last = next(m for m in stream.milled(2) if m.end == block)
    chain = before.before
    carry = replace(stream.carry_after(2), first=block, before=chain, after=chain, cursor=last.cursor)
    return VerifiedChain(carry, token_offset)


@pytest.mark.parametrize(
    ("order", "dropped"),
    [
        ([0, 1, 2, 3, 4, 5], 0),
        ([0, 1, 1, 0, 2, 3, 4, 5], 4),  # a zombie's
        ([0, 1, 3, 4, 2, 3, 4, 5], 0),  # all that was lost was written again
        ([0, 1, 3, 4, 5, 2], 0),  # only what was missing
        ([0, 1, 5, 3, 4, 2], 0),  # in three passes
        ([0, 2, 1, 4, 3, 5], 0),  # two holes
    ],
)
async def test_every_block_is_taken_once_in_whatever_order_messages_stand(
    stream: MemoryVerification, order: Sequence[int], dropped: int
) -> None:
    """Behind a hole that was filled further up, what stood above the hole counts; messages are counted once."""
    sent = messages(stream)
    stream.publish([sent[number] for number in order])
    side = topic(stream)
    runs = await taken(side)
    assert [block for run in runs for block in range(run.first, run.end)] == list(range(12))
    assert b"".join(bytes(run.tokens) for run in runs) == b"".join(bytes(m.tokens) for m in sent)
    assert (side.messages, side.dropped, side.lost, side.next_block) == (len(order), dropped, 0, 12)
    assert side.last is not None
    assert side.last.cursor == sent[-1].cursor


@pytest.mark.parametrize(
    ("order", "wanted", "found"), [([0, 1, 3, 4], 4, 6), ([1, 2], 0, 2), ([0, 4, 1, 5], 4, 8), ([0, 5, 4, 1], 4, 10)]
)
async def test_blocks_that_nobody_wrote_are_missing(
    stream: MemoryVerification, order: Sequence[int], wanted: int, found: int
) -> None:
    """Also where the topic's first message is none of its first blocks; what is before the hole is taken first."""
    sent = messages(stream)
    stream.publish([sent[number] for number in order])
    side = topic(stream)
    with pytest.raises(RogueMessageError, match=f"blocks {wanted} to {found - 1} are missing") as raised:
        await taken(side)
    assert (raised.value.kind, raised.value.block) == ("missing", wanted)
    assert (side.next_block, side.lost) == (wanted, found - wanted)


@pytest.mark.parametrize("hint", [0, 2, 3, 5, 6, 99])
async def test_what_was_verified_before_is_not_taken_again(stream: MemoryVerification, hint: int) -> None:
    """Wherever the hint points to: where blocks lie below it that were not verified, everything is read once more."""
    sent = messages(stream)
    stream.publish([*sent[:4], sent[5], sent[4]])
    runs = await taken(topic(stream, since=at_block(stream, 6, hint)))
    blocks = [block for run in runs for block in range(run.first, run.end)]
    assert blocks == ([] if hint >= 6 else list(range(6, 12)))


async def test_a_topic_that_does_not_continue_what_was_verified_is_different(stream: MemoryVerification) -> None:
    """The hash before the next block is another."""
    stream.publish(messages(stream))
    since = at_block(stream, 6, 3)
    with pytest.raises(RogueMessageError) as raised:
        await taken(topic(stream, since=replace(since, carry=replace(since.carry, after=bytes(16)))))
    assert (raised.value.kind, raised.value.block) == ("different", 6)


@pytest.mark.parametrize("since", [None, 4])
async def test_what_retention_left_is_taken_as_it_begins(stream: MemoryVerification, since: int | None) -> None:
    """From its first block on, also where an earlier verification ended below that."""
    stream.publish(messages(stream))
    side = topic(stream, (3, 6), since=at_block(stream, since, 2) if since is not None else None)
    runs = await taken(side)
    assert side.first == 6
    assert [block for run in runs for block in range(run.first, run.end)] == list(range(6, 12))


@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize("listed", [False, True])
async def test_a_foreign_message_is_refused_unless_it_is_on_the_ignore_list(
    stream: MemoryVerification, at: int, *, listed: bool
) -> None:
    """Once all before it was taken; one that is passed over is told."""
    sent = messages(stream)
    stream.publish(sent[:at])
    stream.kafka.append(stream.tokens.topic, stream.tokens.partition, b"hello")
    stream.publish(sent[at:])
    ignored = IgnoreList()
    if listed:
        ignored.add(0, at, record_hash(stream.kafka.logs[stream.tokens][at]))
    side = topic(stream, ignored=ignored)
    if listed:
        assert sum(len(run.entries) for run in await taken(side)) == 12
        assert side.ignored == {at}
    else:
        with pytest.raises(RogueMessageError) as raised:
            await taken(side)
        assert (raised.value.kind, side.next_block, side.ignored) == ("foreign", 2 * at, set())


async def test_blocks_come_in_the_pieces_that_are_asked_for(stream: MemoryVerification) -> None:
    """None twice; the message comes with its last block alone."""
    sent = stream.milled(3)[:3]
    stream.publish(sent)
    side = topic(stream)
    await side.start()
    await side.read_to(ALL)
    found = []
    for first, end in [(0, 1), (0, 1), (1, 5), (3, 5), (5, 6), (7, 9), (0, 99)]:
        run = side.take(first, end)
        found.append(None if run is None else (run.first, run.end, run.message))
    assert found == [(0, 1, None), None, (1, 3, sent[0]), (3, 5, None), (5, 6, sent[1]), (7, 9, sent[2]), None]
    assert side.last == sent[2]


async def test_no_more_is_read_ahead_than_the_source_needs(
    stream: MemoryVerification, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the message that passes the offset, with a carry that stands before it; and within the bound."""
    sent = stream.milled(2, slice(4))
    stream.publish([*sent, *stream.milled(2)[len(sent) - 1 :]])
    side = topic(stream)
    await side.start()
    await side.read_to(2)
    assert side.ends[-1] <= stream.carry_after(3).first + 2
    assert side.carries == []
    await side.read_to(4)
    assert [carry.cursor.next_offset for carry in side.carries] == [4]
    assert len(side.ends) < 16

    monkeypatch.setattr(sides, "AHEAD_BYTES", 1)
    side = topic(stream)
    await side.start()
    for _ in range(3):
        await side.read_to(ALL)
        assert len(side.ends) == 1
        assert side.take(0, ALL) is not None


async def test_what_is_left_begins_at_the_first_message_that_was_not_taken(stream: MemoryVerification) -> None:
    """There the next verification reads on; at the end, where nothing is left."""
    stream.publish(messages(stream))
    side = topic(stream)
    await side.start()
    offsets = [side.next_offset]
    await side.read_to(ALL)
    side.take(0, 1)
    offsets.append(side.next_offset)
    while side.take(0, ALL) is not None:
        offsets.append(side.next_offset)
    assert offsets == [0, 0, 1, 2, 3, 4, 5, 6]


async def test_a_listed_message_is_not_where_a_cut_topic_begins(stream: MemoryVerification) -> None:
    """Retention left it first: what it says of the chain is not believed."""
    sent = messages(stream)
    stream.publish([*sent[:2], replace(sent[5], before=bytes(16)), *sent[2:]])
    ignored = IgnoreList()
    ignored.add(0, 2, record_hash(stream.kafka.logs[stream.tokens][2]))
    side = topic(stream, (2, 7), ignored=ignored)
    assert [block for run in await taken(side) for block in range(run.first, run.end)] == list(range(4, 12))
    assert (side.first, side.ignored) == (4, {2})
