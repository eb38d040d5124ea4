"""What changes while a topic is milled: it is made compacted by mistake, or records are skipped."""

from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from hypothesis import given
from hypothesis import strategies as st

from tests.app.broken import ENTRY, VARIABLE
from tests.conftest import TopicFactory
from tests.mills import RECIPE
from tests.service import Raw, Service, in_own_loop, send, service_settings
from tokenmill.app.kafka.control_log import ControlLog, skip_record, skip_request_record
from tokenmill.app.kafka.control_topic import Settled
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.topic_changes import LOOK_SECONDS, SkipList, has_passed
from tokenmill.app.settings import Settings, Stream
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.recipe import Genesis
from tokenmill.wire.chain import NO_RECORD, Cursor

CURSORS = st.builds(
    lambda offset, taken, begun: Cursor(offset, taken, 0, offset if taken or begun else offset - 1),
    st.integers(0, 9),
    st.integers(0, 1),
    st.booleans(),
)
"""Some are in the middle of a record: it gave tokens, or made a block leave."""


def skip_list(*logs: list[tuple[bytes, bytes]]) -> SkipList:
    streams = []
    for number, records in enumerate(logs):
        control = ControlLog()
        for record in records:
            control.add(*record)
        stream = Stream(f"raw.{number}", "raw", str(number))
        streams.append(Settled(stream, Genesis(stream.name, RECIPE, (0,), 1), control))
    return SkipList(Settings(), streams)


@given(st.lists(CURSORS, min_size=1, max_size=3), st.integers(0, 9))
def test_a_request_is_wanted_until_a_chain_has_passed_it(cursors: list[Cursor], offset: int) -> None:
    wanted = skip_list([skip_request_record(0, offset)], []).wanted(0, cursors)
    settled = max(max(cursor.next_offset - 1, cursor.last_offset) for cursor in cursors)
    assert wanted == ([offset] if settled < offset else [])
    assert bool(wanted) != any(has_passed(cursor, offset) for cursor in cursors)


def test_what_stands_on_one_streams_list_only_is_still_wanted() -> None:
    """A mill died between the two: the next one finishes it. What stands on all of them is not asked for again."""
    asked, done = skip_request_record(0, 5), skip_record(0, 5)
    start = [Cursor(0, 0, 0, NO_RECORD)] * 2
    assert skip_list([asked, done], [asked]).wanted(0, start) == [5]
    assert skip_list([asked, done], [asked, done]).wanted(0, start) == []
    assert skip_list([asked, done], [asked]).in_force(0) == {5}
    assert skip_list([asked], [asked]).in_force(0) == frozenset()
    assert skip_list([asked], [asked]).wanted(1, start) == []


DOCUMENTS = [Raw(b"document %d " % number * 9, key=b"%d" % number) for number in range(40)]


def set_policy(broker: Broker, topic: str, policy: str) -> None:
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
