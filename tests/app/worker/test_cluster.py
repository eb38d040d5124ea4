"""What brokers say of partitions and groups, by scripted clients: it is asked again and again, and ages with them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError

from tests.outages import Hands
from tokenmill.app.kafka.clients import OPEN_SECONDS
from tokenmill.app.settings import Settings
from tokenmill.app.worker import cluster as cluster_module
from tokenmill.app.worker.cluster import COUNT_SECONDS, Cluster

SETTINGS = Settings()


class Brokers:
    """Topics with their ends, asked by one consumer; counts who asks for what."""

    def __init__(self) -> None:
        self.ends: dict[str, list[int]] = {"raw": [5, 6]}
        self.counted = 0
        self.failure: Exception | None = None
        self.open: dict[TopicPartition, int] = {}
        """The first records of open transactions."""
        self._client = self
        self._fetcher = SimpleNamespace(_isolation_level=READ_COMMITTED)

    async def fetch_all_metadata(self) -> Any:
        """Tell partitions."""
        self.counted += 1
        return SimpleNamespace(
            partitions_for_topic=lambda topic: set(range(len(self.ends[topic]))) if topic in self.ends else None
        )

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Tell ends."""
        if self.failure is not None:
            raise self.failure
        ends = {tp: self.ends[tp.topic][tp.partition] for tp in partitions}
        return ends if self._fetcher._isolation_level == READ_UNCOMMITTED else ends | self.open


Ask = Callable[[Brokers], Any]


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    """Let a broker have answered just now, by a clock that stands still."""
    hands = Hands()
    monkeypatch.setattr(cluster_module, "CONTACT", hands.contact())
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: hands)
    return hands


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Ask]:
    """Return what `watch` would ask again and again."""
    asked: list[Ask] = []

    async def ask_repeatedly(_settings: Settings, ask: Ask, *_: Any) -> None:
        asked.append(ask)

    monkeypatch.setattr(cluster_module, "ask_repeatedly", ask_repeatedly)
    return asked


async def test_ends_are_as_fresh_as_the_last_look(hands: Hands, looks: list[Ask]) -> None:
    """Partitions are counted now and then; of a topic that is missing there are none yet."""
    cluster, brokers = Cluster(SETTINGS, ["raw", "tokens"]), Brokers()
    await cluster.watch()
    (ask,) = looks
    assert cluster.ends == {}
    await ask(brokers)
    assert cluster.ends == {"raw/0": 5, "raw/1": 6}
    brokers.ends = {"raw": [7, 6, 3], "tokens": [1]}
    await ask(brokers)
    assert (cluster.ends, brokers.counted) == ({"raw/0": 7, "raw/1": 6}, 1)
    hands.turn(COUNT_SECONDS - 1)
    await ask(brokers)
    assert brokers.counted == 1
    hands.turn(1)
    await ask(brokers)
    assert brokers.counted == 2
    assert cluster._ends.keys() == {"raw/0", "raw/1", "raw/2", "tokens/0"}
    assert brokers._fetcher._isolation_level == READ_COMMITTED


async def test_topics_that_are_made_are_found_at_once(hands: Hands, looks: list[Ask]) -> None:
    """While there is no partition at all, each look counts."""
    cluster, brokers = Cluster(SETTINGS, ["raw"]), Brokers()
    await cluster.watch()
    brokers.ends = {}
    await looks[0](brokers)
    assert cluster.ends == {}
    brokers.ends = {"raw": [4]}
    await looks[0](brokers)
    assert cluster.ends == {"raw/0": 4}


async def test_what_a_failed_look_told_before_is_forgotten(hands: Hands, looks: list[Ask]) -> None:
    """Nobody is measured by ends that nobody tells any more; partitions are counted anew."""
    cluster, brokers = Cluster(SETTINGS, ["raw"]), Brokers()
    await cluster.watch()
    await looks[0](brokers)
    brokers.failure = KafkaError()
    with pytest.raises(KafkaError):
        await looks[0](brokers)
    assert cluster._ends == {}
    brokers.failure, brokers.ends = None, {"raw": [1]}
    await looks[0](brokers)
    assert cluster.ends == {"raw/0": 1}


async def test_an_open_transaction_is_named_once_it_is_old_and_until_it_ends(
    hands: Hands, looks: list[Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is that of all records, for it is what waits; when the transaction began is asked once."""
    asked: list[Mapping[TopicPartition, int]] = []

    async def begun(_settings: Settings, first: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        asked.extend([first] if first else [])
        return dict.fromkeys(first, 17.0)

    monkeypatch.setattr(cluster_module, "begun", begun)
    cluster, brokers = Cluster(SETTINGS, ["raw"]), Brokers()
    await cluster.watch()
    brokers.open = {TopicPartition("raw", 1): 4}
    await looks[0](brokers)
    assert (cluster.ends, cluster.stable_ends) == ({"raw/0": 5, "raw/1": 6}, {"raw/0": 5, "raw/1": 4})
    assert cluster.open_since == {}
    for _ in range(3):
        hands.turn(OPEN_SECONDS)
        brokers.ends["raw"][1] += 1
        await looks[0](brokers)
        monkeypatch.setattr(cluster_module, "CONTACT", hands.contact())
    assert cluster.open_since == {"raw/1": 17.0}
    assert asked == [{TopicPartition("raw", 1): 4}]
    brokers.open = {TopicPartition("raw", 1): 7}  # it has ended, and another is open
    await looks[0](brokers)
    assert cluster.open_since == {}


async def test_no_end_is_known_while_no_broker_answers(hands: Hands) -> None:
    """However fresh the last look is."""
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

    monkeypatch.setattr(cluster_module, "admin", admin)
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
    """One of them is between two assignments."""
    group += [member("a", raw=[0], more=[2]), member("b", raw=[1]), member("c")]
    assert await Cluster(SETTINGS, ["raw"]).owned_by_others("tokenmill", ours) == others


async def test_nobody_owns_anything_while_brokers_do_not_say(group: list[Any]) -> None:
    """That is no error of the supervisor's."""
    group.append(KafkaError())
    assert await Cluster(SETTINGS, ["raw"]).owned_by_others("tokenmill", ()) == set()


async def test_the_look_goes_on_by_itself(looks: list[Ask]) -> None:
    """Each look has the same memory of what was counted."""
    await asyncio.gather(Cluster(SETTINGS, []).watch(), Cluster(SETTINGS, []).watch())
    assert len(looks) == 2
