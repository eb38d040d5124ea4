"""A pack: documents of files into the streams of a store, without Kafka, as `produce`, mill and segment worker would.

This process reads, numbers the documents and deals them out (`Dealer`); others mill them (`mill_processes`). A
document's partition and offset are those that it has on an empty topic of as many partitions. Now and then all that was
dealt out is made durable, and then noted (`packed_partition`): there the same command goes on.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

import xxhash

from tokenmill.errors import DamagedError, FingerprintError, InputError, SettingsError, StoreError
from tokenmill.recipe import MAX_PARTITIONS, Genesis, Recipe
from tokenmill.store import EraWriter, Store, StreamInfo, partitions_in, read_stream, streams_in
from tokenmill.store.layout import StoreLock, partition_directory, segment_firsts, stream_directory
from tokenmill.wire.totals import Totals

from ...kafka.control_topic import library_versions
from ...kafka.dead_letters import DeadLetter, SourcePlace
from ...mill.recipes import RawTopicPlan, plan_topic
from ...milling.duplicates.signatures import deduplication_of
from ...settings import Settings
from ...sources.file_sources import FileSource, Reading
from ...sources.items import ITEM_BYTES, DocumentSource, Item, Placed, Refused
from ...sources.reading_order import OrderState, ReadingOrder, ShuffleBuffer
from ...sources.source_changes import KnownSource, changes_line, compare_sources, look_at_source, look_at_sources
from ...tasks import in_background
from ..produce.producing import partition_of
from ..produce.sending import COUNTED, REASON, Acknowledged, Progress, ReadingPlan, Summary, reporting
from . import packed_partition
from .mill_processes import DocumentBatch, Ends, Judging, Millers, MillTask, batch_of, joined
from .packed_partition import DEAD, SOURCE_LETTERS, LetterFile, PackedEras, PackFiles, PackPosition, PackRun
from .parted_sources import parted

COMMIT_SECONDS: Final = 5.0
"""Between two commits: what is done again after a kill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan(ReadingPlan):
    """The options of a pack."""

    raw_topic: str
    partitions: int
    processes: int
    flush: bool = False
    end: bool = False


@dataclass(frozen=True, slots=True)
class PackedStream:
    """What a stream holds."""

    totals: Totals
    blocks: int
    open_tokens: int
    """In all partitions, of blocks that are not full."""
    eras: int = 0
    ended: bool = False


@dataclass(slots=True)
class PackSummary(Summary):
    """What a pack did so far; ``partitions`` counts what this call dealt out."""

    streams: dict[str, PackedStream] = field(default_factory=dict)
    marks: str = ""
    """What ends and begins a document, and what padding is, with why."""
    letters: str = ""


async def pack(
    settings: Settings,
    sources: Sequence[DocumentSource],
    reading: Reading,
    plan: PackPlan,
    progress: Progress = lambda _: None,
) -> PackSummary:
    """Fill the streams of a raw topic in the settings' store from sources; all is durable on return.

    Segments, document tables, indexes, manifests and ``stream.json`` are, byte for byte, those that `produce` into an
    empty topic with ``plan.partitions`` partitions, a mill and a segment worker make. Killed or interrupted, the same
    call goes on. ``progress`` is called a few times a second and at the end.

    Raises:
        SettingsError: a setting cannot be used, or has no meaning without Kafka.
        InputError: the sources have changed since the run began, the store holds another run's documents, or
            ``plan.on_error`` is ``fail`` and a document cannot be used; what came before it is packed.
        FingerprintError: the store holds a stream of that name that was made with other settings.
        StoreError: a stream of that name was filled from Kafka.
        LockedError: another process fills the store.
        DiskError: it cannot be written to; what was committed is kept.
        EngineError: the fast engine contradicts the reference.

    """
    raw_topic = plan.raw_topic
    topic_plan = await asyncio.to_thread(plan_pack, settings, raw_topic, plan.partitions)
    own = settings.for_topic(raw_topic)
    summary = PackSummary(raw_topic, {number: Acknowledged() for number in range(plan.partitions)})
    summary.limit, summary.marks = plan.limit, topic_plan.marks
    with ExitStack() as stack:
        store = Store.open_or_create(settings.store)
        stack.callback(StoreLock(store.path, exclusive=True).close)
        files = PackFiles(packed_partition.pack_directory(store.path, raw_topic, own.stream_suffix))
        summary.letters = str(files.letters(DEAD, "*"))
        identity = plan.identity or ""
        first_offset, seen = 1 if identity else 0, tuple(map(_seen, sources))  # a run of produce begins with a marker
        fresh = PackRun(identity, plan.partitions, first_offset, _newest(sources), seen)
        _forget_nothing(store, files, raw_topic)
        run = await asyncio.to_thread(_begin_run, store, files, topic_plan, sources, fresh)
        geneses = []
        for wanted in geneses_of(topic_plan, plan.partitions, own.segment_blocks):
            held = store.add_stream(StreamInfo.from_genesis(wanted, own.segment_blocks), topic_plan.tokenizer.content)
            geneses.append(Genesis.from_dict(held.values["genesis"]))
        eras = {}
        for genesis in geneses:
            writer = stack.enter_context(EraWriter.open(store, genesis.stream))
            eras[genesis.recipe.split] = PackedEras(store, genesis, writer, own.era_blocks, run.closed)
        task = mill_task(settings, topic_plan, geneses, reading, files)
        # In the background: it must not keep a process alive that was interrupted.
        lacks = any(seen.digest == WITHOUT_DIGEST for seen in run.sources)
        digests = in_background(lambda: read_digests(run, sources)) if run.run and lacks else None
        with Millers(task, plan.partitions, plan.processes) as millers:
            call = _Call(files, millers, eras, run, plan, summary)
            stack.callback(call.close)
            await call.all(sources, progress)
        if digests is not None:
            run = await asyncio.wrap_future(digests)
            files.write_run(run)
        if run.run:
            await asyncio.to_thread(require_unchanged, run, sources)
    return summary


def plan_pack(settings: Settings, raw_topic: str, partitions: int) -> RawTopicPlan:
    """Return how a raw topic's documents are milled; SettingsError where a setting has no meaning without Kafka."""
    own = settings.for_topic(raw_topic)
    if raw_topic not in settings.raw_topics:
        raise SettingsError(f"{raw_topic} is not in raw_topics ({', '.join(settings.raw_topics)}): name one of these")
    if own.start_milliseconds is not None:
        raise SettingsError(f"start = {own.start!r}: documents in files have no time; leave start out")
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise SettingsError(f"{partitions} partitions: give 1 to {MAX_PARTITIONS:,}")
    return plan_topic(settings, raw_topic, held_recipe(settings, raw_topic))


def mill_task(
    settings: Settings, plan: RawTopicPlan, geneses: Sequence[Genesis], reading: Reading, files: PackFiles
) -> MillTask:
    """Return what the processes need to know that mill for packing."""
    return MillTask(
        settings.store.absolute(),
        geneses,
        plan.tokenizer,
        plan.lists,
        settings.engine,
        replace(reading, mapping=None),  # what it maps is read here
        files,
        settings.tokenizer_threads,
        settings.rejects == "topic",
        packed_partition.PartitionPacker,
    )


@dataclass
class _Call:
    """One call: deals out from where the files say on, commits now and then, and closes eras."""

    _files: PackFiles
    _millers: Millers
    _eras: Mapping[str, PackedEras]
    _run: PackRun
    _plan: PackPlan
    _summary: PackSummary
    _committing: "asyncio.Task[Ends] | None" = None
    _committed: float = 0.0

    async def all(self, sources: Sequence[DocumentSource], progress: Progress) -> None:
        summary = self._summary
        position = self._position = self._files.read_position() or PackPosition.start(len(sources), self._run)
        self._letters = LetterFile(self._files.letters(DEAD, SOURCE_LETTERS), position.letters)
        for name in COUNTED:
            setattr(summary, name, getattr(position, name))
        summary.broken_before, summary.before = position.broken, position.number
        self._dealer = Dealer(self._millers, summary, self._plan, position, await self._millers.opened())
        deduplication = deduplication_of(next(iter(self._eras.values())).genesis.recipe.dedup)
        if deduplication is not None:
            directory = self._files.directory
            self._dealer.judging = Judging(self._millers, deduplication, directory, position.number, position.kept)
        self._dealer.refuse, self._dealer.may_add = self._refuse, self._require_open
        async with reporting(summary, progress):
            self._committed = time.monotonic()
            try:
                await self._dealer.read(sources, position.state, self._between)
            except InputError:  # what came before the document that ends the run is kept
                await (await self._begin_commit())
                raise
            await self._finish()

    async def _between(self, state: OrderState) -> None:
        """Remember where this is; not with a shuffle buffer, whose content depends on all that was read."""
        summary, dealer = self._summary, self._dealer
        if not self._plan.shuffle:
            self._position = replace(
                self._position,
                number=dealer.number,
                state=state,
                offsets=tuple(dealer.offsets),
                letters=self._letters.size,
                **{name: getattr(summary, name) for name in COUNTED},
            )
            if dealer.judging is not None:
                dealer.judging.mark(dealer.number)
        if time.monotonic() - self._committed >= COMMIT_SECONDS:
            await self._begin_commit()

    def _refuse(self, refused: Refused) -> None:
        if self._plan.on_error == "fail":
            self._fail(f"{refused.where}: {refused.why}. What came before it is packed")
        self._summary.refuse(refused, ends=not self._dealer.number and self._plan.on_error == "skip")
        if self._plan.on_error == "dead-letter":
            run = xxhash.xxh32_hexdigest(self._run.run.encode())
            place = SourcePlace(self._summary.topic, run, refused.where)
            self._letters.add([DeadLetter(place, -1, REASON, "", refused.why, None, refused.data, ())])

    def _fail(self, why: str) -> NoReturn:
        goes_on = "; the same command with --on-error skip (or dead-letter) goes on from there"
        raise InputError(f"{why}{goes_on if self._run.run else ''}")

    def _require_open(self) -> None:
        for eras in self._eras.values():
            if eras.ended:
                raise packed_partition.behind_end(eras.genesis.stream, "documents (--limit)")
        if self._position.flushed:
            raise InputError(
                "the open blocks were filled with padding behind the documents that an earlier call packed (--flush), "
                f"and there are more documents now (--limit): keep what is there, or {OTHER_STORE}"
            )

    async def _begin_commit(self, *, last: bool = False) -> "asyncio.Task[Ends]":
        """Have all that was dealt out made durable, and noted after that; waits for the commit before, not for this.

        With the ``last`` commit the eras are closed, unless the mill has dead letters and none are allowed.
        """
        await self._dealer.deal_open()
        if self._dealer.judging is not None:
            self._position = replace(self._position, kept=self._dealer.judging.kept)
        if self._committing is not None:
            await self._committing
        self._committing = asyncio.create_task(self._settle(self._millers.commit(), self._position, last=last))
        self._committed = time.monotonic()
        return self._committing

    async def _settle(self, answers: Sequence["Future[Ends]"], position: PackPosition, *, last: bool) -> Ends:
        ends = await joined(answers)
        # Each waits for the disk, and for none of the others; who fails lets them end before files are closed.
        totals = [chain.totals for chains in ends.values() for chain in chains.values()]
        dead = set().union(*(one.dead_lettered for one in totals)) if self._plan.on_error == "fail" else set()
        noted = asyncio.to_thread(self._note, position)
        closed = (asyncio.to_thread(self._close_eras, split, ends) for split in self._eras if last and not dead)
        for failed in await asyncio.gather(noted, *closed, return_exceptions=True):
            if failed is not None:
                raise failed
        if dead:
            self._fail(f"the mill cannot use documents ({', '.join(sorted(dead))}): see {self._summary.letters}")
        return ends

    def _note(self, position: PackPosition) -> None:
        self._letters.sync()
        judging = self._dealer.judging
        if judging is not None:
            judging.window.sync()
        self._files.write_position(position)
        if judging is not None:
            judging.window.forget(position.kept)

    def _close_eras(self, split: str, ends: Ends) -> None:
        blocks = {number: chains[split].blocks for number, chains in ends.items()}
        self._eras[split].close_all(blocks, end=self._plan.end)

    async def _finish(self) -> None:
        await self._dealer.deal_open()
        if self._plan.flush and self._dealer.number and not self._position.flushed:
            for chains in (await (await self._begin_commit())).values():
                for split, eras in self._eras.items():
                    if eras.ended and chains[split].open_tokens:
                        raise packed_partition.behind_end(eras.genesis.stream, "blocks (--flush)")
            await self._dealer.flush()
            self._position = replace(self._position, flushed=True)
        ends = await (await self._begin_commit(last=True))
        documents = self._dealer.number
        flushes = self._run.partitions if self._position.flushed else 0
        for split, eras in self._eras.items():
            parts = [ends[number][split] for number in sorted(ends)]
            totals = sum((part.totals for part in parts), Totals())
            blocks, waiting = sum(part.blocks for part in parts), sum(part.open_tokens for part in parts)
            held = PackedStream(totals, blocks, waiting, eras.writer.next_number, eras.ended)
            self._summary.streams[eras.genesis.stream] = held
            if totals.records != documents + flushes or not totals.balanced:
                raise DamagedError(
                    f"{eras.genesis.stream} accounts for {totals.records - flushes:,} of {documents:,} documents: this "
                    "is a bug of TokenMill, or a file of its state was changed"
                )

    def close(self) -> None:
        committing = self._committing
        if committing is not None and not committing.cancel() and not committing.cancelled():
            committing.exception()  # whatever it met, what ended this call met it as well


BATCH_BYTES: Final = 2 << 20
"""Bytes of a partition's documents that are milled at once ..."""
OPEN_BYTES: Final = 64 << 20
"""... and of all partitions' documents that wait to be so many."""
AHEAD: Final = 2
"""Parts of each file that are scanned ahead, beside one for each process."""


class Dealer:
    """Reads sources and gives their documents to the processes that mill; counts both in a summary."""

    judging: Judging | None = None
    may_add: Callable[[], None] | None = None
    """Called before documents are dealt out; may raise."""

    def __init__(
        self, millers: Millers, summary: Summary, plan: PackPlan, position: PackPosition, wanted: Mapping[int, int]
    ) -> None:
        """Go on from a position; documents below the offset that is ``wanted`` of a partition are milled already."""
        self.millers, self.summary, self.plan, self.wanted = millers, summary, plan, wanted
        self.number, self.offsets = position.number, list(position.offsets)  # of the next document, and by partition
        self.refuse: Callable[[Refused], None] = summary.refuse  # may raise
        self._open: dict[int, list[Item]] = {}
        self._open_numbers: dict[int, list[int]] = {}
        self._open_bytes: dict[int, int] = {}

    async def read(
        self,
        sources: Sequence[DocumentSource],
        start: OrderState,
        between: Callable[[OrderState], Awaitable[None]] | None = None,
    ) -> None:
        """Deal out all behind a place, up to the limit, but for what waits for more; ``between`` follows each chunk."""
        shuffle = ShuffleBuffer(self.plan.shuffle, self.plan.seed)
        self.summary.bytes_total = sum(source.size for source in sources)
        reading = [parted(source, self.millers.scan, AHEAD + self.plan.processes) for source in sources]
        with ReadingOrder(reading, start) as order:
            async for turn in order.turns():
                if turn is None:  # the next chunk may take long
                    await self.deal_open()
                    continue
                self.summary.count_unmet(turn.chunk.unmet)
                await self._items(shuffle.released(turn.chunk.placed()))
                self.summary.bytes_read = turn.bytes_read
                if self.plan.limit is not None and self.number >= self.plan.limit:
                    break
                if between is not None:
                    await between(turn.after)
        await self._items(shuffle.rest())

    async def _items(self, items: Iterable[Placed]) -> None:
        count, limit, offsets, wanted = len(self.offsets), self.plan.limit, self.offsets, self.wanted
        open_, open_bytes, dealt = self._open, self._open_bytes, self.summary.partitions
        room = max(1, min(BATCH_BYTES, OPEN_BYTES // count))
        for item, _ in items:
            if isinstance(item, Refused):
                self.refuse(item)
                continue
            if limit is not None and self.number >= limit:
                return
            partition = partition_of(self.number, item.key, count)
            self.number += 1
            offset = offsets[partition]
            offsets[partition] = offset + 1
            is_new = offset >= wanted[partition]
            self.summary.before += not is_new
            if self.judging is not None:
                self._open_numbers.setdefault(partition, []).append(self.number - 1)
            elif not is_new:
                continue
            open_.setdefault(partition, []).append(item)
            size = len(item.value)
            waiting = open_bytes[partition] = open_bytes.get(partition, 0) + size + ITEM_BYTES
            if is_new:
                dealt[partition].documents += 1
                dealt[partition].bytes += size
            if waiting >= room:
                mill, judging = self.millers.mill, self.judging
                await (mill(*self._taken(partition)) if judging is None else self._deal_round(judging))

    def _taken(self, partition: int) -> tuple[DocumentBatch, int]:
        items, size = self._open.pop(partition), self._open_bytes.pop(partition)
        if self.may_add is not None and self.offsets[partition] > self.wanted[partition]:
            self.may_add()
        return batch_of(partition, self.offsets[partition] - len(items), items), size

    async def _deal_round(self, judging: Judging) -> None:
        numbers, self._open_numbers = self._open_numbers, {}
        taken = [(self._taken(partition), numbers[partition]) for partition in list(self._open)]
        await judging.deal([(batch, own, size) for (batch, size), own in taken])

    async def deal_open(self) -> None:
        """Deal out all that waits for more."""
        if self.judging is not None:
            await self._deal_round(self.judging)
            await self.judging.settle()
        for partition in list(self._open):
            await self.millers.mill(*self._taken(partition))

    async def flush(self) -> None:
        """Fill the open blocks of all partitions with padding, as `tokenmill flush` does."""
        await self.deal_open()
        for partition, offset in enumerate(self.offsets):
            await self.millers.flush(partition, offset)


WITHOUT_DIGEST: Final = ""
OTHER_STORE: Final = "pack into another store (--store), or remove this one"


def geneses_of(plan: RawTopicPlan, partitions: int, segment_blocks: int) -> list[Genesis]:
    """Return the geneses that a mill would write for an empty topic."""
    starts, versions = (0,) * partitions, library_versions()
    return [Genesis(stream.name, recipe, starts, segment_blocks, versions) for stream, recipe in plan.recipes.items()]


def held_recipe(settings: Settings, raw_topic: str) -> Recipe | None:
    """Return the recipe of the first of a raw topic's streams that the store holds; None where it holds none."""
    held = streams_in(settings.store)
    for stream in settings.streams():
        if stream.raw_topic == raw_topic and stream.name in held:
            return Genesis.from_dict(read_stream(settings.store, stream.name).values["genesis"]).recipe
    return None


def _begin_run(
    store: Store, files: PackFiles, topic_plan: RawTopicPlan, sources: Sequence[DocumentSource], fresh: PackRun
) -> PackRun:
    """Return the run that this call continues, or one that it begins, which is noted on return. Raises as `pack`."""
    if (known := files.read_run()) is None:
        for stream in topic_plan.recipes:
            if stream.name in streams_in(store.path):
                raise StoreError(
                    f"{store.path} holds the stream {stream.name}, which was not packed: its blocks came from Kafka. "
                    "Pack into another store (--store), or give the new stream a name of its own (stream_suffix)"
                )
        files.make()
        files.write_run(fresh)
        return fresh
    _require_streams(store, topic_plan)
    if known.partitions != fresh.partitions:
        raise InputError(
            f"{store.path} was packed into {known.partitions} partitions, and {fresh.partitions} are wanted: give "
            f"--partitions {known.partitions}, or {OTHER_STORE}"
        )
    if not fresh.run or known.run != fresh.run:
        why = "this one has other files or options" if fresh.run else "what is piped in cannot be continued"
        raise InputError(
            f"{store.path} holds what another command packed ({why}): give that one again, or {OTHER_STORE}"
        )
    require_unchanged(known, sources)
    return known


def _forget_nothing(store: Store, files: PackFiles, raw_topic: str) -> None:
    """Remove what an earlier call noted that has packed nothing at all; the caller has the store's lock."""
    run = files.read_run()
    if run is None or ((held := files.read_position()) is not None and held.number):
        return
    states = map(files.read_partition, range(run.partitions))
    if any(carry.totals.records or carry.cursor.block for state in states for carry in state.carries.values()):
        return
    suffix = files.directory.name.removeprefix(raw_topic)
    splits = {name: read_stream(store.path, name).recipe["split"] for name in streams_in(store.path)}
    streams = [name for name, split in splits.items() if name == f"{raw_topic}.{split}{suffix}"]
    places = [(name, number) for name in streams for number in partitions_in(store.path, name)]
    if any(segment_firsts(os.listdir(partition_directory(store.path, *place))) for place in places):  # noqa: PTH208
        return  # blocks are committed before anything is noted of them
    for name in streams:
        shutil.rmtree(stream_directory(store.path, name))
    shutil.rmtree(files.directory)


def _require_streams(store: Store, plan: RawTopicPlan) -> None:
    """Check the recipes before the options, which they would be mistaken for."""
    for stream, recipe in plan.recipes.items():
        if stream.name in streams_in(store.path):
            held = read_stream(store.path, stream.name)
            if held.fingerprint != recipe.fingerprint:
                genesis = Genesis(stream.name, recipe, (), held.segment_blocks)
                told = held.differences(StreamInfo.from_genesis(genesis, held.segment_blocks))
                raise FingerprintError(
                    f"{store.path} holds {stream.name}, which was packed with other settings ({told}): set them back, "
                    f"give the new streams names of their own (stream_suffix), or {OTHER_STORE}"
                )


def require_unchanged(run: PackRun, sources: Sequence[DocumentSource], *, read: bool = False) -> None:
    """Raise InputError where a source is not what it was when a run began; ``read`` all, or those of another time."""
    known = run.sources
    if read:
        known = tuple(seen._replace(modified=-1) if seen.digest else seen for seen in known)
    found = compare_sources(known, look_at_sources(sources, known))
    if found.changes:
        raise InputError(
            f"since this pack began, its sources have changed: {changes_line(found.changes)}. Put back what they were, "
            f"and the same command goes on; or {OTHER_STORE}"
        )


def _seen(source: DocumentSource) -> KnownSource:
    if not isinstance(source, FileSource) or not os.path.isfile(source.path):  # noqa: PTH113 - raises nothing
        return look_at_source(source).seen
    status = Path(source.path).stat()
    return KnownSource(source.name, status.st_size, status.st_mtime_ns, WITHOUT_DIGEST)


def _newest(sources: Sequence[DocumentSource]) -> int:
    paths = [Path(source.path) for source in sources if isinstance(source, FileSource)]
    times = [path.stat().st_mtime_ns // 1_000_000 for path in paths if os.path.isfile(path)]  # noqa: PTH113
    return max(0, max(times, default=time.time_ns() // 1_000_000))


def read_digests(run: PackRun, sources: Sequence[DocumentSource]) -> PackRun:
    """Return a new run with the digests of its sources, so that changes can be distinguished from touches later."""
    found = []
    for source, known in zip(sources, run.sources, strict=True):
        seen = look_at_source(source).seen if known.digest == WITHOUT_DIGEST else known
        # one that has changed since it was first seen stays as it was: the end of the run says so
        found.append(seen if (seen.size, seen.modified) == (known.size, known.modified) else known)
    return replace(run, sources=tuple(found))
