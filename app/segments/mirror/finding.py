"""Which streams there are, and how many partitions they have: looked for again and again."""

from collections.abc import Sequence
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer

from ...kafka.cluster import all_metadata
from ...kafka.control_topic import CONTROL_PREFIX, Settled
from ...kafka.settled_streams import settled_on


class Found(NamedTuple):
    """Partitions of a stream that were not there before."""

    settled: Settled
    partitions: range


class StreamFinder:
    """Finds the streams ``names``, or without names all that are settled on the brokers."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        """Know none yet."""
        self.missing: list[str] = []
        """Of the last look: streams that are named, or begun, and not settled yet."""
        self._names = names
        self._known: dict[str, Settled] = {}
        self._partitions: dict[str, int] = {}

    async def look(self, client: AIOKafkaConsumer) -> list[Found]:
        """Return what is new since the last look; ``client`` is used by nobody else meanwhile."""
        cluster = await all_metadata(client)  # one request tells topics and partitions
        there = {topic.removeprefix(CONTROL_PREFIX) for topic in cluster.topics() if topic.startswith(CONTROL_PREFIX)}
        self.missing = []
        found = []
        for name in sorted(self._names or there):
            settled = self._known.get(name) or (await settled_on(client, name) if name in there else None)
            if settled is None:
                self.missing.append(name)
                continue
            self._known[name] = settled
            count = len(cluster.partitions_for_topic(settled.stream.tokens_topic) or ())
            before = self._partitions.get(name, 0)
            if count > before:
                found.append(Found(settled, range(before, count)))
                self._partitions[name] = count
        return found
