"""Repairing a store from the token topic or another store: damaged and missing segments are rebuilt, byte for byte.

Each block is proven by the hashes that are known. A repair that was killed goes on when it is called again: how it is
written, and takes its place, is in docs/format.md ("Checking and repairing").
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, InputError, StoreError
from tokenmill.reading import Extent
from tokenmill.recipe import Recipe, canonical_json
from tokenmill.store import layout, open_eras, partitions_in, sealing
from tokenmill.store.eras import EraReader
from tokenmill.store.layout import SegmentPaths, damaged, partition_directory, sync_directory
from tokenmill.store.reader import PartitionReader
from tokenmill.store.sealing import Rows, chain_after, load_manifest
from tokenmill.store.store import Start, StreamInfo, read_start, read_stream, write_start
from tokenmill.store.writer import check_blocks, check_link, continues, read_log
from tokenmill.untrusted import MAX_TOKENIZER_BYTES, read_json_file, read_regular
from tokenmill.wire.chain import next_hash, roll
from tokenmill.wire.message import Message
from tokenmill.wire.pieces import entry_size

from ..kafka.clients import consumer, offsets, read_range
from ..kafka.control_topic import settled_stream, tokenizer_of
from ..kafka.token_topic import message_of, offset_before, readable, record_at
from ..settings import Settings

log = structlog.get_logger(__name__)


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
    reader = PartitionReader(partition_directory(store, info.name, partition), theirs, partition, on_damage="skip")

    def give(first: int, end: int) -> Iterator[Given]:
        for number in range(max(first, reader.first_block), min(end, reader.blocks)):
            with suppress(DamagedError, InputError):  # the other blocks are not affected
                segment, local = reader.locate(number)
                segment.check(local)
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
    head = own.get(paths.first)
    if head and chain_before and next_hash(chain_before, head.tokens, head.entry) != chain_after(rows, 0):
        rows, own = rows[:0], {}  # another chain's: a commit log does not name its chain
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
        if (manifest := load_manifest(paths, info, partition)) is not None:
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
    tokens, entries = b"".join(block.tokens for block in blocks), [block.entry for block in blocks]
    with closing(sealing.OpenSegment(paths, info, NO_ROWS, 0)) as segment:
        segment.append(memoryview(tokens), entries, roll(chain, tokens, entries), sealing.UNKNOWN)
        segment.commit()
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
    if (manifest := load_manifest(paths, info, partition)) is not None:
        if before is not None and manifest.chain_before != before.hex():
            raise damaged(paths.manifest, "it does not continue the chain before it")
        rows = sealing.load_index(paths, manifest)
        sealing.check_sizes(paths, manifest)
        sealing.check_sealed(paths, info, manifest, sealing.check_data(paths, info, rows))
        if not continues(paths, info, rows, bytes.fromhex(manifest.chain_before)):
            raise damaged(paths.manifest, "its first block does not continue the chain hash that it says")
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
            return replace(damage, kept=[put_aside(path) for path in paths.all if path.exists()])
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
    if lost := [number for number in missing if number not in offers]:
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
    borders = [n for n, (low, high) in enumerate(pairwise(numbers), 1) if high != low + 1]
    return [range(numbers[a], numbers[b - 1] + 1) for a, b in pairwise([0, *borders, len(numbers)]) if b]


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


@dataclass(frozen=True, slots=True)
class TopicDonor:
    """One token partition, as a `Donor`."""

    settings: Settings
    recipe: Recipe
    tokens: TopicPartition

    def __call__(self, first: int, end: int) -> list[Given]:
        """Return what the topic retains of the blocks ``[first, end)``, without messages that no reader takes."""
        return asyncio.run(self._read(first, end))

    async def _read(self, first: int, end: int) -> list[Given]:
        async with consumer(self.settings) as client:
            span = (await offsets(client, [self.tokens]))[self.tokens]
            low = span[0]
            try:
                oldest = await record_at(client, self.tokens, *span)
                if oldest is None or (span[0] and message_of(oldest, self.tokens).first >= end):
                    return []
                low = await offset_before(client, self.tokens, self.recipe.fingerprint, first, span)
            except DamagedError as error:  # another writer's message: what is wanted may be anywhere
                log.warning("reading the whole partition", reason=str(error))
            found = await self._collect(client, (low, span[1]), first, end)
            if low > span[0] and len({block.number for block in found}) < end - first:  # written again, below `low`
                found = await self._collect(client, span, first, end)
            return found

    async def _collect(self, client: AIOKafkaConsumer, span: tuple[int, int], first: int, end: int) -> list[Given]:
        found: list[Given] = []
        missing = set(range(first, end))
        async for record in read_range(client, self.tokens, *span):
            message = readable(record, self.recipe.fingerprint)
            blocks = () if message is None else self._blocks(message)
            wanted = [block for block in blocks if first <= block.number < end]
            found += wanted
            missing -= {block.number for block in wanted}
            if not missing:
                break
        return found

    def _blocks(self, message: Message) -> list[Given]:
        """Return the blocks of a message, if it agrees with itself; else none."""
        size = self.recipe.block_bytes
        if len(message.tokens) != message.count * size:
            return []
        *before, after = message.before, *roll(message.before, message.tokens, message.entries)
        tokens = (bytes(message.tokens[at : at + size]) for at in range(0, len(message.tokens), size))
        given = map(Given, count(message.first), tokens, message.entries, before)
        return list(given) if after == message.after else []


def described_in(store: Path, stream: str) -> tuple[StreamInfo, bytes | None]:
    """Return description and tokenizer as another store has them; raises DamagedError where they are damaged."""
    info = read_stream(store, stream).in_stores()
    path = layout.stream_directory(store, stream) / layout.TOKENIZER_FILE
    tokenizer = read_regular(path, most=MAX_TOKENIZER_BYTES) if path.exists() else None
    if tokenizer is not None and info.recipe.get("tokenizer_sha256") not in {None, sha256(tokenizer).hexdigest()}:
        raise DamagedError(f"{path} is not the tokenizer of its stream", "Give another store, or the token topic")
    return info, tokenizer


def rewrite_description(
    store: Path, stream: str, right: Callable[[], tuple[StreamInfo, bytes | None]]
) -> tuple[StreamInfo, list[str]]:
    """Return the description of a stream, and what was written again of it; damaged files are kept beside.

    ``right`` gives what both files must be. Raises FingerprintError where the store's stream of that name is another,
    and StoreError where the store lacks it.
    """
    directory = layout.stream_directory(store, stream)
    if not directory.is_dir():
        raise StoreError(f"there is no {directory}: give the store's directory, and a stream that it holds")
    info, tokenizer = right()
    rewritten = []
    for name, content in ((layout.STREAM_FILE, info.encode()), (layout.TOKENIZER_FILE, tokenizer)):
        path = directory / name
        if content is None or (path.exists() and read_regular(path) == content):
            continue
        if name == layout.STREAM_FILE:
            _require_damage(store, stream, info)
        if path.exists():
            link_aside(path)
        layout.put_file(path, content)
        rewritten.append(str(path))
    return info, rewritten


def _require_damage(store: Path, stream: str, info: StreamInfo) -> None:
    """Check that a description that differs is damaged, and not another stream's."""
    try:
        known = read_stream(store, stream)
    except (DamagedError, StoreError):
        return
    raise FingerprintError(
        f"{store} holds a stream {stream} made with other settings ({known.differences(info)}): give the brokers or "
        "the store of the same stream"
    )


class PartitionRepair(NamedTuple):
    """One partition."""

    stream: str
    partition: int
    segments: Sequence[Repaired]

    @property
    def lost(self) -> list[range]:
        """Blocks that nothing gives back; runs that touch are one."""
        return _runs([number for segment in self.segments for run in segment.lost for number in run])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        segments = [
            {**asdict(one), "lost": [[run.start, run.stop] for run in one.lost], "kept": list(map(str, one.kept))}
            for one in self.segments
        ]
        return {"stream": self.stream, "partition": self.partition, "segments": segments}


def repair_store(
    settings: Settings,
    stream: str,
    partitions: Sequence[int] = (),
    *,
    donor: Path | None = None,
    progress: Callable[[str, int, Repaired], None] = lambda *_: None,
) -> tuple[list[PartitionRepair], list[str]]:
    """Rebuild what is damaged or missing of a stream in the settings' store; return what, and which descriptions.

    All partitions of which the store has a directory, or those named. Blocks that the files do not hold come from the
    token topic, or from the store ``donor``; then no broker is needed, nor where the stream was packed. Each segment
    goes to ``progress``. Raises as `repair_partition`; and FingerprintError, StoreError, TopicError or BrokerError
    where store, donor or topics are not those of the stream.
    """
    store = layout.store_directory(settings.store)
    layout.require_no_bucket(store)
    if donor is not None:
        info, rewritten = rewrite_description(store, stream, lambda: described_in(donor, stream))
        donors: Callable[[int], Donor] = partial(store_donor, donor, info)
    elif layout.is_packed(store, stream):
        info, rewritten, donors = read_stream(store, stream), [], lambda _: lambda *_: ()
    else:
        settled = asyncio.run(settled_stream(settings, stream))
        genesis = settled.genesis
        right = StreamInfo.from_genesis(genesis, genesis.segment_blocks), tokenizer_of(settled).content
        info, rewritten = rewrite_description(store, stream, lambda: right)
        recipe, topic = genesis.recipe, settled.stream.tokens_topic
        donors = lambda partition: TopicDonor(settings, recipe, TopicPartition(topic, partition))  # noqa: E731
    repairs = []
    for partition in _chosen(store, stream, partitions):
        directory = partition_directory(store, stream, partition)
        directory.mkdir(exist_ok=True)
        segments = []
        for repaired in repair_partition(directory, info, partition, donors(partition)):
            progress(stream, partition, repaired)
            segments.append(repaired)
        repairs.append(PartitionRepair(stream, partition, segments))
    return repairs, rewritten


def examine_store(store: Path, stream: str, partitions: Sequence[int] = ()) -> list[PartitionRepair]:
    """Return what is damaged of a stream, and change nothing; reads every byte, and asks no broker."""
    info = read_stream(store, stream)
    return [
        PartitionRepair(stream, number, examine(directory, info, number, read_start(directory, info, number)))
        for number in _chosen(store, stream, partitions)
        for directory in [partition_directory(store, stream, number)]
    ]


def _chosen(store: Path, stream: str, partitions: Iterable[int]) -> list[int]:
    there = partitions_in(store, stream)
    if layout.is_packed(store, stream):  # the eras say which partitions there must be
        eras = open_eras(store, stream)
        named = eras.era(eras.eras - 1).ranges if eras.eras else ()
        there = sorted({*there, *(number for number, part in enumerate(named) if part.stop)})
    chosen = sorted(set(partitions)) or there
    for partition in chosen:
        if partition not in there:
            raise InputError(
                f"{store} holds nothing of partition {partition} of {stream} (partitions there: {there}): name one of "
                "these, or wait until it is begun"
            )
    return chosen
