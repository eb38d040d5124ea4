"""Closing the eras of streams: what the mill does that is assigned partition 0 of a stream's raw topic.

`EraKeeper` takes these steps for each such stream (`EraCloser.step`), again and again:

1. Read the control topic to its end: the eras as they are.
2. Look how far all token partitions reach (`Extents`).
3. If an era is due, write it, and wait until it is acknowledged.
4. Begin again: whether it became the next era is seen by reading it back.

Another worker may believe that partition 0 is its own. Then both write, and the log decides: the first era of a number
counts, and step 1 shows it to both. Partition 0 of the raw topic may have halted: its owner still closes eras.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.eras import ERA_KEY, Era, EraFollower, EraLog, close_era
from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, TopicError
from tokenmill.reading import Extent, find_extent
from tokenmill.recipe import Recipe

from ..kafka.clients import QUIET, QUIET_LOOK_SECONDS, LastLook, ask_repeatedly, offsets
from ..kafka.control_log import IgnoreList
from ..kafka.control_topic import Settled, read_eras, require_topic
from ..kafka.token_topic import KafkaLogs
from ..settings import Settings
from ..telemetry import worker_metrics as metrics

LOOK_SECONDS: Final = 1.0
"""How often a stream is looked at, at most; sooner where eras are to be closed within a second or two."""
LOOKS_PER_ERA: Final = 4
"""Looks within the longest life of an open era."""
FINAL: Final = (DifferenceError, DamagedError)
"""The control topic is not what it was: no later look changes that."""

Write = Callable[[str, bytes, bytes], Awaitable[None]]
"""Appends a record (topic, key, value) to a control topic; returns when it is acknowledged."""

log = structlog.get_logger(__name__)


class EraKeeper:
    """Closes the eras of all streams that are this worker's to close; `run` never returns."""

    def __init__(
        self, settings: Settings, streams: Sequence[Settled], owns: Callable[[str], bool], write: Write
    ) -> None:
        """Ask ``owns`` whether this worker is assigned partition 0 of a raw topic; write with ``write``."""
        self._settings = settings
        self._streams = streams
        self._owns = owns
        self._write = write
        self._closers: dict[str, EraCloser] = {}
        self.halts: dict[str, str] = {}
        """Streams of which this worker closes no more eras until a person acts, and why in short."""
        shortest = min((settings.for_topic(s.stream.raw_topic).era_max_seconds for s in streams), default=LOOK_SECONDS)
        self._pause = min(LOOK_SECONDS, shortest / LOOKS_PER_ERA)
        self._longest = min(QUIET_LOOK_SECONDS, shortest / LOOKS_PER_ERA)

    async def run(self) -> None:
        """Look at each stream again and again; raises only unexpected errors."""
        look = LastLook()

        async def ask(client: AIOKafkaConsumer) -> object:
            mine = {settled.stream.name for settled in self._streams if self._owns(settled.stream.raw_topic)}
            known = [partition for closer in self._closers.values() for partition in closer.partitions()]
            if mine - self.halts.keys() == self._closers.keys() and await look.finds_nothing(client, known):
                return QUIET
            for settled in self._streams:
                await self._step(client, settled)
            waits = any(closer.waits for closer in self._closers.values())
            look.took(rests=not waits)
            return None if waits else QUIET

        outage = "no era can be closed now"
        await ask_repeatedly(self._settings, ask, self._pause, outage, (TopicError,), longest=self._longest)

    async def _step(self, client: AIOKafkaConsumer, settled: Settled) -> None:
        name = settled.stream.name
        if not self._owns(settled.stream.raw_topic):
            self._closers.pop(name, None)
            self.halts.pop(name, None)
            return
        if name in self.halts:
            return
        closer = self._closers.get(name)
        if closer is None:
            own = self._settings.for_topic(settled.stream.raw_topic)
            closer = self._closers[name] = EraCloser(
                settled, self._write, era_blocks=own.era_blocks, era_seconds=own.era_max_seconds
            )
        try:
            if await closer.step(client) is not None:
                metrics.ERAS.labels(name).inc()
        except FINAL as error:
            self.halts[name] = error.brief
            log.critical("no more eras are closed", stream=name, reason=str(error))


class EraCloser:
    """Closes the eras of one stream, a `step` at a time; made again whenever partition 0 is assigned."""

    def __init__(self, settled: Settled, write: Write, *, era_blocks: int, era_seconds: float) -> None:
        """Close an era ``era_seconds`` after a new block was seen, however small it is, or at ``era_blocks`` blocks."""
        stream, recipe = settled.stream, settled.genesis.recipe
        self._control_topic = stream.control_topic
        self._write = write
        self._era_blocks = era_blocks
        self._era_seconds = era_seconds
        self._follower = EraFollower(stream.name, recipe.fingerprint)
        self._extents = Extents(stream.tokens_topic, recipe, settled.control.ignored)
        self._waiting_since: float | None = None
        self.stream = stream.name

    async def step(self, client: AIOKafkaConsumer, *, end: bool = False) -> Era | None:
        """Look, and write the next era if it is due; return what was written, which need not become an era.

        With ``end``, all blocks are due, and after them the end marker. Only this call uses ``client`` meanwhile.
        Raises DifferenceError where the control topic lost an era that was seen, and TopicError where a topic is
        missing.
        """
        async for _ in read_eras(client, self._control_topic, self._follower):
            pass  # the follower holds what counts: how far they go
        await self._extents.look(client, self._follower.log)
        eras, now = self._follower.log, time.monotonic()
        pending = sum(max(0, extent.blocks - eras.end(number)[0]) for number, extent in self._extents.found.items())
        if not pending:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        overdue = self._waiting_since is not None and now - self._waiting_since >= self._era_seconds
        era = close_era(
            eras,
            self._extents.found,
            now=time.time_ns() // 1_000_000,
            era_blocks=self._era_blocks,
            overdue=overdue,
            end=end,
        )
        if era is not None:
            await self._write(self._control_topic, ERA_KEY, era.pack())
            self._waiting_since = None
            log.info("era written", stream=self.stream, era=era.number, blocks=era.blocks, end=era.end)
        return era

    async def close(self, client: AIOKafkaConsumer) -> None:
        """Write eras of what is left, then the end marker, until one is there, a mill's may be; raises as `step`."""
        while not self.ended:
            await self.step(client, end=True)

    def partitions(self) -> list[TopicPartition]:
        """Return what was looked at: as long as these are what they were, no step finds anything new."""
        return [TopicPartition(self._control_topic, 0), *self._extents.looked]

    @property
    def waits(self) -> bool:
        """Whether blocks wait for an era that is to be closed."""
        return self._waiting_since is not None

    @property
    def ended(self) -> bool:
        """Whether the last era that was read is the end marker."""
        return self._follower.log.ended


@dataclass
class Extents:
    """How far the token partitions of a stream reach; `look` brings it up to date, and reads only what grew."""

    topic: str
    recipe: Recipe
    ignored: IgnoreList
    found: dict[int, Extent] = field(default_factory=dict, init=False)
    """By partition; one that holds no block is missing."""
    looked: dict[TopicPartition, tuple[int, int, int]] = field(default_factory=dict, init=False)
    """The bounds of each partition, and the length of its ignore list, at the last look."""
    _refused: dict[int, str] = field(default_factory=dict, init=False)

    async def look(self, client: AIOKafkaConsumer, eras: EraLog) -> None:
        """Read the last messages of each partition that changed since the last look; new partitions are found.

        The blocks of ``eras`` count as there, whatever retention has removed. A partition that contradicts itself keeps
        the extent that it had, and is named in the log, once for each reason: it must not keep the others' blocks from
        being trained on. Only this call uses ``client`` meanwhile. Raises TopicError where the topic is missing.
        """
        partitions = [TopicPartition(self.topic, number) for number in range(await require_topic(client, self.topic))]
        for partition, span in (await offsets(client, partitions)).items():
            now = (*span, self.ignored.size(partition.partition))
            if self.looked.get(partition) == now:
                continue
            known = eras.end(partition.partition)[0]
            if span[0] < span[1] and (extent := await self._extent(client, partition, known)) is not None:
                self.found[partition.partition] = extent
            self.looked[partition] = now

    async def _extent(self, client: AIOKafkaConsumer, partition: TopicPartition, known: int) -> Extent | None:
        number = partition.partition
        logs = KafkaLogs(client, partition, partition, self.ignored)
        try:
            extent = await find_extent(logs, self.recipe, number, known)
        except (DifferenceError, DamagedError, FingerprintError) as error:
            if self._refused.get(number) != str(error):
                log.warning(
                    "no era takes blocks of this partition", topic=self.topic, partition=number, reason=str(error)
                )
            self._refused[number] = str(error)
            return None
        self._refused.pop(number, None)
        return extent
