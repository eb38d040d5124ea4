"""What a verification holds against each other: the token topic, the store, and the reference's share."""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.segments.mirror.memory_kafka import MemoryClient
from tests.app.tools.verify.conftest import OneChain, miscounted
from tests.store.chains import STREAM, fill, flip, make_chain, make_info, make_store, segment_of
from tokenmill.app.kafka.control_log import IgnoreList, record_hash
from tokenmill.app.milling.partition_mill import PartitionMill
from tokenmill.app.tools.verify import sides
from tokenmill.app.tools.verify.partition_check import ChainCheck
from tokenmill.app.tools.verify.verify_bounds import StoreMark, VerifiedChain
from tokenmill.app.tools.verify.verify_result import BlockRun, ChainResult, VerifyDifference
from tokenmill.documents import Record
from tokenmill.store import Store
from tokenmill.store.layout import SegmentPaths
from tokenmill.wire.message import Message

ALL = 1 << 40
"""An offset that no source reaches, and a block that no chain does."""


def messages(stream: OneChain) -> list[Message]:
    return stream.milled(2)[:6]


def topic(
    stream: OneChain,
    span: tuple[int, int] | None = None,
    *,
    since: VerifiedChain | None = None,
    listed: Sequence[int] = (),
) -> sides.TokenTopic:
    """Return the side over all that the topic holds, or a span of it; messages at some offsets are to be ignored."""
    log, ignored = stream.kafka.logs[stream.tokens], IgnoreList()
    for offset in listed:
        ignored.add(0, offset, record_hash(log[offset]))
    client = MemoryClient(stream.kafka)
    return sides.TokenTopic(client, stream.tokens, stream.recipe, span or (0, len(log)), ignored, since=since)


async def taken(side: sides.TokenTopic) -> list[BlockRun]:
    await side.start()
    await side.read_to(ALL)
    return list(iter(lambda: side.take(0, ALL), None))


def blocks_of(runs: Sequence[BlockRun]) -> list[int]:
    return [block for run in runs for block in range(run.first, run.end)]


def at_block(stream: OneChain, block: int, token_offset: int) -> VerifiedChain:
    """Return what a verification left that ended before a block: its carry's hash and number are the chain's."""
    last = next(message for message in stream.milled(2) if message.end == block)
    carry = replace(stream.carry_after(2), first=block, before=last.after, after=last.after, cursor=last.cursor)
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
async def test_every_block_is_taken_once_in_any_order(stream: OneChain, order: Sequence[int], dropped: int) -> None:
    """Behind a hole that was filled further up, what stood above the hole counts; messages are counted once."""
    sent = messages(stream)
    stream.publish([sent[number] for number in order])
    side = topic(stream)
    runs = await taken(side)
    assert blocks_of(runs) == list(range(12))
    assert b"".join(bytes(run.tokens) for run in runs) == b"".join(bytes(m.tokens) for m in sent)
    assert (side.messages, side.dropped, side.lost, side.next_block) == (len(order), dropped, 0, 12)
    assert side.last is not None
    assert side.last.cursor == sent[-1].cursor


@pytest.mark.parametrize(
    ("order", "wanted", "found"), [([0, 1, 3, 4], 4, 6), ([1, 2], 0, 2), ([0, 4, 1, 5], 4, 8), ([0, 5, 4, 1], 4, 10)]
)
async def test_blocks_nobody_wrote_are_missing(stream: OneChain, order: Sequence[int], wanted: int, found: int) -> None:
    sent = messages(stream)
    stream.publish([sent[number] for number in order])
    side = topic(stream)
    with pytest.raises(sides.RogueMessageError, match=f"blocks {wanted} to {found - 1} are missing") as raised:
        await taken(side)
    assert (raised.value.kind, raised.value.block) == ("missing", wanted)
    assert (side.next_block, side.lost) == (wanted, found - wanted)


@pytest.mark.parametrize("hint", [0, 2, 3, 5, 6, 99])
async def test_what_was_verified_before_is_not_taken_again(stream: OneChain, hint: int) -> None:
    """Wherever the hint points to: where blocks lie below it that were not verified, everything is read once more."""
    sent = messages(stream)
    stream.publish([*sent[:4], sent[5], sent[4]])
    runs = await taken(topic(stream, since=at_block(stream, 6, hint)))
    assert blocks_of(runs) == ([] if hint >= 6 else list(range(6, 12)))


async def test_a_topic_that_does_not_continue_what_was_verified_is_different(stream: OneChain) -> None:
    stream.publish(messages(stream))
    since = at_block(stream, 6, 3)
    with pytest.raises(sides.RogueMessageError) as raised:
        await taken(topic(stream, since=replace(since, carry=replace(since.carry, after=bytes(16)))))
    assert (raised.value.kind, raised.value.block) == ("different", 6)


@pytest.mark.parametrize("since", [None, 4])
async def test_what_retention_left_is_taken_as_it_begins(stream: OneChain, since: int | None) -> None:
    stream.publish(messages(stream))
    side = topic(stream, (3, 6), since=at_block(stream, since, 2) if since is not None else None)
    assert blocks_of(await taken(side)) == list(range(6, 12))
    assert side.first == 6


@pytest.mark.parametrize("at", [0, 3, 6])
@pytest.mark.parametrize("listed", [False, True])
async def test_a_foreign_message_is_refused_unless_it_is_listed(stream: OneChain, at: int, *, listed: bool) -> None:
    sent = messages(stream)
    stream.publish(sent[:at])
    stream.kafka.append(stream.tokens.topic, stream.tokens.partition, b"hello")
    stream.publish(sent[at:])
    side = topic(stream, listed=[at] if listed else [])
    if listed:
        assert sum(len(run.entries) for run in await taken(side)) == 12
        assert side.ignored == {at}
    else:
        with pytest.raises(sides.RogueMessageError) as raised:
            await taken(side)
        assert (raised.value.kind, side.next_block, side.ignored) == ("foreign", 2 * at, set())


async def test_blocks_come_in_the_pieces_that_are_asked_for(stream: OneChain) -> None:
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


async def test_no_more_is_read_ahead_than_the_source_needs(stream: OneChain, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_what_is_left_begins_at_the_first_message_that_was_not_taken(stream: OneChain) -> None:
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


async def test_a_listed_message_is_not_where_a_cut_topic_begins(stream: OneChain) -> None:
    """Retention left it first: what it says of the chain is not believed."""
    sent = messages(stream)
    stream.publish([*sent[:2], replace(sent[5], before=bytes(16)), *sent[2:]])
    side = topic(stream, (2, 7), listed=[2])
    assert blocks_of(await taken(side)) == list(range(4, 12))
    assert (side.first, side.ignored) == (4, {2})


INFO = make_info()
BLOCKS = 10
"""Two sealed segments of four blocks, and half of an open one."""
CHAIN = make_chain(INFO, BLOCKS + 1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = make_store(tmp_path, INFO)
    fill(store, INFO, CHAIN, [BLOCKS])
    return store


def part(first: int, end: int) -> BlockRun:
    size = INFO.block_bytes
    tokens = memoryview(CHAIN.tokens)[first * size : end * size]
    return BlockRun(first, tokens, CHAIN.entries[first:end], CHAIN.chains[first:end])


WHOLE, SINGLE = part(0, BLOCKS), [part(number, number + 1) for number in range(BLOCKS)]


def compared(
    store: Store, *runs: BlockRun, mark: StoreMark | None = None, since: int = 0, finish: int | None = None
) -> tuple[ChainResult, sides.StoreSide]:
    held = mark or StoreMark(0, BLOCKS)
    result = ChainResult(STREAM, 0, "raw-text", (0, 1), (0, 1), store_blocks=(held.first, held.end))
    side = sides.StoreSide(store.path, INFO, result, held, since=since)
    for run in runs:
        side.compare(run)
    if finish is not None:
        side.finish(finish, "the source")
    return result, side


def one(result: ChainResult) -> VerifyDifference:
    (found,) = result.differences
    return found


def change_manifest(paths: SegmentPaths, name: str) -> None:
    """Let a manifest say another number, in itself as whole as before."""
    values = json.loads(paths.manifest.read_bytes())
    text = paths.manifest.read_text().replace(f'"{name}":{values[name]}', f'"{name}":{values[name] ^ 1}')
    assert text != paths.manifest.read_text()
    paths.manifest.write_text(text)


def test_a_store_that_is_right_is_equal(store: Store) -> None:
    for runs in ([WHOLE], SINGLE, [part(0, 3), part(3, 9), part(9, 10)]):
        result, side = compared(store, *runs, finish=BLOCKS)
        assert (result.differences, result.store_equal, side.next_block, side.broken) == ([], BLOCKS, BLOCKS, False)


def test_a_segment_is_checked_whole_where_a_verification_begins_inside_it(store: Store) -> None:
    """What was verified before belongs to the checksums of its files: right, it fits; changed since, it does not."""
    result, _ = compared(store, part(6, BLOCKS), since=6)
    assert (result.differences, result.store_equal) == ([], BLOCKS - 6)
    assert [compared(store, since=since)[1].next_block for since in (0, 6, 99)] == [0, 6, BLOCKS]
    for name in ("tokens", "documents"):
        flip(getattr(segment_of(store, 4), name))
        result, _ = compared(store, part(6, BLOCKS), since=6)
        assert (one(result).kind, one(result).block) == ("damaged", 7)
        flip(getattr(segment_of(store, 4), name))


def flip_tokens(store: Store, *segments: int) -> None:
    for first in segments:
        flip(segment_of(store, first).tokens)


NO_INDEX, NO_CHECKSUM = (
    r"\.idx: it is missing, or not the index of its tokens",
    r"\.json: its checksums are not those of",
)


@pytest.mark.parametrize("runs", [[WHOLE], SINGLE], ids=["at once", "one by one"])
@pytest.mark.parametrize(
    ("damage", "block", "text"),
    [
        (lambda store: flip(segment_of(store, 4).tokens, INFO.block_bytes * 2), 6, ""),
        (lambda store: flip(segment_of(store, 0).index, 3), 0, ""),  # of an open segment it stands in the commit log
        (lambda store: flip_tokens(store, 0, 4), 0, ""),
        (lambda store: segment_of(store, 4).megatron.unlink(), 7, NO_INDEX),
        (lambda store: flip(segment_of(store, 4).megatron, 20), 7, NO_INDEX),
        (lambda store: change_manifest(segment_of(store, 4), "bin_crc32"), 7, NO_CHECKSUM),
        (lambda store: change_manifest(segment_of(store, 4), "docs_crc32"), 7, NO_CHECKSUM),
        (lambda store: os.truncate(segment_of(store, 4).documents, 1 << 12), 7, "the manifest says"),
    ],
    ids=["tokens", "row", "two", "no index", "index", "tokens' checksum", "documents' checksum", "longer file"],
)
def test_the_first_damage_is_named_and_nothing_compared_behind_it(
    store: Store, runs: list[BlockRun], damage: Callable[[Store], object], block: int, text: str
) -> None:
    """Of a block, or beside equal blocks: other programs read a sealed segment's Megatron index and manifest."""
    damage(store)
    result, side = compared(store, *runs, finish=BLOCKS - 1)
    found = one(result)
    assert (found.side, found.kind, found.block) == ("store", "damaged", block)
    assert re.search(text, found.text)
    assert (result.store_equal, side.broken) == (block, True)


def test_only_blocks_of_the_mark_are_asked_for_and_must_still_be_there(store: Store) -> None:
    """What came to the store meanwhile, or was retired before, is no difference; nor is another chain damage."""
    result, _ = compared(store, WHOLE, mark=StoreMark(4, 9), finish=BLOCKS)
    assert (result.differences, result.store_equal) == ([], 5)
    result, _ = compared(store, mark=StoreMark(4, 4), finish=0)
    assert result.differences == []  # all was retired, and the source is gone
    result, _ = compared(store, part(0, BLOCKS + 1), mark=StoreMark(0, BLOCKS + 1))
    assert "2 blocks are committed, 3 were before" in one(result).text
    assert one(result).block == 8
    result, side = compared(store, part(0, 8), finish=8)  # more than the source makes
    assert (one(result).kind, one(result).block, side.broken) == ("extra", 8, True)
    other = make_chain(INFO, BLOCKS, seed=7)
    result, _ = compared(store, BlockRun(0, other.tokens, other.entries, other.chains))
    assert one(result).kind in {"different", "repeated", "skipped"}
    assert one(result).block == 0


Change = Callable[[Sequence[Message]], Sequence[Message]]


def check_of(stream: OneChain) -> ChainCheck:
    return ChainCheck(stream.task(), MemoryClient(stream.kafka), None)


def sampled(stream: OneChain, check: ChainCheck, bounds: tuple[int, int], change: Change = list) -> None:
    log = stream.kafka.logs[stream.raw]
    sample = sides.SampleCheck(check.mill, check.result, stream.plan.stages)
    mill = PartitionMill(stream.plan.stages, [check.mill])
    milled = mill.feed(log[slice(*bounds)]).messages[stream.recipe.split]
    sample.compare(log[slice(*bounds)], {stream.recipe.split: change(milled)})


def test_runs_that_are_right_are_noted(stream: OneChain) -> None:
    """Those that touch as one; what is between two runs is in neither."""
    check = check_of(stream)
    for bounds in ((0, 1), (1, 4)):
        sampled(stream, check, bounds)
    PartitionMill(stream.plan.stages, [check.mill]).feed(stream.kafka.logs[stream.raw][4:6])
    sampled(stream, check, (6, 8))
    assert (check.result.differences, check.result.sampled) == ([], [(0, 4), (6, 8)])
    assert check.result.sampled_blocks == 8 * 15 // 4 - (6 * 15 // 4 - 4 * 15 // 4)


def last(change: Callable[[Message], Message]) -> Change:
    return lambda messages: [*messages[:-1], change(messages[-1])]


def other_tokens(message: Message) -> Message:
    tokens = bytes(message.tokens)
    return replace(message, tokens=tokens[:-1] + bytes([tokens[-1] ^ 1]))


def fewer(message: Message) -> Message:
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
def test_whatever_the_mill_made_otherwise_is_told(stream: OneChain, change: Change, text: str) -> None:
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
    stream: OneChain, monkeypatch: pytest.MonkeyPatch, state: dict[str, object], text: str
) -> None:
    """It is in no message yet."""
    check = check_of(stream)
    log = stream.kafka.logs[stream.raw]
    sample = sides.SampleCheck(check.mill, check.result, stream.plan.stages)
    milled = PartitionMill(stream.plan.stages, [check.mill]).feed(log[:3])
    carry = check.mill.carry(check.mill.next_offset)
    assert carry is not None
    wrong = miscounted(carry) if "totals" in state else replace(carry, **state)  # type: ignore[arg-type]
    monkeypatch.setattr(check.mill, "carry", lambda _, **__: wrong, raising=False)
    sample.compare(log[:3], milled.messages)
    (found,) = check.result.differences
    assert text in found.text


VALUE = bytes(sides.RUN_BYTES // 4)
RECORDS = [Record(offset, 0, None, VALUE) for offset in range(4 * sides.EVERY_BYTES // len(VALUE))]


def chosen(sample: sides.ReferenceSample, sizes: list[int], place: str = "raw/0") -> list[int]:
    """Return the offsets that are chosen of all records, which come in batches of these sizes, again and again."""
    sampler, found, at = sides.Sampler(sample, place), list[int](), 0
    while at < len(RECORDS):
        for size in sizes:
            batch = RECORDS[at : at + size]
            low, high = sampler.choose(batch)
            found += [record.offset for record in batch[low:high]]
            at += size
    return found


@given(st.integers(0, 2**32), st.lists(st.integers(100, 1500), min_size=1, max_size=3))
def test_the_beginning_and_a_run_in_every_stretch_are_chosen(seed: int, sizes: list[int]) -> None:
    found = chosen(sides.ReferenceSample(seed), sizes)
    first = [offset for offset in found if offset * len(VALUE) < sides.EVERY_BYTES // 2]
    assert first == list(range(sides.FIRST_BYTES // len(VALUE)))
    later = found[len(first) :]
    runs = [offset for offset in later if offset - 1 not in later]
    assert 2 <= len(runs) <= 4
    assert all(after - before <= 2 * sides.EVERY_BYTES // len(VALUE) for before, after in pairwise([0, *runs]))
    assert len(later) <= len(runs) * (sides.RUN_BYTES // len(VALUE) + 1)


def test_the_seed_decides_and_each_partition_has_places_of_its_own() -> None:
    found = chosen(sides.ReferenceSample(5), [1000])
    assert chosen(sides.ReferenceSample(5), [1000]) == found
    assert chosen(sides.ReferenceSample(6), [1000]) != found
    assert chosen(sides.ReferenceSample(5), [1000], "raw/1") != found
    assert chosen(sides.ReferenceSample(5, everything=True), [777]) == [record.offset for record in RECORDS]
