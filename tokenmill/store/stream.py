"""A store's description of a stream: ``stream.json``, made from its genesis."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from tokenmill.canonical import canonical_json
from tokenmill.errors import DamagedError, StoreError, TokenMillError
from tokenmill.recipe_differences import differences
from tokenmill.store.layout import FORMAT
from tokenmill.untrusted import parse_json
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
