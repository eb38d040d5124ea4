"""The reference's share of a verification: which records it computes, and what the mill made otherwise."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.segments.mirror.memory_kafka import MemoryClient
from tests.app.tools.verify.memory_stream import TEXTS, MemoryVerification, miscounted
from tokenmill.app.kafka.control_log import IgnoreList
from tokenmill.app.milling.partition_mill import PartitionMill
from tokenmill.app.tools.verify.partition_check import ChainCheck, ChainTask
from tokenmill.app.tools.verify.sides import (
    EVERY_BYTES,
    FIRST_BYTES,
    RUN_BYTES,
    ReferenceSample,
    SampleCheck,
    Sampler,
)
from tokenmill.app.tools.verify.verify_bounds import ChainMarks
from tokenmill.documents import Record
from tokenmill.wire.message import Message

Change = Callable[[Sequence[Message]], Sequence[Message]]


def check_of(stream: MemoryVerification) -> ChainCheck:
    """Return a chain at its beginning."""
    marks = ChainMarks(stream.settled.stream.name, 0, (0, len(TEXTS)), (0, 0), None)
    task = ChainTask(stream.genesis, stream.tokens.topic, marks, IgnoreList())
    return ChainCheck(task, MemoryClient(stream.kafka), None)


def sampled(stream: MemoryVerification, check: ChainCheck, bounds: tuple[int, int], change: Change = list) -> None:
    """Mill records, and sample them, with changed messages."""
    log = stream.kafka.logs[stream.raw]
    sample = SampleCheck(check.mill, check.result, stream.plan.stages)
    mill = PartitionMill(stream.plan.stages, [check.mill])
    milled = mill.feed(log[slice(*bounds)]).messages[stream.recipe.split]
    sample.compare(log[slice(*bounds)], {stream.recipe.split: change(milled)})


def test_runs_that_are_right_are_noted(stream: MemoryVerification) -> None:
    """Those that touch as one; what is between two runs is in neither."""
    check = check_of(stream)
    for bounds in ((0, 1), (1, 4)):
        sampled(stream, check, bounds)
    PartitionMill(stream.plan.stages, [check.mill]).feed(stream.kafka.logs[stream.raw][4:6])
    sampled(stream, check, (6, 8))
    assert check.result.differences == []
    assert check.result.sampled == [(0, 4), (6, 8)]
    assert check.result.sampled_blocks == 8 * 15 // 4 - (6 * 15 // 4 - 4 * 15 // 4)


def last(change: Callable[[Message], Message]) -> Change:
    """Change the last message."""
    return lambda messages: [*messages[:-1], change(messages[-1])]


def other_tokens(message: Message) -> Message:
    """Change a token of the last block."""
    tokens = bytes(message.tokens)
    return replace(message, tokens=tokens[:-1] + bytes([tokens[-1] ^ 1]))


def fewer(message: Message) -> Message:
    """Leave out the last block, with a cursor as though it were there."""
    return replace(
        message, tokens=message.tokens[: -len(message.tokens) // message.count], entries=message.entries[:-1]
    )


CHANGES: dict[str, tuple[Change, str]] = {
    "a token": (last(other_tokens), "block 14 is another than the reference's: token 3 is"),
    "an entry": (last(lambda m: replace(m, entries=[*m.entries[:-1], m.entries[0]])), "block 14 is another"),
    "the hash": (last(lambda m: replace(m, after=bytes(16))), "after block 14 the reference is at"),
    "the cursor": (last(lambda m: replace(m, cursor=replace(m.cursor, taken=1))), "after block 14 the reference"),
    "the account": (last(miscounted), "the reference counts"),
    "a block too few": (lambda messages: messages[:-1] if len(messages) > 1 else [fewer(messages[0])], "block"),
    "no block": (lambda _: [], "the reference makes 15 blocks more"),
    "a block too many": (lambda messages: [*messages, messages[-1]], "the reference makes 15 blocks, and not those"),
}


@pytest.mark.parametrize(("change", "text"), CHANGES.values(), ids=list(CHANGES))
def test_whatever_the_mill_made_otherwise_is_told(stream: MemoryVerification, change: Change, text: str) -> None:
    """Once, in the records at which it happened; what differs is no sample that was right."""
    check = check_of(stream)
    sampled(stream, check, (0, 4), change)
    (found,) = check.result.differences
    assert (found.side, found.kind, found.offset) == ("reference", "different", 0)
    assert text in found.text
    assert check.result.sampled == []
    assert check.result.sampled_blocks == 0
    sampled(stream, check, (4, 6), change)
    assert len(check.result.differences) == 1


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"open_tokens": b"xy"}, "the open block is another"),
        ({"open_entry": b"xy"}, "the open block is another"),
        ({"after": bytes(16)}, "the chain hash is another"),
        ({"totals": None}, "the reference counts"),
    ],
)
def test_what_waits_for_the_next_block_is_compared(
    stream: MemoryVerification, monkeypatch: pytest.MonkeyPatch, state: dict[str, object], text: str
) -> None:
    """It is in no message yet."""
    check = check_of(stream)
    log = stream.kafka.logs[stream.raw]
    sample = SampleCheck(check.mill, check.result, stream.plan.stages)
    milled = PartitionMill(stream.plan.stages, [check.mill]).feed(log[:3])
    carry = check.mill.carry(check.mill.next_offset)
    assert carry is not None
    wrong = miscounted(carry) if "totals" in state else replace(carry, **state)  # type: ignore[arg-type]
    monkeypatch.setattr(check.mill, "carry", lambda _, **__: wrong, raising=False)
    sample.compare(log[:3], milled.messages)
    (found,) = check.result.differences
    assert text in found.text


VALUE = bytes(RUN_BYTES // 4)
RECORDS = [Record(offset, 0, None, VALUE) for offset in range(4 * EVERY_BYTES // len(VALUE))]


def chosen(sample: ReferenceSample, sizes: list[int], place: str = "raw/0") -> list[int]:
    """Return the offsets that are chosen of all records, which come in batches of these sizes, again and again."""
    sampler, found, at = Sampler(sample, place), list[int](), 0
    while at < len(RECORDS):
        for size in sizes:
            batch = RECORDS[at : at + size]
            low, high = sampler.choose(batch)
            found += [record.offset for record in batch[low:high]]
            at += size
    return found


@given(st.integers(0, 2**32), st.lists(st.integers(100, 1500), min_size=1, max_size=3))
def test_the_beginning_and_a_run_in_every_stretch_are_chosen(seed: int, sizes: list[int]) -> None:
    """Whatever comes at once: as long as said, and one in each stretch."""
    found = chosen(ReferenceSample(seed), sizes)
    first = [offset for offset in found if offset * len(VALUE) < EVERY_BYTES // 2]
    assert first == list(range(FIRST_BYTES // len(VALUE)))
    later = found[len(first) :]
    runs = [offset for offset in later if offset - 1 not in later]
    assert 2 <= len(runs) <= 4
    assert all(after - before <= 2 * EVERY_BYTES // len(VALUE) for before, after in pairwise([0, *runs]))
    assert len(later) <= len(runs) * (RUN_BYTES // len(VALUE) + 1)


def test_the_seed_decides_and_each_partition_has_places_of_its_own() -> None:
    """The same again for the same seed; else elsewhere."""
    found = chosen(ReferenceSample(5), [1000])
    assert chosen(ReferenceSample(5), [1000]) == found
    assert chosen(ReferenceSample(6), [1000]) != found
    assert chosen(ReferenceSample(5), [1000], "raw/1") != found


def test_everything_is_everything() -> None:
    """Each record of each batch."""
    assert chosen(ReferenceSample(5, everything=True), [777]) == [record.offset for record in RECORDS]
