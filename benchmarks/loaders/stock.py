"""The tokens that all loaders read: a store with eras, and beside it one file with all its blocks."""

from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from benchmarks.loaders.place import SEED, STREAM, Stock
from tokenmill.eras import Era, EraLog, Permutation, close_era
from tokenmill.reading import Blocks, Extent
from tokenmill.store import EraWriter, PartitionWriter, Store, StreamInfo
from tokenmill.store.eras import COMMIT_ROWS
from tokenmill.wire.chain import genesis_hash, roll
from tokenmill.wire.pieces import Piece, encode_entry

PARTITIONS: Final = 2
VOCABULARY: Final = 50_257
SEGMENT_BLOCKS: Final = 32_768
"""The default of the service."""
ERA_BLOCKS: Final = 8192
"""The same."""
ENTRY: Final = encode_entry([Piece(0, 0, 0, b"")])
"""Each block is one document."""
COMMIT_BLOCKS: Final = 2048
"""Blocks that are written in one go."""


def make_stock(
    directory: Path,
    *,
    blocks: int,
    block_tokens: int,
    segment_blocks: int = SEGMENT_BLOCKS,
    era_blocks: int = ERA_BLOCKS,
    partitions: int = PARTITIONS,
    seed: int = 1,
) -> Stock:
    """Write random tokens into a store, through its own writer, and into the flat file.

    The blocks are rounded up to whole eras, of which each partition has its part.
    """
    eras = -(-blocks // era_blocks)
    stock = Stock(directory, eras * era_blocks, block_tokens)
    stock.flat.parent.mkdir(parents=True)
    with StockWriter(stock, segment_blocks, era_blocks, partitions, seed) as writer:
        for era in range(eras):
            writer.append(end=era + 1 == eras)
        writer.publish()
    np.save(stock.order, _order(stock, era_blocks))
    return stock


class StockWriter:
    """Writes random tokens era by era, as the service would, but to all partitions from one process."""

    def __init__(
        self, stock: Stock, segment_blocks: int, era_blocks: int, partitions: int = PARTITIONS, seed: int = 1
    ) -> None:
        """Open an empty store, and the flat file beside it."""
        info = _info(stock.block_tokens, segment_blocks)
        store = Store.open_or_create(stock.store)
        store.add_stream(info, None)
        self._each = era_blocks // partitions
        self._block_tokens = stock.block_tokens
        self._rng = np.random.default_rng(seed)
        self._chains = [genesis_hash(info.fingerprint, partition) for partition in range(partitions)]
        self._log = EraLog(info.fingerprint)
        self._closed: list[tuple[Era, int]] = []
        self._open = ExitStack()
        self._flat = self._open.enter_context(stock.flat.open("wb"))
        self._eras = self._open.enter_context(EraWriter.open(store, STREAM))
        self._writers = [PartitionWriter.open(store, STREAM, partition) for partition in range(partitions)]
        for partition in self._writers:
            self._open.callback(partition.close)

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all files."""
        self._open.close()

    def append(self, *, end: bool = False) -> None:
        """Write the blocks of the next era, and after the last one the marker by which reading ends."""
        for partition, writer in enumerate(self._writers):
            last = writer.next_block + self._each
            for first in range(writer.next_block, last, COMMIT_BLOCKS):
                self._append(partition, first, min(COMMIT_BLOCKS, last - first))
                if writer.next_block % COMMIT_BLOCKS == 0:
                    writer.commit()
        extents = {p: Extent(self._writers[p].next_block, chain) for p, chain in enumerate(self._chains)}
        self._closed += _close(self._log, extents, end=end)

    def publish(self) -> None:
        """Make all that was appended trainable: it is committed when this returns."""
        for writer in self._writers:
            writer.commit()
        for at in range(0, len(self._closed), COMMIT_ROWS):
            self._eras.append(self._closed[at : at + COMMIT_ROWS])
        self._closed = []

    def _append(self, partition: int, first: int, count: int) -> None:
        tokens = self._rng.integers(0, VOCABULARY, (count, self._block_tokens), np.uint16)
        entries = [ENTRY] * count
        hashes = roll(self._chains[partition], tokens.data.cast("B"), entries)
        self._chains[partition] = hashes[-1]
        self._writers[partition].append(Blocks(first, tokens.data.cast("B"), entries, hashes), token_offset=first)
        self._flat.write(tokens.data)


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
