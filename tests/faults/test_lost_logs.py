"""Logs that lose what was in them: a worker that cannot resume says why, skips nothing, and the others go on."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewTopic, RecordsToDelete
from aiokafka.errors import for_code

from tests.conftest import TopicFactory
from tests.faults.conftest import Configured
from tests.faults.feeding import flush_all
from tests.faults.oracle import (
    Expected,
    assert_all_equal,
    assert_store_equal,
    assert_topic_equal,
    expected_chains,
    read_topic,
    store_is_complete,
    token_messages,
)
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.service import Raw, Service, Worker, in_own_loop, send
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.settings import Settings
from tokenmill.errors import TopicError
from tokenmill.wire.chain import roll
from tokenmill.wire.message import HEADER_NAME, Message, encode_header

TEXT = b"a text of some length, so that a few of them fill a block; "
ONE_SPLIT: dict[str, Any] = {"splits": {"train": 1000}, "session_timeout": 2.0}


def delete_records(settings: Settings, topic: str, partition: int, before: int) -> None:
    """Remove the records below an offset, as retention does."""

    async def run() -> None:
        async with admin(settings) as client:
            await client.delete_records({TopicPartition(topic, partition): RecordsToDelete(before_offset=before)})

    in_own_loop(run)


def recreate(settings: Settings, topic: str, partitions: int) -> None:
    """Delete a topic and create it again, empty; on return the new one can be used."""

    async def run() -> None:
        async with admin(settings) as client:
            await client.delete_topics([topic])
            while True:
                created = await client.create_topics([NewTopic(topic, partitions, 1)])
                ((_, code, message),) = created.topic_errors
                if not code:
                    break
                assert for_code(code).__name__ == "TopicAlreadyExistsError", message
                await asyncio.sleep(0.1)
            while (await client.describe_topics([topic]))[0]["error_code"]:  # noqa: ASYNC110 - Kafka tells nobody
                await asyncio.sleep(0.05)

    in_own_loop(run)


def halted(worker: Worker, name: str) -> str:
    """Return why a partition stands; empty while it does not."""
    return str(worker.partitions.get(name, {}).get("halted") or "")


def complete(settings: Settings, chains: list[Expected]) -> Callable[[], bool]:
    """Return whether the store holds all of these chains, as a condition to wait for."""
    return lambda: store_is_complete(settings, chains)


@pytest.mark.fault("source-recreated")
def test_recreated_source_halts_its_partitions_and_no_other(
    configured: Configured, topic: TopicFactory, trial: Trial
) -> None:
    """Raw topics that are made anew, shorter and longer than before, are noticed; a third one is milled on."""
    shorter, longer = topic(), topic()
    settings = configured(**ONE_SPLIT)
    (other,) = settings.raw_topics
    settings = settings.model_copy(update={"raw_topics": (shorter, longer, other)})
    in_own_loop(lambda: ensure_topics(settings))
    for name in settings.raw_topics:
        send(settings, [Raw(TEXT * 4)] * 30, name)
    with working(settings) as service:
        service.wait_until_complete()
        before = {name: read_topic(settings, f"tokens.{name}.train", 0) for name in (shorter, longer)}
        recreate(settings, shorter, 1)
        recreate(settings, longer, 1)
        send(settings, [Raw(b"another text " * 9)] * 60, longer)
        send(settings, [Raw(TEXT)] * 30, other)

        def reasons() -> list[str]:
            revive(service)
            mill = next(worker for worker in service.workers if worker.role == "mill")
            return [halted(mill, f"{name}/0") for name in (shorter, longer)]

        service.wait_until(lambda: all(reasons()))
        ends, differs = reasons()
        chains = [chain for chain in expected_chains(settings) if chain.stream.raw_topic == other]
        service.wait_until(complete(settings, chains))
        assert_all_equal(settings, chains)
    advice = "the topic was deleted, recreated or rewritten; begin a new stream with stream_suffix"
    assert ends == f"{shorter}[0] ends at offset 0, the chain has passed 29: {advice}"
    noticed = ("no longer holds at offset 29 what the chain was made of", "ends at offset 0, the chain has passed 29")
    assert differs in {f"{longer}[0] {how}: {advice}" for how in noticed}  # the second one before there are new texts
    assert {name: read_topic(settings, f"tokens.{name}.train", 0) for name in before} == before
    trial.fired("raw topic recreated", 2)
    trial.held("loud", "exact", "complete")


def revive(service: Service) -> None:
    """Start workers anew, those as well that found a topic missing while it was being made again."""
    service.tend()
    for worker in list(service.workers):
        if worker.process.poll() == TopicError.exit_code:
            service.workers.remove(worker)
            service.mill() if worker.role == "mill" else service.segment()


@pytest.mark.fault("source-recreated")
def test_mill_ends_when_its_token_topic_loses_its_tail(configured: Configured, trial: Trial) -> None:
    """An acknowledgement below what was there before ends the mill; the next one writes all blocks again."""
    settings = configured(**ONE_SPLIT)
    tokens_topic = settings.streams()[0].tokens_topic
    send(settings, [Raw(TEXT * 4)] * 30)
    with working(settings) as service:
        mill, segment = service.workers
        service.wait_until_complete()
        segment.stop()
        recreate(settings, tokens_topic, 1)
        send(settings, [Raw(TEXT * 4)] * 30)
        service.wait_until(lambda: not mill.running or bool(read_topic(settings, tokens_topic, 0)))
        service.wait_until_ended(mill)
        assert mill.process.returncode == 75
        assert "it lost its tail" in (mill.beats.words or "")
        service.mill()
        service.segment()
        flush_all(settings)
        (chain,) = expected_chains(settings)
        service.wait_until(complete(settings, [chain]))
        assert_store_equal(settings, chain)
        service.wait_until(lambda: token_messages(settings, chain)[-1].end == len(chain.blocks))
        stray, again, *_ = token_messages(settings, chain)
        assert stray.first > again.first == 0
        assert_topic_equal(settings, chain, strays=1)
        trial.fired("token topic recreated")
        trial.held("exact", "complete", "topic", "loud")


@pytest.mark.fault("logs-rewritten")
@pytest.mark.needs("minutes")
def test_store_halts_where_the_token_topic_tells_another_story(configured: Configured, trial: Trial) -> None:
    """A token partition whose last message was replaced is refused by a store that has the first one's blocks."""
    settings = configured(2, **ONE_SPLIT)
    stream = settings.streams()[0]
    send(settings, [Raw(TEXT * 4, number % 2) for number in range(60)])
    with working(settings) as service:
        service.wait_until_complete()
        service.stop()
        chains = expected_chains(settings)
        logs = [token_messages(settings, chain) for chain in chains]
        logs[0][-1] = forged(logs[0][-1])
        recreate(settings, stream.tokens_topic, 2)
        send(
            settings,
            [
                Raw(bytes(message.tokens), partition, b"", [(HEADER_NAME, encode_header(message))])
                for partition, log in enumerate(logs)
                for message in log
            ],
            stream.tokens_topic,
        )
        segment = service.segment()
        service.mill()
        service.wait_until(lambda: bool(halted(segment, f"{stream.tokens_topic}/0")))
        assert "lost its tail and other text came" in halted(segment, f"{stream.tokens_topic}/0")
        send(settings, [Raw(TEXT * 4, 1)] * 30)
        there, here = expected_chains(settings)
        service.wait_until(complete(settings, [here]))
        assert_store_equal(settings, there)
        assert_store_equal(settings, here)
        trial.fired("token message forged")
        trial.held("loud", "exact", "complete")


def forged(message: Message) -> Message:
    """Return a message of the same place that is right in itself and holds other tokens."""
    tokens = bytes(byte ^ 1 for byte in bytes(message.tokens))
    return replace(message, tokens=tokens, after=roll(message.before, tokens, message.entries)[-1])


@pytest.mark.fault("source-retained")
def test_retention_past_the_cursor_halts_with_the_range(configured: Configured, trial: Trial) -> None:
    """Records that were removed before they were milled are named; up to the cursor, retention may remove all."""
    settings = configured(2, **ONE_SPLIT)
    (raw_topic,) = settings.raw_topics
    send(settings, [Raw(TEXT, number % 2) for number in range(40)])
    flush_all(settings)
    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until_complete()
        chains = expected_chains(settings)
        mill.stop()
        send(settings, [Raw(TEXT * 3, number % 2) for number in range(40)])
        cursors = [token_messages(settings, chain)[-1].cursor for chain in chains]
        assert cursors[0].next_offset == 21
        delete_records(settings, raw_topic, 0, 30)
        delete_records(settings, raw_topic, 1, cursors[1].next_offset)
        before = read_topic(settings, settings.streams()[0].tokens_topic, 0)
        (mill,) = service.mill()
        service.wait_until(lambda: bool(halted(mill, f"{raw_topic}/0")))
        service.wait_until(lambda: mill.partitions[f"{raw_topic}/1"]["position"] == 41)
        reason = halted(mill, f"{raw_topic}/0")
    assert "records 21 to 29 were removed before they were milled" in reason
    assert read_topic(settings, settings.streams()[0].tokens_topic, 0) == before
    assert token_messages(settings, chains[1])[-1].cursor.next_offset > 21
    trial.fired("records removed before they were milled", 9)
    trial.held("loud")
