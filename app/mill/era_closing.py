"""Closing the eras of a stream: what the mill does that is assigned partition 0 of its raw topic.

1. Read the control topic to its end: the eras as they are.
2. Look how far all token partitions reach.
3. If an era is due, write it, and wait until it is acknowledged.
4. Begin again: whether it became the next era is seen by reading it back.

Another worker may believe the same of itself. Then both write, the log decides, and step 1 tells both.
"""

import time
from collections.abc import Awaitable, Callable

import structlog
from aiokafka import AIOKafkaConsumer

from tokenmill.eras import ERA_KEY, Era, EraFollower, close_era

from ..kafka.control_topic import Settled, read_eras
from .era_extents import Extents

log = structlog.get_logger(__name__)

Write = Callable[[str, bytes, bytes], Awaitable[None]]
"""Appends a record (topic, key, value) to a control topic; returns when it is acknowledged."""


class EraCloser:
    """Closes the eras of one stream, a `step` at a time; made anew whenever partition 0 is assigned."""

    def __init__(self, settled: Settled, write: Write, *, era_blocks: int, era_seconds: float) -> None:
        """Know nothing yet; ``era_seconds`` after a new block was seen an era is closed, however small it is."""
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

        With ``end``, all blocks are due, and after them the end marker. ``client`` is used by nobody else meanwhile.

        Raises:
            DifferenceError: the control topic lost an era that was seen; nothing is written any more.
            TopicError: a topic is missing.

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
        """Write eras of what is left and then the end marker, until one stands there; raises as `step`.

        A mill's era may come before either: then what is left is less, and the next look tells.
        """
        while not self.ended:
            await self.step(client, end=True)

    @property
    def ended(self) -> bool:
        """Whether the last era that was read is the end marker."""
        return self._follower.log.ended
