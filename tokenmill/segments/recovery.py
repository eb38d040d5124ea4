"""Recovery: what of an unsealed segment counts, and where a partition goes on.

Run by the holder of the partition's lock before anything is appended. It keeps the longest committed prefix, cuts off
only what was never committed, and refuses damage to what was.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np

from tokenmill.chain import genesis_hash
from tokenmill.errors import StoreError
from tokenmill.segments.commit_log import UNKNOWN, Scan, scan
from tokenmill.segments.damage import damaged
from tokenmill.segments.durable import write_at
from tokenmill.segments.layout import TEMPORARY, SegmentPaths, segment_firsts
from tokenmill.segments.rows import BLOCK_ROW, Rows, entry_span
from tokenmill.segments.sealed import check_sizes, load_index, load_manifest
from tokenmill.segments.sealing import seal
from tokenmill.segments.stream import StreamInfo


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


def recover_partition(directory: Path, info: StreamInfo, partition: int) -> Recovered:
    """Return the segment in which a partition goes on; what it holds, and all before it, is durable.

    Full segments without a manifest are sealed. Costs a listing and the last segments, whatever the partition holds.

    Raises:
        DamagedError: committed bytes are missing or changed.
        StoreError: a segment belongs to another stream.

    """
    names = set(os.listdir(directory))  # noqa: PTH208 - names alone, of many files
    for name in names:
        if name.endswith(TEMPORARY):
            (directory / name).unlink()
    firsts = segment_firsts(names)
    _check_firsts(directory, firsts, info.segment_blocks)
    for first in firsts:
        paths = SegmentPaths(directory, first)
        if paths.manifest.name in names:
            continue
        found = recover_segment(paths, info, _chain_before(paths, info, partition))
        if len(found.rows) == info.segment_blocks:
            seal(paths, info, partition, found.rows, found.chain_before)
        elif first != firsts[-1]:
            raise damaged(paths.commits, f"it holds {len(found.rows)} blocks, but later segments exist")
        elif len(found.rows) or first == firsts[0]:
            return found
        else:  # nothing in it yet, so the segment before is the one to go on from
            return replace(found, source_offset=_check_last(directory, firsts[-2], info, partition))
    return _following(directory, firsts, info, partition)


def recover_segment(paths: SegmentPaths, info: StreamInfo, chain_before: bytes) -> Recovered:
    """Recover one unsealed segment: its files end with the last commit, which is durable.

    Raises:
        DamagedError: committed bytes are missing or changed.

    """
    sizes = [path.stat().st_size if path.exists() else 0 for path in (paths.tokens, paths.documents)]
    log = paths.commits.read_bytes() if paths.commits.exists() else b""
    if any(sizes) and not paths.commits.exists():
        raise damaged(paths.commits, "the commit log is missing")
    found = scan(log, block_bytes=info.block_bytes, segment_blocks=info.segment_blocks)
    if found.damage:
        raise damaged(paths.commits, found.damage)
    last = found.commits[-1] if found.commits else None
    committed = (last.bin_bytes, last.docs_bytes) if last else (0, 0)
    for path, size, wanted in zip((paths.tokens, paths.documents), sizes, committed, strict=True):
        if size < wanted:
            raise damaged(path, f"it has {size} bytes, but {wanted} were committed")
    rows = np.concatenate([np.empty(0, BLOCK_ROW), *(commit.rows for commit in found.commits)])
    if last:
        check_blocks(paths, info, rows, range(last.blocks - len(last.rows), last.blocks))
    truncated = sum(
        _truncate(path, size, wanted)
        for path, size, wanted in zip((paths.tokens, paths.documents), sizes, committed, strict=True)
    )
    truncated += _settle_log(paths.commits, log, found)
    return Recovered(paths, chain_before, rows, found.end, last.source_offset if last else UNKNOWN, truncated)


def check_blocks(paths: SegmentPaths, info: StreamInfo, rows: Rows, numbers: range) -> None:
    """Check the CRCs of some blocks of a segment (counted from 0), against its rows.

    Raises:
        DamagedError: naming the file and the first block that differs.

    """
    with paths.tokens.open("rb") as tokens, paths.documents.open("rb") as documents:
        for number in numbers:
            block = os.pread(tokens.fileno(), info.block_bytes, number * info.block_bytes)
            if crc32(block) != rows["tokens_crc"][number]:
                raise damaged(paths.tokens, f"block {paths.first + number} is not what was committed")
            start, end = entry_span(rows, number)
            if crc32(os.pread(documents.fileno(), end - start, start)) != rows["entry_crc"][number]:
                raise damaged(paths.documents, f"the entry of block {paths.first + number} is not what was committed")


def _check_firsts(directory: Path, firsts: list[int], segment_blocks: int) -> None:
    """Check that the segments follow each other without a hole. The first may have any place: older ones retire."""
    for before, first in zip([None, *firsts], firsts, strict=False):
        paths = SegmentPaths(directory, first)
        if first % segment_blocks:
            raise StoreError(f"{paths.tokens} does not begin at a multiple of {segment_blocks} blocks; move it away")
        if before is not None and first != before + segment_blocks:
            missing = SegmentPaths(directory, before + segment_blocks)
            raise damaged(missing.tokens, f"it is missing, but {paths.tokens.name} exists")


def _chain_before(paths: SegmentPaths, info: StreamInfo, partition: int) -> bytes:
    """Return the chain hash before a segment: from the manifest of the one before it."""
    if paths.first == 0:
        return genesis_hash(info.fingerprint, partition)
    previous = SegmentPaths(paths.directory, paths.first - info.segment_blocks)
    manifest = load_manifest(previous, info, partition)
    if manifest is None:
        raise damaged(previous.manifest, "it is missing, and without it the next segment cannot be continued")
    return bytes.fromhex(manifest.chain_after)


def _following(directory: Path, firsts: list[int], info: StreamInfo, partition: int) -> Recovered:
    """Return the segment after the last, which is sealed; block 0's where there is none."""
    paths = SegmentPaths(directory, firsts[-1] + info.segment_blocks if firsts else 0)
    source_offset = _check_last(directory, firsts[-1], info, partition) if firsts else UNKNOWN
    chain_before = _chain_before(paths, info, partition)
    return Recovered(paths, chain_before, np.empty(0, BLOCK_ROW), 0, source_offset, 0)


def _check_last(directory: Path, first: int, info: StreamInfo, partition: int) -> int:
    """Check a sealed segment after which writing goes on; return what its commit log, if any, says of the source."""
    paths = SegmentPaths(directory, first)
    manifest = load_manifest(paths, info, partition)
    if manifest is None:
        raise damaged(paths.manifest, "it vanished while its partition was locked")
    check_sizes(paths, manifest)
    rows = load_index(paths, manifest)
    check_blocks(paths, info, rows, range(len(rows) - 1, len(rows)))
    log = paths.commits.read_bytes() if paths.commits.exists() else b""
    commits = scan(log, block_bytes=info.block_bytes, segment_blocks=info.segment_blocks).commits
    whole = bool(commits) and commits[-1].chain.hex() == manifest.chain_after
    return commits[-1].source_offset if whole else UNKNOWN


def _truncate(path: Path, size: int, wanted: int) -> int:
    """Cut off what no commit covers; return how many bytes that were."""
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
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, found.end)
        if found.commits:
            record = found.commits[-1].encode()
            write_at(descriptor, record, found.end - len(record))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(log) - found.end
