"""Repairing a partition: damaged and missing segments are rebuilt, byte for byte, with the help of a donor.

Each block is proven by the hashes that are known. A repair that was killed goes on when it is called again: how it is
written, and takes its place, is in docs/format.md ("Checking and repairing").
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, InputError
from tokenmill.reading.continuing import Extent
from tokenmill.recipe import canonical_json
from tokenmill.store import layout, sealing
from tokenmill.store.eras import EraReader
from tokenmill.store.layout import SegmentPaths, damaged, sync_directory
from tokenmill.store.reader import PartitionReader
from tokenmill.store.sealing import Manifest, Rows, chain_after, load_manifest
from tokenmill.store.store import Start, StreamInfo, read_start, read_stream, write_start
from tokenmill.store.writer import check_blocks, check_link, continues, read_log
from tokenmill.untrusted import read_json_file, read_regular
from tokenmill.wire.chain import next_hash
from tokenmill.wire.pieces import entry_size


@dataclass(frozen=True, slots=True)
class Given:
    """A block as a donor holds it."""

    number: int
    tokens: bytes
    entry: bytes
    before: bytes | None
    """Chain hash before it, according to the donor; None where the donor does not know it."""


Donor: TypeAlias = Callable[[int, int], Iterable[Given]]
"""Gives what it has of the blocks ``[first, end)`` of one partition, in any order; a block may come several times. What
it gives is believed only as far as hashes prove it."""


def store_donor(store: Path, info: StreamInfo, partition: int) -> Donor:
    """Return another store of the stream, perhaps damaged, as a donor; raises FingerprintError for other settings."""
    theirs = read_stream(store, info.name)
    if theirs.fingerprint != info.fingerprint:
        raise FingerprintError(
            f"{store} holds a stream {info.name} made with other settings ({theirs.differences(info)}): give a "
            "store of the same stream"
        )
    directory = layout.partition_directory(store, info.name, partition)
    reader = PartitionReader(directory, theirs, partition, on_damage="skip")

    def give(first: int, end: int) -> Iterator[Given]:
        for number in range(max(first, reader.first_block), min(end, reader.blocks)):
            with suppress(DamagedError, InputError):  # the other blocks are not affected
                segment, local = reader.locate(number)
                segment.check_tokens(local)
                segment.check_entry(local)
                before = chain_after(segment.rows, local - 1) if local else reader.chain_before(number)
                yield Given(number, bytes(segment.tokens[local].tobytes()), bytes(segment.entry(local)), before)

    return give


Hashes: TypeAlias = tuple[bytes | None, bytes | None]
"""Before the first block of a segment, and after its last one."""
NO_ROWS: Final[Rows] = np.empty(0, sealing.BLOCK_ROW)


class Salvage(NamedTuple):
    """All that is known when a segment is rebuilt."""

    blocks: int
    """How many blocks it must hold at least, according to its files; later ones come from the token topic as usual."""
    rows: Rows
    """The proven rows of its first blocks: of all, some or none."""
    own: dict[int, Given]
    chain_before: bytes | None
    chain_after: bytes | None
    """Chain hash after its last block; None where it is unknown, or where the segment is not full."""


def salvage(
    paths: SegmentPaths, info: StreamInfo, partition: int, hashes: Hashes, *, last: bool, named: int
) -> Salvage:
    """Look through the files of a damaged segment.

    ``hashes`` are those at its ends, by its undamaged neighbours; of the ``last`` one, that after the blocks that the
    eras ``named``.
    """
    chain_before, chain_after_ = hashes
    rows, sealed_before = _rows(paths, info, partition)
    chain_before = chain_before or sealed_before
    own = {given.number: given for given in _own(paths, info, rows, chain_before)}
    if _is_foreign(paths.first, rows, own, chain_before):
        rows, own = rows[:0], {}
    full = not last or paths.manifest.exists() or paths.index.exists()
    blocks = info.segment_blocks if full else max(len(rows), _claimed(paths, info), named)
    if not full and blocks != named:
        chain_after_ = None
    if len(rows) < blocks and chain_before is not None and chain_after_ is not None:
        own |= _unproven(paths, info, rows, (chain_before, chain_after_), blocks)
    if len(rows) == info.segment_blocks:
        chain_after_ = chain_after_ or chain_after(rows, -1)
    return Salvage(blocks, rows, own, chain_before, chain_after_)


def _rows(paths: SegmentPaths, info: StreamInfo, partition: int) -> tuple[Rows, bytes | None]:
    """Return the rows that index or commit log prove, and the hash before them where a sealed segment has it."""
    with suppress(DamagedError):  # the commit log is asked next
        manifest = load_manifest(paths, info, partition)
        if manifest is not None:
            return sealing.load_index(paths, manifest), bytes.fromhex(manifest.chain_before)
    return _scan(paths, info).rows, None


def _scan(paths: SegmentPaths, info: StreamInfo) -> sealing.Scan:
    return sealing.scan(_content(paths.commits), block_bytes=info.block_bytes, segment_blocks=info.segment_blocks)


def _content(path: Path) -> bytes:
    return read_regular(path) if path.exists() else b""


def _claimed(paths: SegmentPaths, info: StreamInfo) -> int:
    """Return how many blocks an unsealed segment held at least; without a log, how many it can have held."""
    if paths.commits.exists():
        return min(sealing.claimed_blocks(read_regular(paths.commits)), info.segment_blocks)
    size = paths.tokens.stat().st_size if paths.tokens.exists() else 0
    return min(size // info.block_bytes, info.segment_blocks)


def _own(paths: SegmentPaths, info: StreamInfo, rows: Rows, chain_before: bytes | None) -> Iterator[Given]:
    tokens, table = _content(paths.tokens), _content(paths.documents)
    for local in range(len(rows)):
        block = tokens[local * info.block_bytes : (local + 1) * info.block_bytes]
        start, end = sealing.entry_span(rows, local)
        entry = table[start:end]
        if (crc32(block), crc32(entry)) == (rows["tokens_crc"][local], rows["entry_crc"][local]):
            before = chain_after(rows, local - 1) if local else chain_before
            yield Given(paths.first + local, block, entry, before)


def _is_foreign(first: int, rows: Rows, own: dict[int, Given], chain_before: bytes | None) -> bool:
    """Whether the segment is another chain's: a commit log does not name its chain."""
    given = own.get(first)
    if given is None or chain_before is None:
        return False
    return next_hash(chain_before, given.tokens, given.entry) != chain_after(rows, 0)


def _unproven(
    paths: SegmentPaths, info: StreamInfo, rows: Rows, hashes: tuple[bytes, bytes], blocks: int
) -> dict[int, Given]:
    """Return the blocks of a segment that have no rows, if they lead to the hash after all of them; else none."""
    before, after = hashes
    tokens, table = _content(paths.tokens), _content(paths.documents)
    found: dict[int, Given] = {}
    chain, at = (chain_after(rows, -1), int(rows["docs_end"][-1])) if len(rows) else (before, 0)
    for local in range(len(rows), blocks):
        block = tokens[local * info.block_bytes : (local + 1) * info.block_bytes]
        try:
            size = entry_size(table, at)
        except ValueError:
            return {}
        found[paths.first + local] = Given(paths.first + local, block, table[at : at + size], chain)
        chain = next_hash(chain, block, table[at : at + size])
        at += size
    return found if chain == after else {}


def build(place: SegmentPaths, info: StreamInfo, partition: int, blocks: Sequence[Given], chain_before: bytes) -> None:
    """Write the segment that belongs at ``place``, sealed if it is full; when this returns it is durable and ready."""
    workplace = place.directory / layout.REPAIR_DIRECTORY
    workplace.mkdir()
    sync_directory(place.directory)
    built = SegmentPaths(workplace, place.first)
    rows = _write(built, info, blocks, chain_before) if blocks else NO_ROWS
    if len(rows) == info.segment_blocks:
        sealing.seal(built, info, partition, rows, chain_before)
    log = _scan(place, info)  # it stays where it is whole, also for what it says of the token topic
    log_stays = len(rows) > 0 and log.damage is None and log.rows.tobytes() == rows.tobytes()
    if log_stays or built.manifest.exists():
        built.commits.unlink()
    stale = [old.name for old, new in zip(place.all, built.all, strict=True) if old.exists() and not new.exists()]
    if log_stays:
        stale.remove(place.commits.name)
    layout.put_file(workplace / layout.READY_FILE, canonical_json({"first": place.first, "stale": stale}))


def finish(directory: Path) -> list[Path]:
    """Put a segment that is ready in its place, if there is one, and clear up; return what was put aside."""
    workplace = directory / layout.REPAIR_DIRECTORY
    if not workplace.exists():
        return []
    aside: list[Path] = []
    if (workplace / layout.READY_FILE).exists():
        sync_directory(workplace)  # its writer may have died before the sync
        first, stale = _task(workplace / layout.READY_FILE)
        place, built = SegmentPaths(directory, first), SegmentPaths(workplace, first)
        for old, new in zip(place.all, built.all, strict=True):
            if new.exists():
                aside += _replace(old, new)
            elif old.name in stale and old.exists():
                aside.append(put_aside(old))
        sync_directory(directory)
        (workplace / layout.READY_FILE).unlink()
        sync_directory(workplace)
    for path in list(workplace.iterdir()):
        path.unlink()
    workplace.rmdir()
    sync_directory(directory)
    return aside


def _task(ready: Path) -> tuple[int, list[str]]:
    try:
        task = read_json_file(ready)
        first, stale = task["first"], list(task["stale"])
    except (ValueError, TypeError, LookupError) as error:
        raise damaged(ready, f"it does not say what was repaired ({error!r})") from error
    if type(first) is not int or first < 0:
        raise damaged(ready, "it names no segment")
    return first, stale


def put_aside(path: Path) -> Path:
    """Keep a damaged file under another name, which is returned."""
    aside = _free_name(path)
    path.rename(aside)
    return aside


def link_aside(path: Path) -> Path:
    """Keep a damaged file under another name, which is returned, durably: its successor takes its place at once."""
    aside = _free_name(path)
    os.link(path, aside)
    sync_directory(path.parent)
    return aside


def _write(paths: SegmentPaths, info: StreamInfo, blocks: Sequence[Given], chain: bytes) -> Rows:
    chains = []
    for block in blocks:
        chain = next_hash(chain, block.tokens, block.entry)
        chains.append(chain)
    segment = sealing.OpenSegment(paths, info, NO_ROWS, 0)
    try:
        tokens = memoryview(b"".join(block.tokens for block in blocks))
        segment.append(tokens, [block.entry for block in blocks], chains, sealing.UNKNOWN)
        segment.commit()
    finally:
        segment.close()
    return segment.rows


def _replace(old: Path, new: Path) -> list[Path]:
    """Put ``new`` in the place of ``old``, atomically for readers; return where ``old`` went, if it existed."""
    if not old.exists():
        new.rename(old)
        return []
    if read_regular(old) == read_regular(new):
        new.unlink()
        return []
    aside = link_aside(old)
    new.rename(old)
    return [aside]


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}{layout.BROKEN}{number}") for number in chain([""], count(2)))
    return next(name for name in names if not name.exists())


@dataclass(frozen=True, slots=True)
class Repaired:
    """One damaged segment, and what became of it."""

    first: int
    """Number of its first block. If no segment can begin there, the files belong to none."""
    what: str
    blocks: int = 0
    """That it holds now; 0 where it was not changed."""
    given: int = 0
    """Of these, blocks that the donor gave; the others were its own."""
    lost: Sequence[range] = ()
    """Blocks that neither its files nor the donor give back; where there are any, nothing was changed."""
    kept: Sequence[Path] = ()
    """Damaged files, under their new names."""


def named_blocks(directory: Path, info: StreamInfo, partition: int) -> Extent:
    """Return how far the eras in the store name a partition's blocks; 0 where there are none, or they are damaged."""
    with suppress(DamagedError):
        eras = EraReader(directory.parent, info)
        ranges = eras.era(eras.eras - 1).ranges if eras.eras else ()
        if partition < len(ranges):
            return Extent(ranges[partition].stop, ranges[partition].after)
    return Extent(0, b"")


def examine(directory: Path, info: StreamInfo, partition: int, start: Start) -> list[Repaired]:
    """Return the damaged segments of a partition, in order; missing ones before a later one are among them.

    Reads all its bytes; what was never committed is no damage. Where the commit log ends with what is no record, or the
    stream was packed, the eras say how many blocks were. The caller holds the lock, or knows that no process writes.
    """
    names = os.listdir(directory) if directory.exists() else ()  # noqa: PTH208 - names alone, of many files
    firsts = [first for first in layout.segment_firsts(names) if first >= start.block]
    strays = [first for first in firsts if first % info.segment_blocks]
    found = [Repaired(first, f"{SegmentPaths(directory, first).tokens}: no segment begins there") for first in strays]
    places = [first for first in firsts if first not in strays]
    named, packed = named_blocks(directory, info, partition).blocks, layout.is_packed(directory.parents[1], info.name)
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
    paths: SegmentPaths, info: StreamInfo, partition: int, before: bytes | None, wanted: int, *, last: bool, whole: bool
) -> bytes | None:
    """Return the chain hash after a segment; ``wanted`` blocks must be there if ``whole``, or if its log is torn."""
    manifest = load_manifest(paths, info, partition)
    if manifest is not None:
        _examine_sealed(paths, info, manifest, before)
        return bytes.fromhex(manifest.chain_after)
    why = f"the eras name {wanted}" if last else "later segments exist"
    if whole and not any(path.exists() for path in paths.all):
        raise damaged(paths.tokens, f"it is missing, but {why}")
    log, found = read_log(paths, info)
    rows = found.rows
    if len(rows):
        check_blocks(paths, info, rows, range(len(rows)))
        if before is not None:
            check_link(paths, info, rows, before)
    if len(rows) < wanted and (whole or found.end < len(log)):
        raise damaged(paths.commits, f"it holds {len(rows)} blocks, but {why}")
    return chain_after(rows, -1) if len(rows) else before


def _examine_sealed(paths: SegmentPaths, info: StreamInfo, manifest: Manifest, chain_before: bytes | None) -> None:
    if chain_before is not None and manifest.chain_before != chain_before.hex():
        raise damaged(paths.manifest, "it does not continue the chain before it")
    rows = sealing.load_index(paths, manifest)
    sealing.check_sizes(paths, manifest)
    sealing.check_sealed(paths, info, manifest, sealing.check_data(paths, info, rows))
    if not continues(paths, info, rows, bytes.fromhex(manifest.chain_before)):
        raise damaged(paths.manifest, "its first block does not continue the chain hash that it says")


def repair_partition(directory: Path, info: StreamInfo, partition: int, donor: Donor) -> Iterator[Repaired]:
    """Rebuild what is damaged or missing in a partition, in order; yield each segment once it is durable.

    Raises LockedError where another process writes to it, DifferenceError where the donor holds another history of the
    chain, and DamagedError where nothing says where the partition begins.
    """
    with layout.PartitionLock(directory):
        finish(directory)
        start = _settle_start(directory, info, partition)
        found = examine(directory, info, partition, start)
        work = _Repair(directory, info, partition, start, donor, {damage.first for damage in found})
        for damage in found:
            yield work.repair(damage)


@dataclass(slots=True)
class _Repair:
    directory: Path
    info: StreamInfo
    partition: int
    start: Start
    donor: Donor
    damaged: set[int]

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
        firsts = layout.segment_firsts(os.listdir(self.directory))  # noqa: PTH208 - names alone, of many files
        size = self.info.segment_blocks
        previous, following = (
            None if first in self.damaged else _hashes(self.directory, self.info, self.partition, first)
            for first in (paths.first - size, paths.first + size)
        )
        before = self.start.chain if paths.first == self.start.block else previous[1] if previous else None
        after = following[0] if following else None
        last = paths.first >= max((first for first in firsts if not first % size), default=0)
        named = named_blocks(self.directory, self.info, self.partition)
        count = min(named.blocks - paths.first, size) if last else 0
        if 0 < count == named.blocks - paths.first:
            after = after or named.hash
        return salvage(paths, self.info, self.partition, (before, after), last=last, named=count)


def _hashes(directory: Path, info: StreamInfo, partition: int, first: int) -> Hashes | None:
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
    """Return all blocks of a segment, proven, or which nothing gives back; DifferenceError where they do not fit."""
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
    ends = [n for n, (low, high) in enumerate(pairwise(numbers), 1) if high != low + 1]
    return [range(numbers[a], numbers[b - 1] + 1) for a, b in pairwise([0, *ends, len(numbers)])]


def _settle_start(directory: Path, info: StreamInfo, partition: int) -> Start:
    """Return where the partition begins; where that file is damaged, write it again from the oldest segment."""
    try:
        return read_start(directory, info, partition)
    except DamagedError:
        firsts = layout.segment_firsts(os.listdir(directory))  # noqa: PTH208 - names alone, of many files
        hashes = _hashes(directory, info, partition, firsts[0]) if firsts else None
        chain = hashes[0] if hashes else None
        if firsts and firsts[0] and chain is None:
            raise
    if not firsts or not firsts[0] or chain is None:
        put_aside(directory / layout.START_FILE)
        sync_directory(directory)
        return read_start(directory, info, partition)
    link_aside(directory / layout.START_FILE)
    start = Start(firsts[0], chain)
    write_start(directory, start)
    return start
