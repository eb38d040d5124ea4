"""The fence: whoever was there before can write nothing any more."""

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import ProducerFenced

from tests.app.tools.produce.reading import content_of
from tests.conftest import TopicFactory
from tokenmill.app.kafka.clients import producer
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.tools.produce.fence import fenced_producer


@pytest.mark.parametrize("partition", [0, 1])
async def test_an_earlier_producer_is_refused(broker: Broker, topic: TopicFactory, partition: int) -> None:
    """In partitions that it wrote to and in others; the later one writes on, and readers wait for nobody."""
    raw = topic(2)
    settings = Settings(bootstrap_servers=broker.bootstrap_servers)
    async with producer(settings, transactional_id=raw) as earlier:
        await as_an_owner_writes(earlier, raw)
        async with fenced_producer(settings, raw, {raw: 2}) as later:
            with pytest.raises(ProducerFenced):
                await earlier.send_and_wait(raw, b"too late", partition=partition)
            for number in (0, 1):
                await later.send_and_wait(raw, b"second", partition=number)

            assert await content_of(settings, raw, 2) == [[(None, b"first"), (None, b"second")], [(None, b"second")]]


async def as_an_owner_writes(client: AIOKafkaProducer, topic: str) -> None:
    """Send outside of a transaction."""
    client._txn_manager.transactional_id = None
    await client.send_and_wait(topic, b"first", partition=0)
