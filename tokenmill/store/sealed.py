"""Sealed segments: which there are, reading a manifest, and checking the other files against it."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.store.damage import MISSING, damaged
from tokenmill.store.layout import SegmentPaths, segment_firsts
from tokenmill.store.manifest import Manifest
from tokenmill.store.rows import BLOCK_ROW, Rows, chain_after
from tokenmill.store.start import read_start
from tokenmill.store.stream import StreamInfo
from tokenmill.untrusted import MAX_JSON_BYTES, read_regular


def sealed_segments(directory: Path, info: StreamInfo, partition: int) -> Iterator[Manifest]:
    """Yield the manifests of a partition's sealed segments in order, without those that are being retired.

    Raises:
        DamagedError: a manifest was changed, or belongs elsewhere; or a segment before a later one is not sealed.

    """
    try:
        firsts = segment_firsts(os.listdir(directory))  # noqa: PTH208 - names alone, of many files
    except FileNotFoundError:
        return
    start = read_start(directory, info, partition).block
    for first in (first for first in firsts if first >= start):
        paths = SegmentPaths(directory, first)
        manifest = load_manifest(paths, info, partition)
        if manifest is not None:
            yield manifest
        elif first < firsts[-1] - info.segment_blocks:  # the last but one may be about to be sealed
            raise damaged(paths.manifest, MISSING)


def load_manifest(paths: SegmentPaths, info: StreamInfo, partition: int) -> Manifest | None:
    """Return the manifest of a segment, or None if the segment is not sealed.

    Raises:
        DamagedError: the manifest was changed, or belongs to another stream, partition or place.

    """
    try:
        manifest = Manifest.decode(read_regular(paths.manifest, most=MAX_JSON_BYTES))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise damaged(paths.manifest, str(error)) from error
    found = (manifest.stream, manifest.partition, manifest.first, manifest.blocks, manifest.fingerprint)
    wanted = (info.name, partition, paths.first, info.segment_blocks, info.fingerprint.hex())
    if found != wanted or (manifest.block_tokens, manifest.dtype) != (info.block_tokens, info.dtype.name):
        raise damaged(
            paths.manifest,
            f"it belongs elsewhere: its stream, partition, first block, blocks and fingerprint are {found}, here "
            f"belongs {wanted}",
        )
    return manifest


def load_index(paths: SegmentPaths, manifest: Manifest) -> Rows:
    """Return the rows of a sealed segment's blocks.

    Raises:
        DamagedError: the index is missing, or not what the manifest says.

    """
    try:
        data = read_regular(paths.index)
    except FileNotFoundError:
        raise damaged(paths.index, MISSING) from None
    rows = np.frombuffer(data, BLOCK_ROW) if len(data) == manifest.blocks * BLOCK_ROW.itemsize else None
    if rows is None or crc32(data) != manifest.index_crc32 or chain_after(rows, -1).hex() != manifest.chain_after:
        raise damaged(paths.index, "it is not what the manifest says")
    return rows


def check_sizes(paths: SegmentPaths, manifest: Manifest) -> None:
    """Check that a sealed segment's data is as long as it must be.

    Raises:
        DamagedError: a file is missing, or has another length.

    """
    for path, wanted in ((paths.tokens, manifest.bin_bytes), (paths.documents, manifest.docs_bytes)):
        if not path.exists():
            raise damaged(path, MISSING)
        if path.stat().st_size != wanted:
            raise damaged(path, f"it has {path.stat().st_size} bytes, the manifest says {wanted}")
