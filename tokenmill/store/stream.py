"""A store's descriptions of a stream and of where its partitions begin: ``stream.json`` and ``start.json``.

It is raised, durably, before old segments are unlinked, and written before the first block of a store whose token topic
no longer held the chain's beginning. It holds the chain hash before its block, which is nowhere else in the store.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from zlib_ng.zlib_ng import crc32

from tokenmill.canonical import canonical_json
from tokenmill.errors import DamagedError, StoreError, TokenMillError
from tokenmill.recipe_differences import differences
from tokenmill.store.layout import FORMAT, START_FILE, SegmentPaths, damaged, put_file
from tokenmill.untrusted import MAX_JSON_BYTES, parse_json, read_regular
from tokenmill.wire.chain import HASH_BYTES, genesis_hash
from tokenmill.wire.genesis import Genesis

_DTYPES = ("uint8", "uint16", "uint32")


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """The shape of a stream's blocks and segments; all that reading and writing its files needs."""

    name: str
    """The stream's name."""
    fingerprint: bytes
    """Of its recipe, 16 bytes."""
    block_tokens: int
    """Tokens per block."""
    dtype: "np.dtype[np.unsignedinteger]"
    """Little-endian."""
    segment_blocks: int
    """Blocks per segment."""
    values: Mapping[str, Any]
    """All of ``stream.json``: the above, the raw topic, and under ``genesis`` the whole genesis."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's tokens."""
        return self.block_tokens * self.dtype.itemsize

    @classmethod
    def from_genesis(cls, genesis: Genesis, segment_blocks: int) -> Self:
        """Return a store's description of a stream, with segments of ``segment_blocks`` blocks."""
        return cls.from_values(
            {
                "format": FORMAT,
                "stream": genesis.stream,
                "fingerprint": genesis.recipe.fingerprint.hex(),
                "raw_topic": genesis.recipe.raw_topic,
                "block_tokens": genesis.recipe.block_tokens,
                "dtype": genesis.recipe.dtype,
                "end_of_document": genesis.recipe.end_of_document,
                "segment_blocks": segment_blocks,
                "genesis": genesis.to_dict(),
            }
        )

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Return the stream that a decoded ``stream.json`` describes.

        Raises:
            StoreError: the format is another.
            DamagedError: a field is missing or impossible.

        """
        if values.get("format") != FORMAT:
            raise StoreError(
                f"its format is {values.get('format')!r}, this version knows format {FORMAT}: "
                "use the version of tokenmill that wrote it"
            )
        try:
            info = cls(
                name=str(values["stream"]),
                fingerprint=bytes.fromhex(values["fingerprint"]),
                block_tokens=int(values["block_tokens"]),
                dtype=np.dtype(_DTYPES[_DTYPES.index(values["dtype"])]).newbyteorder("<"),
                segment_blocks=int(values["segment_blocks"]),
                values=values,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"it cannot be used ({error!r})") from error
        if info.block_tokens < 1 or info.segment_blocks < 1:
            raise DamagedError("its stream has blocks or segments without content")
        return info

    def differences(self, other: "StreamInfo") -> str:
        """Return what differs between this stream and another of its name, in the words of the settings."""
        found = []
        if self.segment_blocks != other.segment_blocks:
            found.append(f"segment_blocks: the stream has {self.segment_blocks}, here {other.segment_blocks}")
        if self.fingerprint != other.fingerprint:
            genesis = [Genesis.from_dict(one.values["genesis"]) for one in (self, other) if "genesis" in one.values]
            if len(genesis) == 2:  # noqa: PLR2004 - of both
                found += differences(genesis[0].recipe, genesis[1].recipe)
            else:  # a store of an early version
                found.append(f"fingerprint: the stream has {self.fingerprint.hex()}, here {other.fingerprint.hex()}")
        return "; ".join(found)

    def encode(self) -> bytes:
        """Return the bytes of ``stream.json``: canonical JSON and one newline."""
        return canonical_json(self.values) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the stream whose ``stream.json`` holds ``data``.

        Raises:
            StoreError: it is a description of another format.
            DamagedError: it is none, or contradicts the genesis in it, which hashes to the fingerprint.

        """
        try:
            values = parse_json(data)
        except ValueError as error:
            raise DamagedError(f"it is not JSON ({error})") from error
        if not isinstance(values, dict):
            raise DamagedError("it is not a JSON object")
        info = cls.from_values(values)
        if "genesis" in values:
            try:
                genesis = Genesis.from_dict(values["genesis"])
                told = cls.from_genesis(genesis, genesis.segment_blocks).encode()
            except (TokenMillError, LookupError, TypeError, ValueError, AttributeError) as error:
                raise DamagedError(f"the genesis in it was changed ({error})") from error
            if told != data:
                raise DamagedError("it is not what the genesis in it says")
        return info


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
