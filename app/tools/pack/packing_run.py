"""A pack: documents of files into the streams of a store, without Kafka, as `produce`, mill and segment worker would.

This process reads, numbers the documents and deals them out (`_Dealer`); others mill them (`millers`). Where a
document goes, and its offset there, are those that it has on an empty topic of as many partitions. Now and then
all that was dealt out is made durable, and then noted (`pack_state`): there the same command goes on.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

import xxhash

from tokenmill.errors import DamagedError, InputError, SettingsError
from tokenmill.store import Store
from tokenmill.store.layout import StoreLock
from tokenmill.wire.genesis import MAX_PARTITIONS, Genesis
from tokenmill.wire.totals import Totals

from ...mill.recipes import RawTopicPlan, plan_topic
from ...settings import Settings
from ...sources.file_sources import Reading
from ...sources.items import DocumentSource, Refused
from ...sources.reading_order import OrderState, ShuffleBuffer
from ..produce.producing import PROGRESS_SECONDS
from ..produce.run_notes import RunIdentity
from ..produce.sender import Acknowledged
from ..produce.summary import OnError, Summary
from .dealing import Dealer
from .millers import Ends, Millers, MillTask, open_for_packing
from .pack_beginning import OTHER_STORE, SourceDigests, begin_run, bring_streams, held_recipe, new_run
from .pack_state import PackFiles, PackPosition, PackRun, pack_directory
from .packed_eras import PackedEras
from .partition_packer import DEAD, LetterFile, source_letter

COMMIT_SECONDS: Final = 5.0
"""Between two commits: what is done again after a kill."""
SOURCE_LETTERS: Final = "dead-letters-sources.jsonl"


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
    end: str = ""
    """What ends a document, and why."""
    letters: str = ""
    """Where the mill's dead letters are."""


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
    summary.limit, summary.end = plan.limit, topic_plan.end
    with ExitStack() as stack:
        store = Store.open_or_create(settings.store)
        stack.callback(StoreLock(store.path, exclusive=True).close)
        files = PackFiles(pack_directory(store.path, raw_topic, own))
        summary.letters = str(files.directory / f"{DEAD}-*.jsonl")
        identity = plan.identity.run if plan.identity is not None else ""
        fresh = new_run(sources, identity, plan.partitions)
        run = await asyncio.to_thread(begin_run, store, files, topic_plan, sources, fresh)
        geneses = bring_streams(store, topic_plan, plan.partitions, own.segment_blocks)
        eras = {}
        for genesis in geneses:
            eras[genesis.recipe.split] = PackedEras(store, genesis, own.era_blocks, run.closed)
            stack.callback(eras[genesis.recipe.split].close)
        task = mill_task(settings, topic_plan, geneses, reading, files)
        digests = SourceDigests(files, run, sources)
        with Millers(task, plan.partitions, plan.processes) as millers:
            call = _Call(files, millers, eras, run)
            stack.callback(call.close)
            await call.all(sources, plan, summary, progress)
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
        open_for_packing,
    )


class _Call:
    """One call: deals out from a position on, commits now and then, and closes eras."""

    def __init__(self, files: PackFiles, millers: Millers, eras: Mapping[str, PackedEras], run: PackRun) -> None:
        """Go on where the files say."""
        self._files = files
        self._millers = millers
        self._eras = eras
        self._run = run
        self._committing: asyncio.Task[Ends] | None = None
        self._committed = time.monotonic()

    async def all(
        self, sources: Sequence[DocumentSource], plan: PackPlan, summary: PackSummary, progress: Progress
    ) -> None:
        """Pack everything, and say how far it is."""
        self._plan, self._summary = plan, summary
        position = self._files.read_position() or PackPosition.start(len(sources), self._run)
        self._position = position
        self._letters = LetterFile(self._files.directory / SOURCE_LETTERS, position.letters)
        summary.refused, summary.broken = position.refused, position.broken
        summary.broken_before, summary.before = position.broken, position.number
        summary.unmet, summary.without_field = position.unmet, position.without_field
        wanted = await self._millers.opened()
        self._dealer = Dealer(
            millers=self._millers,
            summary=summary,
            refuse=self._refuse,
            processes=plan.processes,
            number=position.number,
            offsets=list(position.offsets),
            wanted=wanted,
            limit=plan.limit,
            order=self._run.order,
            shuffle=ShuffleBuffer(plan.shuffle, plan.seed) if plan.shuffle else None,
            may_add=self._require_not_flushed,
        )
        self._committed = started = time.monotonic()
        ticking = asyncio.create_task(reports(summary, progress))
        try:
            await self._dealer.read(sources, position.state, self._between)
        except InputError:  # what came before the document that ends the run is kept
            await self._commit()
            raise
        finally:
            ticking.cancel()
        await self._finish()
        summary.seconds = time.monotonic() - started
        progress(summary)

    async def _between(self, state: OrderState) -> None:
        """Remember where this is; not with a shuffle buffer, whose content depends on all that was read."""
        summary, dealer = self._summary, self._dealer
        if dealer.shuffle is None:
            self._position = PackPosition(
                dealer.number,
                state,
                tuple(dealer.offsets),
                summary.refused,
                summary.broken,
                summary.unmet,
                summary.without_field,
                self._letters.size,
                self._position.flushed,
            )
        if time.monotonic() - self._committed >= COMMIT_SECONDS:
            await self._begin_commit()

    def _refuse(self, refused: Refused) -> None:
        if self._plan.on_error == "fail":
            self._fail(f"{refused.where}: {refused.why}. What came before it is packed")
        self._summary.refuse(refused)
        if self._plan.on_error == "dead-letter":
            run = xxhash.xxh32_hexdigest(self._run.run.encode())
            letter = source_letter(self._summary.topic, run, refused.where, refused.why, refused.data)
            self._letters.add([letter])

    def _fail(self, why: str) -> NoReturn:
        goes_on = "; the same command with --on-error skip (or dead-letter) goes on from there"
        raise InputError(f"{why}{goes_on if self._run.run else ''}")

    def _require_not_flushed(self) -> None:
        if self._position.flushed:
            raise InputError(
                "the open blocks were filled with padding behind the documents that an earlier call packed (--flush), "
                f"and there are more documents now (--limit): keep what is there, or {OTHER_STORE}"
            )

    async def _begin_commit(self, *, last: bool = False) -> None:
        """Have all that was dealt out made durable, and noted after that; waits for the commit before.

        With the ``last`` commit the eras are closed, unless the mill has dead letters and none are allowed.
        """
        await self._dealer.deal_open()
        if self._committing is not None:
            await self._committing
        answers = [asyncio.wrap_future(found) for found in self._millers.commit()]
        self._committing = asyncio.create_task(self._settle(answers, self._position, last=last))
        self._committed = time.monotonic()

    async def _settle(self, answers: Sequence["asyncio.Future[Ends]"], position: PackPosition, *, last: bool) -> Ends:
        ends: Ends = {}
        for answer in answers:
            ends |= await answer
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
        self._files.write_position(position)

    def _close_eras(self, split: str, ends: Ends) -> None:
        self._eras[split].close_all(blocks_of(ends, split), end=self._plan.end)

    async def _commit(self, *, last: bool = False) -> Ends:
        await self._begin_commit(last=last)
        if self._committing is None:
            raise ValueError("no commit was begun")
        ends = await self._committing
        self._committing = None
        return ends

    async def _finish(self) -> None:
        await self._dealer.deal_open()
        if self._plan.flush and self._dealer.number and not self._position.flushed:
            await self._dealer.flush()
            self._position = replace(self._position, flushed=True)
        self._conclude(await self._commit(last=True))

    def _conclude(self, ends: Ends) -> None:
        """Add up, and check that every document is accounted for in every stream."""
        documents = self._dealer.number
        flushes = self._run.partitions if self._position.flushed else 0
        for split, eras in self._eras.items():
            chains = [ends[number][split] for number in sorted(ends)]
            totals = sum((chain.totals for chain in chains), Totals())
            self._summary.streams[eras.stream] = PackedStream(
                totals, sum(chain.blocks for chain in chains), sum(chain.open_tokens for chain in chains), eras.eras
            )
            if totals.records != documents + flushes or not totals.balanced:
                raise DamagedError(
                    f"{eras.stream} accounts for {totals.records - flushes:,} of {documents:,} documents: this is a "
                    "bug of TokenMill, or a file of its state was changed"
                )

    def close(self) -> None:
        """Give up what was not committed."""
        committing = self._committing
        if committing is not None and not committing.cancel() and not committing.cancelled():
            committing.exception()  # whatever it met, what ended this call met it as well


def blocks_of(ends: Ends, split: str) -> dict[int, int]:
    """Return the blocks of each partition of a split's stream."""
    return {number: chains[split].blocks for number, chains in ends.items()}


async def reports(summary: Summary, progress: Progress) -> None:
    """Say again and again how far it is."""
    started = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        summary.seconds = time.monotonic() - started
        progress(summary)
