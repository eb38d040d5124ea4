"""The mill: the Faust app that turns raw topics into token topics. ``faust -A tokenmill.app.mill.app worker`` runs it.

Each (raw partition, split) is a chain. A worker keeps nothing on disk: where a chain continues stands at the end of its
token partition. Add as many workers as the raw topics have partitions.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import structlog
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import InvalidTimestampError
from faust.exceptions import NotReady
from faust.types import TP, StreamT

from tokenmill.errors import BrokerError

from ..broker_contact import CONTACT
from ..kafka.clients import require_group
from ..kafka.control_topic import Settled, settle
from ..kafka.refusal import refused_time
from ..kafka.retry import ask_repeatedly
from ..kafka.settled_streams import require_ready
from ..kafka.topics import retention_seconds
from ..settings import Settings, load_settings
from ..supervisor.in_flight import Board
from ..supervisor.self_watchdog import Alone
from ..telemetry import ENGINE
from ..telemetry.initial_series import mill_at_zero
from ..telemetry.measuring import measure
from ..telemetry.reporting import Reporter
from ..worker.ending import end_for, end_process
from ..worker.faust_options import faust_options
from ..worker.ownership import FetchedBatch, Partitions
from ..worker.transport import BatchApp, DurableProducer
from .compaction import CompactionWatch
from .era_keeping import EraKeeper
from .growing import TokenPartitions
from .raw_partition import MillContext, RawPartition
from .recipes import RawTopicPlan, plan_topic
from .skip_list import SkipList

log = structlog.get_logger(__name__)

SKIPS_SECONDS: Final = 2.0
"""How soon is seen what people say of records and messages on control topics."""
TICK_SECONDS: Final = 1.0
"""How often carries are considered; they are due after a minute or more."""


class Mill:
    """What the mill app does with its partitions."""

    def __init__(self, settings: Settings, app: BatchApp) -> None:
        """Load nothing yet."""
        self._settings = settings
        self._app = app
        self._contexts: dict[str, MillContext] = {}
        self._ready = False
        self._board = Board.inherited()
        self._refused: set[str] = set()
        self._compaction = CompactionWatch(settings, _topics(settings), self._heed_compaction)
        self._reporter = Reporter(
            "mill", settings, status=self.status, measure=self._measure, not_ready=self._why_not_ready
        )
        self._alone = Alone(settings, app, settings.raw_topics, self.status)
        self.partitions: Partitions[RawPartition] = Partitions(self._open)

    async def prepare(self) -> None:
        """Settle all streams: after this the worker may mill; where it must not, the process ends."""
        mill_at_zero(self._settings.streams())
        self._reporter.start()
        try:
            await self._prepare()
            self._ready = True
        except Exception as error:  # noqa: BLE001 - Faust would turn it into a traceback and one exit code for all
            end_for(error)

    async def _prepare(self) -> None:
        """Settle the streams in the order of their names, so that two workers meet in the same order."""
        await require_ready(self._settings)
        await require_group(self._settings, self._settings.group)
        plans = [plan_topic(self._settings, raw_topic) for raw_topic in self._settings.raw_topics]
        for plan in plans:
            engine = plan.stages.engine
            ENGINE.labels(plan.raw_topic, engine.kind).set(1)
            log.info("tokenizer engine", topic=plan.raw_topic, engine=engine.kind, why=plan.stages.engine_refused)
        streams = sorted((stream, plan) for plan in plans for stream in plan.recipes)
        settled: dict[str, list[Settled]] = {plan.raw_topic: [] for plan in plans}
        for stream, plan in streams:
            settled[plan.raw_topic].append(
                await settle(self._settings, stream, plan.recipes[stream], plan.tokenizer.content)
            )
        retention = await retention_seconds(self._settings, [stream.tokens_topic for stream, _ in streams])
        self._contexts = {plan.raw_topic: self._context(plan, settled[plan.raw_topic], retention) for plan in plans}
        self._skips_watch = asyncio.create_task(self._watch_skips(), name="skips")
        every = [stream for plan in plans for stream in settled[plan.raw_topic]]
        self._eras = asyncio.create_task(
            EraKeeper(self._settings, every, self._has_first, self._write_control).run(), name="eras"
        )
        self._alone.start()
        self._watches = asyncio.create_task(self._watch_topics(), name="compaction")

    async def _watch_topics(self) -> None:
        try:
            await self._compaction.run()
        except Exception as error:  # noqa: BLE001 - nobody awaits this task, so it must not fail in silence
            end_for(error)

    def _context(
        self, plan: RawTopicPlan, streams: Sequence[Settled], retention: Mapping[str, float | None]
    ) -> MillContext:
        topics = [settled.stream.tokens_topic for settled in streams]
        return MillContext(
            settings=self._settings,
            stages=plan.stages,
            streams=streams,
            skip_list=SkipList(self._settings, streams),
            retention=retention,
            board=self._board,
            require_partition=TokenPartitions(self._settings, topics, self._app.know).require,
            send=self._send,
            partitions=self._partitions,
            leader=self._leader,
            start_partition=self._start_partition,
            set_durable=self._set_durable,
        )

    async def _watch_skips(self) -> None:
        """Read the control topics again and again for records that people want skipped."""

        async def ask(client: AIOKafkaConsumer) -> None:
            for context in self._contexts.values():
                await context.skip_list.refresh(client)
            for partition in list(self.partitions.owned.values()):
                partition.heed_skips()
            self.partitions.look_after_halted()

        try:
            await ask_repeatedly(self._settings, ask, SKIPS_SECONDS, "the control topics cannot be read now")
        except Exception as error:  # noqa: BLE001 - nobody awaits this task, so it must not fail in silence
            end_for(error)

    def _has_first(self, raw_topic: str) -> bool:
        """Return whether partition 0 of a raw topic is assigned to this worker."""
        return TP(raw_topic, 0) in self.partitions.owned

    async def _write_control(self, topic: str, key: bytes, value: bytes) -> None:
        try:
            await self._send(topic, 0, value, key, ())
        except NotReady as error:  # Faust stops its producer before us; whoever has the partition next goes on
            raise BrokerError("this worker ends, and its producer has ended") from error

    async def _start_partition(self, tp: TP, offset: int) -> int | None:
        return await self._app.batch_consumer.start_partition(tp, offset)

    def _set_durable(self, tp: TP, offset: int) -> None:
        self._app.batch_consumer.durable[tp] = offset

    def _open(self, tp: TP) -> RawPartition:
        partition = RawPartition(tp, self._contexts[tp.topic])
        if tp.topic in self._compaction.refused:
            partition.halt(self._compaction.refused[tp.topic])
        return partition

    def _heed_compaction(self, refused: Mapping[str, str]) -> None:
        """Halt the partitions of topics that were made compacted; where one no longer is, a new start goes on."""
        for tp, partition in self.partitions.owned.items():
            if tp.topic in refused:
                partition.halt(refused[tp.topic])
        self._refused, before = set(refused), self._refused
        if mended := before - self._refused:
            end_process(f"{', '.join(sorted(mended))} can be milled again: the next start does")

    async def _send(
        self, topic: str, partition: int, value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> int:
        try:
            metadata = await self._app.producer.send_and_wait(
                topic, key=key, value=value, partition=partition, timestamp=None, headers=list(headers)
            )
        except InvalidTimestampError as error:
            raise refused_time(topic) from error
        return int(metadata.offset)

    async def _partitions(self, topic: str) -> int:
        return await cast("DurableProducer", self._app.producer).partitions(topic)

    def _leader(self, tp: TP) -> object:
        return cast("DurableProducer", self._app.producer).leader(tp)

    async def tick(self) -> None:
        """Consider carries."""
        for partition in list(self.partitions.owned.values()):
            await partition.tick()

    def _measure(self) -> None:
        owned = self.partitions.owned
        ends = self._app.batch_consumer.end_offsets() if owned else {}
        measure(owned, ends, reached=CONTACT.away_since is None)

    def _why_not_ready(self) -> str | None:
        return self._app.why_not_ready(prepared=self._ready)

    def status(self) -> dict[str, Any]:
        """Return where each partition is."""
        ends = self._app.batch_consumer.end_offsets() if self.partitions.owned else {}
        return {
            "role": "mill",
            "ready": self._ready,
            "partitions": {
                f"{tp.topic}/{tp.partition}": {**partition.status(), "end": ends.get(tp)}
                for tp, partition in self.partitions.owned.items()
            },
        }


def _topics(settings: Settings) -> dict[str, list[str]]:
    """Return, for each raw topic, itself and the topics of its streams."""
    topics = {raw_topic: [raw_topic] for raw_topic in settings.raw_topics}
    for stream in settings.streams():
        topics[stream.raw_topic] += [stream.tokens_topic, stream.control_topic]
    return topics


def create_app(settings: Settings) -> BatchApp:
    """Return the mill as a Faust app; starting it settles the streams first."""
    app = BatchApp(settings.group, **faust_options(settings))
    mill = Mill(settings, app)
    app.handler = mill.partitions
    app.prepare = mill.prepare

    for raw_topic in settings.raw_topics:
        source = app.topic(raw_topic, value_type=bytes)

        @app.agent(source, name=f"mill-{raw_topic}", isolated_partitions=True)
        async def agent(stream: StreamT[FetchedBatch]) -> None:
            await mill.partitions.feed_all(stream)

    @app.timer(interval=TICK_SECONDS)  # type: ignore[untyped-decorator]
    async def tick() -> None:
        await mill.tick()

    return app


def __getattr__(name: str) -> BatchApp:
    """Make ``app`` when Faust's command line asks for it, from the settings of file and environment."""
    if name != "app":
        raise AttributeError(name)
    return create_app(load_settings())
