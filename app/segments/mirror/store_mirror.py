"""A full copy of streams and eras in a store: which streams there are, and their flows, up to the head or for ever."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import DamagedError, InputError, StoreError, TopicError
from tokenmill.samples import UNPINNED, Position, first_needed, read_state
from tokenmill.store import Store, partitions_in, read_stream, streams_in

from ...broker_contact import CONTACT
from ...kafka.clients import consumer, offsets
from ...kafka.cluster import all_metadata
from ...kafka.control_topic import CONTROL_PREFIX, Settled, read_on
from ...kafka.retry import ask_repeatedly, retry
from ...kafka.settled_streams import settled_on
from ...settings import Settings
from ...tasks import first_of, in_thread
from ...telemetry import worker_metrics as metrics
from ...telemetry.measuring import free_bytes, measure
from ...telemetry.reporting import WorkerReporter
from ..era_bringing import EraBringer
from ..retiring import retire
from ..store_opening import bring_stream
from .stream_flow import CopyMeasure, FurthestBlocks, MirroredStream, StreamFlow

KEEP_LOOK_SECONDS: Final = 10.0
"""How often states are read: space is freed as soon after a checkpoint."""

log = structlog.get_logger(__name__)


class CheckpointKeeper:
    """Retires segments of a store whose blocks belong only to eras before those that states in files need.

    Of a stream that no state is of, and while any of the files is missing, nothing is retired.
    """

    def __init__(self, store: Path, files: Sequence[Path]) -> None:
        self._store = store
        self._files = files
        self._said = ""
        self._doubted: set[Path] = set()
        """Files with old states, of which that was said."""

    async def run(self) -> None:
        """Look again and again, at once for the first time; what is wrong later is logged, and all is kept.

        Raises:
            InputError: at the first look, a file is no state, or one of another stream, fingerprint or content.

        """
        await in_thread(self.look)
        while True:
            await asyncio.sleep(KEEP_LOOK_SECONDS)
            try:
                await in_thread(self.look)
            except (InputError, StoreError, DamagedError) as error:
                self._say(str(error))

    def look(self) -> None:
        """Read all states, then retire what none of them needs; raises as `retire` and `first_needed` do."""
        missing = [str(file) for file in self._files if not file.exists()]
        if missing:
            self._say(f"{', '.join(missing)}: not there yet")
            return
        positions = [self._read(file) for file in self._files]
        for stream in sorted({position.sequence.stream for position in positions}):
            if stream not in streams_in(self._store):
                raise InputError(
                    f"a state is one of stream {stream!r}, which is not in {self._store} (streams there: "
                    f"{', '.join(streams_in(self._store)) or 'none'}): name states of runs over these"
                )
            needed = first_needed(
                self._store,
                read_stream(self._store, stream),
                [position for position in positions if position.sequence.stream == stream],
            )
            for partition in partitions_in(self._store, stream):
                if partition < len(needed):
                    self._retire(stream, partition, needed[partition])
        self._said = ""

    def _read(self, file: Path) -> Position:
        position = read_state(file)
        if position.unpinned and file not in self._doubted:
            self._doubted.add(file)
            log.warning("state without content", file=str(file), reason=UNPINNED)
        return position

    def _retire(self, stream: str, partition: int, below: int) -> None:
        retired = retire(self._store, stream, partition, below)
        if retired.segments:
            log.info(
                "segments retired", stream=stream, partition=partition, segments=retired.segments,
                bytes=retired.freed_bytes, first=retired.first,
            )  # fmt: skip

    def _say(self, reason: str) -> None:
        if reason != self._said:
            log.warning("nothing is retired", reason=reason)
        self._said = reason


LOOK_SECONDS: Final = 2.0
"""How often streams, partitions and the ends of topics are looked for."""
CHECK_SECONDS: Final = 0.1
"""How often a mirror that ends at the head asks itself whether it is there."""


class _AtHeadError(Exception):
    """Ends all tasks of a mirror that is done."""


class Mirror:
    """Fills a store with streams: `run` until it is cancelled, or until the store has all that there was."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        names: Sequence[str] = (),
        *,
        once: bool = False,
        keep_from: Sequence[Path] = (),
        progress: Callable[[Sequence[MirroredStream]], None] | None = None,
    ) -> None:
        """Mirror as the arguments say.

        Args:
            settings: which brokers, and where metrics are served.
            store: is filled by nobody else; the caller holds its lock.
            names: of the streams; none: all that are settled on the brokers.
            once: whether to end with what is there at the beginning.
            keep_from: files with states; what none of them needs is retired (`keep_from`).
            progress: is called every `LOOK_SECONDS` with what each stream has and lacks.

        """
        self.problems: list[Exception] = []
        """What only a person can remedy, and blocks that nobody holds, as of the last look."""
        self.behind: list[MirroredStream] = []
        """Each stream, as of the last look."""
        self._settings = settings
        self._store = store
        self._once = once
        self._progress = progress
        self._finder = StreamFinder(names)
        self._keeper = CheckpointKeeper(store.path, keep_from) if keep_from else None
        self._flows: dict[str, list[StreamFlow]] = {}
        self._measures: dict[str, CopyMeasure] = {}
        self._furthest = FurthestBlocks()
        self._settled: list[Settled] = []
        self._bringer = EraBringer(self._settled, store, lambda _topic: True)
        self._missing: list[str] = []
        self._reporter = WorkerReporter(
            "mirror", settings, status=self._status, measure=self._measure, not_ready=self._why_not_ready
        )

    async def run(self) -> None:
        """Mirror; with ``once``, return when everything is durable that the topics held at the beginning.

        Ends, also when it is cancelled, only after what was appended is committed and the store's files are closed.

        Raises:
            BrokerError: no broker answers at the beginning; later, one is waited for.
            TopicError: with ``once``, a stream is missing.
            InputError: a state to keep from is none, or one of another stream or fingerprint.
            FingerprintError: the store holds a stream of that name that was made with other settings.
            SettingsError: the brokers refuse us.

        """
        try:
            async with asyncio.TaskGroup() as group:
                await retry(self._settings, lambda: self._begin(group))
                if self._once and (self._finder.missing or not self._flows):
                    missing = ", ".join(self._finder.missing) or "a stream"
                    raise TopicError(f"{missing} is not settled on these brokers: check the name, or start a mill")
                group.create_task(self._bringer.run(self._settings), name="eras")
                group.create_task(self._look_on(group), name="look")
                if self._keeper:
                    group.create_task(self._keeper.run(), name="keep")
                if self._once:
                    group.create_task(self._until_head(), name="head")
                else:
                    self._reporter.start()
        except BaseExceptionGroup as errors:
            error = first_of(errors)
            if not isinstance(error, _AtHeadError):
                raise error from None
        finally:
            self._reporter.stop()
            self._bringer.close()

    async def _begin(self, group: asyncio.TaskGroup) -> None:
        async with consumer(self._settings) as client:
            await self._find(client, group)

    async def _look_on(self, group: asyncio.TaskGroup) -> None:
        """Look for streams and partitions, and see how far behind each is, again and again."""

        async def ask(client: AIOKafkaConsumer) -> None:
            if not self._once:
                await self._find(client, group)
            for settled in self._settled:  # what people say of messages that halted us
                await read_on(client, settled.stream.control_topic, settled.control)
            await self._see(client)

        await ask_repeatedly(self._settings, ask, LOOK_SECONDS, "the brokers cannot be asked now", (OSError,))

    async def _find(self, client: AIOKafkaConsumer, group: asyncio.TaskGroup) -> None:
        for settled, numbers in await self._finder.look(client):
            name = settled.stream.name
            if name not in self._flows:
                await bring_stream(self._store, settled)
                self._settled.append(settled)
                self._measures[name] = CopyMeasure(self._store.path, name)
            flow = StreamFlow(self._settings, self._store, settled, numbers)
            self._flows.setdefault(name, []).append(flow)
            group.create_task(flow.run(), name=f"{name} {numbers}")
            log.info("mirrored", stream=name, partitions=[numbers.start, numbers.stop - 1])
        missing = self._finder.missing
        if missing and missing != self._missing and not self._once:
            log.warning("no mill has settled these streams yet", streams=missing)
        self._missing = missing

    async def _see(self, client: AIOKafkaConsumer) -> None:
        for flows in self._flows.values():
            for flow in flows:
                await self._furthest.look(client, flow)
        self._take()

    def _take(self) -> None:
        self.behind = [self._measures[name].take(flows, self._furthest.found) for name, flows in self._flows.items()]
        self.problems = list(self._bringer.halts.values())
        for flow in self._all_flows():
            self.problems += [problem for tp in flow.topics if (problem := flow.problem(tp))]
        for found in self.behind:
            metrics.BLOCKS_BEHIND.labels(found.stream).set(found.blocks)
            metrics.BYTES_BEHIND.labels(found.stream).set(found.bytes)
            metrics.ERAS_BEHIND.labels(found.stream).set(found.eras)
        if self._progress is not None:
            self._progress(self.behind)

    async def _until_head(self) -> None:
        """Wait until all eras that there are, then all messages, are in the store, or cannot come."""
        while not self._flows.keys() <= self._bringer.looked | self._bringer.halts.keys():  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(CHECK_SECONDS)
        ends: dict[TopicPartition, int] = {}
        async with consumer(self._settings) as client:
            for flow in self._all_flows():
                ends |= {tp: end for tp, (_, end) in (await offsets(client, flow.topics)).items()}
        while not all(flow.has_reached(tp, ends[tp]) for flow in self._all_flows() for tp in flow.topics):  # noqa: ASYNC110
            await asyncio.sleep(CHECK_SECONDS)
        self._take()
        raise _AtHeadError

    def _all_flows(self) -> list[StreamFlow]:
        return [flow for flows in self._flows.values() for flow in flows]

    def _measure(self) -> None:
        partitions = {tp: partition for flow in self._all_flows() for tp, partition in flow.partitions.items()}
        ends = {tp: (end, end) for flow in self._all_flows() for tp, end in flow.ends().items()}
        measure(partitions, ends, reached=CONTACT.away_since is None)
        metrics.DISK_FREE_BYTES.labels("segment").set(free_bytes(self._store.path))

    def _status(self) -> dict[str, Any]:
        partitions: dict[str, dict[str, Any]] = {}
        for flow in self._all_flows():
            ends = flow.ends()
            for tp, partition in flow.partitions.items():
                where = {"position": flow.reached.get(tp), "end": ends.get(tp)}
                partitions[f"{tp.topic}/{tp.partition}"] = {**partition.status(), **where}
        return {"partitions": partitions, **self._bringer.status()}

    def _why_not_ready(self) -> str | None:
        if not self._flows:
            return "no stream is settled yet"
        return None if any(flow.connected for flow in self._all_flows()) else "no broker is connected"


class NewPartitions(NamedTuple):
    """Partitions of a stream that were not there before."""

    settled: Settled
    partitions: range


class StreamFinder:
    """Finds the streams ``names``, or without names all that are settled on the brokers."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.missing: list[str] = []
        """As of the last look: streams that are named, or begun, and not settled yet."""
        self._names = names
        self._known: dict[str, Settled] = {}
        self._partitions: dict[str, int] = {}

    async def look(self, client: AIOKafkaConsumer) -> list[NewPartitions]:
        """Return what is new since the last look; ``client`` is used by nobody else meanwhile."""
        cluster = await all_metadata(client)  # one request for topics and partitions
        there = {topic.removeprefix(CONTROL_PREFIX) for topic in cluster.topics() if topic.startswith(CONTROL_PREFIX)}
        self.missing = []
        found = []
        for name in sorted(self._names or there):
            settled = self._known.get(name) or (await settled_on(client, name) if name in there else None)
            if settled is None:
                self.missing.append(name)
                continue
            self._known[name] = settled
            count = len(cluster.partitions_for_topic(settled.stream.tokens_topic) or ())
            before = self._partitions.get(name, 0)
            if count > before:
                found.append(NewPartitions(settled, range(before, count)))
                self._partitions[name] = count
        return found
