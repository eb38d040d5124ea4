"""Who is at fault for a partition that stands still, and what the brokers say of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import AsyncMock

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError

from tests.app.broken import ENTRY, PATIENCE, VARIABLE
from tests.conftest import TopicFactory
from tests.outages import Hands
from tests.service import Raw, Service, send, service_settings
from tokenmill.app.kafka.clients import OPEN_SECONDS
from tokenmill.app.kafka.topics import needed_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.worker import watchdog as module
from tokenmill.app.worker.ending import RESUME_CODE
from tokenmill.app.worker.watchdog import COUNT_SECONDS, Cluster, PartitionsSeen, Watchdog, WatchLimits

LIMITS = WatchLimits(unowned=30, still=60, resume=600)
READY = ("mill-1", "mill-2")


def seen(
    ends: Mapping[str, int], elsewhere: frozenset[str] = frozenset(), **partitions: Mapping[str, Any]
) -> PartitionsSeen:
    """Return a seen in which mill-1 owns ``partitions`` of topic t, by what it says of each."""
    said = {f"t/{name[1:]}": partition for name, partition in partitions.items()}
    return PartitionsSeen(ends, dict.fromkeys(said, "mill-1"), said, elsewhere)


VIEWS: dict[str, tuple[int, PartitionsSeen, tuple[str, ...], list[tuple[int, str]]]] = {
    "nobody owns it": (65, seen({"t/0": 0}), READY, [(31, "mill-1 mill-2"), (63, "mill-1 mill-2")]),
    "workers of another host own it": (100, seen({"t/0": 5}, elsewhere=frozenset({"t/0"})), READY, []),
    "no worker is ready": (100, seen({"t/0": 5}), (), []),
    "its owner stands still": (100, seen({"t/0": 9}, p0={"position": 5, "end": 9}), READY, [(61, "mill-1")]),
    "its owner resumes": (700, seen({"t/0": 9}, p0={"position": 0, "end": None}), READY, [(601, "mill-1")]),
}
"""How a partition stands for so many seconds, who is ready, and when who is at fault.

That nobody owns it is a fault of all: the group itself is broken. Workers that start have another way of being found at
fault. Who resumes may have to read a whole token partition, but a resume can hang as well.
"""


@pytest.mark.parametrize("case", VIEWS)
def test_who_is_at_fault_for_a_partition_that_stands_still(case: str) -> None:
    seconds, view, ready, expected = VIEWS[case]
    watchdog, found = Watchdog(LIMITS), []
    for now in range(seconds):
        found += [(now, " ".join(fault.workers)) for fault in watchdog.look(now, view, ready)]
    assert found == expected


def test_progress_waiting_and_halts_are_no_faults() -> None:
    watchdog = Watchdog(LIMITS)
    for now in range(300):
        moving = {"position": now // 50, "end": 99}
        halted = {"position": 5, "end": 99, "halted": "why"}
        waiting = {"position": None, "end": 99, "waiting": "for what"}
        done = {"position": 99, "end": 99}
        view = seen(dict.fromkeys(("t/0", "t/1", "t/2", "t/3"), 99), p0=moving, p1=halted, p2=waiting, p3=done)
        assert watchdog.look(now, view, READY) == []


def test_nobody_is_blamed_for_the_time_of_an_outage() -> None:
    """While no broker answers there are no ends; a partition that stood still in it is given its time anew."""
    watchdog = Watchdog(LIMITS)
    still = {"position": 5, "end": 9}
    found = [watchdog.look(now, seen({} if 10 < now < 200 else {"t/0": 9}, p0=still), READY) for now in range(261)]
    assert found == [[]] * 261
    assert watchdog.look(262, seen({"t/0": 9}, p0=still), READY)


STILL = seen({"t/0": 9}, p0={"position": 5, "end": 9})
BETWEEN = {
    "waiting": seen({"t/0": 9}, p0={"position": 5, "end": 9, "waiting": "for what"}),
    "halted": seen({"t/0": 9}, p0={"position": 5, "end": 9, "halted": "why"}),
    "at the end": seen({"t/0": 5}, p0={"position": 5, "end": 5}),
    "without an owner": seen({"t/0": 9}),
    "another's": replace(STILL, owners={"t/0": "mill-2"}),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_time_begins_anew_after_anything_but_standing_still(between: str) -> None:
    watchdog = Watchdog(LIMITS)
    for now in range(131):
        assert watchdog.look(now, BETWEEN[between] if 50 <= now < 70 else STILL, READY) == []
    assert [fault.workers for fault in watchdog.look(131, STILL, READY)] == [("mill-1",)]


SETTINGS = Settings()


class Brokers:
    def __init__(self) -> None:
        self.ends: dict[str, list[int]] = {"raw": [5, 6]}
        self.counted = 0
        self.failure: Exception | None = None
        self.open: dict[TopicPartition, int] = {}
        """The first records of open transactions."""
        self._client = self
        self._fetcher = SimpleNamespace(_isolation_level=READ_COMMITTED)

    async def fetch_all_metadata(self) -> Any:
        self.counted += 1
        return SimpleNamespace(
            partitions_for_topic=lambda topic: set(range(len(self.ends[topic]))) if topic in self.ends else None
        )

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        if self.failure is not None:
            raise self.failure
        ends = {tp: self.ends[tp.topic][tp.partition] for tp in partitions}
        return ends if self._fetcher._isolation_level == READ_UNCOMMITTED else ends | self.open


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(module, "CONTACT", hands.contact())
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: hands)
    return hands


class Watched(NamedTuple):
    cluster: Cluster
    brokers: Brokers
    look: Callable[[], Awaitable[None]]


@pytest.fixture
async def watched(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Return a cluster that watches two topics, whom it asks, and what it does again and again."""
    cluster, brokers, asked = Cluster(SETTINGS, ["raw", "tokens"]), Brokers(), AsyncMock()
    monkeypatch.setattr(module, "ask_repeatedly", asked)
    await cluster.watch()
    (call,) = asked.call_args_list
    return Watched(cluster, brokers, lambda: call.args[1](brokers))


async def test_ends_are_as_fresh_as_the_last_look(watched: Watched, hands: Hands) -> None:
    cluster, brokers, look = watched
    assert cluster.ends == {}
    await look()
    assert cluster.ends == {"raw/0": 5, "raw/1": 6}
    brokers.ends = {"raw": [7, 6, 3], "tokens": [1]}
    await look()
    assert (cluster.ends, brokers.counted) == ({"raw/0": 7, "raw/1": 6}, 1)
    hands.turn(COUNT_SECONDS - 1)
    await look()
    assert brokers.counted == 1
    hands.turn(1)
    await look()
    assert brokers.counted == 2
    assert cluster._ends.keys() == {"raw/0", "raw/1", "raw/2", "tokens/0"}
    assert brokers._fetcher._isolation_level == READ_COMMITTED


async def test_topics_that_are_made_are_found_at_once(watched: Watched, hands: Hands) -> None:
    cluster, brokers, look = watched
    brokers.ends = {}
    await look()
    assert cluster.ends == {}
    assert "topic raw-text" in cluster.gone, "it was deleted meanwhile, and nobody who reads it would say so"
    brokers.ends = {"raw": [4], **{topic.name: [0] for topic in needed_topics(SETTINGS) if topic.kind != "produced"}}
    await look()
    assert (cluster.ends, cluster.gone) == ({"raw/0": 4}, {})


async def test_what_a_failed_look_told_before_is_forgotten(watched: Watched, hands: Hands) -> None:
    cluster, brokers, look = watched
    await look()
    brokers.failure = KafkaError()
    with pytest.raises(KafkaError):
        await look()
    assert cluster._ends == {}
    brokers.failure, brokers.ends = None, {"raw": [1]}
    await look()
    assert cluster.ends == {"raw/0": 1}


async def test_an_open_transaction_is_named_once_it_is_old_and_until_it_ends(
    watched: Watched, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is that of all records, for it is what waits; when the transaction began is asked once."""
    asked: list[Mapping[TopicPartition, int]] = []

    async def begun(_settings: Settings, first: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        asked.extend([first] if first else [])
        return dict.fromkeys(first, 17.0)

    monkeypatch.setattr(module, "begun", begun)
    cluster, brokers, look = watched
    brokers.open = {TopicPartition("raw", 1): 4}
    await look()
    assert (cluster.ends, cluster.stable_ends) == ({"raw/0": 5, "raw/1": 6}, {"raw/0": 5, "raw/1": 4})
    assert cluster.open_since == {}
    for _ in range(3):
        hands.turn(OPEN_SECONDS)
        brokers.ends["raw"][1] += 1
        await look()
        monkeypatch.setattr(module, "CONTACT", hands.contact())
    assert cluster.open_since == {"raw/1": 17.0}
    assert asked == [{TopicPartition("raw", 1): 4}]
    brokers.open = {TopicPartition("raw", 1): 7}  # it has ended, and another is open
    await look()
    assert cluster.open_since == {}


async def test_no_end_is_known_while_no_broker_answers(hands: Hands) -> None:
    cluster = Cluster(SETTINGS, ["raw"])
    cluster._ends = {"raw/0": (1, 1)}
    assert cluster.ends == {"raw/0": 1}
    hands.turn(3600)
    assert cluster.ends == {}


def member(name: str, **topics: list[int]) -> tuple[Any, ...]:
    """Return a member of a group as brokers describe it; without topics, one between two assignments."""
    assignment = ConsumerProtocolMemberAssignment(0, list(topics.items()), b"").encode() if topics else b""
    return name, "client", "host", b"", assignment


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the members of the group that brokers know of; an error among them is raised."""
    members: list[Any] = []

    async def describe(groups: Sequence[str]) -> list[Any]:
        assert groups == ["tokenmill"]
        for found in members:
            if isinstance(found, Exception):
                raise found
        return [SimpleNamespace(groups=[(0, "tokenmill", "Stable", "consumer", "range", members)])]

    @asynccontextmanager
    async def admin(_settings: Settings) -> AsyncIterator[Any]:
        yield SimpleNamespace(describe_consumer_groups=describe)

    monkeypatch.setattr(module, "admin", admin)
    return members


@pytest.mark.parametrize(
    ("ours", "others"),
    [
        (set(), {"raw/0", "more/2", "raw/1"}),
        ({""}, {"raw/0", "more/2", "raw/1"}),
        ({"a"}, {"raw/1"}),
        ({"b", "c"}, {"raw/0", "more/2"}),
        ({"a", "b", "one that has left"}, set()),
    ],
)
async def test_others_are_told_by_their_ids(group: list[Any], ours: set[str], others: set[str]) -> None:
    group += [member("a", raw=[0], more=[2]), member("b", raw=[1]), member("c")]
    assert await Cluster(SETTINGS, ["raw"]).owned_by_others("tokenmill", ours) == others


async def test_nobody_owns_anything_while_brokers_do_not_say(group: list[Any]) -> None:
    group.append(KafkaError())
    assert await Cluster(SETTINGS, ["raw"]).owned_by_others("tokenmill", ()) == set()


def test_workers_that_stand_still_end_themselves(broker: Broker, topic: TopicFactory, tmp_path: Path) -> None:
    """A mill that knows nothing of what its group gave it, a segment worker that never ends with a batch; no other."""
    settings = service_settings(broker, topic(2), tmp_path, session_timeout=2.0, metrics_port=0)
    with Service(settings, tmp_path) as service:
        service.entry = ENTRY
        (well,) = service.mill(environment={VARIABLE: "impatient"})
        (deaf,) = service.mill(environment={VARIABLE: "deaf"})
        assert service.wait_until_ended(deaf) == RESUME_CODE  # meanwhile nothing comes: the other one does not mind
        assert f"for {PATIENCE.unowned:.0f} s" in deaf.log
        assert "nobody has owned" in deaf.log
        send(settings, [Raw(b"a document" * 50, number % 2) for number in range(20)])
        stuck = service.segment(environment={VARIABLE: "stuck"})
        assert service.wait_until_ended(stuck) == RESUME_CODE
        assert "makes no progress at" in stuck.log
        assert well.running
