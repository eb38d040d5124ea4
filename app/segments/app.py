"""The segment app: appends token topics to a store. ``faust -A tokenmill.app.segments.app worker`` runs it.

Workers that write to one store share a consumer group named after it, so each store gets its own complete copy, and a
rebalance never moves a partition to another disk. Where a partition continues stands in the store's commit logs.
"""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from faust.types import TP, StreamT

from tokenmill.errors import StoreError
from tokenmill.store import Store, StoreLock

from ..broker_contact import CONTACT
from ..kafka.clients import require_group
from ..kafka.control_topic import Settled, read_on, wait_for_genesis
from ..kafka.retry import ask_repeatedly
from ..kafka.settled_streams import require_ready
from ..settings import Settings, load_settings
from ..supervisor.self_watchdog import Alone
from ..telemetry import DISK_FREE_BYTES
from ..telemetry.heartbeat import STORE_VARIABLE
from ..telemetry.initial_series import store_at_zero
from ..telemetry.measuring import free_bytes, measure
from ..telemetry.reporting import Reporter
from ..worker.ending import end_for, end_process
from ..worker.faust_options import faust_options
from ..worker.ownership import FetchedBatch, Partitions
from ..worker.transport import BatchApp
from .context import SegmentContext
from .era_bringing import EraBringer
from .streams import bring_stream
from .token_partition import TokenPartition

WATCH_SECONDS: Final = 2.0
"""How soon a partition that halted goes on when a person has mended the reason."""


class SegmentWriter:
    """What the segment app does with its partitions."""

    def __init__(self, settings: Settings, app: BatchApp, store: Store) -> None:
        """Read nothing yet."""
        self._settings = settings
        self._app = app
        self._store = store
        self._contexts: dict[str, SegmentContext] = {}
        self._started_at: dict[TP, int] = {}
        self._ready = False
        self._bringer: EraBringer | None = None
        self._reporter = Reporter(
            "segment", settings, status=self.status, measure=self._measure, not_ready=self._why_not_ready
        )
        tokens = [stream.tokens_topic for stream in settings.streams()]
        self._alone = Alone(settings, app, tokens, self.status)
        self.partitions: Partitions[TokenPartition] = Partitions(self._open)

    async def prepare(self) -> None:
        """Bring all streams into the store, waiting for mills to settle them; where it must not, the process ends."""
        store_at_zero(self._settings.streams())
        self._reporter.start()
        try:
            await require_ready(self._settings)
            await require_group(self._settings, self._app.conf.id)
            every = [await wait_for_genesis(self._settings, stream) for stream in self._settings.streams()]
            for settled in every:
                await bring_stream(self._store, settled)
                self._contexts[settled.stream.tokens_topic] = self._context(settled)
            self._bringer = EraBringer(every, self._store, self._has_first)
            self._eras = asyncio.create_task(_or_end(self._bringer.run(self._settings)), name="eras")
            self._control_watch = asyncio.create_task(_or_end(self._watch_control(every)), name="control")
            self._alone.start()
            self._ready = True
        except Exception as error:  # noqa: BLE001 - Faust would turn it into a traceback and one exit code for all
            end_for(error)

    async def _watch_control(self, streams: Sequence[Settled]) -> None:
        """Read on what people say of messages that halt readers, and let partitions that halted go on; never return."""

        async def ask(client: AIOKafkaConsumer) -> None:
            for settled in streams:
                await read_on(client, settled.stream.control_topic, settled.control)
            self.partitions.look_after_halted()

        await ask_repeatedly(self._settings, ask, WATCH_SECONDS, "the control topics cannot be read now")

    def _has_first(self, tokens_topic: str) -> bool:
        """Return whether partition 0 of a token topic is assigned to this worker."""
        return TP(tokens_topic, 0) in self.partitions.owned

    def _context(self, settled: Settled) -> SegmentContext:
        return SegmentContext(
            settings=self._settings,
            store=self._store,
            stream=settled.stream.name,
            recipe=settled.genesis.recipe,
            ignored=settled.control.ignored,
            start_partition=self._start_partition,
            set_durable=self._set_durable,
            end_offset=lambda tp: self._app.batch_consumer.end_offsets().get(tp, 0),
            fail=_fail,
        )

    async def _start_partition(self, tp: TP, offset: int) -> int | None:
        self._started_at[tp] = offset
        return await self._app.batch_consumer.start_partition(tp, offset)

    def _set_durable(self, tp: TP, offset: int) -> None:
        self._app.batch_consumer.durable[tp] = offset

    def _open(self, tp: TP) -> TokenPartition:
        return TokenPartition(tp, self._contexts[tp.topic])

    def _measure(self) -> None:
        owned = self.partitions.owned
        DISK_FREE_BYTES.labels("segment").set(free_bytes(self._store.path))
        ends = self._app.batch_consumer.end_offsets() if owned else {}
        measure(owned, ends, reached=CONTACT.away_since is None)

    def _why_not_ready(self) -> str | None:
        return self._app.why_not_ready(prepared=self._ready)

    def status(self) -> dict[str, Any]:
        """Return where each partition is."""
        owned = self.partitions.owned
        consumer = self._app.batch_consumer if owned else None
        ends = consumer.end_offsets() if consumer else {}
        positions = {**self._started_at, **consumer.durable} if consumer else {}
        return {
            "role": "segment",
            "store": self._store.id,
            "ready": self._ready,
            "eras": dict(self._bringer.eras) if self._bringer is not None else {},
            "era_halts": self._bringer.halted_by if self._bringer is not None else {},
            "partitions": {
                f"{tp.topic}/{tp.partition}": {
                    **partition.status(),
                    "position": positions.get(tp),
                    "end": ends.get(tp),
                }
                for tp, partition in owned.items()
            },
        }


def create_app(settings: Settings) -> BatchApp:
    """Return the segment app as a Faust app on the settings' store, which gets its identity here if it is new.

    Raises:
        StoreError: the directory is a foreign store.
        LockedError: a mirror fills it.
        DiskError: it cannot be used, or no longer holds the store that our supervisor's last worker filled.

    """
    store = _open_store(settings.store)
    StoreLock(store.path, alone=False)  # as long as this process lives
    app = BatchApp(f"{settings.group}-store-{store.id}", **faust_options(settings))
    writer = SegmentWriter(settings, app, store)
    app.handler = writer.partitions
    app.prepare = writer.prepare
    app.gathers = True
    tokens = app.topic(*[stream.tokens_topic for stream in settings.streams()], value_type=bytes)

    @app.agent(tokens, name="append", isolated_partitions=True)
    async def append(stream: StreamT[FetchedBatch]) -> None:
        await writer.partitions.feed_all(stream)

    return app


def _open_store(path: Path) -> Store:
    """Return the store in a directory, a new one where there is none, or only the one that `STORE_VARIABLE` names."""
    known = os.environ.get(STORE_VARIABLE)
    if known is None:
        return Store.open_or_create(path)
    store = Store(path.absolute(), known)
    store.require()
    return store


def _fail(error: Exception) -> None:
    """End the process: a new start recovers, and tries the disk again."""
    if isinstance(error, StoreError):
        end_process(str(error))
    end_for(error)


async def _or_end(work: Coroutine[Any, Any, None]) -> None:
    """Await what nobody else awaits, so that it cannot fail in silence."""
    try:
        await work
    except Exception as error:  # noqa: BLE001 - whatever it is
        end_for(error)


def __getattr__(name: str) -> BatchApp:
    """Make ``app`` when Faust's command line asks for it, from the settings of file and environment."""
    if name != "app":
        raise AttributeError(name)
    return create_app(load_settings())
