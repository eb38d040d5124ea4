"""How much of a stream a store lacks: blocks that are on the token topic, eras whose blocks are not all there."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.store import EraReader, open_eras

from ...kafka.clients import offsets
from ...kafka.token_topic import readable, record_at
from .flow import StreamFlow


@dataclass(frozen=True, slots=True)
class Behind:
    """What a mirror has of a stream, and what it lacks; a partition that has not started counts from block 0."""

    stream: str
    blocks: int
    """Blocks that the token topic has and the store lacks."""
    bytes: int
    """Bytes of their tokens."""
    eras: int
    """Eras that the store knows and lacks blocks of."""
    stored: int
    """The sum of the numbers of the blocks that each partition wants next."""
    trainable: int
    """Eras whose blocks are all there."""
    standing: tuple[str, ...]
    """What partitions wait for or stand for, if any."""


class Heads:
    """The furthest block that the last messages of each partition told of; it is asked where there is something new."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.found: dict[TopicPartition, int] = {}
        """The number of the block after the last one on each partition, as far as is known."""
        self._ends: dict[TopicPartition, int] = {}

    async def look(self, client: AIOKafkaConsumer, flow: StreamFlow) -> None:
        """Bring what is known of a flow's partitions up to date.

        Only the last message is read, and only where more was written than the flow has read; a writer's late one can
        hide others until the next look. ``client`` is used by nobody else meanwhile.
        """
        for tp, (first, end) in (await offsets(client, flow.topics)).items():
            if first < end != self._ends.get(tp) and flow.reached.get(tp, 0) < end:
                record = await record_at(client, tp, end - 1, end)
                message = None if record is None else readable(record, flow.settled.genesis.recipe.fingerprint)
                if message is not None:
                    self.found[tp] = max(self.found.get(tp, 0), message.end)
                self._ends[tp] = end


class Measure:
    """Says how far behind a stream's copy is; counts what it knows and asks nobody."""

    def __init__(self, store: Path, stream: str) -> None:
        """Open the stream's eras, which the store has, if only none."""
        self._stream = stream
        self._eras: EraReader = open_eras(store, stream)
        self._blocks: dict[int, int] = {}

    def take(self, flows: list[StreamFlow], heads: Mapping[TopicPartition, int]) -> Behind:
        """Return what the flows of the stream have and lack; a partition that starts anew keeps what it had."""
        partitions = {tp: partition for flow in flows for tp, partition in flow.partitions.items()}
        for tp, partition in partitions.items():
            block = partition.status()["block"]
            if block is not None:
                self._blocks[tp.partition] = block
        topics = [tp for flow in flows for tp in flow.topics]
        blocks = sum(max(0, heads.get(tp, 0) - self._blocks.get(tp.partition, 0)) for tp in topics)
        self._eras.refresh()
        trainable = bisect_left(range(self._eras.eras), x=True, key=self._lacks)
        standing = (partition.halted or partition.waiting for partition in partitions.values())
        return Behind(
            stream=self._stream,
            blocks=blocks,
            bytes=blocks * flows[0].block_bytes,
            eras=self._eras.eras - trainable,
            stored=sum(self._blocks.values()),
            trainable=trainable,
            standing=tuple(why for why in standing if why),
        )

    def _lacks(self, era: int) -> bool:
        """Whether blocks of an era are missing; then they are of all later ones."""
        ranges = self._eras.era(era).ranges
        return any(self._blocks.get(number, 0) < part.stop for number, part in enumerate(ranges))
