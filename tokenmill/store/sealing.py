"""Sealing: a full segment gets its index, its Megatron index and, last, its manifest."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from zlib_ng.zlib_ng import crc32

from tokenmill.store.damage import MISSING, damaged
from tokenmill.store.durable import put_file
from tokenmill.store.layout import SegmentPaths
from tokenmill.store.manifest import Manifest
from tokenmill.store.megatron import megatron_index
from tokenmill.store.open_segment import DataCrcs
from tokenmill.store.rows import Rows, chain_after
from tokenmill.store.stream import StreamInfo
from tokenmill.untrusted import open_regular, regular_file

_CHUNK: Final = 1 << 18
"""Bytes read at a time, about: enough that system calls cost little, few enough to stay in the cache."""


def seal(
    paths: SegmentPaths,
    info: StreamInfo,
    partition: int,
    rows: Rows,
    chain_before: bytes,
    *,
    written: DataCrcs | None = None,
) -> Manifest:
    """Seal a segment whose blocks are all committed; after the return it is sealed durably.

    A crash at any moment leaves it as it was, or sealed: what was written of the indexes is written again with the same
    bytes. The data is read back, so that a manifest never describes bytes that changed after their commit. ``written``:
    the CRCs that the writer of the whole segment computed; then only a file that differs is read block by block.

    Raises:
        DamagedError: tokens or document table are missing, or not what was committed.

    """
    bin_bytes, docs_bytes = len(rows) * info.block_bytes, int(rows["docs_end"][-1])
    try:
        if written is None or written != DataCrcs(_crc_of(paths.tokens), _crc_of(paths.documents)):
            written = check_data(paths, info, rows)
    except FileNotFoundError as error:
        if not paths.directory.is_dir():
            raise  # the disk is gone, not the file
        raise damaged(Path(error.filename), MISSING) from None
    index = rows.tobytes()
    put_file(paths.index, index)
    put_file(paths.megatron, megatron_index(len(rows), info.block_tokens, info.dtype))
    manifest = Manifest(
        stream=info.name,
        partition=partition,
        first=paths.first,
        blocks=len(rows),
        block_tokens=info.block_tokens,
        dtype=info.dtype.name,
        fingerprint=info.fingerprint.hex(),
        chain_before=chain_before.hex(),
        chain_after=chain_after(rows, -1).hex(),
        bin_bytes=bin_bytes,
        docs_bytes=docs_bytes,
        bin_crc32=written.tokens,
        docs_crc32=written.documents,
        index_crc32=crc32(index),
    )
    put_file(paths.manifest, manifest.encode())
    return manifest


def check_data(paths: SegmentPaths, info: StreamInfo, rows: Rows) -> DataCrcs:
    """Check the CRC of each block of a full segment; return the CRCs of its whole tokens and document table.

    Raises:
        DamagedError: they are not what was committed; names the file, the first such block, and the byte.

    """
    tokens_ends = list(range(info.block_bytes, len(rows) * info.block_bytes + 1, info.block_bytes))
    return DataCrcs(
        _check_file(paths.tokens, tokens_ends, rows["tokens_crc"].tolist(), paths.first),
        _check_file(paths.documents, rows["docs_end"].tolist(), rows["entry_crc"].tolist(), paths.first),
    )


def _crc_of(path: Path) -> int:
    crc, buffer = 0, memoryview(bytearray(_CHUNK))
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            crc = crc32(buffer[:size], crc)
    return crc


def _check_file(path: Path, ends: list[int], crcs: list[int], first: int) -> int:
    """Return the CRC of a file whose parts end at ``ends`` and must have ``crcs``."""
    whole = start = 0
    with regular_file(path) as file:
        if os.fstat(file.fileno()).st_size != ends[-1]:
            raise damaged(path, f"it is not {ends[-1]} bytes long, as its commit log says")
        for low, high in _chunks(ends):
            data = memoryview(file.read(ends[high - 1] - start))
            whole = crc32(data, whole)
            at = 0
            for number in range(low, high):
                size = ends[number] - start - at
                if crc32(data[at : at + size]) != crcs[number]:
                    raise damaged(path, f"block {first + number}, at byte {start + at}, is not what was committed")
                at += size
            start = ends[high - 1]
    return whole


def _chunks(ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Divide parts that end at ``ends`` into runs of about `_CHUNK` bytes."""
    low = start = 0
    for number, end in enumerate(ends):
        if end - start >= _CHUNK:
            yield low, number + 1
            low, start = number + 1, end
    if low < len(ends):
        yield low, len(ends)
