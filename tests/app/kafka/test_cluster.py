"""What aiokafka knows of cluster and connections is asked in one place, and a change of it is noticed."""

from pathlib import Path
from typing import Any

import aiokafka.client
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import create_conn

from tests.app.privates import named, used
from tests.conftest import TopicFactory
from tokenmill.app.kafka import cluster, connections
from tokenmill.app.kafka.clients import consumer, offsets, producer
from tokenmill.app.kafka.cluster import (
    all_metadata,
    client_of,
    differences,
    is_connected,
    leader,
    leader_and_connection,
    learn_partition,
    update_metadata,
)
from tokenmill.app.kafka.connections import prepare
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

ALONE = ("_conns", "leader_for_partition", "fetch_all_metadata", "force_metadata_update", "_metadata_update")
"""What only `cluster` and `connections` may say."""
PARTS = sorted({**cluster.CALLED, **connections.REPLACED}, key=str)
ATTRIBUTES = [(owner, name) for owner, names in cluster.ATTRIBUTES.items() for name in names]


def test_nothing_else_asks_aiokafka_about_cluster_and_connections() -> None:
    """So that a new aiokafka is looked at in one place."""
    app = Path(cluster.__file__).parents[1]
    own = {Path(cluster.__file__), Path(connections.__file__)}
    found = [path for path in app.rglob("*.py") if path not in own and any(name in path.read_text() for name in ALONE)]
    assert found == []


def test_every_private_part_that_is_used_is_checked() -> None:
    """Each is in a table."""
    tables = (cluster.CALLED, connections.REPLACED, cluster.ATTRIBUTES)
    assert used([cluster, connections]) == {"_client", "_conns", "_metadata_update", "_requests"}
    assert used([cluster, connections]) <= named(*tables)


@pytest.mark.parametrize("part", PARTS)
async def test_a_changed_part_is_refused(monkeypatch: pytest.MonkeyPatch, part: tuple[Any, str]) -> None:
    """Before the first client starts, and by its name: a hook that is never called would be silent."""
    monkeypatch.setattr(aiokafka.client, "create_conn", create_conn)  # as in a process without clients yet
    table = cluster.CALLED if part in cluster.CALLED else connections.REPLACED
    monkeypatch.setitem(table, part, ["self", "something", "new"])
    with pytest.raises(
        ImportError, match=rf"^aiokafka 0\.14\.0 changed {part[0].__name__}\.{part[1]}: install 0\.14\.0"
    ):
        prepare(AIOKafkaAdminClient(bootstrap_servers="127.0.0.1:1"))


@pytest.mark.parametrize(("owner", "name"), ATTRIBUTES)
def test_a_missing_attribute_is_noticed(owner: Any, name: str) -> None:
    """Whether classes have it, declare it, or set it when an instance is made."""
    assert differences({}, {owner: [name]}) == []
    assert differences({}, {owner: [f"{name}_of_old"]}) == [f"{owner.__name__}.{name}_of_old"]


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
