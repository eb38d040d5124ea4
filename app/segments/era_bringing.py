"""Bringing eras from control topics into a store, for as long as a segment worker or a mirror runs.

Of the workers that fill one store, the one that has partition 0 of a stream's token topic brings the stream's eras. An
era is there before its blocks, often; readers wait for these.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.eras import EraFollower
from tokenmill.errors import DamagedError, DifferenceError, DiskError, GapError, LockedError, TokenMillError
from tokenmill.store import EraWriter, Store

from ..kafka.clients import QUIET, QUIET_LOOK_SECONDS, LastLook, ask_repeatedly
from ..kafka.control_topic import Settled, read_eras
from ..settings import Settings
from ..tasks import in_thread
from ..telemetry import worker_metrics as metrics

LOOK_SECONDS: Final = 0.5
"""How often control topics are read: what a new era waits at most, apart from its blocks ..."""
LOOKS_PER_ERA: Final = 8
"""... but where none has come for a while: there are as many looks within the longest life of an open era."""
FINAL: Final = (DamagedError, DifferenceError, GapError)
"""What only a person can remedy."""

log = structlog.get_logger(__name__)


class EraBringer:
    """Brings the eras of the streams that are this process's to bring; `run` never returns."""

    def __init__(self, settled: Sequence[Settled], store: Store, owns: Callable[[str], bool]) -> None:
        """Ask ``owns`` whether partition 0 of a token topic is ours; ``settled`` may grow meanwhile."""
        self.looked: set[str] = set()
        """The streams of which the store has held, at some time, all eras that there were."""
        self.halts: dict[str, TokenMillError] = {}
        """The streams of which no more eras are stored until a person acts, and why."""
        self.waits: dict[str, TokenMillError] = {}
        """Those of which none are stored at the moment, and why."""
        self.eras: dict[str, int] = {}
        """Eras in the store of each stream that is ours to bring."""
        self._settled = settled
        self._store = store
        self._owns = owns
        self._open: dict[str, tuple[EraWriter, EraFollower]] = {}

    def status(self) -> dict[str, dict[str, str]]:
        """Return what halts and what waits, as a worker's status has it, and why in short."""
        both = {"halts": self.halts, "waits": self.waits}
        return {kind: {f"eras of {name}": error.brief for name, error in found.items()} for kind, found in both.items()}

    async def run(self, settings: Settings) -> None:
        """Look at each stream again and again; raises only unexpected errors."""
        look = LastLook()

        async def ask(client: AIOKafkaConsumer) -> object:
            before, mine = dict(self.eras), [s.stream for s in self._settled if s.stream.name in self._open]
            known = [TopicPartition(stream.control_topic, 0) for stream in mine]
            owned = {s.stream.name for s in self._settled if self._owns(s.stream.tokens_topic)} - self.halts.keys()
            if owned == self._open.keys() and await look.finds_nothing(client, known):
                return QUIET
            for settled in self._settled:
                await self._step(client, settled)
            rests = self.eras == before and not self.waits
            look.took(rests=rests)
            return QUIET if rests else None

        shortest = min((settings.for_topic(name).era_max_seconds for name in settings.raw_topics), default=0.0)
        longest = min(QUIET_LOOK_SECONDS, shortest / LOOKS_PER_ERA)
        await ask_repeatedly(settings, ask, LOOK_SECONDS, "no eras can be read now", longest=longest)

    async def _step(self, client: AIOKafkaConsumer, settled: Settled) -> None:
        name = settled.stream.name
        if not self._owns(settled.stream.tokens_topic):
            self._close(name)
            self.halts.pop(name, None)
            self.waits.pop(name, None)
            if self.eras.pop(name, None) is not None:
                metrics.STORE_ERAS.remove(name)
            return
        if name in self.halts:
            return
        try:
            await self._bring(client, settled)
            self.waits.pop(name, None)
            self.looked.add(name)
        except (DiskError, LockedError) as error:  # which heals by itself: the eras are opened again, which recovers
            self._close(name)
            if str(self.waits.get(name)) != str(error):
                log.warning("waiting for the eras' files", stream=name, reason=str(error))
            self.waits[name] = error
        except FINAL as error:
            self._close(name)
            self.waits.pop(name, None)
            self.halts[name] = error
            log.critical("no more eras are stored", stream=name, reason=str(error))

    async def _bring(self, client: AIOKafkaConsumer, settled: Settled) -> None:
        """Append what is new; durable on return."""
        name = settled.stream.name
        if name not in self._open:
            writer = await in_thread(partial(EraWriter.open, self._store, name))
            fingerprint = settled.genesis.recipe.fingerprint
            self._open[name] = writer, EraFollower(name, fingerprint, writer.last, writer.position)
        writer, follower = self._open[name]
        self._count(name, writer)
        async for found in read_eras(client, settled.stream.control_topic, follower):
            await in_thread(partial(writer.append, found))
            self._count(name, writer)

    def _count(self, name: str, writer: EraWriter) -> None:
        self.eras[name] = writer.next_number
        metrics.STORE_ERAS.labels(name).set(writer.next_number)

    def close(self) -> None:
        """Give the eras' files free, once `run` has ended."""
        for name in list(self._open):
            self._close(name)

    def _close(self, name: str) -> None:
        opened = self._open.pop(name, None)
        if opened is not None:
            opened[0].close()
