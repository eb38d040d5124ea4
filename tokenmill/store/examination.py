"""Examining a partition: every segment is checked against all that is known of it, and nothing is changed."""

import os
from dataclasses import dataclass
from pathlib import Path

from tokenmill.errors import DamagedError
from tokenmill.store.damage import damaged
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


def examine(directory: Path, info: StreamInfo, partition: int, start: Start) -> list[Damage]:
    """Return the damaged segments of a partition, in order; missing ones before a later one are among them.

    Reads all its bytes. Bytes that were never committed are no damage. The caller holds the partition's lock, or knows
    that no process writes to it; otherwise a segment that is being written may look damaged.
    """
    firsts = [first for first in segment_firsts(os.listdir(directory)) if first >= start.block]  # noqa: PTH208 - names
    strays = [first for first in firsts if first % info.segment_blocks]
    found = [Damage(first, f"{SegmentPaths(directory, first).tokens}: no segment begins there") for first in strays]
    places = [first for first in firsts if first not in strays]
    chain: bytes | None = start.chain
    for first in range(start.block, places[-1] + 1, info.segment_blocks) if places else ():
        paths = SegmentPaths(directory, first)
        try:
            chain = _examine_segment(paths, info, partition, chain, last=first == places[-1])
        except DamagedError as error:
            found.append(Damage(first, error.what))
            chain = None
    return found


def _examine_segment(
    paths: SegmentPaths, info: StreamInfo, partition: int, chain_before: bytes | None, *, last: bool
) -> bytes | None:
    """Return the chain hash after a segment; ``chain_before`` is None where the segment before it is damaged."""
    manifest = load_manifest(paths, info, partition)
    if manifest is not None:
        _examine_sealed(paths, info, manifest, chain_before)
        return bytes.fromhex(manifest.chain_after)
    if not last and not any(path.exists() for path in paths.all):
        raise damaged(paths.tokens, "it is missing, but later segments exist")
    rows = read_log(paths, info)[1].rows
    if len(rows):
        check_blocks(paths, info, rows, range(len(rows)))
        if chain_before is not None:
            check_link(paths, info, rows, chain_before)
    if not last and len(rows) < info.segment_blocks:
        raise damaged(paths.commits, f"it holds {len(rows)} blocks, but later segments exist")
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
