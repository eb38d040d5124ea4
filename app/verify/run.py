"""A whole verification: marks, chains in processes, dead letters."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenmill.errors import StoreError
from tokenmill.segments import StreamInfo, read_stream, streams_in

from ..control import Settled
from ..discovery import settled_streams, tokenizer_of
from ..settings import Settings
from .chain import ChainTask
from .dead_letters import check_dead_letters
from .marks import Marks, take_marks
from .processes import check_chains
from .result import Advance, ChainResult, Progress, VerifyResult


def verify(
    settings: Settings,
    streams: Sequence[str] = (),
    *,
    store: Path | None = None,
    processes: int | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> VerifyResult:
    """Recompute every chain of ``streams`` and compare token topic, ``store`` (None: no store) and dead letters.

    Without names, all streams of the settings' raw topics. Only ``bootstrap_servers`` and ``raw_topics`` of the
    settings are used: recipes and tokenizers come from the control topics. What the logs and the store hold when this
    begins is verified, and nothing later. Blocks are compared byte for byte, with their entries, chain hashes,
    checksums and, at the end of each message, cursor and totals. Memory is bounded by ``processes`` (default: one for
    each core), whatever the topics hold. Takes its time: call it in a thread where an event loop runs. ``progress`` is
    called in the caller's thread, some times a second.

    Raises:
        TopicError: a topic or stream is missing.
        FingerprintError: the libraries installed here do not give a stream's answers.
        StoreError: there is no such store, or its stream is another than the topics'.
        SourceError: retention removed records while they were read.
        BrokerError: no broker answers.

    """
    started = time.monotonic()
    found, marks = asyncio.run(_look(settings, streams, store))
    notes = _check_store(found, store) if store is not None else []
    tasks = _tasks(settings, found, marks, store)
    cores = len(os.sched_getaffinity(0))
    chains = _run(tasks, processes or cores, progress)
    differences = [difference for chain in chains for difference in chain.differences]
    notes += [note for chain in chains for note in chain.notes]
    for raw_topic in dict.fromkeys(chain.raw_topic for chain in chains):
        own = [chain for chain in chains if chain.raw_topic == raw_topic]
        missing, more = asyncio.run(check_dead_letters(settings, raw_topic, own, marks.dead_letters.get(raw_topic)))
        differences += missing
        notes += more
    return VerifyResult(chains, differences, notes, time.monotonic() - started)


async def _look(settings: Settings, names: Sequence[str], store: Path | None) -> tuple[list[Settled], Marks]:
    found = await settled_streams(settings, names)
    marks = await take_marks(settings, found, store)
    # Once more: a record that was put on a skip list meanwhile may lie below the marks.
    return await settled_streams(settings, [settled.stream.name for settled in found]), marks


def _check_store(streams: Sequence[Settled], store: Path) -> list[str]:
    """Check that what the store knows of the streams is what their geneses say; note what it does not have."""
    if not store.is_dir():
        raise StoreError(f"there is no store {store}: set store to its directory, or leave it out with --no-store")
    notes = []
    for settled in streams:
        name = settled.stream.name
        if name not in streams_in(store):
            notes.append(f"the store {store} does not hold {name} (yet)")
            continue
        wanted = StreamInfo.from_genesis(settled.genesis, settled.genesis.segment_blocks)
        if read_stream(store, name).encode() != wanted.encode():
            raise StoreError(
                f"{store / name / 'stream.json'} is not what the genesis of {name} says: the store belongs to other "
                "topics of that name; set store to another directory"
            )
    return notes


def _tasks(settings: Settings, streams: Sequence[Settled], marks: Marks, store: Path | None) -> list[ChainTask]:
    by_name = {settled.stream.name: (settled, tokenizer_of(settled).content) for settled in streams}
    tasks = []
    for chain in marks.chains:
        settled, tokenizer = by_name[chain.stream]
        skips = frozenset(settled.control.skips.get(chain.partition, ()))
        tasks.append(ChainTask(settings, settled.genesis, tokenizer, skips, settled.stream.tokens_topic, chain, store))
    return tasks


def _run(tasks: Sequence[ChainTask], processes: int, progress: Callable[[Progress], None]) -> list[ChainResult]:
    """Verify the longest chains first, so that the last ones to end are short; return the results in order."""
    order = sorted(range(len(tasks)), key=lambda i: -_length(tasks[i].marks.tokens))
    results: dict[int, ChainResult] = {}
    of_offsets = sum(_length(task.marks.raw) for task in tasks)
    offsets = blocks = size = 0
    for index, answer in check_chains([tasks[i] for i in order], processes):
        if isinstance(answer, Advance):
            offsets, blocks = offsets + answer.records, blocks + answer.blocks
            size += answer.value_bytes
        else:
            results[order[index]] = answer
        progress(Progress(len(results), len(tasks), offsets, of_offsets, blocks, size))
    return [results[index] for index in range(len(tasks))]


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]
