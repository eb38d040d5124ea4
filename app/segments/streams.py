"""Bringing a stream's description and tokenizer into a store, before any of its blocks."""

import asyncio

from tokenmill.opening import RAW_BYTES_SHA256
from tokenmill.store import Store, StreamInfo

from ..kafka.control_topic import Settled


async def bring_stream(store: Store, settled: Settled) -> None:
    """Let the store hold what the control topic says of a stream; durable on return.

    Raises:
        FingerprintError: the store holds a stream of that name that was made with other settings.
        DiskError: the store cannot be read or written to.

    """
    genesis = settled.genesis
    digest = genesis.recipe.tokenizer_sha256
    tokenizer = None if digest == RAW_BYTES_SHA256 else settled.control.tokenizer(digest)
    info = StreamInfo.from_genesis(genesis, genesis.segment_blocks)
    await asyncio.to_thread(store.add_stream, info, tokenizer)
