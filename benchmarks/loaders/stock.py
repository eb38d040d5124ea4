"""The tokens that all loaders read: a store with eras, and beside it one file with all its blocks."""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.loaders.place import SEED, STREAM, Stock
from tokenmill.eras import EraLog, Extent, Permutation, close_era
from tokenmill.reading.acceptance import Blocks
from tokenmill.store import EraWriter, PartitionWriter, Store, StreamInfo
from tokenmill.wire.chain import genesis_hash, roll
from tokenmill.wire.pieces import Piece, encode_entry

PARTITIONS: Final = 2
VOCABULARY: Final = 50_257
SEGMENT_BLOCKS: Final = 32_768
"""The default of the service."""
ERA_BLOCKS: Final = 8192
"""The same."""
COMMIT_BLOCKS: Final = 2048
"""Blocks that are written in one go."""


def make_stock(directory: Path, *, blocks: int, block_tokens: int, seed: int = 1) -> Stock:
    """Write random tokens into a store, through its own writer, and into the flat file.

    The blocks are rounded up to whole eras, of which each partition has its part.
    """
    eras = -(-blocks // ERA_BLOCKS)
    stock = Stock(directory, eras * ERA_BLOCKS, block_tokens)
    info = _info(block_tokens)
    stock.flat.parent.mkdir(parents=True)
    store = Store.open_or_create(stock.store)
    store.add_stream(info, None)
    rng = np.random.default_rng(seed)
    entries = [encode_entry([Piece(0, 0, 0, b"")])] * COMMIT_BLOCKS
    chains = [genesis_hash(info.fingerprint, partition) for partition in range(PARTITIONS)]
    log = EraLog(info.fingerprint)
    writers = [PartitionWriter.open(store, STREAM, partition) for partition in range(PARTITIONS)]
    each = ERA_BLOCKS // PARTITIONS
    with EraWriter.open(store, STREAM) as era_writer, stock.flat.open("wb", buffering=0) as flat:
        for era in range(eras):
            for partition, writer in enumerate(writers):
                for first in range(era * each, (era + 1) * each, COMMIT_BLOCKS):
                    tokens = rng.integers(0, VOCABULARY, (COMMIT_BLOCKS, block_tokens), np.uint16)
                    hashes = roll(chains[partition], tokens.data.cast("B"), entries)
                    chains[partition] = hashes[-1]
                    writer.append(Blocks(first, tokens.data.cast("B"), entries, hashes), token_offset=first)
                    writer.commit()
                    flat.write(tokens.data)
            extents = {p: Extent((era + 1) * each, chain) for p, chain in enumerate(chains)}
            _close(log, extents, era_writer, end=era + 1 == eras)
    for writer in writers:
        writer.close()
    np.save(stock.order, _order(stock))
    return stock


def _order(stock: Stock) -> npt.NDArray[np.int64]:
    """Return the order of `Batches`: that of each era's permutation."""
    permutations = (
        Permutation(ERA_BLOCKS, seed=SEED, passed=0, era=era)(np.arange(ERA_BLOCKS)) + era * ERA_BLOCKS
        for era in range(stock.blocks // ERA_BLOCKS)
    )
    return np.concatenate(list(permutations))


def _close(log: EraLog, extents: dict[int, Extent], writer: EraWriter, *, end: bool) -> None:
    """Write an era, and at the end the marker, so that reading ends."""
    for is_marker in (False, True) if end else (False,):
        era = close_era(log, extents, now=0, era_blocks=1, overdue=True, end=is_marker)
        if era is not None and log.add(era.pack()) is not None:
            writer.append([(era, era.number)])


def _info(block_tokens: int) -> StreamInfo:
    return StreamInfo.from_values(
        {
            "format": 1,
            "stream": STREAM,
            "fingerprint": "000102030405060708090a0b0c0d0e0f",
            "raw_topic": "bench",
            "block_tokens": block_tokens,
            "dtype": "uint16",
            "end_of_document": 0,
            "segment_blocks": SEGMENT_BLOCKS,
        }
    )
