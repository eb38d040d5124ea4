"""The packings beside ``concat`` as fault tests have them: settings of a service, and chains of blocks for a store."""

from collections.abc import Callable
from itertools import count
from typing import Any, Final

import pytest

from tests.consumers.packed import given_documents, pack
from tokenmill.reading import Blocks
from tokenmill.store import StreamInfo
from tokenmill.wire.chain import genesis_hash, roll
from tokenmill.wire.pieces import encode_entry

OTHERS: Final[dict[str, dict[str, Any]]] = {
    "fit": {"packing": {"name": "fit", "open_blocks": 8, "max_age_offsets": 300}},
    "rows": {"sequence_length": 64, "packing": {"name": "rows", "long": "split"}},
    "chunks": {"sequence_length": 16, "packing": {"name": "chunks", "chunk_tokens": 48, "rest": "pad"}},
}
"""Settings of each, with blocks of the length that documents of `tests.faults.feeding` fill."""

each_packing: Final = pytest.mark.parametrize(
    "packing",
    [
        pytest.param({}, id="concat"),
        *(pytest.param(packing, id=name, marks=pytest.mark.needs("minutes")) for name, packing in OTHERS.items()),
    ],
)
"""Runs a test with ``concat``, and in a full run with each of the others."""


def _chain_of(packing: str) -> Callable[[StreamInfo, int], Blocks]:
    def make(info: StreamInfo, blocks: int) -> Blocks:
        """Return the first blocks of a chain of documents, each a token longer than the one before, up to eleven."""
        for documents in count(blocks):
            made = pack(given_documents([1 + n % 11 for n in range(documents)]), packing, info.block_tokens)[:blocks]
            if len(made) == blocks:
                break
        tokens = b"".join(token.to_bytes(info.dtype.itemsize, "little") for block in made for token in block.tokens)
        entries = [encode_entry(block.pieces) for block in made]
        return Blocks(0, tokens, entries, roll(genesis_hash(info.fingerprint, 0), tokens, entries))

    return make


CHAINS: Final = {name: _chain_of(name) for name in OTHERS}
"""Makes a chain with so many blocks of each packing: pieces that end in padding, documents in several blocks."""
