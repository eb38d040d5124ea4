"""The others, each as its documentation says, in this process (``num_workers=0``): what one core can do is compared.

Their packages (requirements/loader-peers.txt) lie apart from the project's, so nothing of TokenMill is imported.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.loaders.place import SEED, Stock, Tokens

BATCH = 16
COLUMN = "tokens"
DOCUMENT_BLOCKS = 1024
"""Blocks that are handed over as one document where a format wants documents."""


class _Folder:
    def __init__(self, name: str) -> None:
        self._name = name

    def folder(self, stock: Stock) -> str:  # noqa: ARG002 - others look there
        """Return the name of its folder."""
        return self._name


class LitData(_Folder):
    """``TokensLoader``: chunks of flat tokens, mapped."""

    packages = ("litdata", "torch", "numpy")

    def __init__(self) -> None:
        super().__init__("litdata")

    def prepare(self, stock: Stock) -> None:
        """Write chunks of 8192 blocks."""
        from litdata import TokensLoader, optimize

        firsts = [(stock, first) for first in range(0, stock.blocks, DOCUMENT_BLOCKS)]
        optimize(
            fn=_document,
            inputs=firsts,
            output_dir=str(stock.directory / self._name),
            chunk_size=stock.block_tokens * 8192,
            item_loader=TokensLoader(),
            num_workers=1,
        )

    def open(self, stock: Stock, *, shuffle: bool) -> Any:
        """Open its own loader, which keeps states."""
        from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

        loader = TokensLoader(block_size=stock.block_tokens)
        data = StreamingDataset(str(stock.directory / self._name), item_loader=loader, shuffle=shuffle, seed=SEED)
        return StreamingDataLoader(data, batch_size=BATCH, num_workers=0)

    def batches(self, stock: Stock, *, shuffle: bool, wide: bool) -> Iterator[Any]:
        """Yield tensors."""
        return (_split(batch, wide=wide) for batch in self.open(stock, shuffle=shuffle))


def _document(part: tuple[Stock, int]) -> Iterator[Any]:
    import torch

    stock, first = part
    yield torch.from_numpy(np.array(stock.of_flat()[first : first + DOCUMENT_BLOCKS]).reshape(-1))


class Mosaic(_Folder):
    """mosaicml-streaming: MDS shards of samples, read with a seek for each."""

    packages = ("mosaicml-streaming", "torch", "numpy")

    def __init__(self) -> None:
        super().__init__("mosaic")

    def prepare(self, stock: Stock) -> None:
        """Write a sample for each block."""
        from streaming import MDSWriter

        columns = {COLUMN: f"ndarray:uint16:{stock.block_tokens}"}
        with MDSWriter(out=str(stock.directory / self._name), columns=columns) as writer:
            for row in stock.of_flat():
                writer.write({COLUMN: row})

    def open(self, stock: Stock, *, shuffle: bool) -> Any:
        """Open its own loader, which keeps states."""
        from streaming import StreamingDataLoader, StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        data = StreamingDataset(
            local=str(stock.directory / self._name),
            shuffle=shuffle,
            shuffle_seed=SEED,
            batch_size=BATCH,
            num_canonical_nodes=1,
        )
        return StreamingDataLoader(data, batch_size=BATCH, num_workers=0)

    def batches(self, stock: Stock, *, shuffle: bool, wide: bool) -> Iterator[Any]:
        """Yield tensors."""
        return (_split(batch[COLUMN], wide=wide) for batch in self.open(stock, shuffle=shuffle))


class HuggingFace(_Folder):
    """datasets: Arrow files, mapped, ``with_format("numpy")``."""

    packages = ("datasets", "pyarrow", "numpy")

    def __init__(self) -> None:
        super().__init__("huggingface")

    def prepare(self, stock: Stock) -> None:
        """Write a row for each block."""
        import datasets

        datasets.Dataset(_table(stock.of_flat())).save_to_disk(str(stock.directory / self._name))

    def batches(self, stock: Stock, *, shuffle: bool, wide: bool) -> Iterator[Any]:
        """Yield arrays; as its format says, int64 unless another dtype is asked for."""
        import datasets

        data = datasets.load_from_disk(str(stock.directory / self._name))
        data = data.shuffle(seed=SEED, keep_in_memory=True) if shuffle else data
        data = data.with_format("numpy") if wide else data.with_format("numpy", dtype=np.uint16)
        for batch in data.iter(batch_size=BATCH):
            yield (batch[COLUMN][:, :-1].copy(), batch[COLUMN][:, 1:].copy()) if wide else batch[COLUMN]


class Lance(_Folder):
    """Lance: ``take`` of any rows."""

    packages = ("pylance", "pyarrow", "numpy")

    def __init__(self) -> None:
        super().__init__("lance")

    def prepare(self, stock: Stock) -> None:
        """Write a row for each block."""
        import lance

        lance.write_dataset(_table(stock.of_flat()), str(stock.directory / self._name))

    def batches(self, stock: Stock, *, shuffle: bool, wide: bool) -> Iterator[Any]:
        """Yield arrays, of the rows that `Batches` takes."""
        import lance

        data = lance.dataset(str(stock.directory / self._name))
        order = np.load(stock.order) if shuffle else np.arange(stock.blocks)
        for taken in order.reshape(-1, BATCH):
            tokens = data.take(taken).column(0).combine_chunks().flatten().to_numpy()
            yield _split(tokens.reshape(BATCH, -1), wide=wide)


def _table(rows: Tokens) -> Any:
    import pyarrow as pa

    column = pa.FixedSizeListArray.from_arrays(pa.array(np.asarray(rows).reshape(-1)), rows.shape[1])
    return pa.table({COLUMN: column})


def _split(rows: Any, *, wide: bool) -> Any:
    """Return the rows, or x and y as int64, whether they are a tensor or an array."""
    if not wide:
        return rows
    parts = rows[:, :-1], rows[:, 1:]
    return tuple(part.astype(np.int64) if isinstance(part, np.ndarray) else part.long() for part in parts)


PEERS = {"litdata": LitData, "mosaicml-streaming": Mosaic, "datasets": HuggingFace, "lance": Lance}
