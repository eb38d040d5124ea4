"""Recovery: which part of an unsealed segment counts, and where a partition goes on.

Run by the holder of the partition's lock before anything is appended. It keeps the longest committed prefix, cuts off
only what was never committed, and refuses damage to what was.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.store.commit_log import BLOCK_ROW, UNKNOWN, Rows, Scan, chain_after, entry_span, scan
from tokenmill.store.layout import (
    MISSING,
    READY_FILE,
    REPAIR_DIRECTORY,
    START_FILE,
    TEMPORARY,
    SegmentPaths,
    damaged,
    segment_firsts,
    sync_directory,
    too_short,
    write_at,
)
from tokenmill.store.sealing import check_sizes, load_index, load_manifest, seal
from tokenmill.store.stream import Start, StreamInfo, read_start, unlink_below
from tokenmill.untrusted import open_regular, read_regular, regular_file
from tokenmill.wire.chain import next_hash


@dataclass(frozen=True, slots=True)
class Recovered:
    """An unsealed segment as recovery left it; with no rows, it may have no files yet."""

    paths: SegmentPaths
    chain_before: bytes
    """Chain hash before the segment's first block."""
    rows: Rows
    """Of the committed blocks."""
    log_bytes: int
    source_offset: int
    """Of the last commit record, also where that is the record of the segment before; -1 if unknown."""
    truncated_bytes: int
    """Bytes cut off, of all three files, because no commit record covered them."""
    begun: bool = False
    """Whether there are segments before this one."""


def recover_partition(directory: Path, info: StreamInfo, partition: int) -> Recovered:
    """Return the segment in which a partition goes on; what it holds, and all before it, is durable.

    Full segments without a manifest are sealed, and retired ones that are still there are unlinked. Costs a listing and
    the last segments, whatever the partition holds.

    Raises:
        DamagedError: committed bytes are missing or changed, or a segment belongs to another stream.

    """
    names = set(os.listdir(directory))  # noqa: PTH208 - names alone, of many files
    if (ready := directory / REPAIR_DIRECTORY / READY_FILE).exists():
        raise damaged(ready, "a repair was cut off; what it rebuilt is not all in its place yet")
    start = read_start(directory, info, partition)
    if start.block:
        sync_directory(directory)  # its writer may have died before the sync; what follows depends on it
    for name in names:
        if name.endswith(TEMPORARY) and name != START_FILE + TEMPORARY:  # `retire` takes no lock, and may be writing it
            (directory / name).unlink()
    firsts = segment_firsts(names)
    firsts = firsts[len(unlink_below(directory, firsts, start.block)) :]
    check_firsts(directory, firsts, info.segment_blocks, start.block)
    for first in firsts:
        paths = SegmentPaths(directory, first)
        if paths.manifest.name in names:
            check_names(paths, names)
            continue
        found = recover_segment(paths, info, _chain_before(paths, info, partition, start))
        if len(found.rows) == info.segment_blocks:
            seal(paths, info, partition, found.rows, found.chain_before)
        elif first != firsts[-1]:
            raise damaged(paths.commits, f"it holds {len(found.rows)} blocks, but later segments exist")
        elif len(found.rows) or first == firsts[0]:
            return replace(found, begun=first != firsts[0])
        else:  # nothing in it yet, so the segment before is the one to go on from
            source_offset = _check_last(directory, firsts[-2], info, partition, start)
            return replace(found, source_offset=source_offset, begun=True)
    return _following(directory, firsts, info, partition, start)


def recover_segment(paths: SegmentPaths, info: StreamInfo, chain_before: bytes) -> Recovered:
    """Recover one unsealed segment: its files end with the last commit, which is durable.

    Raises:
        DamagedError: committed bytes are missing or changed.

    """
    log, found = read_log(paths, info)
    last = found.commits[-1] if found.commits else None
    rows = found.rows
    if last:
        check_blocks(paths, info, rows, range(last.blocks - len(last.rows), last.blocks))
        check_link(paths, info, rows, chain_before)
    committed = (last.bin_bytes, last.docs_bytes) if last else (0, 0)
    truncated = sum(
        _truncate(path, wanted)
        for path, wanted in zip((paths.tokens, paths.documents), committed, strict=True)
        if path.exists()
    )
    truncated += _settle_log(paths.commits, log, found)
    return Recovered(paths, chain_before, rows, found.end, last.source_offset if last else UNKNOWN, truncated)


def read_log(paths: SegmentPaths, info: StreamInfo) -> tuple[bytes, Scan]:
    """Return the commit log of an unsealed segment, and what it says; the other two files are as long as that.

    Raises:
        DamagedError: committed bytes are missing, or the log was changed.

    """
    sizes = [path.stat().st_size if path.exists() else 0 for path in (paths.tokens, paths.documents)]
    log = read_regular(paths.commits) if paths.commits.exists() else b""
    if any(sizes) and not paths.commits.exists():
        raise damaged(paths.commits, "the commit log is missing")
    found = scan(log, block_bytes=info.block_bytes, segment_blocks=info.segment_blocks)
    if found.damage:
        raise damaged(paths.commits, found.damage)
    last = found.commits[-1] if found.commits else None
    committed = (last.bin_bytes, last.docs_bytes) if last else (0, 0)
    for path, size, wanted in zip((paths.tokens, paths.documents), sizes, committed, strict=True):
        if size < wanted:
            raise damaged(path, too_short(path, size, wanted))
    return log, found


def check_blocks(paths: SegmentPaths, info: StreamInfo, rows: Rows, numbers: range) -> None:
    """Check the CRCs of some blocks of a segment (counted from 0), against its rows.

    Raises:
        DamagedError: naming the file and the first block that differs.

    """
    with (
        regular_file(paths.tokens) as tokens,
        regular_file(paths.documents) as documents,
    ):
        for number in numbers:
            block = os.pread(tokens.fileno(), info.block_bytes, number * info.block_bytes)
            if crc32(block) != rows["tokens_crc"][number]:
                at = number * info.block_bytes
                raise damaged(paths.tokens, f"block {paths.first + number}, at byte {at}, is not what was committed")
            start, end = entry_span(rows, number)
            if crc32(os.pread(documents.fileno(), end - start, start)) != rows["entry_crc"][number]:
                raise damaged(
                    paths.documents,
                    f"the entry of block {paths.first + number}, at byte {start}, is not what was committed",
                )


def check_link(paths: SegmentPaths, info: StreamInfo, rows: Rows, chain_before: bytes) -> None:
    """Check that an unsealed segment's first block continues the chain: a commit log does not name its chain.

    A first block that fails its CRC proves nothing; readers report it.

    Raises:
        DamagedError: it continues another.

    """
    with (
        regular_file(paths.tokens) as tokens,
        regular_file(paths.documents) as documents,
    ):
        block, entry = tokens.read(info.block_bytes), documents.read(int(rows["docs_end"][0]))
    whole = (crc32(block), crc32(entry)) == (rows["tokens_crc"][0], rows["entry_crc"][0])
    if whole and next_hash(chain_before, block, entry) != chain_after(rows, 0):
        raise damaged(paths.tokens, f"block {paths.first} does not continue the chain before it")


def check_firsts(directory: Path, firsts: list[int], segment_blocks: int, start: int) -> None:
    """Check that the segments follow each other without a hole, from block ``start`` on.

    Raises:
        DamagedError: a segment is missing before a later one, or is where none can be.

    """
    for wanted, first in enumerate(firsts):
        paths = SegmentPaths(directory, first)
        missing = SegmentPaths(directory, start + wanted * segment_blocks)
        if first % segment_blocks:
            raise damaged(paths.tokens, f"it does not begin at a multiple of {segment_blocks} blocks")
        if first != missing.first:
            raise damaged(missing.tokens, f"it is missing, but {paths.tokens.name} exists")


def check_names(paths: SegmentPaths, names: Collection[str]) -> None:
    """Check that a sealed segment's files are among the names in its directory, but for the commit log.

    Raises:
        DamagedError: one is missing.

    """
    for path in (paths.tokens, paths.documents, paths.index, paths.megatron):
        if path.name not in names:
            raise damaged(path, MISSING)


def _chain_before(paths: SegmentPaths, info: StreamInfo, partition: int, start: Start) -> bytes:
    """Return the chain hash before a segment: from the manifest of the one before it."""
    if paths.first == start.block:
        return start.chain
    previous = SegmentPaths(paths.directory, paths.first - info.segment_blocks)
    manifest = load_manifest(previous, info, partition)
    if manifest is None:
        raise damaged(previous.manifest, "it is missing, and without it the next segment cannot be continued")
    return bytes.fromhex(manifest.chain_after)


def _following(directory: Path, firsts: list[int], info: StreamInfo, partition: int, start: Start) -> Recovered:
    """Return the segment after the last, which is sealed; the partition's first where there is none."""
    paths = SegmentPaths(directory, firsts[-1] + info.segment_blocks if firsts else start.block)
    source_offset = _check_last(directory, firsts[-1], info, partition, start) if firsts else UNKNOWN
    chain_before = _chain_before(paths, info, partition, start)
    return Recovered(paths, chain_before, np.empty(0, BLOCK_ROW), 0, source_offset, 0, begun=bool(firsts))


def _check_last(directory: Path, first: int, info: StreamInfo, partition: int, start: Start) -> int:
    """Check a sealed segment after which writing goes on; return the source offset of its commit log, if any."""
    paths = SegmentPaths(directory, first)
    manifest = load_manifest(paths, info, partition)
    if manifest is None:
        raise damaged(paths.manifest, "it vanished while its partition was locked")
    if manifest.chain_before != _chain_before(paths, info, partition, start).hex():
        raise damaged(paths.manifest, "it does not continue the chain before it")
    check_sizes(paths, manifest)
    rows = load_index(paths, manifest)
    check_blocks(paths, info, rows, range(len(rows) - 1, len(rows)))
    log = read_regular(paths.commits) if paths.commits.exists() else b""
    commits = scan(log, block_bytes=info.block_bytes, segment_blocks=info.segment_blocks).commits
    whole = bool(commits) and commits[-1].chain.hex() == manifest.chain_after
    return commits[-1].source_offset if whole else UNKNOWN


def _truncate(path: Path, wanted: int) -> int:
    """Cut off what no commit covers; return how many bytes that were."""
    size = path.stat().st_size
    if size > wanted:
        os.truncate(path, wanted)
    return size - wanted


def _settle_log(path: Path, log: bytes, found: Scan) -> int:
    """Cut off a record that was never finished, and make the last whole one durable; return the bytes cut off.

    The last record may have been written without its sync having returned, or with its sync having failed; the page
    cache shows it all the same. Written again, it is on the disk when this returns.
    """
    if not log:
        return 0
    descriptor = open_regular(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, found.end)
        if found.commits:
            record = found.commits[-1].encode()
            write_at(descriptor, record, found.end - len(record))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(log) - found.end
