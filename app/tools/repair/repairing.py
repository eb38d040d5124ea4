"""Repairing a partition: damaged and missing segments are rebuilt, byte for byte, with the help of a donor.

A segment is rebuilt from its own undamaged blocks and those that the donor gives. Each block is proven by the hashes
that are known. `rebuilding` moves the segment to its place. A repair that was killed at any moment goes
on when it is called again.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tokenmill.errors import DamagedError, DifferenceError
from tokenmill.store.eras import EraReader
from tokenmill.store.layout import (
    START_FILE,
    PartitionLock,
    SegmentPaths,
    damaged,
    is_packed,
    segment_firsts,
    sync_directory,
)
from tokenmill.store.sealing import (
    Manifest,
    chain_after,
    check_data,
    check_sealed,
    check_sizes,
    load_index,
    load_manifest,
)
from tokenmill.store.store import Start, StreamInfo, read_start, write_start
from tokenmill.store.writer import check_blocks, check_link, continues, read_log
from tokenmill.wire.chain import next_hash

from .rebuilding import Donor, Given, Salvage, build, finish, link_aside, put_aside, salvage


@dataclass(frozen=True, slots=True)
class Repaired:
    """One damaged segment, and what became of it."""

    first: int
    """Number of its first block. If no segment can begin there, the files belong to none."""
    what: str
    """The first damaged file, and what is wrong with it."""
    blocks: int = 0
    """Blocks that it holds now; 0 where it was not changed."""
    given: int = 0
    """Of these, blocks that the donor gave; the others were its own."""
    lost: Sequence[range] = ()
    """Blocks that neither its files nor the donor give back; where there are any, nothing was changed."""
    kept: Sequence[Path] = ()
    """Damaged files, under their new names."""


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


def examine(directory: Path, info: StreamInfo, partition: int, start: Start) -> list[Repaired]:
    """Return the damaged segments of a partition, in order; missing ones before a later one are among them.

    Reads all its bytes. Bytes that were never committed are no damage; where the commit log ends with what is no
    record, or the stream was packed, the store's eras say how many blocks were. The caller holds the partition's
    lock, or knows that no process writes to it; otherwise a segment that is being written may look damaged.
    """
    names = os.listdir(directory) if directory.exists() else ()  # noqa: PTH208 - names alone, of many files
    firsts = [first for first in segment_firsts(names) if first >= start.block]
    strays = [first for first in firsts if first % info.segment_blocks]
    found = [Repaired(first, f"{SegmentPaths(directory, first).tokens}: no segment begins there") for first in strays]
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
            found.append(Repaired(first, error.what))
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
    check_sealed(paths, info, manifest, check_data(paths, info, rows))
    if not continues(paths, info, rows, bytes.fromhex(manifest.chain_before)):
        raise damaged(paths.manifest, "its first block does not continue the chain hash that it says")


def repair_partition(directory: Path, info: StreamInfo, partition: int, donor: Donor) -> Iterator[Repaired]:
    """Rebuild what is damaged or missing in a partition, in order; yield each segment once it is durable.

    Raises:
        LockedError: another process writes to the partition.
        DifferenceError: the donor holds another history of the chain.
        DamagedError: nothing says where the partition begins.

    """
    with PartitionLock(directory):
        finish(directory)
        start = _settle_start(directory, info, partition)
        found = examine(directory, info, partition, start)
        work = _Repair(directory, info, partition, start, donor, {damage.first for damage in found})
        for damage in found:
            yield work.repair(damage)


@dataclass(slots=True)
class _Repair:
    """One partition while it is repaired."""

    directory: Path
    info: StreamInfo
    partition: int
    start: Start
    donor: Donor
    damaged: set[int]
    """First blocks of the segments that are still damaged."""

    def repair(self, damage: Repaired) -> Repaired:
        paths = SegmentPaths(self.directory, damage.first)
        if damage.first % self.info.segment_blocks:
            kept = [put_aside(path) for path in paths.all if path.exists()]
            return replace(damage, kept=kept)
        found = self._salvage(paths)
        blocks, lost = _gather(paths.first, found, self.donor)
        if lost:
            return replace(damage, lost=lost)
        before = found.chain_before or (blocks[0].before if blocks else None)
        build(paths, self.info, self.partition, blocks, before or b"")
        kept = finish(self.directory)
        self.damaged.discard(damage.first)
        given = sum(block.number not in found.own for block in blocks)
        return replace(damage, blocks=len(blocks), given=given, kept=kept)

    def _salvage(self, paths: SegmentPaths) -> Salvage:
        """Look at the damaged segment and those beside it; the one before was repaired already, if it could be."""
        firsts = segment_firsts(os.listdir(self.directory))  # noqa: PTH208 - names alone, of many files
        size = self.info.segment_blocks
        previous, following = (self._hashes(paths.first + step) for step in (-size, size))
        before = self.start.chain if paths.first == self.start.block else previous[1] if previous else None
        after = following[0] if following else None
        last = paths.first >= max((first for first in firsts if not first % size), default=0)
        named = named_blocks(self.directory, self.info, self.partition)
        count = min(named.stop - paths.first, size) if last else 0
        if 0 < count == named.stop - paths.first:
            after = after or named.after
        return salvage(paths, self.info, self.partition, (before, after), last=last, named=count)

    def _hashes(self, first: int) -> tuple[bytes | None, bytes] | None:
        """Return the hashes at the ends of an undamaged full segment; None of any other."""
        return None if first in self.damaged else _hashes(self.directory, self.info, self.partition, first)


def _hashes(directory: Path, info: StreamInfo, partition: int, first: int) -> tuple[bytes | None, bytes] | None:
    """Return the hashes at the ends of a full segment; of one that is not sealed, the log does not say the first."""
    paths = SegmentPaths(directory, first)
    try:
        if manifest := load_manifest(paths, info, partition):
            return bytes.fromhex(manifest.chain_before), bytes.fromhex(manifest.chain_after)
        rows = read_log(paths, info)[1].rows
    except DamagedError:
        return None
    return (None, chain_after(rows, -1)) if len(rows) == info.segment_blocks else None


def _gather(first: int, found: Salvage, donor: Donor) -> tuple[list[Given], list[range]]:
    """Return all blocks of a segment, proven; or which of them nothing gives back.

    Raises:
        DifferenceError: what the donor gives does not fit what is known.

    """
    wanted = range(first, first + found.blocks)
    missing = [number for number in wanted if number not in found.own]
    offers: dict[int, list[Given]] = {}
    for given in donor(missing[0], missing[-1] + 1) if missing else ():
        offers.setdefault(given.number, []).append(given)
    lost = [number for number in missing if number not in offers]
    if lost:
        return [], _runs(lost)
    chain = found.chain_before
    blocks = []
    for number in wanted:
        block = found.own.get(number) or _fitting(offers[number], found, chain, number - first)
        chain = chain or block.before
        if chain is None:
            return [], [range(first, first + found.blocks)]
        blocks.append(block)
        chain = next_hash(chain, block.tokens, block.entry)
        if number - first < len(found.rows) and chain != chain_after(found.rows, number - first):
            raise _difference(number)
    if blocks and found.chain_after is not None and chain != found.chain_after:
        raise _difference(wanted[-1])
    return blocks, []


def _fitting(offers: Sequence[Given], found: Salvage, chain: bytes | None, local: int) -> Given:
    """Return the offer that continues the chain: a donor that holds two histories offers a block of each."""
    for given in offers:
        if local < len(found.rows):
            before = chain or given.before
            if before and next_hash(before, given.tokens, given.entry) == chain_after(found.rows, local):
                return given
        elif chain is None or given.before is None or given.before == chain:
            return given
    raise _difference(offers[0].number)


def _difference(number: int) -> DifferenceError:
    return DifferenceError(
        f"the source of block {number} holds another history of the chain than this store: `tokenmill verify`, or "
        "`tokenmill pack … --verify`, finds the first block that differs; repair from a store that agrees (--from), or "
        "begin a new store"
    )


def _runs(numbers: Sequence[int]) -> list[range]:
    """Return rising numbers as ranges."""
    ends = [n for n, (low, high) in enumerate(pairwise(numbers), 1) if high != low + 1]
    return [range(numbers[a], numbers[b - 1] + 1) for a, b in pairwise([0, *ends, len(numbers)])]


def _settle_start(directory: Path, info: StreamInfo, partition: int) -> Start:
    """Return where the partition begins; where that file is damaged, write it again from the oldest segment.

    Raises:
        DamagedError: the oldest segment is damaged as well.

    """
    try:
        return read_start(directory, info, partition)
    except DamagedError:
        firsts = segment_firsts(os.listdir(directory))  # noqa: PTH208 - names alone, of many files
        hashes = _hashes(directory, info, partition, firsts[0]) if firsts else None
        chain = hashes[0] if hashes else None
        if firsts and firsts[0] and chain is None:
            raise
    if not firsts or not firsts[0] or chain is None:
        put_aside(directory / START_FILE)
        sync_directory(directory)
        return read_start(directory, info, partition)
    link_aside(directory / START_FILE)
    start = Start(firsts[0], chain)
    write_start(directory, start)
    return start
