"""Each loader as its documentation says, in one process a rank (``num_workers=0``), in the width of the files."""

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from benchmarks.loaders.place import SEED, STREAM, Stock
from benchmarks.mixtures.streams import BATCH, WEIGHTS

COLUMN = "tokens"


class TokenMill:
    """`Mixture`; of one stream where the name says so, or that stream's `Batches` alone."""

    packages = ("tokenmill", "torch", "numpy")

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def prepare(self, stocks: Mapping[str, Stock]) -> None:
        """Do nothing: the stores are what the others are made from."""

    def open(self, stocks: Mapping[str, Stock], rank: int, world_size: int, state: Any) -> Any:
        """Open it where a state stands."""
        from tokenmill.consumers import Batches, Mixture

        names = list(WEIGHTS) if self._kind == "mixture" else ["web"]
        streams = {
            name: Batches(
                stocks[name].store,
                STREAM,
                batch_size=BATCH // world_size,
                sequence_length=stocks[name].block_tokens - 1,
                seed=SEED,
                rank=rank,
                world_size=world_size,
                widen=False,
            )
            for name in names
        }
        self._open: Any = streams["web"] if self._kind == "one" else Mixture(streams, {n: WEIGHTS[n] for n in names})
        if state is not None:
            self._open.load_state_dict(state)
        return self._open

    def batches(self, opened: Any) -> Iterator[Any]:
        """Yield rows."""
        return (batch.rows for batch in opened)

    def state(self, opened: Any) -> Any:
        """Return its state."""
        return opened.state_dict()


class LitData:
    """``CombinedStreamingDataset`` of ``StreamingDataset`` with ``TokensLoader``."""

    packages = ("litdata", "torch", "numpy")

    def prepare(self, stocks: Mapping[str, Stock]) -> None:
        """Write chunks of 8192 blocks."""
        from litdata import TokensLoader, optimize

        from benchmarks.loaders.peers import DOCUMENT_BLOCKS, _document

        for stock in stocks.values():
            optimize(
                fn=_document,
                inputs=[(stock, first) for first in range(0, stock.blocks, DOCUMENT_BLOCKS)],
                output_dir=str(stock.directory / "litdata"),
                chunk_size=stock.block_tokens * 8192,
                item_loader=TokensLoader(),
                num_workers=1,
            )

    def open(self, stocks: Mapping[str, Stock], rank: int, world_size: int, state: Any) -> Any:
        """Open its own loader, which keeps states."""
        from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, TokensLoader

        data = [
            StreamingDataset(
                str(stock.directory / "litdata"),
                item_loader=TokensLoader(block_size=stock.block_tokens),
                shuffle=True,
                seed=SEED,
            )
            for stock in stocks.values()
        ]
        mixed = CombinedStreamingDataset(data, seed=SEED, weights=list(WEIGHTS.values()), iterate_over_all=False)
        loader = StreamingDataLoader(mixed, batch_size=BATCH // world_size, num_workers=0)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def batches(self, opened: Any) -> Iterator[Any]:
        """Yield arrays."""
        return (np.asarray(batch) for batch in opened)

    def state(self, opened: Any) -> Any:
        """Return its state."""
        return opened.state_dict()


class Mosaic:
    """``StreamingDataset`` of ``Stream(proportion=…)``."""

    packages = ("mosaicml-streaming", "torch", "numpy")

    def prepare(self, stocks: Mapping[str, Stock]) -> None:
        """Write a sample for each block."""
        from streaming import MDSWriter

        for stock in stocks.values():
            columns = {COLUMN: f"ndarray:uint16:{stock.block_tokens}"}
            with MDSWriter(out=str(stock.directory / "mosaic"), columns=columns) as writer:
                for row in stock.of_flat():
                    writer.write({COLUMN: row})

    def open(self, stocks: Mapping[str, Stock], rank: int, world_size: int, state: Any) -> Any:
        """Open its own loader, which keeps states."""
        from streaming import Stream, StreamingDataLoader, StreamingDataset
        from streaming.base.util import clean_stale_shared_memory
        from torch import distributed

        if not rank:
            clean_stale_shared_memory()
        if world_size > 1:
            distributed.barrier()  # else the other rank may name memory that is cleaned away
        streams = [
            Stream(local=str(stock.directory / "mosaic"), proportion=WEIGHTS[name]) for name, stock in stocks.items()
        ]
        data = StreamingDataset(
            streams=streams, shuffle=True, shuffle_seed=SEED, batch_size=BATCH // world_size, num_canonical_nodes=1
        )
        loader = StreamingDataLoader(data, batch_size=BATCH // world_size, num_workers=0)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def batches(self, opened: Any) -> Iterator[Any]:
        """Yield arrays."""
        return (np.asarray(batch[COLUMN]) for batch in opened)

    def state(self, opened: Any) -> Any:
        """Return its state."""
        return opened.state_dict()


class HuggingFace:
    """``interleave_datasets`` with probabilities, over iterable data sets of Arrow files."""

    packages = ("datasets", "pyarrow", "numpy")

    def prepare(self, stocks: Mapping[str, Stock]) -> None:
        """Write a row for each block."""
        import datasets

        from benchmarks.loaders.peers import _table

        for stock in stocks.values():
            datasets.Dataset(_table(stock.of_flat())).save_to_disk(str(stock.directory / "huggingface"))

    def open(self, stocks: Mapping[str, Stock], rank: int, world_size: int, state: Any) -> Any:
        """Open it for a rank."""
        import datasets
        from datasets.distributed import split_dataset_by_node

        parts = [
            datasets.load_from_disk(str(stock.directory / "huggingface"))
            .to_iterable_dataset(num_shards=16)
            .with_format("numpy")
            .shuffle(seed=SEED, buffer_size=1000)
            for stock in stocks.values()
        ]
        mixed = datasets.interleave_datasets(
            parts, probabilities=list(WEIGHTS.values()), seed=SEED, stopping_strategy="first_exhausted"
        )
        self._batch = BATCH // world_size
        data = split_dataset_by_node(mixed, rank, world_size) if world_size > 1 else mixed
        if state is not None:
            data.load_state_dict(state)
        return data

    def batches(self, opened: Any) -> Iterator[Any]:
        """Yield arrays."""
        rows = iter(opened)
        for first in rows:
            found = [one[COLUMN] for one in chain([first], (next(rows, None) for _ in range(self._batch - 1))) if one]
            if len(found) < self._batch:
                return
            yield np.stack(found).astype(np.uint16)

    def state(self, opened: Any) -> Any:
        """Return its state."""
        return opened.state_dict()


def contender(name: str) -> Any:
    """Return a loader; imports nothing of it yet."""
    kinds = {"tokenmill": "mixture", "tokenmill-mixture-of-one": "mixture of one", "tokenmill-one-stream": "one"}
    if name in kinds:
        return TokenMill(kinds[name])
    return {"litdata": LitData, "mosaicml-streaming": Mosaic, "datasets": HuggingFace}[name]()


def join_ranks(rank: int, world_size: int) -> None:
    """Meet the other ranks, as loaders expect it that ask torch for them."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    if world_size > 1:
        from torch import distributed

        distributed.init_process_group("gloo", rank=rank, world_size=world_size)
