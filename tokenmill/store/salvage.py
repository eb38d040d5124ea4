"""What can still be read from a damaged segment's files, and what its neighbours say about it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.errors import DamagedError
from tokenmill.store.commit_log import claimed_blocks, scan
from tokenmill.store.donor import Given
from tokenmill.store.layout import SegmentPaths
from tokenmill.store.rows import BLOCK_ROW, Rows, chain_after, entry_span
from tokenmill.store.sealed import load_index, load_manifest
from tokenmill.store.stream import StreamInfo
from tokenmill.untrusted import read_regular
from tokenmill.wire.chain import next_hash
from tokenmill.wire.pieces import entry_size

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
    return Salvage(
        blocks=blocks,
        rows=rows,
        own=own,
        chain_before=chain_before,
        chain_after=chain_after_,
    )


def _rows(paths: SegmentPaths, info: StreamInfo, partition: int) -> tuple[Rows, bytes | None]:
    """Return the rows that index or commit log prove, and the hash before them where a sealed segment has it."""
    try:
        manifest = load_manifest(paths, info, partition)
        if manifest is not None:
            return load_index(paths, manifest), bytes.fromhex(manifest.chain_before)
    except DamagedError:
        pass  # the commit log is asked next
    log = read_regular(paths.commits) if paths.commits.exists() else b""
    return scan(log, block_bytes=info.block_bytes, segment_blocks=info.segment_blocks).rows, None


def _claimed(paths: SegmentPaths, info: StreamInfo) -> int:
    """Return how many blocks an unsealed segment held at least; without a log, how many it can have held."""
    if paths.commits.exists():
        return min(claimed_blocks(read_regular(paths.commits)), info.segment_blocks)
    size = paths.tokens.stat().st_size if paths.tokens.exists() else 0
    return min(size // info.block_bytes, info.segment_blocks)


def _own(paths: SegmentPaths, info: StreamInfo, rows: Rows, chain_before: bytes | None) -> Iterator[Given]:
    """Yield the blocks that have the CRCs of their rows."""
    tokens, table = _data(paths)
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
    tokens, table = _data(paths)
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


def _data(paths: SegmentPaths) -> tuple[bytes, bytes]:
    tokens, table = (read_regular(path) if path.exists() else b"" for path in (paths.tokens, paths.documents))
    return tokens, table
