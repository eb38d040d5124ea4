"""Whole verifications: which chains share a pass, what of an earlier one counts, and which dead letters are missing."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest
from aiokafka import TopicPartition

from tests.app.segments.mirror.memory_kafka import MemoryKafka
from tests.app.tools.verify.published import Published, delete_before, settled
from tests.conftest import TopicFactory
from tests.faults.altering import recreate
from tokenmill.app.kafka.clients import consumer, offsets
from tokenmill.app.kafka.dead_letters import Place, RecordPlace, SourcePlace, encode_dead_letter
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings, dead_letter_topic
from tokenmill.app.tools.verify import verify
from tokenmill.app.tools.verify.verification import check_dead_letters
from tokenmill.app.tools.verify.verify_bounds import holds_last_block, load_verified
from tokenmill.app.tools.verify.verify_result import ChainResult


def of_topic(published: Published) -> Settings:
    """Return settings that find all streams of the raw topic, whatever their suffix."""
    return Settings(
        bootstrap_servers=published.settings.bootstrap_servers, raw_topics=tuple(published.settings.raw_topics)
    )


def test_streams_that_differ_in_their_suffix_alone_are_equal_each(
    published: Published, broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """They have the same splits of the same text, so each takes a pass of its own."""
    second = settled(broker, topic, tmp_path, "-v2", published.settings.raw_topics[0])
    for each, message_bytes in ((published, 256), (second, 1024)):
        for name in each.names:
            each.publish(name, each.messages(name, message_bytes))

    result = verify(of_topic(published), processes=1)

    assert result.differences == []
    assert sorted(chain.stream for chain in result.chains) == sorted([*published.names, *second.names])
    assert all(chain.topic_equal == chain.reference_blocks > 5 for chain in result.chains)
    assert all(chain.carries_equal == 1 for chain in result.chains)


def test_a_tail_that_was_cut_and_filled_again_is_verified_anew(published: Published, tmp_path: Path) -> None:
    """In fewer messages than before, all of it lies below where the last verification ended."""
    name, other = published.names
    sent = {stream: published.messages(stream, 128) for stream in published.names}
    for stream in published.names:
        published.publish(stream, sent[stream])
    store, place = published.store(sent), tmp_path / "verified.json"
    assert all(chain.complete for chain in verify(published.settings, store=store, since=place, processes=1).chains)
    recreate(published.settings, f"tokens.{name}", 1)
    published.publish(name, published.messages(name, 1024))

    result = verify(published.settings, store=store, since=place, processes=1)

    assert result.differences == []
    assert {chain.stream: chain.since > 0 for chain in result.chains} == {name: False, other: True}
    cut = next(chain for chain in result.chains if chain.stream == name)
    assert cut.topic_equal == cut.store_equal == cut.reference_blocks > 5
    assert any(f"{name} partition 0 was verified from its beginning" in note for note in result.notes)
    again = verify(published.settings, store=store, since=place, processes=1)
    assert all(chain.since > 0 for chain in again.chains)


def test_what_retention_removed_is_told_and_the_rest_is_verified(published: Published) -> None:
    """Of the token topic: the store has it. Of the raw topic, too: topic and store are held against each other."""
    name, settings = published.names[0], published.settings
    sent = published.messages(name, 128)
    published.publish(name, sent)
    store, first, blocks = published.store({name: sent}), sent[3].first, sent[-1].end

    delete_before(settings, TopicPartition(f"tokens.{name}", 0), 3)
    (cut,) = verify(settings, [name], store=store, processes=1).chains
    assert (cut.differences, cut.reference, cut.topic_blocks) == ([], True, (first, blocks))
    assert (cut.topic_equal, cut.store_equal) == (blocks - first, blocks)
    assert f"starts at offset 3 with block {first}" in cut.notes[0]

    delete_before(settings, TopicPartition(settings.raw_topics[0], 0), 7)
    (unread,) = verify(settings, [name], store=store, processes=1).chains
    assert (unread.differences, unread.reference, unread.store_equal) == ([], False, blocks - first)
    assert "records 0 to 6 are gone" in unread.notes[0]


async def test_the_place_of_an_earlier_verification_counts_while_its_last_block_stands_below_it(
    published: Published, tmp_path: Path
) -> None:
    """Not where the topic ends before it, nor where other blocks stand there; retention may have taken all."""
    name = published.names[0]
    messages = published.messages(name, 128)
    published.publish(name, [*messages, messages[1]])  # a late writer's: the last message is not the last block
    await asyncio.to_thread(verify, published.settings, [name], since=tmp_path / "verified.json", processes=1)
    verified = load_verified(tmp_path / "verified.json", None).chains[name, 0]
    tokens = TopicPartition(f"tokens.{name}", 0)
    async with consumer(published.settings) as client:
        first, end = (await offsets(client, [tokens]))[tokens]
        assert (first, end) == (0, len(messages) + 1) == (0, verified.token_offset)
        assert await holds_last_block(client, tokens, (0, end), verified)
        assert not await holds_last_block(client, tokens, (0, end - 1), verified)
        assert await holds_last_block(client, tokens, (end, end), verified)


RAW = "raw"
TOPIC = dead_letter_topic(RAW)


def chain(stream: str, partition: int, offsets: Collection[int]) -> ChainResult:
    """Return a chain that wants these records dead-lettered."""
    result = ChainResult(stream, partition, RAW, (0, 99), (0, 99))
    result.dead_letters.extend(offsets)
    return result


def written(kafka: MemoryKafka, places: Sequence[tuple[int, Place]]) -> None:
    """Write dead letters to partitions of the topic."""
    for partition, place in places:
        headers = encode_dead_letter(place, reason="invalid_utf8", detail="", timestamp=0)
        kafka.append(TOPIC, partition, b"", headers=headers)


def record(offset: int, partition: int = 0, topic: str = RAW) -> RecordPlace:
    """Return where a record stood."""
    return RecordPlace(topic, partition, offset)


CHAINS = [chain("raw.train", 0, {3, 8}), chain("raw.train", 1, {8}), chain("raw.held", 0, {5})]
ALL = [(0, record(3)), (1, record(8)), (0, record(8, 1)), (1, record(5))]
"""All that these want, on whichever partition."""


@pytest.mark.parametrize(
    ("places", "missing"),
    [
        (ALL, []),
        ([*ALL, *ALL, (0, record(77)), (0, SourcePlace(RAW, "ab", "file:8"))], []),
        (ALL[1:], [("raw.train", 0, 3)]),
        (ALL[:3], [("raw.held", 0, 5)]),
        ([*ALL[:2], ALL[3]], [("raw.train", 1, 8)]),
        ([*ALL[1:], (0, record(3, topic="another"))], [("raw.train", 0, 3)]),
        ([*ALL[1:], (0, record(3, partition=1))], [("raw.train", 0, 3)]),
        ([*ALL[1:], (0, SourcePlace(RAW, "ab", "3"))], [("raw.train", 0, 3)]),
        ([], [("raw.train", 0, 3), ("raw.train", 1, 8)]),
    ],
)
async def test_what_is_not_there_is_named_by_partition(
    kafka: MemoryKafka, places: Sequence[tuple[int, Place]], missing: Sequence[tuple[str, int, int]]
) -> None:
    """Letters of other topics, partitions or of no record at all stand for none; one stands for all streams."""
    kafka.append(TOPIC, 0, b"no letter")
    kafka.append(TOPIC, 1, b"no letter")
    written(kafka, places)
    spans = {tp.partition: (0, len(log)) for tp, log in kafka.logs.items()}
    differences, notes = await check_dead_letters(Settings(), RAW, CHAINS, spans)
    assert [(found.stream, found.partition, found.offset) for found in differences] == missing
    assert notes == []


@pytest.mark.parametrize(
    ("spans", "noted"), [({0: (2, 3), 1: (0, 1)}, True), ({0: (0, 3), 1: (0, 1)}, False), ({0: (0, 1)}, False)]
)
async def test_what_retention_may_have_removed_is_a_note(
    kafka: MemoryKafka, spans: Mapping[int, tuple[int, int]], *, noted: bool
) -> None:
    """Only where a partition of the topic begins later; letters above the mark do not count."""
    written(
        kafka, [(0, record(77)), (0, record(3)), (0, record(77)), (1, record(8)), (1, record(8, 1)), (1, record(5))]
    )
    differences, notes = await check_dead_letters(Settings(), RAW, CHAINS, spans)
    assert bool(notes) == noted
    assert bool(differences) != noted
    if noted:
        assert notes[0].startswith("3 dead letters could not be found")
        assert notes[0].endswith(f"{TOPIC}[0] starts at offset 2")


async def test_nothing_is_noted_where_nothing_is_missing(kafka: MemoryKafka) -> None:
    """Whatever retention has removed."""
    written(kafka, [(0, record(77)), *[(0, place) for _, place in ALL]])
    assert await check_dead_letters(Settings(), RAW, CHAINS, {0: (1, 5)}) == ([], [])


@pytest.mark.parametrize("spans", [None, {0: (0, 5)}])
async def test_nobody_is_asked_where_there_is_nothing_to_find(spans: Mapping[int, tuple[int, int]] | None) -> None:
    """No dead letter is wanted, or the topic is missing: no broker is needed, and there is none here."""
    wanted = [] if spans else CHAINS
    differences, _ = await check_dead_letters(Settings(bootstrap_servers="127.0.0.1:1"), RAW, wanted, spans)
    assert len(differences) == (0 if spans else 2)


@pytest.mark.parametrize(
    ("offsets", "end"), [({5}, "dead-lettered"), ({5, 9}, "(nor 1 more of the partition)"), ({7, 5, 9}, "(nor 2 more ")]
)
async def test_the_first_missing_one_is_named_and_the_others_counted(offsets: set[int], end: str) -> None:
    """Where it is the only one, nothing is said of others."""
    chain = ChainResult("raw.train", 0, "raw", (0, 10), (0, 10))
    chain.dead_letters.extend(offsets)

    differences, notes = await check_dead_letters(Settings(), "raw", [chain], None)

    assert not notes
    assert [(found.offset, found.partition) for found in differences] == [(5, 0)]
    assert end in differences[0].text
    assert "nor 0" not in differences[0].text
