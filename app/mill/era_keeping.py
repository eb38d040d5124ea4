"""Closing eras while a mill runs: of the streams whose partition 0 it is assigned, even where that partition halted."""

from collections.abc import Callable, Sequence
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer

from tokenmill.errors import DamagedError, DifferenceError, TopicError

from .. import telemetry as metrics
from ..kafka.control_topic import Settled
from ..kafka.retry import ask_repeatedly
from ..settings import Settings
from ..worker.ending import end_for
from .era_closing import EraCloser, Write

LOOK_SECONDS: Final = 1.0
"""How often a stream is looked at, at most; sooner where eras are to be closed within a second or two."""
PARTS: Final = 4
"""Looks within the longest life of an open era."""
FINAL: Final = (DifferenceError, DamagedError)
"""What none will: the control topic is not what it was."""

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
        self._given_up: set[str] = set()
        shortest = min((settings.for_topic(s.stream.raw_topic).era_max_seconds for s in streams), default=LOOK_SECONDS)
        self._pause = min(LOOK_SECONDS, shortest / PARTS)

    async def run(self) -> None:
        """Look at each stream again and again; an error that nobody expected ends the process."""

        async def ask(client: AIOKafkaConsumer) -> None:
            for settled in self._streams:
                await self._step(client, settled)

        try:
            await ask_repeatedly(self._settings, ask, self._pause, "no era can be closed now", (TopicError,))
        except Exception as error:  # noqa: BLE001 - nobody awaits this task, so it must not fail in silence
            end_for(error)

    async def _step(self, client: AIOKafkaConsumer, settled: Settled) -> None:
        name = settled.stream.name
        if not self._owns(settled.stream.raw_topic):
            self._closers.pop(name, None)
            self._given_up.discard(name)
            return
        if name in self._given_up:
            return
        closer = self._closers.get(name) or self._closer(settled)
        self._closers[name] = closer
        try:
            if await closer.step(client) is not None:
                metrics.ERAS.labels(name).inc()
        except FINAL as error:
            self._given_up.add(name)
            log.critical("no more eras are closed", stream=name, reason=str(error))

    def _closer(self, settled: Settled) -> EraCloser:
        own = self._settings.for_topic(settled.stream.raw_topic)
        return EraCloser(settled, self._write, era_blocks=own.era_blocks, era_seconds=own.era_max_seconds)
