"""Whole verifications: which chains are computed in one pass, and what of an earlier one still counts."""

import asyncio
from pathlib import Path

from aiokafka import TopicPartition

from tests.app.tools.verify.published import Published, settled
from tests.conftest import TopicFactory
from tests.faults.test_lost_logs import recreate
from tokenmill.app.kafka.clients import consumer, offsets
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.tools.verify import verify
from tokenmill.app.tools.verify.standing import stands
from tokenmill.app.tools.verify.verified import load_verified


def of_topic(published: Published) -> Settings:
    """Return settings that find all streams of the raw topic, whatever their suffix."""
    return Settings(
        bootstrap_servers=published.settings.bootstrap_servers, raw_topics=tuple(published.settings.raw_topics)
    )


def test_streams_that_differ_in_their_suffix_alone_are_equal_each(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """They have the same splits of the same text, so each takes a pass of its own."""
    first = settled(broker, topic, tmp_path)
    second = settled(broker, topic, tmp_path, "-v2", first.settings.raw_topics[0])
    for published, message_bytes in ((first, 256), (second, 1024)):
        for name in published.names:
            published.publish(name, published.messages(name, message_bytes))

    result = verify(of_topic(first), processes=1)

    assert result.differences == []
    assert sorted(chain.stream for chain in result.chains) == sorted([*first.names, *second.names])
    assert all(chain.topic_equal == chain.reference_blocks > 5 for chain in result.chains)
    assert all(chain.carries_equal == 1 for chain in result.chains)


def test_a_tail_that_was_cut_and_filled_again_is_verified_anew(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """In fewer messages than before, all of it lies below where the last verification ended."""
    published = settled(broker, topic, tmp_path)
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


async def test_the_place_of_an_earlier_verification_counts_while_its_last_block_stands_below_it(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Not where the topic ends before it, nor where other blocks stand there; retention may have taken all."""
    published = settled(broker, topic, tmp_path)
    name = published.names[0]
    messages = published.messages(name, 128)
    published.publish(name, [*messages, messages[1]])  # a late writer's: what stands last is not the last block
    await asyncio.to_thread(verify, published.settings, [name], since=tmp_path / "verified.json", processes=1)
    verified = load_verified(tmp_path / "verified.json", None).chains[name, 0]
    tokens = TopicPartition(f"tokens.{name}", 0)
    async with consumer(published.settings) as client:
        first, end = (await offsets(client, [tokens]))[tokens]
        assert (first, end) == (0, len(messages) + 1) == (0, verified.token_offset)
        assert await stands(client, tokens, (0, end), verified)
        assert not await stands(client, tokens, (0, end - 1), verified)
        assert await stands(client, tokens, (end, end), verified)
