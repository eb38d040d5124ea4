"""A full copy of streams and eras on any host, filled from Kafka without a consumer group: ``tokenmill mirror``.

`StreamFlow` brings partitions of a stream into a store, `CopyMeasure` says what is missing, `CheckpointKeeper` retires
what checkpoints do not need, and `Mirror` finds streams and runs all of it, up to the head or for ever. Blocks are
appended by the segment worker's own `token_partition`.
"""

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from tokenmill import errors
from tokenmill.samples.sequence import Position
from tokenmill.samples.trainable import UNPINNED, first_needed, read_state
from tokenmill.store import EraReader, Store, open_eras, partitions_in, read_stream, streams_in

from ..broker_contact import CONTACT
from ..kafka.clients import ask_repeatedly, consumer, offsets, retry
from ..kafka.cluster import NO_LEADER, all_metadata, is_connected, leader, update_metadata
from ..kafka.control_topic import CONTROL_PREFIX, Settled, read_on, settled_on
from ..kafka.fetched_batches import FetchedBatch
from ..kafka.token_topic import readable, record_at
from ..settings import Settings
from ..tasks import Backoff, first_of, in_thread, together
from ..telemetry import worker_metrics as metrics
from ..telemetry.measuring import free_bytes, measure
from ..telemetry.reporting import WorkerReporter
from .era_bringing import EraBringer
from .following import bring_stream
from .retiring import retire
from .token_partition import SegmentContext, TokenPartition

PASSING: Final = (errors.BrokerError, KafkaError, errors.SourceError, errors.DiskError, OSError)
"""What a new start gets over: it looks at everything again, and goes on with what the store holds."""
POLL_MS: Final = 500
"""How long one poll of a partition waits for records; also how soon a change of its leader is noticed."""
FETCH_OPTIONS: Final = {"max_partition_fetch_bytes": 2 << 20, "fetch_max_wait_ms": 500}
"""As the workers have it: bytes of one partition in a fetch, and how long one at the end of the log waits for some."""
FIRST_PAUSE: Final = 0.5
"""Seconds before a new start; doubled each time ..."""
LONGEST_PAUSE: Final = 10.0
"""... up to this, and from the first one after as long without an error."""

log = structlog.get_logger(__name__)


class StreamFlow:
    """Appends partitions of a stream to a store, from `run` until that is cancelled."""

    def __init__(self, settings: Settings, store: Store, settled: Settled, numbers: Sequence[int]) -> None:
        self.settled = settled
        self.topics: Final = [TopicPartition(settled.stream.tokens_topic, number) for number in numbers]
        self.partitions: dict[TopicPartition, TokenPartition] = {}
        """As they are since the last start."""
        self.reached: dict[TopicPartition, int] = {}
        """Up to where each partition's topic has been read since then, and what it held is durable."""
        self.heads: dict[TopicPartition, int] = {}
        """The number of the block after the last one on each partition, as far as its last messages say (`look`)."""
        self._settings = settings
        self._store = store
        self._looked: dict[TopicPartition, int] = {}
        self._client: AIOKafkaConsumer | None = None
        self._leaders: dict[TopicPartition, int | None] = {}
        self._passed: dict[TopicPartition, int] = {}
        self._generations: dict[TopicPartition, int] = {}
        self._failed: asyncio.Future[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether a broker is connected."""
        return self._client is not None and is_connected(self._client)

    def ends(self) -> Mapping[TopicPartition, int]:
        """Return the end offsets that the last fetches brought."""
        if self._client is None:
            return {}
        ends = {tp: self._client.highwater(tp) for tp in self.topics}
        return {tp: end for tp, end in ends.items() if end is not None}

    def has_reached(self, tp: TopicPartition, end: int) -> bool:
        """Return whether all that a topic held before offset ``end`` is durable, or cannot come now (`problem`)."""
        partition = self.partitions.get(tp)
        if partition is None:
            return False
        return self.problem(tp) is not None or (not partition.waiting and self.reached.get(tp, -1) >= end)

    def problem(self, tp: TopicPartition) -> Exception | None:
        """Return what keeps a partition from going on that does not pass with time: a halt, or a missing block."""
        partition = self.partitions.get(tp)
        if partition is None:
            return None
        if partition.waiting and partition.vain_looks:
            return errors.GapError(
                f"{partition.waiting}; the token topic does not hold it now. The next mill worker of the partition "
                "writes it again: start one, or wait"
            )
        return partition.halt

    async def look(self, client: AIOKafkaConsumer) -> None:
        """Bring `heads` up to date; only this call uses ``client`` meanwhile.

        Only the last message is read, and only where more was written than was appended; a writer's late one can hide
        others until the next look.
        """
        for tp, (first, end) in (await offsets(client, self.topics)).items():
            if first < end != self._looked.get(tp) and self.reached.get(tp, 0) < end:
                record = await record_at(client, tp, end - 1, end)
                message = None if record is None else readable(record, self.settled.genesis.recipe.fingerprint)
                if message is not None:
                    self.heads[tp] = max(self.heads.get(tp, 0), message.end)
                self._looked[tp] = end

    async def run(self) -> None:
        """Append what comes, and start again, as after a SIGKILL, after what a new start gets over; raises all else."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, healthy=LONGEST_PAUSE)
        while True:
            began = time.monotonic()
            try:
                await self._run()
            except PASSING as error:
                log.warning("the stream is taken up again", stream=self.settled.stream.name, reason=str(error))
            finally:
                await self._stop()
            await asyncio.sleep(backoff.next(time.monotonic() - began))

    async def _run(self) -> None:
        failed = self._failed = asyncio.get_running_loop().create_future()

        async def failure() -> None:
            await failed

        async with consumer(self._settings, **FETCH_OPTIONS) as client:
            client.assign(self.topics)
            for tp in self.topics:  # nothing is fetched before a partition has its place
                client.pause(tp)
                client.seek(tp, 0)
            await update_metadata(client)  # leaders are noted before anything is read
            self._leaders = {tp: leader(client, tp) for tp in self.topics}
            self._client = client
            context = SegmentContext(
                settings=self._settings,
                store=self._store,
                stream=self.settled.stream.name,
                recipe=self.settled.genesis.recipe,
                ignored=self.settled.control.ignored,
                start_partition=self._start_partition,
                set_durable=self.reached.__setitem__,
                end_offset=lambda tp: self.ends().get(tp, 0),
                fail=self._fail,
            )
            self.partitions = {tp: TokenPartition(tp, context) for tp in self.topics}
            await together(failure(), *(self._follow(client, partition) for partition in self.partitions.values()))

    async def _stop(self) -> None:
        self._client = None
        if self._failed is not None and not self._failed.cancel() and not self._failed.cancelled():
            self._failed.exception()  # or asyncio would log it as never retrieved
        for partition in self.partitions.values():
            partition.stop()
        for partition in self.partitions.values():
            try:
                await partition.closed()
            except PASSING as error:  # what it could not commit comes again
                log.warning("a partition could not be ended", topic=partition.tp.topic, reason=str(error))
        self.partitions, self.reached = {}, {}

    def _fail(self, error: Exception) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _start_partition(self, tp: TopicPartition, offset: int) -> int | None:
        if self._client is None:
            return None
        self._generations[tp] = self._generations.get(tp, 0) + 1
        self._passed[tp] = self.reached[tp] = offset
        self._client.seek(tp, offset)
        self._client.resume(tp)
        return self._generations[tp]

    async def _follow(self, client: AIOKafkaConsumer, partition: TokenPartition) -> None:
        """Resume a partition and feed it; one that halted again, once the reason may have ended."""
        tp = partition.tp
        await partition.resume()
        while True:
            if partition.halt:
                client.pause(tp)
                await asyncio.sleep(1.0)  # a person ends the reason of a halt; a look costs two calls of the system
                if partition.may_go_on():
                    await partition.resume()
                continue
            records: Sequence[Any] = (await client.getmany(tp, timeout_ms=POLL_MS)).get(tp, ())
            self._require_leader(client, tp)
            position = await client.position(tp)
            if records or position > self._passed[tp]:
                self._passed[tp] = position
                await partition.feed(FetchedBatch(tp, records, position, self._generations[tp]))

    def _require_leader(self, client: AIOKafkaConsumer, tp: TopicPartition) -> None:
        """Check that the log is the one that was looked at: a new leader may have lost its end."""
        now, before = leader(client, tp), self._leaders[tp]
        if before in {None, NO_LEADER}:
            self._leaders[tp] = now
        elif now != before:
            raise errors.MovedError(f"the leader of {tp.topic}[{tp.partition}] changed: its log is looked at again")


@dataclass(frozen=True, slots=True)
class MirroredStream:
    """What a mirror has of a stream, and what it lacks; a partition that has not started counts from block 0."""

    stream: str
    blocks: int
    """Blocks that the token topic has and the store lacks."""
    bytes: int
    """Bytes of their tokens."""
    eras: int
    """Eras that the store has and lacks blocks of."""
    stored: int
    """The sum of the numbers of the blocks that each partition wants next."""
    trainable: int
    """Eras whose blocks are all there."""
    stopped_by: tuple[str, ...]
    """Why partitions wait or are halted, if any are."""


class CopyMeasure:
    """Says how far behind a stream's copy is, from what the store and the flows hold; asks no broker."""

    def __init__(self, store: Path, stream: str) -> None:
        """Open the stream's eras; a store has them, possibly none, as soon as it has the stream."""
        self._stream = stream
        self._eras: EraReader = open_eras(store, stream)
        self._blocks: dict[int, int] = {}

    def take(self, flows: list[StreamFlow]) -> MirroredStream:
        """Return what the flows of the stream have and lack; a partition that starts again keeps what it had."""
        partitions = {tp: partition for flow in flows for tp, partition in flow.partitions.items()}
        for tp, partition in partitions.items():
            block = partition.status()["block"]
            if block is not None:
                self._blocks[tp.partition] = block
        heads = {tp.partition: head for flow in flows for tp, head in flow.heads.items()}
        blocks = sum(max(0, head - self._blocks.get(number, 0)) for number, head in heads.items())
        self._eras.refresh()
        trainable = bisect_left(
            range(self._eras.eras), x=True, key=lambda number: self._eras.era(number).lacks(self._blocks)
        )
        stopped_by = (partition.halted or partition.waiting for partition in partitions.values())
        return MirroredStream(
            stream=self._stream,
            blocks=blocks,
            bytes=blocks * flows[0].settled.genesis.recipe.block_bytes,
            eras=self._eras.eras - trainable,
            stored=sum(self._blocks.values()),
            trainable=trainable,
            stopped_by=tuple(str(why) for why in stopped_by if why),
        )


KEEP_LOOK_SECONDS: Final = 10.0
"""How often states are read: space is freed as soon after a checkpoint."""


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

        Raises InputError where a file is no state at the first look, or one of another stream, fingerprint or content.
        """
        await in_thread(self.look)
        while True:
            await asyncio.sleep(KEEP_LOOK_SECONDS)
            try:
                await in_thread(self.look)
            except (errors.InputError, errors.StoreError, errors.DamagedError) as error:
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
                raise errors.InputError(
                    f"a state is one of stream {stream!r}, which is not in {self._store} (streams there: "
                    f"{', '.join(streams_in(self._store)) or 'none'}): name states of runs over these"
                )
            own = [position for position in positions if position.sequence.stream == stream]
            needed = first_needed(self._store, read_stream(self._store, stream), own)
            for partition in [number for number in partitions_in(self._store, stream) if number < len(needed)]:
                retired = retire(self._store, stream, partition, needed[partition])
                if retired.segments:
                    log.info(
                        "segments retired", stream=stream, partition=partition, segments=retired.segments,
                        bytes=retired.freed_bytes, first=retired.first,
                    )  # fmt: skip
        self._said = ""

    def _read(self, file: Path) -> Position:
        position = read_state(file)
        if position.unpinned and file not in self._doubted:
            self._doubted.add(file)
            log.warning("state without content", file=str(file), reason=UNPINNED)
        return position

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
            store: is filled by this process alone; the caller holds its lock.
            names: of the streams; none: all that are settled on the brokers.
            once: whether to end with what is there at the beginning.
            keep_from: files with states; what none of them needs is retired (`keep_from`).
            progress: is called every `LOOK_SECONDS` with what each stream has and lacks.
        """
        self.problems: list[Exception] = []
        """What only a person can remedy, and blocks that no source holds, as of the last look."""
        self.behind: list[MirroredStream] = []
        """Each stream, as of the last look."""
        self._settings, self._store = settings, store
        self._once, self._progress = once, progress
        self._finder = StreamFinder(names)
        self._keeper = CheckpointKeeper(store.path, keep_from) if keep_from else None
        self._flows: dict[str, list[StreamFlow]] = {}
        self._measures: dict[str, CopyMeasure] = {}
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
                    raise errors.TopicError(
                        f"{missing} is not settled on these brokers: check the name, or start a mill"
                    )
                group.create_task(self._bringer.run(self._settings), name="eras")
                group.create_task(self._look_on(group), name="look")
                if self._keeper:
                    group.create_task(self._keeper.run(), name="keep")
                if self._once:
                    group.create_task(self._until_head(), name="head")
                else:
                    self._reporter.start()
        except BaseExceptionGroup as several:
            error = first_of(several)
            if not isinstance(error, _AtHeadError):
                raise error from None
        finally:
            self._reporter.stop()
            self._bringer.close()

    async def _begin(self, group: asyncio.TaskGroup) -> None:
        async with consumer(self._settings) as client:
            await self._find(client, group)

    async def _look_on(self, group: asyncio.TaskGroup) -> None:
        async def ask(client: AIOKafkaConsumer) -> None:
            if not self._once:
                await self._find(client, group)
            controls = {settled.stream.control_topic: settled.control for settled in self._settled}
            await read_on(client, controls)  # what people say of messages that halted us
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
        for flow in self._all_flows():
            await flow.look(client)
        self._take()

    def _take(self) -> None:
        self.behind = [self._measures[name].take(flows) for name, flows in self._flows.items()]
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


class StreamFinder:
    """Finds the streams ``names``, or without names all that are settled on the brokers."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.missing: list[str] = []
        """As of the last look: streams that are named, or begun, and not settled yet."""
        self._names = names
        self._known: dict[str, Settled] = {}
        self._partitions: dict[str, int] = {}

    async def look(self, client: AIOKafkaConsumer) -> list[tuple[Settled, range]]:
        """Return streams with partitions that are new since the last look; only this call uses ``client`` meanwhile."""
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
                found.append((settled, range(before, count)))
                self._partitions[name] = count
        return found
