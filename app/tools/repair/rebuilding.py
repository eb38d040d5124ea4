"""Moving a rebuilt segment to its place, so that a kill at any moment harms nothing.

The segment is written in the directory ``repair`` beside the others. When it is durable there, a file ``ready`` says so
and names the old files without a successor. Then each new file takes its place, unless the old one is equal. Old files
are kept with ``.broken`` at the end of their names, never deleted. `finish` continues wherever this was interrupted; a
segment that is not ``ready`` is deleted. Writers refuse a partition with a rebuilt segment that is half in its place.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.canonical import canonical_json
from tokenmill.errors import DamagedError, FingerprintError, InputError
from tokenmill.store.layout import (
    BROKEN,
    READY_FILE,
    REPAIR_DIRECTORY,
    SegmentPaths,
    damaged,
    partition_directory,
    put_file,
    sync_directory,
)
from tokenmill.store.reader import PartitionReader
from tokenmill.store.sealing import (
    BLOCK_ROW,
    UNKNOWN,
    OpenSegment,
    Rows,
    Scan,
    chain_after,
    claimed_blocks,
    entry_span,
    load_index,
    load_manifest,
    scan,
    seal,
)
from tokenmill.store.store import StreamInfo, read_stream
from tokenmill.untrusted import read_json_file, read_regular
from tokenmill.wire.chain import next_hash
from tokenmill.wire.pieces import entry_size


@dataclass(frozen=True, slots=True)
class Given:
    """A block as a donor holds it."""

    number: int
    """Its number in the partition."""
    tokens: bytes
    """Its token ids, ``block_bytes`` bytes."""
    entry: bytes
    """Its entry (`tokenmill.wire.pieces`)."""
    before: bytes | None
    """Chain hash before it, according to the donor; None where the donor does not know it."""


Donor: TypeAlias = Callable[[int, int], Iterable[Given]]
"""Gives what it has of the blocks ``[first, end)`` of one partition, in any order; a block may come several times. What
it gives is believed only as far as hashes prove it."""


def store_donor(store: Path, info: StreamInfo, partition: int) -> Donor:
    """Return another store of the stream, or a copy of one; it may be damaged, and its segments have another length.

    Raises:
        StoreError: it holds no such stream.
        FingerprintError: it holds a stream of that name with other settings.

    """
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
                segment.check_tokens(local)
                segment.check_entry(local)
                before = chain_after(segment.rows, local - 1) if local else reader.chain_before(number)
                yield Given(number, bytes(segment.tokens[local].tobytes()), bytes(segment.entry(local)), before)

    return give


NO_ROWS: Final[Rows] = np.empty(0, BLOCK_ROW)


@dataclass(frozen=True, slots=True)
class Salvage:
    """All that is known when a segment is rebuilt."""

    blocks: int
    """How many blocks it must hold at least, according to its files; later ones come from the token topic as usual."""
    rows: Rows
    """The proven rows of its first blocks: of all, some or none."""
    own: dict[int, Given]
    """Its own undamaged blocks, by number."""
    chain_before: bytes | None
    chain_after: bytes | None
    """Chain hash after its last block; None where it is unknown, or where the segment is not full."""


def salvage(
    paths: SegmentPaths,
    info: StreamInfo,
    partition: int,
    hashes: tuple[bytes | None, bytes | None],
    *,
    last: bool,
    named: int,
) -> Salvage:
    """Look through the files of a damaged segment.

    ``hashes`` are those at its ends, according to its undamaged neighbours; of the ``last`` one, that after the blocks
    that are ``named``, according to the eras.
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
            return load_index(paths, manifest), bytes.fromhex(manifest.chain_before)
    return _scan(paths, info).rows, None


def _scan(paths: SegmentPaths, info: StreamInfo) -> Scan:
    return scan(_content(paths.commits), block_bytes=info.block_bytes, segment_blocks=info.segment_blocks)


def _content(path: Path) -> bytes:
    """Return what is in a file; nothing where there is none."""
    return read_regular(path) if path.exists() else b""


def _claimed(paths: SegmentPaths, info: StreamInfo) -> int:
    """Return how many blocks an unsealed segment held at least; without a log, how many it can have held."""
    if paths.commits.exists():
        return min(claimed_blocks(read_regular(paths.commits)), info.segment_blocks)
    size = paths.tokens.stat().st_size if paths.tokens.exists() else 0
    return min(size // info.block_bytes, info.segment_blocks)


def _own(paths: SegmentPaths, info: StreamInfo, rows: Rows, chain_before: bytes | None) -> Iterator[Given]:
    """Yield the blocks that have the CRCs of their rows."""
    tokens, table = _content(paths.tokens), _content(paths.documents)
    for local in range(len(rows)):
        block = tokens[local * info.block_bytes : (local + 1) * info.block_bytes]
        start, end = entry_span(rows, local)
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
    workplace = place.directory / REPAIR_DIRECTORY
    workplace.mkdir()
    sync_directory(place.directory)
    built = SegmentPaths(workplace, place.first)
    rows = _write(built, info, blocks, chain_before) if blocks else NO_ROWS
    if len(rows) == info.segment_blocks:
        seal(built, info, partition, rows, chain_before)
    log = _scan(place, info)  # it stays where it is whole, also for what it says of the token topic
    log_stays = len(rows) > 0 and log.damage is None and log.rows.tobytes() == rows.tobytes()
    if log_stays or built.manifest.exists():
        built.commits.unlink()
    stale = [old.name for old, new in zip(place.all, built.all, strict=True) if old.exists() and not new.exists()]
    if log_stays:
        stale.remove(place.commits.name)
    put_file(workplace / READY_FILE, canonical_json({"first": place.first, "stale": stale}))


def finish(directory: Path) -> list[Path]:
    """Put a segment that is ready in its place, if there is one, and clear up; return what was put aside."""
    workplace = directory / REPAIR_DIRECTORY
    if not workplace.exists():
        return []
    aside: list[Path] = []
    if (workplace / READY_FILE).exists():
        sync_directory(workplace)  # its writer may have died before the sync
        first, stale = _task(workplace / READY_FILE)
        place, built = SegmentPaths(directory, first), SegmentPaths(workplace, first)
        for old, new in zip(place.all, built.all, strict=True):
            if new.exists():
                aside += _replace(old, new)
            elif old.name in stale and old.exists():
                aside.append(put_aside(old))
        sync_directory(directory)
        (workplace / READY_FILE).unlink()
        sync_directory(workplace)
    for path in list(workplace.iterdir()):
        path.unlink()
    workplace.rmdir()
    sync_directory(directory)
    return aside


def _task(ready: Path) -> tuple[int, list[str]]:
    """Return the segment that is ready according to a file, and the old files without a successor."""
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
    segment = OpenSegment(paths, info, NO_ROWS, 0)
    try:
        tokens = memoryview(b"".join(block.tokens for block in blocks))
        segment.append(tokens, [block.entry for block in blocks], chains, UNKNOWN)
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
    """Return a name that says that the file is broken and that no other broken one has."""
    names = (path.with_name(f"{path.name}{BROKEN}{number}") for number in count(2))
    plain = path.with_name(f"{path.name}{BROKEN}")
    return plain if not plain.exists() else next(name for name in names if not name.exists())
