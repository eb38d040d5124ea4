"""The mill: the Faust app that turns raw topics into token topics. ``faust -A tokenmill.app.mill.app worker`` runs it.

Each (raw partition, split) is a chain. A worker keeps nothing on disk: where a chain continues is written at the end of
its token partition. Add as many workers as the raw topics have partitions.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.exceptions import NotReady
from faust.types import TP

from tokenmill.errors import BrokerError

from ..kafka.clients import ask_repeatedly, retry
from ..kafka.control_topic import Settled, settle, settled_recipe
from ..kafka.topics import LETTERS, Existing, described, letter_bytes, needed_topics
from ..settings import Settings, dead_letter_topic, load_settings, rejected_topic
from ..telemetry.worker_metrics import ENGINE, mill_at_zero, steps_at_zero
from ..worker.ending import end_process
from ..worker.in_flight import Board
from ..worker.run import StreamWorker
from ..worker.transport import BatchApp, faust_options
from .era_closing import EraKeeper
from .inquiry import DomainLogs, VerdictFeed
from .raw_partition import RawPartition
from .recipes import MillContext, RawTopicPlan, plan_topic
from .topic_changes import RETENTION_LOOK_SECONDS, PartitionGrowth, SkipList, endangered_below, watch_compaction

log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 1.0
"""How often carries are considered; they are due after a minute or more."""


class Mill(StreamWorker[RawPartition]):
    """What the mill app does with its partitions."""

    def __init__(self, settings: Settings, app: BatchApp) -> None:
        super().__init__("mill", settings, app, settings.raw_topics)
        mill_at_zero(settings.streams())
        self._contexts: dict[str, MillContext] = {}
        self._refused: Mapping[str, str] = {}
        """Raw topics that must not be milled on, and why."""
        self._eras: EraKeeper | None = None
        self._verdicts = VerdictFeed(settings)

    async def _prepare(self) -> None:
        """Settle the streams in the order of their names, so that two workers meet in the same order.

        A connection may break meanwhile, as where a login ends: each question is asked again.
        """
        plans = []
        for raw_topic in self._settings.raw_topics:
            recipe = await retry(self._settings, partial(settled_recipe, self._settings, raw_topic))
            # In a thread: a tokenizer may be fetched, or filters compiled, for minutes, and a supervisor must hear us.
            plans.append(await asyncio.to_thread(plan_topic, self._settings, raw_topic, recipe))
        for plan in plans:
            engine = plan.stages.engine
            ENGINE.labels(plan.raw_topic, engine.kind).set(1)
            steps_at_zero(plan.recipes, plan.stages.counted_labels)
            log.info("tokenizer engine", topic=plan.raw_topic, engine=engine.kind, why=plan.stages.engine_refused)
            log.info("tokens around documents", topic=plan.raw_topic, tokens=plan.marks)
            if plan.stages.steps_refused:
                log.warning("steps run without compiled kernels", topic=plan.raw_topic, why=plan.stages.steps_refused)
        streams = sorted((stream, plan) for plan in plans for stream in plan.recipes)
        settled: dict[str, list[Settled]] = {plan.raw_topic: [] for plan in plans}
        for stream, plan in streams:
            its = plan.recipes[stream], plan.tokenizer.content, plan.lists
            settling = partial(settle, self._settings, stream, *its)
            settled[plan.raw_topic].append(await retry(self._settings, settling))
        wanted = [topic.name for topic in needed_topics(self._settings) if topic.kind in {"tokens", *LETTERS}]
        topics = await retry(self._settings, partial(described, self._settings, wanted))
        self._contexts = {plan.raw_topic: self._context(plan, settled[plan.raw_topic], topics) for plan in plans}
        every = [stream for plan in plans for stream in settled[plan.raw_topic]]
        self._keep(self._watch_skips(), "skips")
        if self._settings.domains():
            self._keep(self._verdicts.run(), "verdicts")
        owned = self.partitions.owned
        self._eras = EraKeeper(self._settings, every, lambda topic: TP(topic, 0) in owned, self._write_control)
        self._keep(self._eras.run(), "eras")
        related = {raw_topic: [raw_topic] for raw_topic in self._settings.raw_topics}
        for one in self._settings.streams():
            related[one.raw_topic] += [one.tokens_topic, one.control_topic]
        self._keep(watch_compaction(self._settings, related, self._heed_compaction), "compaction")
        if any(stream.genesis.recipe.packing == "fit" for stream in every):
            self._keep(self._watch_retention(), "raw retention")

    def _context(self, plan: RawTopicPlan, streams: Sequence[Settled], topics: Mapping[str, Existing]) -> MillContext:
        tokens = [settled.stream.tokens_topic for settled in streams]
        domain = next((one for one in self._settings.domains() if plan.raw_topic in one.raw_topics), None)
        logs, grown = None, list(tokens)
        if domain is not None:
            logs = DomainLogs(domain=domain, send=self._app.send_record, feed=self._verdicts)
            grown.append(domain.verdicts_topic(plan.raw_topic))
        return MillContext(
            settings=self._settings,
            stages=plan.stages,
            streams=streams,
            skip_list=SkipList(self._settings, streams),
            token_topics={name: topics[name] for name in tokens},
            letter_bytes={
                name: letter_bytes(self._settings, topics[name])
                for name in (dead_letter_topic(plan.raw_topic), rejected_topic(plan.raw_topic))
                if name in topics
            },
            board=Board.inherited(),
            require_partition=PartitionGrowth(self._settings, grown, self._app.know).require,
            send=self._app.send_record,
            partitions=self._app.partitions_of,
            leader=self._app.leader,
            logs=logs,
            start_partition=self._app.start_partition,
            set_durable=self._app.set_durable,
        )

    def _open(self, tp: TP) -> RawPartition:
        partition = RawPartition(tp, self._contexts[tp.topic])
        if tp.topic in self._refused:
            partition.halt(self._refused[tp.topic])
        return partition

    async def _watch_skips(self) -> None:
        async def ask(client: AIOKafkaConsumer) -> None:
            for context in self._contexts.values():
                await context.skip_list.refresh(client)
            for partition in list(self.partitions.owned.values()):
                partition.heed_skips()
            self.partitions.look_after_halted()

        # what people say of records there is to be seen within seconds
        await ask_repeatedly(self._settings, ask, 2.0, "the control topics cannot be read now")

    def _heed_compaction(self, refused: Mapping[str, str]) -> None:
        """Halt the partitions of topics that were made compacted; where one no longer is, a new start goes on."""
        for tp, partition in self.partitions.owned.items():
            if tp.topic in refused:
                partition.halt(refused[tp.topic])
        self._refused, before = refused, self._refused
        if passed := before.keys() - refused.keys():
            end_process(f"{', '.join(sorted(passed))} can be milled again, which begins with the next start")

    async def _watch_retention(self) -> None:
        async def ask(client: AIOKafkaConsumer) -> None:
            owned = {TopicPartition(*tp): partition for tp, partition in self.partitions.owned.items()}
            if owned:
                for tp, below in (await endangered_below(self._settings, client, [*owned])).items():
                    owned[tp].heed_retention(below)

        outage = "the retention of raw topics cannot be looked at now"
        await ask_repeatedly(self._settings, ask, RETENTION_LOOK_SECONDS, outage)

    def status(self) -> dict[str, Any]:
        """Return where each partition is, and of which streams no more eras are closed."""
        halts = self._eras.halts if self._eras is not None else {}
        return {**super().status(), "halts": {f"closing eras of {name}": why for name, why in halts.items()}}

    async def tick(self) -> None:
        """Consider carries."""
        for partition in list(self.partitions.owned.values()):
            await partition.tick()

    async def _write_control(self, topic: str, key: bytes, value: bytes) -> None:
        try:
            await self._app.send_record(topic, 0, value, key, ())
        except NotReady as error:  # Faust stops its producer before us; the partition's next owner goes on
            raise BrokerError("the producer of this worker has ended, so the worker ends") from error


def create_app(settings: Settings) -> BatchApp:
    """Return the mill as a Faust app; starting it settles the streams first."""
    app = BatchApp(settings.group, **faust_options(settings))
    mill = Mill(settings, app)

    for raw_topic in settings.raw_topics:
        source = app.topic(raw_topic, value_type=bytes)
        app.agent(source, name=f"mill-{raw_topic}", isolated_partitions=True)(mill.partitions.feed_all)

    @app.timer(interval=TICK_SECONDS)  # type: ignore[untyped-decorator]
    async def tick() -> None:
        await mill.tick()

    return app


def __getattr__(name: str) -> BatchApp:
    """Make ``app`` when Faust's command line asks for it, from the settings of file and environment."""
    if name != "app":
        raise AttributeError(name)
    return create_app(load_settings())
