"""The segment app: appends token topics to a store. ``faust -A tokenmill.app.segments.app worker`` runs it.

Workers that write to one store share a consumer group named after it, so each store gets its own complete copy, and a
rebalance never moves a partition to another disk. Where a partition continues is in the store's commit logs.
"""

import os
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer
from faust.types import TP

from tokenmill.errors import StoreError
from tokenmill.store import Store, StoreLock

from ..kafka.clients import ask_repeatedly
from ..kafka.control_topic import Settled, read_on, wait_for_genesis
from ..settings import Settings, load_settings
from ..telemetry.measuring import free_bytes
from ..telemetry.reporting import STORE_VARIABLE
from ..telemetry.worker_metrics import DISK_FREE_BYTES, store_at_zero
from ..worker.ending import end_for, end_process
from ..worker.run import StreamWorker
from ..worker.transport import BatchApp, faust_options
from .era_bringing import EraBringer
from .following import bring_stream
from .token_partition import SegmentContext, TokenPartition


class SegmentWriter(StreamWorker[TokenPartition]):
    """What the segment app does with its partitions."""

    def __init__(self, settings: Settings, app: BatchApp, store: Store) -> None:
        super().__init__("segment", settings, app, [stream.tokens_topic for stream in settings.streams()])
        store_at_zero(settings.streams())
        self._store = store
        self._contexts: dict[str, SegmentContext] = {}
        self._started_at: dict[TP, int] = {}
        self._bringer: EraBringer | None = None

    async def _prepare(self) -> None:
        every = [await wait_for_genesis(self._settings, stream) for stream in self._settings.streams()]
        for settled in every:
            await bring_stream(self._store, settled)
            self._contexts[settled.stream.tokens_topic] = SegmentContext(
                settings=self._settings,
                store=self._store,
                stream=settled.stream.name,
                recipe=settled.genesis.recipe,
                ignored=settled.control.ignored,
                start_partition=self._start_partition,
                set_durable=self._app.set_durable,
                end_offset=lambda tp: self._ends().get(tp, (0, 0))[0],
                fail=_fail,
            )
        self._bringer = EraBringer(every, self._store, lambda topic: TP(topic, 0) in self.partitions.owned)
        self._keep(self._bringer.run(self._settings), "eras")
        self._keep(self._watch_control(every), "control")

    def _open(self, tp: TP) -> TokenPartition:
        return TokenPartition(tp, self._contexts[tp.topic])

    async def _watch_control(self, streams: Sequence[Settled]) -> None:
        async def ask(client: AIOKafkaConsumer) -> None:
            await read_on(client, {settled.stream.control_topic: settled.control for settled in streams})
            self.partitions.look_after_halted()

        # what people say of records there is to be seen within seconds
        await ask_repeatedly(self._settings, ask, 2.0, "the control topics cannot be read now")

    async def _start_partition(self, tp: TP, offset: int) -> int | None:
        self._started_at[tp] = offset
        return await self._app.start_partition(tp, offset)

    def _measure(self) -> None:
        DISK_FREE_BYTES.labels("segment").set(free_bytes(self._store.path))
        super()._measure()

    def status(self) -> dict[str, Any]:
        """Return where each partition is, and the store and its eras."""
        status = super().status()
        positions = {**self._started_at, **self._app.batch_consumer.durable} if self.partitions.owned else {}
        for tp in self.partitions.owned:
            status["partitions"][f"{tp.topic}/{tp.partition}"]["position"] = positions.get(tp)
        return {
            **status,
            "store": self._store.id,
            "eras": dict(self._bringer.eras) if self._bringer is not None else {},
            **(self._bringer.status() if self._bringer is not None else {}),
        }


def create_app(settings: Settings) -> BatchApp:
    """Return the segment app as a Faust app on the settings' store, which gets its identity here if it is new.

    Raises StoreError where the directory is a foreign store; LockedError where a mirror fills it; DiskError where it
    cannot be used, or no longer holds the store that our supervisor's last worker filled.
    """
    known = os.environ.get(STORE_VARIABLE)  # what our supervisor's last worker filled
    store = Store.open_or_create(settings.store) if known is None else Store(settings.store.absolute(), known)
    store.require()
    StoreLock(store.path, exclusive=False)  # as long as this process lives
    app = BatchApp(f"{settings.group}-store-{store.id}", **faust_options(settings))
    writer = SegmentWriter(settings, app, store)
    app.gathers = True
    tokens = app.topic(*[stream.tokens_topic for stream in settings.streams()], value_type=bytes)
    app.agent(tokens, name="append", isolated_partitions=True)(writer.partitions.feed_all)
    return app


def _fail(error: Exception) -> None:
    """End the process: a new start recovers, and tries the disk again."""
    if isinstance(error, StoreError):
        end_process(str(error))
    end_for(error)


def __getattr__(name: str) -> BatchApp:
    """Make ``app`` when Faust's command line asks for it, from the settings of file and environment."""
    if name != "app":
        raise AttributeError(name)
    return create_app(load_settings())
