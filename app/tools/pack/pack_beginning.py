"""Where a pack begins, or goes on: the streams in the store, the run that is noted there, and its sources."""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tokenmill.errors import FingerprintError, InputError, StoreError
from tokenmill.recipe import Recipe
from tokenmill.store import Store, StreamInfo, read_stream, streams_in
from tokenmill.wire.genesis import Genesis

from ...kafka.control_topic import library_versions
from ...mill.recipes import RawTopicPlan
from ...settings import Settings
from ...sources.file_sources import FileSource
from ...sources.items import DocumentSource
from ...sources.source_changes import KnownSource, changes_line, compare_sources, look_at_source, look_at_sources
from .pack_state import PackFiles, PackRun

FIRST_OFFSET: Final = 1
"""Of a document in each partition to which a run of `produce` sends that can be continued: before it is its marker."""
WITHOUT_DIGEST: Final = ""
OTHER_STORE: Final = "pack into another store (--store), or remove this one"


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


def held_recipe(settings: Settings, raw_topic: str) -> Recipe | None:
    """Return the recipe of the first of a raw topic's streams that the store holds; None where it holds none."""
    held = streams_in(settings.store)
    for stream in settings.streams():
        if stream.raw_topic == raw_topic and stream.name in held:
            return Genesis.from_dict(read_stream(settings.store, stream.name).values["genesis"]).recipe
    return None


def new_run(sources: Sequence[DocumentSource], identity: str, partitions: int) -> PackRun:
    """Return a run that begins now; without an identity, no other call can continue it."""
    seen = tuple(map(_seen, sources))
    return PackRun(identity, partitions, FIRST_OFFSET if identity else 0, _newest(sources), seen)


def begin_run(
    store: Store, files: PackFiles, topic_plan: RawTopicPlan, sources: Sequence[DocumentSource], fresh: PackRun
) -> PackRun:
    """Return the run that this call continues, or one that it begins, which is noted on return.

    Raises:
        InputError: the store holds another run's documents, or the sources have changed.
        StoreError: a stream of that name was filled from Kafka.

    """
    known = files.read_run()
    if known is None:
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


class SourceDigests:
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
