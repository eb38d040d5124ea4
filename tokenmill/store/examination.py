"""Examining a partition: every segment is checked against all that is known of it, and nothing is changed."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokenmill.errors import DamagedError
from tokenmill.store.damage import damaged, is_packed
from tokenmill.store.era_reader import EraReader
from tokenmill.store.layout import SegmentPaths, segment_firsts
from tokenmill.store.manifest import Manifest
from tokenmill.store.megatron import megatron_index
from tokenmill.store.recovery import check_blocks, check_link, read_log
from tokenmill.store.rows import Rows, chain_after
from tokenmill.store.sealed import check_sizes, load_index, load_manifest
from tokenmill.store.sealing import check_data
from tokenmill.store.start import Start
from tokenmill.store.stream import StreamInfo
from tokenmill.untrusted import read_regular, regular_file
from tokenmill.wire.chain import next_hash


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged segment."""

    first: int
    """Number of its first block. If no segment can begin there, the files belong to none."""
    what: str
    """The first damaged file, and what is wrong with it."""


class NamedBlocks(NamedTuple):
    """The blocks of a partition that the stream's eras name: those below ``stop``, which lead to this chain hash."""

    stop: int
    after: bytes


def named_blocks(directory: Path, info: StreamInfo, partition: int) -> NamedBlocks:
    """Return which blocks of a partition the eras in the store name; none where there are none, or they are damaged."""
    with suppress(DamagedError):
        eras = EraReader(directory.parent, info)
        ranges = eras.era(eras.eras - 1).ranges if eras.eras else ()
        if partition < len(ranges):
            return NamedBlocks(ranges[partition].stop, ranges[partition].after)
    return NamedBlocks(0, b"")


def examine(directory: Path, info: StreamInfo, partition: int, start: Start) -> list[Damage]:
    """Return the damaged segments of a partition, in order; missing ones before a later one are among them.

    Reads all its bytes. Bytes that were never committed are no damage; where the commit log ends with what is no
    record, or the stream was packed, the store's eras say how many blocks were. The caller holds the partition's
    lock, or knows that no process writes to it; otherwise a segment that is being written may look damaged.
    """
    names = os.listdir(directory) if directory.exists() else ()  # noqa: PTH208 - names alone, of many files
    firsts = [first for first in segment_firsts(names) if first >= start.block]
    strays = [first for first in firsts if first % info.segment_blocks]
    found = [Damage(first, f"{SegmentPaths(directory, first).tokens}: no segment begins there") for first in strays]
    places = [first for first in firsts if first not in strays]
    named, packed = named_blocks(directory, info, partition).stop, is_packed(directory.parents[1], info.name)
    stop = max(places[-1] + 1 if places else 0, named if packed else 0)
    chain: bytes | None = start.chain
    for first in range(start.block, stop, info.segment_blocks):
        paths, last = SegmentPaths(directory, first), first + info.segment_blocks >= stop
        wanted = named - first if last else info.segment_blocks
        try:
            chain = _examine_segment(paths, info, partition, chain, wanted, last=last, whole=packed or not last)
        except DamagedError as error:
            found.append(Damage(first, error.what))
            chain = None
    return found


def _examine_segment(
    paths: SegmentPaths,
    info: StreamInfo,
    partition: int,
    chain_before: bytes | None,
    wanted: int,
    *,
    last: bool,
    whole: bool,
) -> bytes | None:
    """Return the chain hash after a segment; ``chain_before`` is None where the segment before it is damaged.

    It has ``wanted`` blocks or more, if it must be ``whole``, or its commit log does not end with a record.
    """
    manifest = load_manifest(paths, info, partition)
    if manifest is not None:
        _examine_sealed(paths, info, manifest, chain_before)
        return bytes.fromhex(manifest.chain_after)
    why = f"the eras name {wanted}" if last else "later segments exist"
    if whole and not any(path.exists() for path in paths.all):
        raise damaged(paths.tokens, f"it is missing, but {why}")
    log, found = read_log(paths, info)
    rows = found.rows
    if len(rows):
        check_blocks(paths, info, rows, range(len(rows)))
        if chain_before is not None:
            check_link(paths, info, rows, chain_before)
    if len(rows) < wanted and (whole or found.end < len(log)):
        raise damaged(paths.commits, f"it holds {len(rows)} blocks, but {why}")
    return chain_after(rows, -1) if len(rows) else chain_before


def _examine_sealed(paths: SegmentPaths, info: StreamInfo, manifest: Manifest, chain_before: bytes | None) -> None:
    if chain_before is not None and manifest.chain_before != chain_before.hex():
        raise damaged(paths.manifest, "it does not continue the chain before it")
    rows = load_index(paths, manifest)
    check_sizes(paths, manifest)
    if check_data(paths, info, rows) != (manifest.bin_crc32, manifest.docs_crc32):
        raise damaged(paths.manifest, "its checksums are not those of the files")
    if not _begins_with(paths, info, rows, bytes.fromhex(manifest.chain_before)):
        raise damaged(paths.manifest, "its first block does not continue the chain hash that it says")
    index = megatron_index(len(rows), info.block_tokens, info.dtype)
    if not paths.megatron.exists() or read_regular(paths.megatron) != index:
        raise damaged(paths.megatron, "it is missing, or not the index of its tokens")


def _begins_with(paths: SegmentPaths, info: StreamInfo, rows: Rows, chain_before: bytes) -> bool:
    with (
        regular_file(paths.tokens) as tokens,
        regular_file(paths.documents) as documents,
    ):
        block, entry = tokens.read(info.block_bytes), documents.read(int(rows["docs_end"][0]))
    return next_hash(chain_before, block, entry) == chain_after(rows, 0)
