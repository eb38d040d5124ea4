"""Chains whose bytes are what a careless format would stumble over."""

from collections.abc import Callable, Sequence
from typing import Final

from tests.faults.packings import CHAINS
from tests.store.chains import make_chain
from tokenmill.canonical import canonical_json
from tokenmill.reading.acceptance import Blocks
from tokenmill.store import StreamInfo
from tokenmill.store.sealing import MAGIC
from tokenmill.wire.chain import genesis_hash, roll
from tokenmill.wire.pieces import PADDING, Piece, encode_entry


def _of_bytes(pattern: bytes) -> Callable[[StreamInfo, int], bytes]:
    return lambda info, count: (pattern * (count * info.block_bytes // len(pattern) + 1))[: count * info.block_bytes]


ODD: Final[dict[str, Callable[[StreamInfo, int], bytes]]] = {
    "zeros": _of_bytes(b"\0"),
    "ones": _of_bytes(b"\xff"),
    "commit records": _of_bytes(MAGIC + (64).to_bytes(4, "little")),
    "manifests": _of_bytes(canonical_json({"format": 1, "first": 0})),
    "padding": _of_bytes(b"\0\0"),
}


def odd_chain(name: str, info: StreamInfo, count: int) -> Blocks:
    """Return a chain with these tokens; ``padding`` has no other pieces, and the others spell magic in their metas."""
    tokens = ODD[name](info, count)
    entries = [encode_entry(_pieces(name, number)) for number in range(count)]
    return Blocks(0, tokens, entries, roll(genesis_hash(info.fingerprint, 0), tokens, entries))


def _pieces(name: str, number: int) -> Sequence[Piece]:
    if name == "padding":
        return [Piece(0, 100 * number, PADDING, b"")]
    return [Piece(0, 100 * number, 0, canonical_json({"id": MAGIC.decode() * 16}))]


def chain_named(name: str, info: StreamInfo, count: int) -> Blocks:
    """Return an odd chain, that of a packing (`tests.faults.packings`), or, of another name, an ordinary one."""
    if name in CHAINS:
        return CHAINS[name](info, count)
    return odd_chain(name, info, count) if name in ODD else make_chain(info, count)
