"""A pack: documents of files into the streams of a store, without Kafka, as `produce`, mill and segment worker would.

This process reads, numbers the documents and deals them out (`_Dealer`); others mill them (`millers`). Where a
document goes, and its offset there, are those that it has on an empty topic of as many partitions. Now and then
all that was dealt out is made durable, and then noted (`pack_state`): there the same command goes on.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import xxhash

from tokenmill.errors import DamagedError, FingerprintError, InputError, SettingsError, StoreError
from tokenmill.store import Store, StreamInfo, read_stream, streams_in
from tokenmill.store.lock import StoreLock
from tokenmill.wire.genesis import MAX_PARTITIONS, Genesis
from tokenmill.wire.totals import Totals

from ...kafka.control_topic import library_versions
from ...mill.recipes import RawTopicPlan, plan_topic
from ...settings import Settings
from ..produce.items import DocumentSource, Item, Refused
from ..produce.producing import PROGRESS_SECONDS, partition_of
from ..produce.reading_order import OrderedChunk, OrderState, ReadingOrder, ShuffleBuffer
from ..produce.run_notes import RunIdentity
from ..produce.sender import Acknowledged
from ..produce.source_changes import (
    KnownSource,
    changes_line,
    compare_sources,
    look_at_source,
    look_at_sources,
)
from ..produce.sources import FileSource, Reading
from ..produce.summary import OnError, Summary
from .millers import Ends, Millers, MillTask, batch_of, divided, open_for_packing
from .pack_state import PackFiles, PackPosition, PackRun, pack_directory
from .packed_eras import PackedEras
from .parted_sources import parted
from .partition_packer import LetterFile, source_letter

COMMIT_SECONDS: Final = 5.0
"""Between two commits: what is done again after a kill."""
BATCH_BYTES: Final = 2 << 20
"""Bytes of a partition's documents that are milled at once ..."""
OPEN_BYTES: Final = 64 << 20
"""... and of all partitions' documents that wait to be so many."""
ITEM_BYTES: Final = 200
"""Bytes that a document costs beside its value."""
AHEAD: Final = 2
"""Parts of each file that are scanned ahead, beside one for each process."""
SOURCE_LETTERS: Final = "dead-letters-sources.jsonl"
FIRST_OFFSET: Final = 1
"""Of a document in each partition to which a run of `produce` sends that can be continued: before it is its marker."""
WITHOUT_DIGEST: Final = ""
OTHER_STORE: Final = "pack into another store (--store), or remove this one"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """The options of a pack."""

    raw_topic: str
    """Whose streams are filled."""
    partitions: int
    processes: int
    limit: int | None = None
    """Documents of the whole run, with those that an earlier call packed; None: all."""
    on_error: OnError = "skip"
    shuffle: int = 0
    """Documents in the shuffle buffer."""
    seed: int = 0
    identity: RunIdentity | None = None
    """The run, if another call may continue it."""
    flush: bool = False
    """Fill the open blocks with padding at the end."""
    end: bool = False
    """Write the end marker of each stream's eras."""


@dataclass(frozen=True, slots=True)
class PackedStream:
    """What a stream holds."""

    totals: Totals
    blocks: int
    open_tokens: int
    """Tokens that wait for their blocks to be full, in all partitions."""
    eras: int = 0


@dataclass(slots=True)
class PackSummary(Summary):
    """What a pack did so far; ``partitions`` counts what this call dealt out."""

    streams: dict[str, PackedStream] = field(default_factory=dict)
    """By name; known at the end."""
    padded: bool = False
    """Whether the open blocks are filled."""


Progress = Callable[[Summary], None]


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
    summary.limit = plan.limit
    with ExitStack() as stack:
        store = Store.open_or_create(settings.store)
        stack.callback(StoreLock(store.path, exclusive=True).close)
        files = PackFiles(pack_directory(store.path, raw_topic, own))
        run = await asyncio.to_thread(_begun, store, files, topic_plan, sources, plan)
        geneses = bring_streams(store, topic_plan, plan.partitions, own.segment_blocks)
        eras = {}
        for genesis in geneses:
            eras[genesis.recipe.split] = PackedEras(store, genesis, own.era_blocks, run.closed)
            stack.callback(eras[genesis.recipe.split].close)
        task = mill_task(settings, topic_plan, geneses, reading, files)
        position = files.read_position() or PackPosition.start(len(sources), run)
        digests = _Digests(files, run, sources)
        with Millers(task, plan.partitions, plan.processes) as millers:
            call = _Call(files, millers, eras, plan, run, summary, position, progress)
            try:
                await call.all(sources)
            finally:
                call.close()
        await asyncio.to_thread(digests.settle)
    return summary


def plan_pack(settings: Settings, raw_topic: str, partitions: int) -> RawTopicPlan:
    """Return how a raw topic's documents are milled.

    Raises:
        SettingsError: a setting cannot be used, or has no meaning without Kafka.

    """
    own = settings.for_topic(raw_topic)
    if raw_topic not in settings.raw_topics:
        raise SettingsError(f"{raw_topic} is not in raw_topics ({', '.join(settings.raw_topics)}): name one of these")
    if own.start_milliseconds is not None:
        raise SettingsError(f"start = {own.start!r}: documents in files have no time; leave start out")
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise SettingsError(f"{partitions} partitions: give 1 to {MAX_PARTITIONS:,}")
    return plan_topic(settings, raw_topic)


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
        open_for_packing,
    )


def geneses_of(plan: RawTopicPlan, partitions: int, segment_blocks: int) -> list[Genesis]:
    """Return the geneses that a mill would write for an empty topic."""
    starts, versions = (0,) * partitions, library_versions()
    return [Genesis(stream.name, recipe, starts, segment_blocks, versions) for stream, recipe in plan.recipes.items()]


def bring_streams(store: Store, plan: RawTopicPlan, partitions: int, segment_blocks: int) -> list[Genesis]:
    """Let the store hold the streams; return their geneses as it has them.

    Raises:
        FingerprintError: it holds one of that name that was made with other settings.

    """
    found = []
    for genesis in geneses_of(plan, partitions, segment_blocks):
        info = StreamInfo.from_genesis(genesis, segment_blocks)
        held = store.add_stream(info, plan.tokenizer.content)
        found.append(Genesis.from_dict(held.values["genesis"]))
    return found


def _begun(
    store: Store, files: PackFiles, topic_plan: RawTopicPlan, sources: Sequence[DocumentSource], plan: PackPlan
) -> PackRun:
    """Return the run that this call continues, or one that it begins, which is noted on return.

    Raises:
        InputError: the store holds another run's documents, or the sources have changed.
        StoreError: a stream of that name was filled from Kafka.

    """
    identity = plan.identity.run if plan.identity is not None else ""
    known = files.read_run()
    if known is None:
        for stream in topic_plan.recipes:
            if stream.name in streams_in(store.path):
                raise StoreError(
                    f"{store.path} holds the stream {stream.name}, which was not packed: its blocks came from Kafka. "
                    "Pack into another store (--store), or give the new stream a name of its own (stream_suffix)"
                )
        files.make()
        run = PackRun(
            identity,
            plan.partitions,
            FIRST_OFFSET if identity else 0,
            _newest(sources),
            tuple(_seen(source) for source in sources),
        )
        files.write_run(run)
        return run
    _require_streams(store, topic_plan)
    if known.partitions != plan.partitions:
        raise InputError(
            f"{store.path} was packed into {known.partitions} partitions, and {plan.partitions} are wanted: give "
            f"--partitions {known.partitions}, or {OTHER_STORE}"
        )
    if not identity or known.run != identity:
        why = "this one has other files or options" if identity else "what is piped in cannot be continued"
        raise InputError(
            f"{store.path} holds what another command packed ({why}): give that one again, or {OTHER_STORE}"
        )
    require_unchanged(known, sources)
    return known


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
    """Check that the sources are what they were when a run began; those of another time are read, with ``read`` all.

    Raises:
        InputError: one has changed; names it.

    """
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
    """Return what is known of a source without reading it."""
    if not isinstance(source, FileSource) or not os.path.isfile(source.path):  # noqa: PTH113 - raises nothing
        return look_at_source(source).seen
    status = Path(source.path).stat()
    return KnownSource(source.name, status.st_size, status.st_mtime_ns, WITHOUT_DIGEST)


def _newest(sources: Sequence[DocumentSource]) -> int:
    """Return when the newest file was changed, in milliseconds; now, where there is none."""
    times = [
        Path(source.path).stat().st_mtime_ns // 1_000_000
        for source in sources
        if isinstance(source, FileSource) and os.path.isfile(source.path)  # noqa: PTH113
    ]
    return max(0, max(times, default=time.time_ns() // 1_000_000))


class _Digests:
    """Reads the sources of a new run beside it, so that changes can be distinguished from touches later."""

    def __init__(self, files: PackFiles, run: PackRun, sources: Sequence[DocumentSource]) -> None:
        self._files = files
        self._run = run
        self._sources = sources
        self._seen: list[KnownSource] = []
        self._error: BaseException | None = None
        wanted = run.run and any(seen.digest == WITHOUT_DIGEST for seen in run.sources)
        # A daemon: it must not keep a process alive that was interrupted.
        self._thread = threading.Thread(target=self._read, daemon=True) if wanted else None
        if self._thread is not None:
            self._thread.start()

    def _read(self) -> None:
        for source, known in zip(self._sources, self._run.sources, strict=True):
            seen = look_at_source(source).seen if known.digest == WITHOUT_DIGEST else known
            if (seen.size, seen.modified) != (known.size, known.modified):
                seen = known  # it has changed since it was first seen; the end of the run says so
            self._seen.append(seen)

    def settle(self) -> None:
        """Note the digests. Raises `InputError` where a source has changed while it was packed."""
        if self._thread is not None:
            self._thread.join()
            self._run = replace(self._run, sources=tuple(self._seen))
            self._files.write_run(self._run)
        if self._run.run:
            require_unchanged(self._run, self._sources)


class _Call:
    """One call: reads from a position on, deals out, commits, and closes eras."""

    def __init__(
        self,
        files: PackFiles,
        millers: Millers,
        eras: Mapping[str, PackedEras],
        plan: PackPlan,
        run: PackRun,
        summary: PackSummary,
        position: PackPosition,
        progress: Progress,
    ) -> None:
        self._files = files
        self._millers = millers
        self._eras = eras
        self._plan = plan
        self._run = run
        self._summary = summary
        self._position = position
        self._progress = progress
        self._number = position.number
        self._offsets = list(position.offsets)
        self._flushed = position.flushed
        self._wanted: dict[int, int] = {}
        self._open: list[list[Item]] = [[] for _ in range(run.partitions)]
        self._open_bytes = [0] * run.partitions
        self._room = min(BATCH_BYTES, OPEN_BYTES // run.partitions)
        self._shuffle = ShuffleBuffer(plan.shuffle, plan.seed) if plan.shuffle else None
        self._letters = LetterFile(files.directory / SOURCE_LETTERS, position.letters)
        self._committing: asyncio.Task[Ends] | None = None
        self._started = self._committed = time.monotonic()
        self._reported = 0.0
        summary.refused, summary.broken = position.refused, position.broken
        summary.broken_before = position.broken
        summary.unmet, summary.without_field = position.unmet, position.without_field

    async def all(self, sources: Sequence[DocumentSource]) -> None:
        self._wanted, _ = await self._millers.opened()
        self._started = self._committed = time.monotonic()
        summary, plan = self._summary, self._plan
        summary.before = self._number
        summary.bytes_total = sum(source.size for source in sources)
        reading = parted(sources, self._millers.scan, AHEAD + plan.processes)
        ticking = asyncio.create_task(self._tick())
        try:
            with ReadingOrder(reading, self._position.state) as order:
                await self._turns(order)
        except InputError:  # what came before the document that ends the run is kept
            await self._commit()
            raise
        finally:
            ticking.cancel()
        await self._finish()

    async def _turns(self, order: ReadingOrder) -> None:
        turn: OrderedChunk | None
        async for turn in order.turns():
            if turn is None:
                await self._deal_open()
            elif not await self._take(turn):
                break
            self._report()
        if self._shuffle is not None and not self._full():
            await self._items(list(self._shuffle.rest()), shuffled=True)

    async def _take(self, turn: OrderedChunk) -> bool:
        """Deal out a chunk; return False where the limit is reached."""
        self._summary.count_unmet(turn.unmet)
        await self._items(turn.items)
        self._summary.bytes_read = turn.bytes_read
        if self._full():
            return False
        self._note(turn.after)
        if time.monotonic() - self._committed >= COMMIT_SECONDS:
            await self._begin_commit()
        return True

    def _note(self, state: OrderState) -> None:
        """Remember where this is, between two chunks; not with a shuffle buffer, which depends on all that was read."""
        if self._shuffle is not None:
            return
        summary = self._summary
        self._position = PackPosition(
            self._number,
            state,
            tuple(self._offsets),
            summary.refused,
            summary.broken,
            summary.unmet,
            summary.without_field,
            self._letters.size,
            self._flushed,
        )

    def _full(self) -> bool:
        return self._plan.limit is not None and self._number >= self._plan.limit

    async def _items(self, items: Sequence[Item | Refused], *, shuffled: bool = False) -> None:
        count, limit, offsets, wanted = self._run.partitions, self._plan.limit, self._offsets, self._wanted
        open_, open_bytes, sent = self._open, self._open_bytes, self._summary.partitions
        for found in items:
            if isinstance(found, Refused):
                self._refuse(found)
                continue
            item = found if self._shuffle is None or shuffled else self._shuffle.exchange(found)
            if item is None:
                continue
            if limit is not None and self._number >= limit:
                return
            partition = partition_of(self._number, item.key, count)
            self._number += 1
            offset = offsets[partition]
            offsets[partition] = offset + 1
            if offset < wanted[partition]:
                self._summary.before += 1
                continue
            open_[partition].append(item)
            size = len(item.value)
            open_bytes[partition] += size + ITEM_BYTES
            sent[partition].documents += 1
            sent[partition].bytes += size
            if open_bytes[partition] >= self._room:
                await self._deal(partition)

    def _refuse(self, refused: Refused) -> None:
        if self._plan.on_error == "fail":
            goes_on = "; the same command with --on-error skip (or dead-letter) goes on from there"
            goes_on = goes_on if self._run.run else ""
            raise InputError(f"{refused.where}: {refused.why}. What came before it is packed{goes_on}")
        self._summary.refuse(refused)
        if self._plan.on_error == "dead-letter":
            run = xxhash.xxh32_hexdigest(self._run.run.encode())
            letter = source_letter(self._summary.topic, run, refused.where, refused.why, refused.data)
            self._letters.add([letter])

    async def _deal(self, partition: int) -> None:
        items = self._open[partition]
        if not items:
            return
        if self._flushed:
            raise InputError(
                "the open blocks were filled with padding behind the documents that an earlier call packed (--flush), "
                f"and there are more documents now (--limit): keep what is there, or {OTHER_STORE}"
            )
        size, first = self._open_bytes[partition], self._offsets[partition] - len(items)
        self._open[partition], self._open_bytes[partition] = [], 0
        for some in divided(items, max(self._room, 1)):
            await self._millers.mill(batch_of(partition, first, some), size * len(some) // len(items))
            first += len(some)

    async def _deal_open(self) -> None:
        for partition in range(self._run.partitions):
            await self._deal(partition)

    async def _begin_commit(self) -> None:
        """Have all that was dealt out made durable, and noted after that; waits for the commit before."""
        await self._deal_open()
        if self._committing is not None:
            await self._committing
        answers = [asyncio.wrap_future(found) for found in self._millers.commit()]
        self._committing = asyncio.create_task(self._settle(answers, self._position))
        self._committed = time.monotonic()

    async def _settle(self, answers: Sequence["asyncio.Future[Ends]"], position: PackPosition) -> Ends:
        ends: Ends = {}
        for answer in answers:
            ends |= await answer
        await asyncio.to_thread(self._note_committed, position, ends)
        return ends

    def _note_committed(self, position: PackPosition, ends: Ends) -> None:
        self._letters.sync()
        self._files.write_position(position)
        for split, eras in self._eras.items():
            eras.close_due({number: chains[split].blocks for number, chains in ends.items()})

    async def _commit(self) -> Ends:
        await self._begin_commit()
        if self._committing is None:
            raise ValueError("no commit was begun")
        ends = await self._committing
        self._committing = None
        return ends

    async def _finish(self) -> None:
        if self._plan.flush and self._number and not self._flushed:
            await self._deal_open()
            for partition, offset in enumerate(self._offsets):
                await self._millers.flush(partition, offset)
            self._flushed = True
            self._position = replace(self._position, flushed=True)
        self._summary.padded = self._flushed
        ends = await self._commit()
        await asyncio.to_thread(self._close_eras, ends)
        self._conclude(ends)
        self._report(last=True)

    def _close_eras(self, ends: Ends) -> None:
        for split, eras in self._eras.items():
            blocks = {number: chains[split].blocks for number, chains in ends.items()}
            eras.close_due(blocks, ended=True, end=self._plan.end)

    def _conclude(self, ends: Ends) -> None:
        """Add up, and check that every document is accounted for in every stream."""
        streams = self._summary.streams
        flushes = self._run.partitions if self._flushed else 0
        for split, eras in self._eras.items():
            chains = [ends[number][split] for number in sorted(ends)]
            totals = sum((chain.totals for chain in chains), Totals())
            streams[eras.stream] = PackedStream(
                totals, sum(chain.blocks for chain in chains), sum(chain.open_tokens for chain in chains), eras.eras
            )
            if totals.records != self._number + flushes or not totals.balanced:
                raise DamagedError(
                    f"{eras.stream} accounts for {totals.records - flushes:,} of {self._number:,} documents: this is a "
                    "bug of TokenMill, or a file of its state was changed"
                )

    def close(self) -> None:
        """Give up what was not committed."""
        committing = self._committing
        if committing is not None and not committing.cancel() and not committing.cancelled():
            committing.exception()  # whatever it met, what ended this call met it as well

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            self._report()

    def _report(self, *, last: bool = False) -> None:
        now = time.monotonic()
        self._summary.seconds = now - self._started
        if last or now - self._reported >= PROGRESS_SECONDS:
            self._reported = now
            self._progress(self._summary)
