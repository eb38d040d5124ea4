"""The commit log: which bytes of an unsealed segment count.

A record follows its data: tokens and document table are on disk before it is written, and it is on disk before the
next one is written. Its size is a multiple of 32 bytes. Little-endian::

    4s  magic "TMc1"
    u4  record_bytes
    u8  blocks         committed blocks of the segment after this record
    u8  bin_bytes      length of .bin after it
    u8  docs_bytes     length of .docs after it
    16s chain          hash after its last block
    i8  source_offset  offset in the token topic of the message that brought its last block; -1: unknown
    u4  rows           blocks that this record commits
    u4  crc            CRC-32 of the whole record with this field zero
    …   rows           `BLOCK_ROW`, 32 bytes each

Everything here is pure: `scan` sees bytes, never a file.

A row is what a store remembers of each block beside its bytes, in 32 bytes: where the block's entry ends in the
document table, the CRC-32 of its tokens and of its entry, and the chain hash after it. Commit records carry the rows of
the blocks that they commit; the ``.index`` of a sealed segment is the rows of all its blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from zlib_ng.zlib_ng import crc32

BLOCK_ROW: Final = np.dtype([("docs_end", "<u8"), ("tokens_crc", "<u4"), ("entry_crc", "<u4"), ("chain", "V16")])

Rows: TypeAlias = npt.NDArray[np.void]
"""One `BLOCK_ROW` per block."""


def make_rows(tokens: memoryview, entries: Sequence[bytes], chains: Sequence[bytes], docs_bytes: int) -> Rows:
    """Return the rows of the blocks whose tokens are back to back in ``tokens``.

    ``docs_bytes`` is the length of the document table before their entries.
    """
    rows = np.empty(len(entries), BLOCK_ROW)
    size = len(tokens) // max(len(entries), 1)
    rows["docs_end"] = docs_bytes + np.cumsum(np.fromiter(map(len, entries), np.uint64, len(entries)))
    rows["tokens_crc"] = [crc32(tokens[number * size : (number + 1) * size]) for number in range(len(entries))]
    rows["entry_crc"] = [crc32(entry) for entry in entries]
    rows["chain"] = np.frombuffer(b"".join(chains), "V16")
    return rows


def entry_span(rows: Rows, number: int) -> tuple[int, int]:
    """Return where the entry of the segment's block ``number`` (counted from 0) begins and ends in its table."""
    start = int(rows["docs_end"][number - 1]) if number else 0
    return start, int(rows["docs_end"][number])


def chain_after(rows: Rows, number: int) -> bytes:
    """Return the chain hash after the segment's block ``number`` (counted from 0)."""
    return bytes(rows["chain"][number].tobytes())


MAGIC: Final = b"TMc1"
ALIGNMENT: Final = 32
UNKNOWN: Final = -1
"""The source offset of blocks that no message brought."""
_HEADER: Final = Struct("<4sIQQQ16sqII")
_CRC: Final = Struct("<I")
_CRC_AT: Final = _HEADER.size - _CRC.size


@dataclass(frozen=True, slots=True)
class Commit:
    """One record; its fields are those in the table above."""

    blocks: int
    bin_bytes: int
    docs_bytes: int
    chain: bytes
    source_offset: int
    rows: Rows
    """One `BLOCK_ROW` for each block that this record commits."""

    def encode(self) -> bytes:
        """Return the record's bytes."""
        size = _HEADER.size + self.rows.nbytes
        fields = (self.blocks, self.bin_bytes, self.docs_bytes, self.chain, self.source_offset, len(self.rows))
        record = bytearray(_HEADER.pack(MAGIC, size, *fields, 0) + self.rows.tobytes())
        _CRC.pack_into(record, _CRC_AT, crc32(record))
        return bytes(record)


@dataclass(frozen=True, slots=True)
class Scan:
    """The content of a commit log."""

    commits: list[Commit]
    """The longest prefix of records that are whole and continue each other."""
    end: int
    """Bytes of that prefix."""
    damage: str | None
    """Why what follows the prefix cannot be a record whose writing was cut off; None if it can."""

    @property
    def rows(self) -> Rows:
        """The rows of all blocks that these commits cover."""
        return np.concatenate([np.empty(0, BLOCK_ROW), *(commit.rows for commit in self.commits)])


def scan(log: bytes, *, block_bytes: int, segment_blocks: int, blocks: int = 0, docs_bytes: int = 0) -> Scan:
    """Read the records in ``log``, which begins after ``blocks`` committed blocks and ``docs_bytes`` of their table.

    An invalid record counts as never written only if nothing valid follows it: the writer syncs each record before
    the next, so one that is followed by another was whole once.
    """
    commits: list[Commit] = []
    at = 0
    while (commit := _decode(log, at)) is not None:
        if not _continues(commit, blocks, docs_bytes, block_bytes) or commit.blocks > segment_blocks:
            return Scan(commits, at, f"the commit record at byte {at} does not continue the one before it")
        commits.append(commit)
        blocks, docs_bytes = commit.blocks, commit.docs_bytes
        at += _HEADER.size + commit.rows.nbytes
    later = _find_valid(log, at + ALIGNMENT)
    if later is not None:
        return Scan(commits, at, f"the commit record at byte {at} is damaged (a whole one follows at byte {later})")
    return Scan(commits, at, None)


def claimed_blocks(log: bytes) -> int:
    """Return the most blocks that any whole record in a log, damaged or not, names as committed."""
    claimed, at = 0, _find_valid(log, 0)
    while at is not None:
        commit = _decode(log, at)
        claimed = max(claimed, commit.blocks if commit is not None else 0)
        at = _find_valid(log, at + ALIGNMENT)
    return claimed


def _decode(log: bytes, at: int) -> Commit | None:
    """Return the record at byte ``at``, or None if there is none whose size and CRC are right."""
    if len(log) - at < _HEADER.size:
        return None
    magic, size, blocks, bin_bytes, docs_bytes, chain, source_offset, count, crc = _HEADER.unpack_from(log, at)
    if magic != MAGIC or size != _HEADER.size + count * BLOCK_ROW.itemsize or len(log) - at < size:
        return None
    body = memoryview(log)[at : at + size]
    if crc32(body[_HEADER.size :], crc32(bytes(_CRC.size), crc32(body[:_CRC_AT]))) != crc:
        return None
    rows = np.frombuffer(body, BLOCK_ROW, offset=_HEADER.size)
    return Commit(blocks, bin_bytes, docs_bytes, chain, source_offset, rows)


def _continues(commit: Commit, blocks: int, docs_bytes: int, block_bytes: int) -> bool:
    """Whether a whole record says what the writer would have written after ``blocks`` blocks."""
    if not len(commit.rows):
        return False
    ends = commit.rows["docs_end"]
    return bool(
        commit.blocks == blocks + len(commit.rows)
        and commit.bin_bytes == commit.blocks * block_bytes
        and commit.docs_bytes == ends[-1]
        and docs_bytes < ends[0]
        and (ends[:-1] < ends[1:]).all()
        and commit.chain == chain_after(commit.rows, -1)
    )


def _find_valid(log: bytes, start: int) -> int | None:
    """Return where the first whole record at or after ``start`` begins."""
    at = log.find(MAGIC, start)
    while at >= 0:
        if at % ALIGNMENT == 0 and _decode(log, at) is not None:
            return at
        at = log.find(MAGIC, at + 1)
    return None
