"""Lab: arrays of any dtype and shape as a memory-mapped data set, written from an iterator.

    python examples/labs/memory_mapped.py --rows 10000 --shape 3,32,32 --dtype float16

The file is numpy's own format: dtype and shape are in it, so nobody has to remember them, and any program opens it.
"""

# ruff: noqa: INP001 - a script, no part of a package

import argparse
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import lab
import numpy as np
import numpy.typing as npt
import torch
from corpus import ran_with
from torch.utils.data import DataLoader, Dataset

AT_ONCE = 256  # rows that are written in one go


class MemoryMapped(Dataset[torch.Tensor]):
    """The rows of a file, by number; what is read is what is asked for."""

    def __init__(self, path: Path) -> None:
        """Map the file."""
        self.rows: npt.NDArray[Any] = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.array(self.rows[index]))  # a copy: the map is read-only

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return list(torch.from_numpy(self.rows[indices]))


def write_rows(path: Path, rows: Iterable[npt.NDArray[Any]], count: int) -> None:
    """Write ``count`` equal arrays into a file that is there when all are in it, and not before.

    Raises:
        ValueError: there are fewer rows, or one has another shape or dtype than the first.

    """
    beside = path.with_name(path.name + ".tmp")
    source = iter(rows)
    first = next(source)
    file = np.lib.format.open_memmap(beside, mode="w+", dtype=first.dtype, shape=(count, *first.shape))
    file[0], at = first, 1
    while part := list(islice(source, min(AT_ONCE, count - at))):
        for row in part:
            if row.shape != first.shape or row.dtype != first.dtype:
                raise ValueError(f"row {at} is {row.dtype} {row.shape}, and the first {first.dtype} {first.shape}")
        file[at : at + len(part)] = part
        at += len(part)
    if at < count:
        raise ValueError(f"there are {at} rows, and {count} were announced")
    file.flush()
    beside.replace(path)


def made_up(count: int, shape: tuple[int, ...], dtype: str, seed: int) -> Iterator[npt.NDArray[Any]]:
    """Yield random rows."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield (rng.random(shape) * 255).astype(dtype)


def main() -> None:
    """Write, read in a random order, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=Path("rows.npy"))
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--shape", default="3,32,32")
    parser.add_argument("--dtype", default="uint8")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(ran_with())
    shape = tuple(int(size) for size in options.shape.split(","))
    began = time.perf_counter()
    write_rows(options.file, made_up(options.rows, shape, options.dtype, options.seed), options.rows)
    data = MemoryMapped(options.file)
    print(f"{len(data):,} rows {data.rows.dtype} {data.rows.shape[1:]}, written in {time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(options.seed)
    loader = DataLoader(data, batch_size=64, shuffle=True, generator=generator)
    count = sum(len(batch) for batch in loader)
    print(f"read shuffled: {count / (time.perf_counter() - began):,.0f} rows a second")


if __name__ == "__main__":
    lab.run(main)
