"""Retiring old segments: the partition begins later from now on, and the space is free.

The start is raised durably before anything is unlinked, so a reader finds a partition without a gap at any moment and
after any crash. What a crash left is unlinked by the next call, or when a writer opens the partition. Maps of retired
segments stay valid for as long as a reader keeps them: the system frees a file when no process has it open.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from tokenmill.errors import DamagedError, StoreError
from tokenmill.store import layout
from tokenmill.store.layout import SegmentPaths, segment_firsts
from tokenmill.store.sealing import load_manifest
from tokenmill.store.store import Start, StreamInfo, read_start, read_stream, unlink_below, write_start


@dataclass(frozen=True, slots=True)
class Retired:
    """The result of retiring in one partition."""

    before: int
    """Number of the first block before."""
    first: int
    """Number of the first block now."""
    segments: int
    """Segments unlinked; without a change of the start, those that an earlier call left."""
    freed_bytes: int


def retire(store: Path, stream: str, partition: int, below: int, *, dry: bool = False) -> Retired:
    """Free the sealed segments all of whose blocks are below ``below``; it is durable when this returns.

    With ``dry`` nothing is changed: the result says what would become of the partition. The newest sealed segment
    stays, for writing goes on from it. Works while a writer and any readers run, and in a copy of a store; several
    calls for one stream take turns. Raises StoreError where the store holds no such stream or partition, is a bucket,
    or cannot be written to; and DamagedError where neither the manifest of the segment that would be the first, nor
    that of the one before it, holds the hash with which the partition would begin.
    """
    layout.require_no_bucket(store)
    info = read_stream(store, stream)
    directory = layout.partition_directory(store, stream, partition)
    try:
        # not the directory's lock, which is for writers
        with layout.locked(layout.stream_directory(store, stream) / layout.STREAM_FILE):
            names = os.listdir(directory)  # noqa: PTH208 - names alone, of many files
            start = read_start(directory, info, partition)
            firsts = segment_firsts(names)
            sealed = [first for first in firsts if SegmentPaths(directory, first).manifest.name in names]
            target = min(below - below % info.segment_blocks, sealed[-1]) if sealed else 0
            first = max(target, start.block)
            going = [path for f in firsts if f < first for path in SegmentPaths(directory, f).all if path.exists()]
            freed = sum(path.stat().st_size for path in going)
            if dry:
                return Retired(start.block, first, sum(f < first for f in firsts), freed)
            if target > start.block:
                write_start(directory, Start(target, _chain_before(directory, info, partition, target)))
            else:
                # the process that raised the start may have died before it was durable
                layout.sync_directory(directory)
            gone = unlink_below(directory, firsts, first)
    except FileNotFoundError:
        raise StoreError(f"the store {store} holds nothing of partition {partition} of {stream}") from None
    except OSError as error:
        raise StoreError(f"{directory} cannot be written to ({error}); call the same command again") from error
    return Retired(start.block, first, len(gone), freed)


def _chain_before(directory: Path, info: StreamInfo, partition: int, first: int) -> bytes:
    """Return the chain hash before a segment: its manifest holds it, or that of the segment before."""
    previous = SegmentPaths(directory, first - info.segment_blocks)
    damage: DamagedError | None = None
    for paths in (SegmentPaths(directory, first), previous):
        try:
            manifest = load_manifest(paths, info, partition)
        except DamagedError as error:
            damage = damage or error
            continue
        if manifest is not None:
            return bytes.fromhex(manifest.chain_before if paths is not previous else manifest.chain_after)
    raise damage or StoreError(f"{directory} cannot begin at block {first}: no manifest there holds its chain hash")
