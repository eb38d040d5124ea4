"""What aiokafka knows of the cluster and of its connections, in its private attributes: leaders, connections, metadata.

Nothing else in the project asks aiokafka's private parts about them.
"""

import random
from collections.abc import Sequence
from typing import Final, TypeAlias

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import CloseReason
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED
from aiokafka.errors import (
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest

NO_LEADER: Final = -1
"""What the metadata say of a partition that has no leader at the moment."""
NO_SUCH_TOPIC: Final = frozenset({UnknownTopicOrPartitionError.errno, InvalidTopicError.errno})
"""What brokers answer for a name that no topic has, or can have."""

Owner: TypeAlias = AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient
"""Each has one `AIOKafkaClient`, which holds the connections."""
TESTED: Final = {"faust-streaming": "0.15.3", "aiokafka": "0.14.0"}
"""The versions whose private parts the service uses, as pyproject.toml pins them. Tests hold each use of a part."""


def require_tested(library: str, installed: str) -> None:
    """Check that a library has the version that is used here: what another one calls otherwise would be silent.

    Raises ImportError where it has another one; says which to install.
    """
    if installed != TESTED[library]:
        raise ImportError(
            f"{library} {installed} is not the version that this was written for: install {TESTED[library]}"
        )


def client_of(owner: Owner) -> AIOKafkaClient:
    """Return the client that holds the connections of a producer, a consumer or an admin client."""
    return owner.client if isinstance(owner, AIOKafkaProducer) else owner._client  # noqa: SLF001 - see above


def is_connected(owner: Owner) -> bool:
    """Return whether a connection to a broker is open."""
    return any(connection.connected() for connection in list(client_of(owner)._conns.values()))  # noqa: SLF001


def leader(owner: Owner, tp: TopicPartition) -> int | None:
    """Return the broker that leads a partition; `NO_LEADER` or None where none is known."""
    found: int | None = client_of(owner).cluster.leader_for_partition(tp)
    return found


def leader_and_connection(owner: Owner, tp: TopicPartition) -> object:
    """Return what identifies a partition's leader and the connection to it; differs after either changed."""
    client = client_of(owner)
    node = client.cluster.leader_for_partition(tp)
    return node, client._conns.get((node, ConnectionGroup.DEFAULT))  # noqa: SLF001


async def all_metadata(owner: Owner) -> ClusterMetadata:
    """Return the metadata of all topics, in one request: a client knows only the topics that it uses."""
    return await client_of(owner).fetch_all_metadata()


async def partitions_of(owner: Owner, topic: str) -> int:
    """Return how many partitions a topic has; 0 where there is none of that name.

    Of this topic alone, because what a cluster says of all of its topics may be megabytes. Asking does not make it.
    Raises KafkaConnectionError where no broker answers; TopicAuthorizationFailedError, which `broker_errors` turns into
    a SettingsError, where this client may not see the topic; and KafkaError where a broker cannot tell at the moment.
    """
    client = client_of(owner)
    request = MetadataRequest([topic], allow_auto_topic_creation=False)
    if not client.cluster.brokers():
        await client.force_metadata_update()
    nodes = [broker.nodeId for broker in client.cluster.brokers()]
    for node in random.sample(nodes, len(nodes)):
        try:
            answer = await client.send(node, request)
        except KafkaError:  # whatever is wrong with this broker or the connection to it: another one may answer
            continue
        for error, name, *_, partitions in answer.topics:
            if name == topic and error not in NO_SUCH_TOPIC:
                if error:
                    raise for_code(error)(topic)
                return len(partitions)
        return 0
    raise KafkaConnectionError(f"no broker of {nodes} answers a metadata request for topic {topic}")


async def ends_of(
    consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the offset after the last record of each partition, and the one up to which no transaction is open there.

    The second is lower only where a transaction is open, for it is asked for last. The consumer does nothing else
    meanwhile.
    """
    fetcher, found = consumer._fetcher, []  # noqa: SLF001 - aiokafka asks as its consumer reads, in one way only
    before = fetcher._isolation_level  # noqa: SLF001
    try:
        for level in (READ_UNCOMMITTED, READ_COMMITTED):
            fetcher._isolation_level = level  # noqa: SLF001
            found.append(await consumer.end_offsets(partitions))
    finally:
        fetcher._isolation_level = before  # noqa: SLF001
    ends, stable = found
    return {tp: (max(ends[tp], stable[tp]), stable[tp]) for tp in partitions}


async def update_metadata(owner: Owner) -> None:
    """Ask for the metadata of the topics that a client uses; they are known on return, if a broker answered."""
    await client_of(owner).force_metadata_update()


async def learn_partition(producer: AIOKafkaProducer, topic: str, partition: int) -> None:
    """Return when a producer knows a partition that exists, perhaps since a moment ago; it sends to no other."""
    client = client_of(producer)
    await client.add_topic(topic)
    while partition not in (client.cluster.partitions_for_topic(topic) or ()):
        await client.force_metadata_update()


def close_unanswered(client: AIOKafkaClient) -> None:
    """Close the connections with requests that are not waited for any more, because their time ran out."""
    for connection in list(client._conns.values()):  # noqa: SLF001
        if any(answer.cancelled() for _, _, answer in connection._requests):  # noqa: SLF001
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
