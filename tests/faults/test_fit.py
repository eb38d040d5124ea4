"""The packing ``fit`` under faults: open blocks are made again of the records that they refer to, or halt loudly."""

import asyncio
from pathlib import Path

import pytest

from tests.faults.configuring import configure
from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder, flush_all
from tests.faults.oracle import (
    Kept,
    assert_store_equal,
    expected_chains,
    judge,
    read_topic,
    store_is_complete,
)
from tests.faults.test_lost_logs import delete_records, halted, recreate
from tests.faults.test_worker_kills import BURST, kill_one
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.service import Raw, Service, in_own_loop, send
from tokenmill.app.kafka.clients import producer
from tokenmill.app.settings import Settings
from tokenmill.wire.message import HEADER_NAME, Message, decode_message
from tokenmill.wire.pieces import split_references

pytestmark = pytest.mark.needs("minutes")

FIT = {"packing": {"name": "fit", "open_blocks": 8, "max_age_offsets": 300}, "session_timeout": 2.0}
TEXTS = [b"%c" % (97 + n) * (5 + 11 * n % 50) for n in range(20)]


def messages_of(settings: Settings, tokens_topic: str) -> list[Message]:
    """Return what stands on the first partition of a token topic."""
    records = read_topic(settings, tokens_topic, 0)
    return [decode_message(dict(record.headers)[HEADER_NAME], record.value) for record in records]


@pytest.mark.fault("worker-killed")
def test_open_blocks_outlive_the_workers_that_have_them(configured: Configured, trial: Trial) -> None:
    """Mills die in the middle of their work; the next ones read again what the open blocks refer to."""
    settings = configured(2, splits={"train": 900, "dev": 100}, **FIT)
    rounds = trial.rounds(3, 25)
    with working(settings) as service:
        with Feeder(settings, trial.rng, burst=BURST):
            for _ in range(rounds):
                kill_one(service, "mill", trial)
        judge(service, trial)
        messages = [m for s in settings.streams() for m in messages_of(settings, s.tokens_topic)]
    held = [len(split_references(message.references).counts) for message in messages]
    assert max(held) == 8
    assert trial.faults == {"mill SIGKILL": rounds}


def held_by_value(settings: Settings) -> int:
    """Return the source offset up to which a carry holds the open blocks by value; 0 where none does."""
    messages = messages_of(settings, settings.streams()[0].tokens_topic)
    return max([0, *(m.cursor.next_offset for m in messages if m.references and m.open_tokens)])


@pytest.mark.fault("source-retained")
def test_open_blocks_outlive_the_records_that_they_are_made_of(configured: Configured, trial: Trial) -> None:
    """Half of the raw topic's retention is over: a carry holds them by value, and a new worker begins with it."""
    settings = configured(1, splits={"train": 1000}, **FIT)
    (raw_topic,) = settings.raw_topics
    configure(settings, raw_topic, "retention.ms", "2000")  # the broker looks every five minutes
    send(settings, map(Raw, TEXTS))
    before = read_topic(settings, raw_topic, 0)
    with working(settings) as service:
        mill, _ = service.workers
        service.wait_until(lambda: held_by_value(settings) == len(TEXTS))
        configure(settings, raw_topic, "retention.ms", "-1")
        delete_records(settings, raw_topic, 0, len(TEXTS))
        trial.fired("records of open blocks removed", len(TEXTS))
        mill.kill()
        (mill,) = service.mill()
        service.wait_until(lambda: f"{raw_topic}/0" in mill.partitions)
        send(settings, map(Raw, TEXTS))
        flush_all(settings)
        after: list[Kept] = []
        while len(after) < len(TEXTS) + 1:  # at first the reader may take the topic's end for what it was
            after = [kept for kept in read_topic(settings, raw_topic, 0) if kept.offset >= len(TEXTS)]
        chains = expected_chains(settings, {0: [*before, *after]})
        service.wait_until(lambda: store_is_complete(settings, chains))
        assert not mill.partitions[f"{raw_topic}/0"]["halted"]
    for chain in chains:
        assert_store_equal(settings, chain)
    trial.held("exact", "complete", "alive", blocks=sum(len(chain.blocks) for chain in chains))


def send_at(settings: Settings, texts: list[bytes]) -> None:
    """Send texts with timestamps of their own, so that they can be sent again as they were."""

    async def run() -> None:
        async with producer(settings) as client:
            name = settings.raw_topics[0]
            sent = [await client.send(name, text, None, 0, timestamp_ms=10**12 + n) for n, text in enumerate(texts)]
            await asyncio.gather(*sent)

    in_own_loop(run)


@pytest.mark.fault("source-recreated")
def test_another_text_of_the_same_length_under_an_open_block_halts_the_partition(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """The record that the cursor remembers is there as it was; the one that an open block refers to is not."""
    settings = configured(1, splits={"train": 1000}, carry_seconds=0.5, **FIT)
    (raw_topic,) = settings.raw_topics
    send_at(settings, TEXTS)
    with Service(settings, tmp_path) as service:
        (mill,) = service.mill()
        tokens_topic = settings.streams()[0].tokens_topic

        def last() -> bytes:
            """Return the open blocks behind all texts; a carry before might name a block that is not open for long."""
            message = next(reversed(messages_of(settings, tokens_topic)), None)
            whole = message is not None and message.is_carry and message.cursor.next_offset == len(TEXTS)
            return message.references if message is not None and whole else b""

        service.wait_until(lambda: bool(last()))
        offset = split_references(last()).oldest
        assert offset < len(TEXTS) - 1
        mill.kill()
        recreate(settings, raw_topic, 1)
        send_at(settings, [b"?" * len(text) if n == offset else text for n, text in enumerate(TEXTS)])
        trial.fired("raw record replaced by one of its length")
        (mill,) = service.mill()
        service.wait_until(lambda: bool(halted(mill, f"{raw_topic}/0")))
        assert f"the record at offset {offset} of {raw_topic}, of which an open block" in halted(mill, f"{raw_topic}/0")
        assert "begin a new stream with stream_suffix" in halted(mill, f"{raw_topic}/0")
    trial.held("loud")
