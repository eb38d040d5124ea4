"""What needs nothing but the project's own packages: TokenMill, the limit, and nanoGPT's ``get_batch``."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from benchmarks.loaders.place import SEED, STREAM, Stock
from tokenmill.consumers import Batches

BATCH = 16


class TokenMill:
    """`Batches`, on the CPU; with checks or without."""

    packages = ("tokenmill", "torch", "numpy")

    def __init__(self, *, check: bool) -> None:
        self._check = check

    def folder(self, stock: Stock) -> str:
        """Return the name of its folder."""
        return stock.store.name

    def prepare(self, stock: Stock) -> None:
        """Do nothing: the store is what the others are made from."""

    def open(self, stock: Stock, *, shuffle: bool, wide: bool) -> Batches:
        """Open the stream."""
        length = stock.block_tokens - 1
        return Batches(
            stock.store,
            STREAM,
            batch_size=BATCH,
            sequence_length=length,
            seed=SEED,
            shuffle=shuffle,
            widen=wide,
            check=self._check,
        )

    def batches(self, stock: Stock, *, shuffle: bool, wide: bool) -> Iterator[Any]:
        """Yield x and y, or rows."""
        return map(attrgetter("x", "y") if wide else attrgetter("rows"), self.open(stock, shuffle=shuffle, wide=wide))


class Limit:
    """Bare numpy: ``np.take`` of the rows that `Batches` takes, in the same order, from one map of one file.

    It knows the whole order beforehand, keeps no state, follows no growth, and makes no tensors.
    """

    packages = ("numpy",)

    def folder(self, stock: Stock) -> str:
        """Return the name of its folder."""
        return stock.flat.parent.name

    def prepare(self, stock: Stock) -> None:
        """Do nothing: the file is written with the store."""

    def batches(self, stock: Stock, *, shuffle: bool, wide: bool) -> Iterator[Any]:
        """Yield rows in one buffer, or x and y as int64."""
        rows = stock.of_flat()
        order = np.load(stock.order) if shuffle else np.arange(stock.blocks)
        buffer = np.empty((BATCH, stock.block_tokens), np.uint16)
        for taken in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
            np.take(rows, taken, axis=0, out=buffer, mode="clip")
            yield (buffer[:, :-1].astype(np.int64), buffer[:, 1:].astype(np.int64)) if wide else buffer


class NanoGpt:
    """``get_batch`` of nanoGPT's train.py (commit 3adf61e, 2024): windows anywhere, with replacement; int64 at once."""

    packages = ("torch", "numpy")

    def folder(self, stock: Stock) -> str:
        """Return the name of its folder."""
        return stock.flat.parent.name

    def prepare(self, stock: Stock) -> None:
        """Do nothing: it reads the flat file."""

    def batches(self, stock: Stock, *, shuffle: bool, wide: bool) -> Iterator[Any]:
        """Yield x and y; there is no order but a random one, and nothing narrow."""
        if not (shuffle and wide):
            return
        block_size = stock.block_tokens - 1
        for _ in range(stock.blocks // BATCH):
            # The map is made anew each time: see https://stackoverflow.com/questions/45132940 on leaking memory.
            data = np.memmap(stock.flat, dtype=np.uint16, mode="r")
            ix = torch.randint(len(data) - block_size, (BATCH,))
            x = torch.stack([torch.from_numpy((data[i : i + block_size]).astype(np.int64)) for i in ix])
            y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + block_size]).astype(np.int64)) for i in ix])
            yield x, y
