"""Changing what people can change on a running cluster: a topic's settings, a group's committed offsets."""

import time

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

from tokenmill.app.settings import Settings


def configure(settings: Settings, topic: str, name: str, value: str) -> None:
    """Set one of a topic's settings; in force on return."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    for done in client.incremental_alter_configs([change]).values():
        done.result()
    while client.describe_configs([resource])[resource].result()[name].value != value:
        time.sleep(0.05)


def committed(settings: Settings, group: str) -> dict[tuple[str, int], int]:
    """Return a group's committed offsets, by topic and partition."""
    client = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    (found,) = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {(tp.topic, tp.partition): tp.offset for tp in found.result().topic_partitions or []}


def move(settings: Settings, group: str, offsets: dict[tuple[str, int], int]) -> None:
    """Set the committed offsets of a group that has no members."""
    client = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    places = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
    (done,) = client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]).values()
    for place in done.result().topic_partitions or []:
        if place.error:
            raise KafkaException(place.error)


def delete_group(settings: Settings, group: str) -> None:
    """Forget all that a group without members has committed."""
    client = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    (done,) = client.delete_consumer_groups([group]).values()
    done.result()
