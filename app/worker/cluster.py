"""What the brokers say: where partitions end, and who owns those that are not ours."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import KafkaError

from tokenmill.errors import BrokerError

from ..broker_contact import CONTACT
from ..kafka.clients import OPEN_SECONDS, admin, begun
from ..kafka.cluster import all_metadata, ends_of
from ..kafka.retry import ask_repeatedly
from ..settings import Settings

LOOK_SECONDS: Final = 1.0
"""How often ends are asked for: a view's lag is as old."""
NO_ENDS: Final = "the brokers do not say where partitions end"
COUNT_SECONDS: Final = 30.0
"""How often partitions are counted: a topic may gain some."""

log = structlog.get_logger(__name__)


class Cluster:
    """Keeps `ends` and `open_since` fresh while `watch` runs; partitions are named ``topic/number``."""

    def __init__(self, settings: Settings, topics: Sequence[str]) -> None:
        self._ends: dict[str, tuple[int, int]] = {}
        self._open: dict[tuple[TopicPartition, int], float] = {}
        """The first records of transactions that were open at the last look, and when they were first looked at."""
        self._begun: dict[tuple[TopicPartition, int], float] = {}
        self._settings = settings
        self._topics = topics

    @property
    def ends(self) -> dict[str, int]:
        """The offset after the last record of each partition; empty while no broker answers."""
        return {name: end for name, (end, _) in self._known().items()}

    @property
    def stable_ends(self) -> dict[str, int]:
        """The same, but where a transaction is open the offset of its first record, where readers stop now."""
        return {name: stable for name, (_, stable) in self._known().items()}

    @property
    def open_since(self) -> dict[str, float]:
        """Partitions in which a transaction has been open for `OPEN_SECONDS`, and since when, in seconds since 1970."""
        return {_name(tp): at for (tp, _), at in self._begun.items()} if CONTACT.away_since is None else {}

    def _known(self) -> dict[str, tuple[int, int]]:
        return self._ends if CONTACT.away_since is None else {}

    async def watch(self) -> None:
        """Ask again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        partitions: list[TopicPartition] = []
        counted = -COUNT_SECONDS

        async def ask(client: AIOKafkaConsumer) -> None:
            nonlocal partitions, counted
            try:
                if loop.time() - counted >= COUNT_SECONDS or not partitions:
                    partitions, counted = await self._partitions(client), loop.time()
                ends = await ends_of(client, partitions) if partitions else {}
            except Exception:
                self._ends, self._begun, partitions = {}, {}, []
                raise
            self._ends = {_name(tp): end for tp, end in ends.items()}
            await self._look_for_open({tp: stable for tp, (end, stable) in ends.items() if stable < end}, loop.time())

        await ask_repeatedly(self._settings, ask, LOOK_SECONDS, NO_ENDS, (OSError,))

    async def _look_for_open(self, stable: Mapping[TopicPartition, int], now: float) -> None:
        """Ask once when a transaction began that is open for longer than most are."""
        self._open = {place: self._open.get(place, now) for place in stable.items()}
        old = {place for place, since in self._open.items() if now - since >= OPEN_SECONDS}
        self._begun = {place: at for place, at in self._begun.items() if place in old}
        found = await begun(self._settings, dict(old - self._begun.keys()))
        self._begun |= {(tp, stable[tp]): at for tp, at in found.items()}

    async def _partitions(self, client: AIOKafkaConsumer) -> list[TopicPartition]:
        # Of all topics, though these few are meant: what is missing, or what we may not see, is left out. So is a
        # partition without a leader, for whose end a client would wait in vain.
        metadata = await all_metadata(client)
        return [
            TopicPartition(topic, number)
            for topic in self._topics
            for number in sorted(metadata.partitions_for_topic(topic) or ())
        ]

    async def owned_by_others(self, group: str, ours: Collection[str]) -> set[str]:
        """Return the partitions of a consumer group's members but for those of ``ours``; none while no broker answers.

        Members are told apart by the ids that the group has given them.
        """
        owned: set[str] = set()
        with suppress(BrokerError, KafkaError):
            async with admin(self._settings) as client:
                for answer in await client.describe_consumer_groups([group]):
                    members = [member for described in answer.groups for member in described[5]]
                    owned.update(name for member in members if member[0] not in ours for name in _assigned(member))
        return owned


def _name(tp: TopicPartition) -> str:
    return f"{tp.topic}/{tp.partition}"


def _assigned(member: Sequence[Any]) -> set[str]:
    """Return the partitions of a member (Kafka's consumer protocol, version 0 up)."""
    assignment: bytes = member[4]
    if not assignment:  # the group is between two assignments
        return set()
    decoded = ConsumerProtocol.ASSIGNMENT.decode(assignment)
    return {f"{topic}/{number}" for topic, numbers in decoded.assignment for number in numbers}
