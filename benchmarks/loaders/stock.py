"""The tokens that all loaders read: a store with eras, and beside it one file with all its blocks."""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.loaders.place import SEED, STREAM, Stock
from tokenmill.eras import Era, EraLog, Extent, Permutation, close_era
from tokenmill.reading.acceptance import Blocks
from tokenmill.store import EraWriter, PartitionWriter, Store, StreamInfo
from tokenmill.store.era_rows import COMMIT_ROWS
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


def make_stock(
    directory: Path,
    *,
    blocks: int,
    block_tokens: int,
    segment_blocks: int = SEGMENT_BLOCKS,
    era_blocks: int = ERA_BLOCKS,
    seed: int = 1,
) -> Stock:
    """Write random tokens into a store, through its own writer, and into the flat file.

    The blocks are rounded up to whole eras, of which each partition has its part.
    """
    eras = -(-blocks // era_blocks)
    stock = Stock(directory, eras * era_blocks, block_tokens)
    info = _info(block_tokens, segment_blocks)
    stock.flat.parent.mkdir(parents=True)
    store = Store.open_or_create(stock.store)
    store.add_stream(info, None)
    rng = np.random.default_rng(seed)
    entry = encode_entry([Piece(0, 0, 0, b"")])
    chains = [genesis_hash(info.fingerprint, partition) for partition in range(PARTITIONS)]
    log = EraLog(info.fingerprint)
    writers = [PartitionWriter.open(store, STREAM, partition) for partition in range(PARTITIONS)]
    each = era_blocks // PARTITIONS
    with EraWriter.open(store, STREAM) as era_writer, stock.flat.open("wb") as flat:
        closed: list[tuple[Era, int]] = []
        for era in range(eras):
            for partition, writer in enumerate(writers):
                for first in range(era * each, (era + 1) * each, COMMIT_BLOCKS):
                    count = min(COMMIT_BLOCKS, (era + 1) * each - first)
                    tokens = rng.integers(0, VOCABULARY, (count, block_tokens), np.uint16)
                    entries = [entry] * count
                    hashes = roll(chains[partition], tokens.data.cast("B"), entries)
                    chains[partition] = hashes[-1]
                    writer.append(Blocks(first, tokens.data.cast("B"), entries, hashes), token_offset=first)
                    if writer.next_block % COMMIT_BLOCKS == 0:
                        writer.commit()
                    flat.write(tokens.data)
            extents = {p: Extent((era + 1) * each, chain) for p, chain in enumerate(chains)}
            closed += _close(log, extents, end=era + 1 == eras)
        for writer in writers:
            writer.commit()
            writer.close()
        for at in range(0, len(closed), COMMIT_ROWS):
            era_writer.append(closed[at : at + COMMIT_ROWS])
    np.save(stock.order, _order(stock, era_blocks))
    return stock


def _order(stock: Stock, era_blocks: int) -> npt.NDArray[np.int64]:
    """Return the order of `Batches`: that of each era's permutation."""
    permutations = (
        Permutation(era_blocks, seed=SEED, passed=0, era=era)(np.arange(era_blocks)) + era * era_blocks
        for era in range(stock.blocks // era_blocks)
    )
    return np.concatenate(list(permutations))


def _close(log: EraLog, extents: dict[int, Extent], *, end: bool) -> list[tuple[Era, int]]:
    """Return an era, and at the end the marker, so that reading ends; with the offsets that they would have."""
    found = []
    for is_marker in (False, True) if end else (False,):
        era = close_era(log, extents, now=0, era_blocks=1, overdue=True, end=is_marker)
        if era is not None and log.add(era.pack()) is not None:
            found.append((era, era.number))
    return found


def _info(block_tokens: int, segment_blocks: int) -> StreamInfo:
    return StreamInfo.from_values(
        {
            "format": 1,
            "stream": STREAM,
            "fingerprint": "000102030405060708090a0b0c0d0e0f",
            "raw_topic": "bench",
            "block_tokens": block_tokens,
            "dtype": "uint16",
            "end_of_document": 0,
            "segment_blocks": segment_blocks,
        }
    )
