"""A mill around its partitions: its preparation, its topics as people change them, and its inquiries."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import AsyncMock, Mock

import numpy as np
import pytest
from aiokafka import TopicPartition
from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from tests.app.broken import ENTRY, VARIABLE
from tests.conftest import TopicFactory
from tests.faults.altering import configure
from tests.mills import RECIPE
from tests.service import Raw, Service, send, service_settings
from tokenmill.app.kafka.clients import producer
from tokenmill.app.kafka.control_log import ControlLog, skip_record, skip_request_record
from tokenmill.app.kafka.control_topic import Settled
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill import app as module
from tokenmill.app.mill import inquiry
from tokenmill.app.mill.app import Mill
from tokenmill.app.mill.inquiry import AskedShare, DomainLogs, Inquiry, VerdictFeed
from tokenmill.app.mill.topic_changes import LOOK_SECONDS, SkipList, has_passed
from tokenmill.app.sequencer.domain_messages import Remembered, SignedRange
from tokenmill.app.settings import Settings, Stream
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.errors import BrokerError, SettingsError
from tokenmill.recipe import Genesis
from tokenmill.wire.chain import NO_RECORD, Cursor


async def test_a_mill_beats_while_filters_are_compiled_or_a_tokenizer_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop turns: a supervisor would take a silent worker for one that hangs, and kill it again and again."""

    def plan_topic(*_: Any) -> NoReturn:
        time.sleep(0.5)
        raise SettingsError("that is all")

    monkeypatch.setattr(module, "plan_topic", plan_topic)
    monkeypatch.setattr(module, "settled_recipe", AsyncMock(return_value=None))
    app: Any = SimpleNamespace(conf=SimpleNamespace(id="group"), know=None)
    preparing = asyncio.create_task(Mill(Settings(), app)._prepare())
    turns = 0
    while not preparing.done():
        await asyncio.sleep(0.025)
        turns += 1
    assert turns > 5
    with pytest.raises(SettingsError, match="that is all"):
        await preparing


async def test_a_mill_that_starts_asks_again_where_a_connection_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does where a broker ends a connection with its login: no worker has to be started anew for that."""
    plan = Mock(recipes={Mock(): Mock()}, raw_topic="raw-text", marks="none")
    recipe = AsyncMock(side_effect=[BrokerError("it broke"), None])
    settle = AsyncMock(side_effect=[BrokerError("it broke"), SettingsError("that is all")])
    monkeypatch.setattr(module, "settled_recipe", recipe)
    monkeypatch.setattr(module, "settle", settle)
    monkeypatch.setattr(module, "plan_topic", Mock(return_value=plan))
    monkeypatch.setattr(module, "steps_at_zero", Mock())
    app: Any = SimpleNamespace(conf=SimpleNamespace(id="group"), know=None)
    with pytest.raises(SettingsError, match="that is all"):
        await Mill(Settings(wait_seconds=60.0), app)._prepare()
    assert (recipe.await_count, settle.await_count) == (2, 2)


CURSORS = st.builds(
    lambda offset, taken, begun: Cursor(offset, taken, 0, offset if taken or begun else offset - 1),
    *(st.integers(0, 9), st.integers(0, 1), st.booleans()),
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

        configure(settings, mistaken, "cleanup.policy", "compact")
        service.wait_until(lambda: bool(mill.partitions.get(f"{mistaken}/0", {}).get("halted")))
        assert "set cleanup.policy=delete" in mill.partitions[f"{mistaken}/0"]["halted"]
        assert '"event": "partition halted"' in mill.log
        stood = mill.partitions[f"{mistaken}/0"]["position"]
        for name in (mistaken, other):
            send(settings, DOCUMENTS, name)
        service.wait_until(lambda: mill.partitions[f"{other}/0"]["position"] == 2 * len(DOCUMENTS))
        assert mill.partitions[f"{mistaken}/0"]["position"] == stood == len(DOCUMENTS)
        assert mill.partitions[f"{other}/0"]["halted"] is None

        configure(settings, mistaken, "cleanup.policy", "delete")
        assert service.wait_until_ended(mill) == RESUME_CODE
        service.tend()
        service.wait_until_complete()
    assert LOOK_SECONDS < 60


HOUR = 3_600_000
"""Milliseconds, as Kafka counts them."""


@pytest.mark.parametrize(
    ("old", "limits", "below"),
    [
        (3, {"retention_ms": HOUR}, 3),
        (5, {"retention_ms": HOUR}, 5),
        (3, {"retention_ms": -1}, 0),
        (3, {"retention_ms": -1, "retention_bytes": 1 << 30}, 2),
        (1, {"retention_ms": HOUR, "retention_bytes": 1 << 30}, 2),
    ],
)
async def test_a_partition_hears_below_which_offset_half_of_its_retention_has_passed(
    broker: Broker, topic: TopicFactory, old: int, limits: dict[str, int], below: int
) -> None:
    """Of five records, the first ones are forty minutes old."""
    settings, raw = Settings(bootstrap_servers=broker.bootstrap_servers), topic(1, **limits)
    now = int(time.time() * 1000)
    async with producer(settings) as client:
        for number in range(5):
            age = 2 * HOUR // 3 if number < old else 0
            await client.send_and_wait(raw, b"text", timestamp_ms=now - age)
    app: Any = SimpleNamespace(conf=SimpleNamespace(id="group"), know=None)
    mill, heard = Mill(settings, app), asyncio.Queue[int]()
    mill.partitions.owned[TP(raw, 0)] = Mock(heed_retention=heard.put_nowait)
    watching = asyncio.create_task(mill._watch_retention())
    assert await heard.get() == below
    watching.cancel()
    await asyncio.wait([watching])


async def test_who_gives_up_a_partition_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inquiry, "AGAIN_SECONDS", 0.05)
    settings = Settings(raw_topics=("raw",), dedup="exact")
    (domain,) = settings.domains()
    sent, again = list[object](), asyncio.Event()

    async def send(*message: object) -> int:
        sent.append(message)
        if len(sent) > 2:
            again.set()
        return len(sent)

    logs = DomainLogs(domain=domain, send=send, feed=VerdictFeed(settings))
    inquired, nothing = Inquiry(TopicPartition("raw", 0), logs, {}, lambda _: None), np.zeros((1, 1), np.uint64)
    share: Any = SignedRange((0, 0), 0, 1, Remembered(0, 0), np.zeros(1, np.int64), nothing)
    await inquired.ask(AskedShare(share, share, [share], 1))
    waits = asyncio.create_task(inquired.next())
    await again.wait()
    inquired.stop()
    waits.cancel()
    await asyncio.wait([waits], timeout=1)
    assert waits.cancelled()
