"""What aiokafka knows of cluster and connections is asked in one place, and a change of it is noticed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiokafka.client
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import create_conn
from aiokafka.errors import (
    CorrelationIdError,
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    TopicAuthorizationFailedError,
)

from tests.app.privates import used
from tests.conftest import TopicFactory
from tokenmill.app.kafka import cluster, connections
from tokenmill.app.kafka.clients import admin, consumer, offsets, producer
from tokenmill.app.kafka.cluster import (
    all_metadata,
    client_of,
    is_connected,
    leader,
    leader_and_connection,
    learn_partition,
    partitions_of,
    update_metadata,
)
from tokenmill.app.kafka.connections import prepare
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

ALONE = ("_conns", "leader_for_partition", "fetch_all_metadata", "force_metadata_update", "_metadata_update")
"""What only `cluster` and `connections` may say."""


def test_nothing_else_asks_aiokafka_about_cluster_and_connections() -> None:
    """So that a new aiokafka is looked at in one place."""
    app = Path(cluster.__file__).parents[1]
    own = {Path(cluster.__file__), Path(connections.__file__)}
    found = [path for path in app.rglob("*.py") if path not in own and any(name in path.read_text() for name in ALONE)]
    assert found == []


def test_private_parts_of_aiokafka_are_these() -> None:
    """By the source, for whoever upgrades it."""
    assert used([cluster, connections]) == {
        *("_client", "_conns", "_fetcher", "_isolation_level", "_metadata_update", "_requests"),
    }


async def test_another_version_of_aiokafka_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first client starts: a hook that is never called would be silent."""
    monkeypatch.setattr(aiokafka.client, "create_conn", create_conn)  # as in a process without clients yet
    monkeypatch.setattr(aiokafka, "__version__", "0.99.0")
    with pytest.raises(ImportError, match=r"^aiokafka 0\.99\.0 is not .*: install 0\.14\.0$"):
        prepare(AIOKafkaAdminClient(bootstrap_servers="127.0.0.1:1"))


async def test_leaders_connections_and_partitions_are_told(broker: Broker, topic: TopicFactory) -> None:
    """As a broker says it; nothing is connected after the end."""
    settings, name = Settings(bootstrap_servers=broker.bootstrap_servers), topic(3)
    tp = TopicPartition(name, 2)
    async with consumer(settings) as client:
        client.assign([tp])
        await offsets(client, [tp])
        await update_metadata(client)
        assert is_connected(client)
        assert isinstance(leader(client, tp), int)
        assert (await all_metadata(client)).partitions_for_topic(name) == {0, 1, 2}
        assert await partitions_of(client, name) == 3
    assert not is_connected(client)
    async with producer(settings) as sender:
        await learn_partition(sender, name, 2)
        await sender.send_and_wait(name, b"x", partition=2)
        before = leader_and_connection(sender, tp)
        await sender.send_and_wait(name, b"x", partition=2)
        assert leader_and_connection(sender, tp) == before
        for connection in client_of(sender)._conns.values():
            connection.close()
        await sender.send_and_wait(name, b"x", partition=2)
        assert leader_and_connection(sender, tp) != before


async def test_a_client_learns_of_no_topic_that_it_does_not_use(broker: Broker, topic: TopicFactory) -> None:
    """Each kind of client, however often it asks; it still finds the brokers, and all topics where it asks for them."""
    settings, name = Settings(bootstrap_servers=broker.bootstrap_servers), topic()
    async with consumer(settings) as one, producer(settings) as other, admin(settings) as third:
        for owner in (one, other, third):
            await update_metadata(owner)
            await update_metadata(owner)
            known = client_of(owner).cluster
            assert (known.topics(), len(known.brokers())) == (set(), 1)
        assert name in (await all_metadata(one)).topics()
        assert name in await one.topics()
        assert client_of(one).cluster.topics() == set()


class ScriptedBrokers:
    """Three brokers, of which ``answering`` answers; a client knows the ``known`` ones, and all after an update."""

    def __init__(
        self, answering: int | None = None, *, known: int = 3, error: type[KafkaError] = NodeNotReadyError
    ) -> None:
        self.answering, self.known, self.error = answering, known, error
        self.asked: list[int] = []
        self.updates = 0
        self._client = self.cluster = self

    def brokers(self) -> list[Any]:
        """Return those that are known."""
        return [SimpleNamespace(nodeId=node) for node in range(self.known)]

    async def force_metadata_update(self) -> None:
        """Learn of all."""
        self.updates += 1
        self.known = 3

    async def send(self, node: int, _: object) -> Any:
        """Answer a metadata request."""
        self.asked.append(node)
        if node != self.answering:
            raise self.error
        topics = [(0, "other", [1]), (0, "grain", [1, 2]), (3, "none", []), (17, "bad name", [])]
        topics += [(5, "moving", []), (29, "secret", [])]
        return SimpleNamespace(topics=[(code, name, False, partitions) for code, name, partitions in topics])


@pytest.mark.parametrize("error", [NodeNotReadyError, CorrelationIdError])
async def test_each_broker_is_asked_for_partitions_until_one_answers(error: type[KafkaError]) -> None:
    """In any order, whatever is wrong with the others; that none does is an error, and no topic without partitions."""
    for answering in range(3):
        client: Any = ScriptedBrokers(answering, error=error)
        assert await partitions_of(client, "grain") == 2
        assert client.updates == 0
    client = ScriptedBrokers(error=error)
    with pytest.raises(KafkaConnectionError, match=r"of \[0, 1, 2\] answers a metadata request for topic grain"):
        await partitions_of(client, "grain")
    assert sorted(client.asked) == [0, 1, 2]


async def test_brokers_are_looked_for_where_none_is_known() -> None:
    """Once."""
    client: Any = ScriptedBrokers(1, known=0)
    assert await partitions_of(client, "grain") == 2
    assert client.updates == 1


async def test_a_topic_has_no_partitions_only_if_brokers_say_that_there_is_none() -> None:
    """One that we may not see, or of which they cannot tell at the moment, is there all the same."""
    client: Any = ScriptedBrokers(1)
    assert [await partitions_of(client, name) for name in ("none", "bad name")] == [0, 0]
    with pytest.raises(TopicAuthorizationFailedError, match="secret"):
        await partitions_of(client, "secret")
    with pytest.raises(LeaderNotAvailableError, match="moving"):
        await partitions_of(client, "moving")
