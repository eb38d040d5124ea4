"""A raw topic that is made compacted by mistake while it is milled."""

from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.app.broken import ENTRY, VARIABLE
from tests.conftest import TopicFactory
from tests.service import Raw, Service, in_own_loop, send, service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.topic_changes import LOOK_SECONDS
from tokenmill.app.worker.ending import RESUME_CODE

DOCUMENTS = [Raw(b"document %d " % number * 9, key=b"%d" % number) for number in range(40)]


def set_policy(broker: Broker, topic: str, policy: str) -> None:
    """Do what `kafka-configs --alter` does."""

    async def run() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await client.start()
        try:
            await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"cleanup.policy": policy})])
        finally:
            await client.close()

    in_own_loop(run)


def test_a_topic_that_is_made_compacted_halts_and_the_others_go_on(
    broker: Broker, topic: TopicFactory, tmp_path: Path
) -> None:
    """Its partitions stand, loudly and with what to do; once it is mended, a new start goes on with all of it."""
    mistaken, other = topic(1), topic(1)
    settings = service_settings(broker, mistaken, tmp_path, raw_topics=(mistaken, other), splits={"all": 1000})
    with Service(settings, tmp_path, **{VARIABLE: "watchful"}) as service:
        service.entry = ENTRY
        (mill,) = service.mill()
        service.segment()
        for name in (mistaken, other):
            send(settings, DOCUMENTS, name)
        service.wait_until_complete()

        set_policy(broker, mistaken, "compact")
        service.wait_until(lambda: bool(mill.partitions.get(f"{mistaken}/0", {}).get("halted")))
        assert "set cleanup.policy=delete" in mill.partitions[f"{mistaken}/0"]["halted"]
        assert '"event": "partition halted"' in mill.log
        stood = mill.partitions[f"{mistaken}/0"]["position"]
        for name in (mistaken, other):
            send(settings, DOCUMENTS, name)
        service.wait_until(lambda: mill.partitions[f"{other}/0"]["position"] == 2 * len(DOCUMENTS))
        assert mill.partitions[f"{mistaken}/0"]["position"] == stood == len(DOCUMENTS)
        assert mill.partitions[f"{other}/0"]["halted"] is None

        set_policy(broker, mistaken, "delete")
        assert service.wait_until_ended(mill) == RESUME_CODE
        service.tend()
        service.wait_until_complete()
    assert LOOK_SECONDS < 60
