"""What people and accidents change on a cluster: settings, committed offsets, records, partitions, logs' ends."""

import os
import struct
import time
from functools import cache
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

BATCH_HEADER: Final = struct.Struct(">qi")
"""Base offset and length of what follows: how a record batch begins (Kafka's record batch format, version 2)."""


@cache
def _client_of(bootstrap_servers: str) -> AdminClient:
    """Return the one client of a broker: what it promises is never answered once it is gone."""
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})


def _client(settings: Settings) -> AdminClient:
    return _client_of(settings.bootstrap_servers)


def configure(settings: Settings, topic: str, name: str, value: str) -> None:
    """Set one of a topic's settings; in force on return."""
    resource, client = ConfigResource(ConfigResource.Type.TOPIC, topic), _client(settings)
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    client.incremental_alter_configs([change])[change].result()
    while client.describe_configs([resource])[resource].result()[name].value != value:
        time.sleep(0.05)


def committed(settings: Settings, group: str) -> dict[tuple[str, int], int]:
    (found,) = _client(settings).list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {(tp.topic, tp.partition): tp.offset for tp in found.result().topic_partitions or []}


def move(settings: Settings, group: str, offsets: dict[tuple[str, int], int]) -> None:
    """Set the committed offsets of a group that has no members."""
    places = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
    (done,) = _client(settings).alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
    for place in done.result().topic_partitions or []:
        if place.error:
            raise KafkaException(place.error)


def delete_group(settings: Settings, group: str) -> None:
    """Forget all that a group without members has committed."""
    _client(settings).delete_consumer_groups([group])[group].result()


def delete_records(settings: Settings, topic: str, partition: int, before: int) -> None:
    """Remove the records below an offset, as retention does."""
    for done in _client(settings).delete_records([TopicPartition(topic, partition, before)]).values():
        done.result()


def recreate(settings: Settings, topic: str, partitions: int) -> None:
    """Delete a topic and create it again, empty; on return the new one can be used."""
    client = _client(settings)
    client.delete_topics([topic])[topic].result()
    while True:
        try:
            client.create_topics([NewTopic(topic, partitions, 1)])[topic].result()
        except KafkaException as error:
            assert error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS, error  # noqa: PT017 - it goes in a moment
            time.sleep(0.1)
        else:
            return _wait_for(client, topic, partitions)


def grow(settings: Settings, topic: str, partitions: int) -> None:
    """Give a topic more partitions; on return the brokers tell of them."""
    client = _client(settings)
    client.create_partitions([NewPartitions(topic, partitions)])[topic].result()
    _wait_for(client, topic, partitions)


def _wait_for(client: AdminClient, topic: str, partitions: int) -> None:
    while (found := client.list_topics(topic).topics[topic]).error or len(found.partitions) < partitions:
        time.sleep(0.05)


def cut(broker: Broker, topic: str, keep: int) -> int:
    """Keep the first record batches of a partition in the files of a broker that is down; return how many are lost.

    A negative number keeps all but so many.
    """
    directory = broker.directory / "data" / f"{topic}-0"
    (log,) = directory.glob("*.log")
    data, at, ends = log.read_bytes(), 0, []
    while at < len(data) and (length := BATCH_HEADER.unpack_from(data, at)[1]):
        at += BATCH_HEADER.size + length
        ends.append(at)
    keep = keep if keep > 0 else len(ends) + keep
    os.truncate(log, ends[keep - 1])
    for kind in ("*.index", "*.timeindex", "*.snapshot"):  # they are made again from the log
        for path in directory.glob(kind):
            path.unlink()
    return len(ends) - keep
