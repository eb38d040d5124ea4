"""Verifying a chain with the packing ``fit``: blocks, totals, and what messages and carries refer to."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.app.segments.mirror.memory_kafka import MemoryKafka
from tests.app.tools.verify.memory_stream import MemoryVerification
from tokenmill.app.milling.partition_mill import ChainMill, PartitionMill
from tokenmill.app.settings import Settings
from tokenmill.app.tools.verify.verify_bounds import VerifiedChain
from tokenmill.documents import FLUSH_HEADER
from tokenmill.reading import genesis_point
from tokenmill.samples.sequence import Position, SequenceId
from tokenmill.samples.tracing import Tracer
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import Message
from tokenmill.wire.pieces import PADDING, join_references, split_references

TEXTS = [bytes([97 + n]) * (1 + n * 7 % 23) for n in range(26)] * 3
AGE = 20


@pytest.fixture
def stream(kafka: MemoryKafka, tmp_path: Path) -> MemoryVerification:
    """Return a stream of blocks of 16 tokens, three of them open."""
    packing = {"name": "fit", "open_blocks": 3, "max_age_offsets": AGE}
    settings = Settings(
        tokenizer="bytes", sequence_length=15, splits={"all": 1000}, packing=packing, store=tmp_path / "store"
    )
    made = MemoryVerification(kafka, settings, TEXTS)
    kafka.append(made.raw.topic, 0, None, headers=[FLUSH_HEADER])
    kafka.append(made.raw.topic, 0, b"the last words")
    return made


def sent(stream: MemoryVerification, sizes: Sequence[int] = (9, 4, 30), *, by_value: bool = False) -> list[Message]:
    """Return messages of a few blocks, with a carry after each fetch."""
    chain = ChainMill(stream.recipe, genesis_point(0, genesis_hash(stream.recipe.fingerprint, 0)), message_bytes=700)
    mill, log, found, at = PartitionMill(stream.plan.stages, [chain]), stream.kafka.logs[stream.raw], list[Message](), 0
    for size in [*sizes, len(log)]:
        found += mill.feed(log[at : at + size]).messages[stream.recipe.split]
        at = min(at + size, len(log))
        carry = chain.carry(at, by_value=by_value)
        assert carry is not None
        found.append(carry)
    return found


@pytest.mark.parametrize("by_value", [False, True])
async def test_a_chain_that_is_right_is_equal(stream: MemoryVerification, *, by_value: bool) -> None:
    """On the topic, in the store, in the reference; and the next verification goes on from its mark."""
    messages = sent(stream, by_value=by_value)
    store = stream.store(messages)
    stream.publish(messages[:4])
    blocks = messages[-1].first
    first = await stream.check()
    assert [found.kind for found in first.differences] == []
    stream.publish(messages[4:])
    result = await stream.check(store)
    assert (result.differences, result.notes) == ([], [])
    assert result.topic_equal == result.store_equal == result.sampled_blocks == blocks
    assert result.carries == result.carries_equal == 4
    assert result.verified is not None
    assert result.verified.carry.references
    assert result.verified.carry.open_tokens


async def test_it_goes_on_from_a_mark(stream: MemoryVerification) -> None:
    """With the open blocks that the mark holds by value."""
    messages = sent(stream, by_value=True)
    place = next(n for n, message in enumerate(messages) if message.is_carry and n > 2)
    stream.publish(messages)
    since = VerifiedChain(messages[place], place + 1)
    result = await stream.check(since=since)
    assert result.differences == []
    assert result.topic_equal == messages[-1].first - messages[place].first


def other_crc(message: Message) -> Message:
    """Return a message that refers to another record."""
    counts, rows = split_references(message.references)
    rows = rows.copy()
    rows["crc"][0] ^= 1
    return replace(message, references=join_references(counts, rows))


def forgetful(message: Message) -> Message:
    """Return a message that refers to nothing."""
    return replace(message, references=b"")


@pytest.mark.parametrize("wrong", [other_crc, forgetful])
@pytest.mark.parametrize("at", [0, -1])
async def test_other_references_are_a_difference(
    stream: MemoryVerification, wrong: Callable[[Message], Message], at: int
) -> None:
    """Of a message and of a carry: a mill that resumed there would go on with other blocks."""
    messages = sent(stream)
    messages[at] = wrong(messages[at])
    stream.publish(messages)
    (found,) = (await stream.check()).differences
    assert (found.side, found.kind) == ("topic", "account")


def test_every_record_is_traced_to_its_blocks(stream: MemoryVerification) -> None:
    """Its offset may come after higher ones: what the search finds is what all document tables say."""
    messages = sent(stream)
    store = stream.store(messages)
    name, fingerprint = stream.settled.stream.name, stream.recipe.fingerprint.hex()
    sequence = SequenceId(name, fingerprint, 15, 1, shuffle=True, eras=(0, None), passes=1)
    tracer = Tracer(store, Position.beginning(sequence, 2))
    reader = tracer._reader(0)
    held: dict[int, list[int]] = {}
    for block in range(reader.blocks):
        for offset, position in reader.pieces(block)[["offset", "position"]].tolist():
            if position != PADDING:
                held.setdefault(offset, []).append(block)
    offsets = [offset for blocks in held.values() for offset in blocks]
    assert offsets != sorted(offsets)  # or there is nothing to this test
    for offset in range(len(TEXTS) + 5):
        traced = tracer.record(0, offset)
        assert [view.block for view in traced.views] == held.get(offset, [])
        if offset == len(TEXTS) + 1:
            assert "milled or stored yet" in traced.verdict
    assert "open block" in replace(tracer.record(0, len(TEXTS)), offset=len(TEXTS)).verdict
