"""The fast path acts where it is installed and fits; all else in the process has aiokafka as it is."""

import subprocess
import sys
from itertools import islice

import aiokafka
import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from tests.app.kafka.conftest import REPLACED
from tests.app.privates import used
from tests.conftest import TopicFactory
from tokenmill.app.kafka import fastpath, fetched_batches
from tokenmill.app.kafka.clients import consumer, producer, read_range
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

IMPORTING = """
import aiokafka.client, aiokafka.conn, aiokafka.consumer.fetcher, aiokafka.producer.message_accumulator
import aiokafka.protocol.struct
def found():
    return [
        aiokafka.client.create_conn, aiokafka.conn.AIOKafkaProtocol, aiokafka.conn.io,
        aiokafka.consumer.fetcher.MemoryRecords, aiokafka.consumer.fetcher.PartitionRecords,
        aiokafka.producer.message_accumulator.BatchBuilder, aiokafka.protocol.struct.Struct.encode,
    ]
before = found()
import tokenmill.app.mill.app, tokenmill.app.segments.app, tokenmill.app.worker.run, tokenmill.app.tools.verify
import tokenmill.app.kafka.fetched_batches, tokenmill.app.kafka.fastpath, tokenmill.app.segments.mirror
import tokenmill.app.cli.produce
assert before == found()
"""
COUNT = 300


def replaced() -> list[object]:
    return [getattr(owner, name) for owner, name in REPLACED]


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_importing_replaces_nothing_in_aiokafka() -> None:
    """Neither the service's modules nor those of the fast path; in a process of its own, for this one has clients."""
    subprocess.run([sys.executable, "-c", IMPORTING], check=True)


def test_it_is_installed_once_and_for_all(fast: None) -> None:
    assert all(thing.__module__.startswith("tokenmill.") for thing in replaced() if hasattr(thing, "__module__"))
    before = replaced()[0], replaced()[2:]
    fastpath.install()
    assert (replaced()[0], replaced()[2:]) == before


def test_another_aiokafka_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiokafka, "__version__", "0.99.0")
    before = replaced()
    with pytest.raises(ImportError, match=r"aiokafka 0\.99\.0 is not .*: install 0\.14\.0"):
        fastpath.install()
    assert replaced() == before


def test_private_parts_of_aiokafka_are_these() -> None:
    assert used([fetched_batches, fastpath]) == {
        *("_aborted_producers", "_check_crcs", "_consume_aborted_up_to", "_contains_abort_marker"),
        *("_isolation_level", "_records", "_relative_offset", "_replace", "_tp"),
    }


async def test_other_consumers_of_the_process_get_aiokafkas_own_records(
    broker: Broker, settings: Settings, topic: TopicFactory, fast: None
) -> None:
    partition = TopicPartition(topic(), 0)
    values = [b"%d" % number for number in range(COUNT)] + [b"x" * 300_000]
    async with producer(settings, linger_ms=20) as client:
        for sent in [await client.send(partition.topic, value, partition=0) for value in values]:
            await sent
    other = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers)
    await other.start()
    try:
        other.assign([partition])
        other.seek(partition, 5)
        found = (await other.getmany(timeout_ms=5000, max_records=10))[partition]
        assert await other.position(partition) == 15
        while len(found) < len(values) - 5:
            found += (await other.getmany(timeout_ms=5000)).get(partition, [])
    finally:
        await other.stop()
    assert {type(record) for record in found} == {ConsumerRecord}
    assert {(record.topic, record.partition) for record in found} == {partition}
    assert [record.value for record in found] == list(islice(values, 5, None))
    async with consumer(settings) as client:
        ours = [record async for record in read_range(client, partition, 5, len(values))]
    assert not any(isinstance(record, ConsumerRecord) for record in ours)
    assert [(one.offset, one.key, bytes(one.value or b"")) for one in ours] == [
        (one.offset, one.key, one.value) for one in found
    ]


@pytest.mark.usefixtures("both_ways")
async def test_records_are_the_same_both_ways(settings: Settings, topic: TopicFactory) -> None:
    partition = TopicPartition(topic(retention_ms=-1), 0)  # its timestamps are of 1970
    sent = [(b"%d" % n, b"%d" % n * (70_000 if n % 3 else 1), 1000 + n, [("header", b"h" * n)]) for n in range(30)]
    async with producer(settings) as client:
        for answer in [
            await client.send(partition.topic, v, key=k, timestamp_ms=t, headers=h, partition=0) for k, v, t, h in sent
        ]:
            await answer
    async with consumer(settings) as client:
        found = [record async for record in read_range(client, partition, 0, len(sent))]
    assert [(r.key, bytes(r.value or b""), r.timestamp, list(r.headers)) for r in found] == sent
