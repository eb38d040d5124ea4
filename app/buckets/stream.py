"""A stream of a store as it is in a bucket: which segments it has there, and their files.

Where a bucket's segments begin and end is a function of the stream alone (`StreamInfo.in_bucket`), and so are their
files: every upload makes the same bytes, from any store.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.bucket.head_log import BucketSegment
from tokenmill.bucket.objects import Data
from tokenmill.errors import DamagedError
from tokenmill.store import PartitionReader, StreamInfo
from tokenmill.store.sealing import UNKNOWN, Commit, Manifest, Rows, chain_after, entry_span, megatron_index


class SegmentFiles(NamedTuple):
    """The objects of a segment."""

    segment: BucketSegment
    data: dict[str, Data]
    """By the ends of their names, in the order in which they are created; they may be views of the store's files."""
    seal: tuple[str, bytes]
    """The last one, which says that the others are there."""


def segment_files(reader: PartitionReader, info: StreamInfo, first: int, stop: int) -> SegmentFiles:
    """Return the files of the bucket's segment ``[first, stop)``, checked against the store's CRCs.

    A segment that has fewer blocks than ``info`` says has a commit log of one record in place of manifest and indexes.

    Raises:
        DamagedError: a block in the store is not what was committed.

    """
    parts = list(_parts(reader, first, stop))
    tokens = _joined([part.tokens for part in parts])
    documents = _joined([part.documents for part in parts])
    rows: Rows = np.concatenate([part.rows for part in parts])
    starts = np.cumsum([0, *(len(part.documents) for part in parts)])[:-1]
    rows["docs_end"] += np.repeat(starts, [len(part.rows) for part in parts]).astype(np.uint64)
    data: dict[str, Data] = {"bin": tokens, "docs": documents}
    if stop - first < info.segment_blocks:
        record = Commit(len(rows), len(tokens), len(documents), chain_after(rows, -1), UNKNOWN, rows)
        seal = ("commits", record.encode())
    else:
        index, before = rows.tobytes(), reader.chain_before(first)
        data |= {"index": index, "idx": megatron_index(len(rows), info.block_tokens, info.dtype)}
        manifest = Manifest(
            stream=info.name,
            partition=reader.partition,
            first=first,
            blocks=len(rows),
            block_tokens=info.block_tokens,
            dtype=info.dtype.name,
            fingerprint=info.fingerprint.hex(),
            chain_before=(before or b"").hex(),
            chain_after=chain_after(rows, -1).hex(),
            bin_bytes=len(tokens),
            docs_bytes=len(documents),
            bin_crc32=crc32(tokens),
            docs_crc32=crc32(documents),
            index_crc32=crc32(index),
        )
        seal = ("json", manifest.encode())
    return SegmentFiles(BucketSegment(reader.partition, first, stop, sha256(seal[1]).hexdigest()), data, seal)


class _Part(NamedTuple):
    """What one segment of the store has of a segment in the bucket."""

    tokens: memoryview
    documents: memoryview
    rows: Rows
    """Their ``docs_end`` is counted from the beginning of ``documents``."""


def _parts(reader: PartitionReader, first: int, stop: int) -> Iterator[_Part]:
    while first < stop:
        segment, low = reader.locate(first)
        high = min(segment.blocks, low + stop - first)
        rows = segment.rows[low:high].copy()
        start, end = entry_span(segment.rows, low)[0], int(rows["docs_end"][-1])
        rows["docs_end"] -= np.uint64(start)
        part = _Part(segment.tokens[low:high].data.cast("B"), segment.documents(start, end), rows)
        _check(part, f"{segment.paths.tokens.parent}, blocks {first} to {first + high - low - 1}")
        yield part
        first += high - low


def _check(part: _Part, name: str) -> None:
    size = len(part.tokens) // len(part.rows)
    for number, row in enumerate(part.rows):
        start, end = entry_span(part.rows, number)
        found = crc32(part.tokens[number * size : (number + 1) * size]), crc32(part.documents[start:end])
        if found != (row["tokens_crc"], row["entry_crc"]):
            raise DamagedError(f"{name}: block {number} of these is not what was committed", "`tokenmill repair` it")


def _joined(parts: list[memoryview]) -> memoryview:
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
