"""Where a partition of a store begins: ``start.json``, which is there only where that is not block 0.

It is raised, durably, before old segments are unlinked, and written before the first block of a store whose token topic
no longer held the chain's beginning. It holds the chain hash before its block, which is nowhere else in the store.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zlib_ng.zlib_ng import crc32

from tokenmill.canonical import canonical_json
from tokenmill.store.damage import damaged
from tokenmill.store.durable import put_file
from tokenmill.store.layout import FORMAT, START_FILE, SegmentPaths
from tokenmill.store.stream import StreamInfo
from tokenmill.untrusted import MAX_JSON_BYTES, parse_json, read_regular
from tokenmill.wire.chain import HASH_BYTES, genesis_hash


@dataclass(frozen=True, slots=True)
class Start:
    """The first block that a partition of a store holds, or will hold; a multiple of ``segment_blocks``."""

    block: int
    """Number of that block."""
    chain: bytes
    """Chain hash before it."""

    def encode(self) -> bytes:
        """Return the bytes of ``start.json``: canonical JSON with a CRC of all but itself, and one newline."""
        return canonical_json(_with_crc(self.block, self.chain.hex())) + b"\n"


def read_start(directory: Path, info: StreamInfo, partition: int) -> Start:
    """Return where a partition begins; block 0 where nothing says otherwise, or where there is no directory.

    List the directory before this call: the start is raised before segments are unlinked.

    Raises:
        DamagedError: the file is not what was written.

    """
    path = directory / START_FILE
    try:
        data = read_regular(path, most=MAX_JSON_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Start(0, genesis_hash(info.fingerprint, partition))
    try:
        values = parse_json(data)
        start = Start(values["first_block"], bytes.fromhex(values["chain_before"]))
    except (ValueError, TypeError, LookupError) as error:
        raise damaged(path, f"it does not say where the partition begins ({error!r})") from error
    if start.encode() != data or len(start.chain) != HASH_BYTES or start.block % info.segment_blocks:
        raise damaged(path, "it is not what was written (its CRC differs)")
    return start


def write_start(directory: Path, start: Start) -> None:
    """Write down durably where a partition begins."""
    put_file(directory / START_FILE, start.encode())


def unlink_below(directory: Path, firsts: Iterable[int], block: int) -> list[int]:
    """Unlink the segments that begin below ``block``, of those that begin at ``firsts``; return these.

    If this is interrupted, the next call goes on: readers ignore everything below a partition's start.
    """
    gone = [first for first in firsts if first < block]
    for first in gone:
        for path in SegmentPaths(directory, first).all:
            path.unlink(missing_ok=True)
    return gone


def _with_crc(block: int, chain: str) -> dict[str, Any]:
    values = {"format": FORMAT, "first_block": block, "chain_before": chain}
    return {**values, "crc32": crc32(canonical_json(values))}
