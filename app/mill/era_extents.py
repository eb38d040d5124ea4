"""How far the token partitions of a stream reach, asked again and again: only what grew is read."""

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.eras import EraLog
from tokenmill.errors import DamagedError, DifferenceError, FingerprintError
from tokenmill.reading.continuing import Extent, find_extent
from tokenmill.recipe import Recipe
from tokenmill.wire.ignoring import IgnoreList

from ..kafka.chain_logs import KafkaLogs
from ..kafka.clients import offsets
from ..kafka.control_topic import require_topic

log = structlog.get_logger(__name__)


class Extents:
    """The extents of a stream's token partitions; `look` brings them up to date."""

    def __init__(self, topic: str, recipe: Recipe, ignored: IgnoreList) -> None:
        """Know nothing yet of the token ``topic``, of which messages are ``ignored``."""
        self.found: dict[int, Extent] = {}
        """By partition; one that holds no block is missing."""
        self._topic = topic
        self._recipe = recipe
        self._ignored = ignored
        self._looked: dict[TopicPartition, tuple[int, int, int]] = {}
        """The bounds of each partition, and the length of its ignore list, at the last look."""
        self._refused: dict[int, str] = {}

    async def look(self, client: AIOKafkaConsumer, eras: EraLog) -> None:
        """Read the last messages of each partition that changed since the last look; new partitions are found.

        The blocks of ``eras`` count as there, whatever retention has removed.

        A partition that contradicts itself keeps the extent that it had, and is named in the log, once for each
        reason: it must not keep the others' blocks from being trained on. ``client`` is used by nobody else meanwhile.

        Raises:
            TopicError: the topic is missing.

        """
        count = await require_topic(client, self._topic)
        partitions = [TopicPartition(self._topic, number) for number in range(count)]
        for partition, span in (await offsets(client, partitions)).items():
            now = (*span, self._ignored.size(partition.partition))
            if self._looked.get(partition) == now or span[0] == span[1]:
                continue
            extent = await self._extent(client, partition, eras.end(partition.partition)[0])
            if extent is not None:
                self.found[partition.partition] = extent
            self._looked[partition] = now

    async def _extent(self, client: AIOKafkaConsumer, partition: TopicPartition, known: int) -> Extent | None:
        number = partition.partition
        logs = KafkaLogs(client, partition, partition, self._ignored)
        try:
            extent = await find_extent(logs, self._recipe, number, known)
        except (DifferenceError, DamagedError, FingerprintError) as error:
            if self._refused.get(number) != str(error):
                log.warning(
                    "no era takes blocks of this partition", topic=self._topic, partition=number, reason=str(error)
                )
            self._refused[number] = str(error)
            return None
        self._refused.pop(number, None)
        return extent
