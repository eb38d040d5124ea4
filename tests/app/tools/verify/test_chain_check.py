"""One chain in memory: what is different in topic or store is named once, and nothing that is wrong is remembered."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.app.segments.mirror.memory_kafka import MemoryClient, MemoryKafka
from tests.app.tools.verify.memory_stream import TEXTS, MemoryVerification, miscounted
from tests.store.chains import flip
from tokenmill.app.kafka.control_log import IgnoreList
from tokenmill.app.settings import Settings
from tokenmill.app.tools.verify.era_check import EraEndsFiles
from tokenmill.app.tools.verify.partition_check import ChainCheck, ChainTask
from tokenmill.app.tools.verify.verify_bounds import ChainMarks, StoreMark, VerifiedChain
from tokenmill.app.tools.verify.verify_result import ChainResult
from tokenmill.documents import FLUSH_HEADER
from tokenmill.eras import Era, EraRange
from tokenmill.wire.chain import roll
from tokenmill.wire.message import Message

BLOCKS = len(TEXTS) * 15 // 4


def named(result: ChainResult) -> list[tuple[str, str, int | None]]:
    """Return the differences: which side, what kind, and in which block."""
    return [(found.side, found.kind, found.block) for found in result.differences]


def moved(message: Message, records: int) -> Message:
    """Return a message whose cursor stands some records further."""
    return replace(message, cursor=replace(message.cursor, next_offset=message.cursor.next_offset + records))


def opened(message: Message) -> Message:
    """Return a carry with another open block."""
    return replace(message, open_tokens=bytes([message.open_tokens[0] ^ 1]) + bytes(message.open_tokens[1:]))


async def test_a_chain_that_is_right_is_equal_and_remembered(stream: MemoryVerification) -> None:
    """Every block of topic and store, every carry; the reference comes to the same."""
    sent = stream.milled(3)
    stream.publish(sent)
    store = stream.store(sent)
    result = await stream.check(store)
    assert (result.differences, result.notes) == ([], [])
    assert result.topic_equal == result.store_equal == result.reference_blocks == result.sampled_blocks == BLOCKS
    assert (result.carries, result.carries_equal, result.topic_blocks) == (1, 1, (0, BLOCKS))
    assert result.sampled == [(0, len(TEXTS))]
    assert (result.totals.records, result.open_tokens) == (len(TEXTS), len(TEXTS) * 15 % 4)
    assert result.verified is not None
    assert result.verified.carry.cursor.next_offset == len(TEXTS)
    assert result.verified.token_offset == len(stream.kafka.logs[stream.tokens])


async def test_what_stands_around_documents_is_compared(kafka: MemoryKafka, tmp_path: Path) -> None:
    """Also what a flush fills a block with, where no token ends a document; another padding is a difference."""
    settings = Settings(
        tokenizer="bytes",
        sequence_length=3,
        splits={"all": 1000},
        begin_of_document=2,
        end_of_document="none",
        padding=3,
        store=tmp_path / "store",
    )
    stream = MemoryVerification(kafka, settings, [b"abcd"])
    kafka.append(stream.raw.topic, 0, None, headers=[FLUSH_HEADER])
    first, last = stream.milled(1)[:2]
    assert (bytes(first.tokens), bytes(last.tokens)) == (b"\2abc", b"d\3\3\3")

    stream.publish([first, last])
    assert not (await stream.check()).differences

    stream.kafka.logs[stream.tokens].clear()
    tokens = b"d\0\0\0"
    after = roll(last.before, tokens, last.entries)[-1]
    stream.publish([first, replace(last, tokens=tokens, chains=[after], after=after)])
    assert [difference.block for difference in (await stream.check()).differences] == [1]


@pytest.mark.parametrize("records", [1, 2, 5, 11])
async def test_a_carry_in_the_middle_is_compared(stream: MemoryVerification, records: int) -> None:
    """Wherever it stands among the records, and wherever in a fetch."""
    stream.publish(stream.milled(1, slice(records)))
    stream.publish(stream.milled(1)[records * 15 // 4 :])
    result = await stream.check()
    assert (result.differences, result.carries, result.carries_equal) == ([], 2, 2)
    assert result.topic_equal == BLOCKS


CHANGES: Sequence[tuple[str, int, Callable[[Message], Message], tuple[str, int]]] = (
    ("a carry's account", -1, miscounted, ("account", BLOCKS)),
    ("a carry past the source", -1, lambda message: moved(message, 1), ("account", BLOCKS)),
    ("a carry's open block", -1, opened, ("account", BLOCKS)),
    ("a message's account", 3, miscounted, ("account", 7)),
    ("a message's cursor", 3, lambda message: moved(message, 1), ("account", 7)),
    ("the last message's account", -2, miscounted, ("account", BLOCKS - 1)),
)


@pytest.mark.parametrize(("which", "change", "wanted"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
async def test_an_account_that_is_wrong_is_named_and_not_remembered(
    stream: MemoryVerification, which: int, change: Callable[[Message], Message], wanted: tuple[str, int]
) -> None:
    """Of carries as of messages, whose blocks are right all the same."""
    stream.kafka.append(stream.raw.topic, stream.raw.partition, b"ab")  # so that a block is open at the end
    sent = stream.milled(2)
    sent[which] = change(sent[which])
    stream.publish(sent)
    result = await stream.check()
    assert named(result) == [("topic", *wanted)]
    assert result.verified is None or result.verified.carry.first <= wanted[1]


async def test_what_stands_wrongly_in_the_topic_is_named(stream: MemoryVerification) -> None:
    """What was written again is dropped and counted; a stranger and a gap are differences."""
    sent = stream.milled(2)[:4]
    stream.publish([*sent, *sent[1:3]])
    result = await stream.check()
    assert (result.differences, result.dropped, result.topic_equal) == ([], 4, 8)
    stream.kafka.append(stream.tokens.topic, stream.tokens.partition, b"hello")
    assert named(await stream.check()) == [("topic", "foreign", 8)]
    stream.kafka.logs[stream.tokens].clear()
    stream.publish([sent[0], sent[3]])
    result = await stream.check()
    assert (named(result), result.lost) == ([("topic", "missing", 2)], 4)


async def test_another_history_is_different(stream: MemoryVerification) -> None:
    """It hashes to what it says, message after message; the first block that the records do not make is named."""
    records = stream.kafka.logs[stream.raw]
    right = records[5]
    records[5] = replace(right, value=b"next 05 of all")
    stream.publish(stream.milled(2)[:-1])
    records[5] = right
    result = await stream.check()
    block = 5 * 15 // 4
    assert [(d.side, d.kind, d.block, d.offset) for d in result.differences] == [("topic", "different", block, 5)]
    assert result.topic_equal == block


@pytest.mark.parametrize("where", ["topic", "store"])
async def test_blocks_that_the_source_does_not_make_are_extra(stream: MemoryVerification, where: str) -> None:
    """The source ended before the records that made them; the other side is behind, and right."""
    sent = [message for message in stream.milled(1) if not message.is_carry]
    own = stream.milled(1, slice(5))[:-1]
    stream.publish(sent if where == "topic" else own)
    store = stream.store(sent if where == "store" else own)
    blocks = len(own)
    result = await stream.check(store, raw=(0, 5))
    extra = [found for found in named(result) if found[1] == "extra"]
    assert extra == [(where, "extra", blocks)]
    assert result.topic_equal == result.store_equal == blocks


@pytest.mark.parametrize("behind", ["topic", "store", "neither"])
async def test_no_more_is_remembered_than_both_sides_hold(stream: MemoryVerification, behind: str) -> None:
    """What has yet to come must be looked at the next time."""
    sent = [message for message in stream.milled(1) if not message.is_carry]
    held = {side: 20 if side == behind else BLOCKS for side in ("topic", "store")}
    stream.publish(sent[: held["topic"]])
    # A store that holds more than its topic is a difference.
    store = stream.store(sent[: held["store"]]) if behind != "topic" else None
    result = await stream.check(store)
    assert result.differences == []
    assert result.verified is not None
    assert result.verified.carry.first <= min(held.values())
    assert (result.verified.carry.first == BLOCKS) == (behind == "neither")
    assert (result.behind, result.store_behind) == (
        BLOCKS - held["topic"],
        BLOCKS - held["store"] if behind == "store" else 0,
    )


@pytest.mark.parametrize("damaged", [3, BLOCKS - 1])
async def test_a_store_that_is_damaged_is_not_remembered(stream: MemoryVerification, damaged: int) -> None:
    """Nor what comes behind that block; the topic is compared to its end."""
    sent = stream.milled(2)
    stream.publish(sent)
    store = stream.store(sent)
    size, first = stream.recipe.block_bytes, damaged - damaged % 4
    flip(store / stream.settled.stream.name / "0" / f"{first:012}.bin", (damaged - first) * size)
    result = await stream.check(store)
    assert named(result) == [("store", "damaged", damaged)]
    assert (result.topic_equal, result.store_equal) == (BLOCKS, damaged)
    assert result.verified is None or result.verified.carry.first <= damaged


async def test_a_store_that_cannot_be_read_is_named_and_left(stream: MemoryVerification) -> None:
    """Once; nothing is remembered."""
    stream.publish(stream.milled(2))
    result = await stream.check(stream.settings.store, mark=StoreMark(0, 0, "it is no store"))
    assert [(found.side, found.kind, found.text) for found in result.differences] == [
        ("store", "damaged", "it is no store")
    ]
    assert (result.topic_equal, result.verified) == (BLOCKS, None)


async def test_a_topic_that_lost_its_end_is_named(stream: MemoryVerification) -> None:
    """By one block; a token partition that retention emptied is no such thing."""
    sent = [message for message in stream.milled(1) if not message.is_carry]
    stream.publish(sent[:-1])
    store = stream.store(sent)
    result = await stream.check(store)
    assert named(result) == [("topic", "missing", BLOCKS - 1)]
    assert result.lost == 1
    emptied = await stream.check(store, tokens=(40, 40))
    assert (emptied.differences, emptied.store_equal, emptied.lost) == ([], BLOCKS, 0)


@pytest.mark.parametrize("damaged", [None, 21])
async def test_topic_and_store_are_held_against_each_other_where_the_source_is_gone(
    stream: MemoryVerification, damaged: int | None
) -> None:
    """Block for block; the note says which records are gone."""
    sent = stream.milled(2)
    stream.publish(sent)
    store = stream.store(sent)
    if damaged is not None:
        path = store / stream.settled.stream.name / "0" / f"{damaged - damaged % 4:012}.bin"
        flip(path, damaged % 4 * stream.recipe.block_bytes)
    ends = ends_of(stream, sent, [6, BLOCKS], wrong=BLOCKS)
    result = await stream.check(store, raw=(3, len(TEXTS)), ends=ends)
    era = ("control topic", "different", BLOCKS)
    assert named(result) == [era] if damaged is None else [era, ("store", "damaged", damaged)]
    assert (result.reference, result.store_equal) == (False, BLOCKS if damaged is None else damaged)
    assert "records 0 to 2 are gone" in result.notes[0]
    assert result.totals.records == sent[-1].totals.records
    assert result.era_ends == 1


async def test_dead_letters_are_asked_for_up_to_what_was_published(
    kafka: MemoryKafka, stream: MemoryVerification
) -> None:
    """From where the verification begins; a record behind the last cursor may have none yet."""
    kafka.logs[stream.raw] = []
    bad = b"\xff\xfe"
    for text in (bad, b"good text", b"more text of it", bad, b"yet more text of it", bad):
        kafka.append(stream.raw.topic, stream.raw.partition, text)
    sent = stream.milled(1, slice(5))
    stream.publish(sent[:-1])
    whole = await stream.check()
    assert list(whole.dead_letters) == [0, 3]
    assert whole.totals.dead_lettered.total() == 3
    rest = await stream.check(since=VerifiedChain(stream.carry_after(2), 0))
    assert (list(rest.dead_letters), rest.since, rest.differences) == ([3], 2, [])


async def test_a_late_carry_from_before_the_beginning_is_passed_over(stream: MemoryVerification) -> None:
    """A writer that resumed wrote it; what stands where the verification begins counts."""
    stream.publish([*stream.milled(1, slice(4))[:-1], stream.carry_after(2), stream.carry_after(4)])
    stream.publish(stream.milled(1)[15:])
    result = await stream.check(since=VerifiedChain(stream.carry_after(4), 0))
    assert result.differences == []
    assert result.topic_equal == BLOCKS - 15
    assert result.verified is not None
    assert result.verified.carry.first == BLOCKS


def ends_of(
    stream: MemoryVerification, sent: Sequence[Message], stops: Sequence[int], wrong: int | None = None
) -> Path:
    """Lay down eras that end before these blocks; one of them with another hash."""
    hashes = {message.end: message.after for message in stream.milled(1)}
    room = stream.settings.store.parent / f"ends {len(sent)} {wrong}"
    files = EraEndsFiles(room)
    for number, stop in enumerate(stops):
        after = bytes(16) if stop == wrong else hashes.get(stop, bytes(16))
        files.add(Era(number, bytes(16), (EraRange(0, stop, bytes(16), after),), 0))
    return files.close()[0]


@pytest.mark.parametrize("wrong", [None, 4, 8, 20, BLOCKS])
@pytest.mark.parametrize("store", [False, True])
async def test_ends_of_eras_are_held_against_every_block(
    stream: MemoryVerification, wrong: int | None, *, store: bool
) -> None:
    """Those that pass, and those below where the verification began: by the store, or by one message."""
    sent = stream.milled(3)
    stream.publish(sent)
    stops = [4, 8, 20, BLOCKS]
    ends, since = ends_of(stream, sent, stops, wrong), VerifiedChain(stream.carry_after(4), 5)
    result = await stream.check(stream.store(sent) if store else None, ends=ends, since=since)
    wanted = [] if wrong is None else [("control topic", "different", wrong)]
    assert named(result) == wanted
    assert [found.era for found in result.differences] == ([] if wrong is None else [stops.index(wrong)])
    if wrong is None:
        assert result.era_ends == len(stops)


@pytest.mark.parametrize(("stop", "missing"), [(20, False), (21, True), (22, True)])
async def test_an_era_of_blocks_that_the_topic_lacks_is_named(
    stream: MemoryVerification, stop: int, *, missing: bool
) -> None:
    """With the first one that is not there."""
    sent = [message for message in stream.milled(1) if not message.is_carry]
    stream.publish(sent[:20])
    result = await stream.check(ends=ends_of(stream, sent, [8, stop]))
    assert named(result) == ([("control topic", "missing", 20)] if missing else [])
    assert [found.era for found in result.differences] == ([1] if missing else [])
    assert result.era_ends == (1 if missing else 2)


async def test_ends_of_which_nobody_knows_the_hash_are_noted(stream: MemoryVerification) -> None:
    """Below what retention left of the topic, without a store: that is no difference."""
    sent = stream.milled(3)
    stream.publish(sent)
    ends = ends_of(stream, sent, [3, 6, 9, 20])
    result = await stream.check(ends=ends, tokens=(3, len(sent)))
    assert result.differences == []
    assert result.era_ends == 1
    assert any(note.startswith("3 eras end in partition 0") for note in result.notes)
    emptied = await stream.check(ends=ends, tokens=(40, 40))
    assert emptied.differences == []
    assert any(note.startswith("4 eras end in partition 0") for note in emptied.notes)


async def test_an_end_where_the_last_verification_ended_is_checked_without_a_block(stream: MemoryVerification) -> None:
    """Nothing came since: the carry that was kept knows the hash."""
    stream.publish(stream.milled(1, slice(4)))
    since = VerifiedChain(stream.carry_after(4), 15)
    for wrong, found in ((None, []), (15, [("control topic", "different", 15)])):
        result = await stream.check(raw=(0, 4), since=since, ends=ends_of(stream, [], [15], wrong))
        assert (named(result), result.era_ends) == (found, 0 if found else 1)


async def test_ends_below_what_is_left_of_both_topics_are_checked_by_the_store(stream: MemoryVerification) -> None:
    """Where the source is gone as well."""
    sent = stream.milled(2)
    stream.publish(sent)
    store = stream.store(sent)
    for wrong, found in ((None, []), (6, [("control topic", "different", 6)])):
        ends = ends_of(stream, sent, [6, 20], wrong)
        result = await stream.check(store, raw=(3, len(TEXTS)), tokens=(5, len(sent)), ends=ends)
        assert (named(result), result.era_ends) == (found, 1 if found else 2)


async def test_dead_letters_below_the_beginning_are_another_chains(
    kafka: MemoryKafka, stream: MemoryVerification
) -> None:
    """One that is verified in the same pass, from further down."""
    sent = stream.milled(1, slice(5))
    stream.publish(sent)
    marks = ChainMarks(stream.settled.stream.name, 0, (0, len(TEXTS)), (0, len(sent)), None)
    since = VerifiedChain(stream.carry_after(2), 0)
    task = ChainTask(stream.genesis, stream.tokens.topic, marks, IgnoreList(), since)
    check = ChainCheck(task, MemoryClient(kafka), None)
    await check.start()
    await check.read_to(len(TEXTS))
    await check.finish([0, 1, 2, 4, 5])
    assert list(check.result.dead_letters) == [2, 4]
