"""The streams that all loaders mix, and what each loader reads; knows nothing of any loader."""

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.loaders.place import Stock

WEIGHTS: Final = {"books": 0.1, "code": 0.25, "papers": 0.05, "talks": 0.2, "web": 0.4}
"""Of each stream, by name."""
BATCH: Final = 16
"""Samples of all ranks in a step."""


def stocks_of(directory: Path, blocks: int, block_tokens: int) -> dict[str, Stock]:
    """Return where the tokens of each stream are."""
    return {name: Stock(directory / name, blocks, block_tokens) for name in WEIGHTS}


def names_of(rows: npt.NDArray[np.uint16]) -> list[int]:
    """Return a number for each row by which it is known: its first four tokens, which are random."""
    found: list[int] = np.ascontiguousarray(rows[:, :4]).view(np.uint64).reshape(-1).tolist()
    return found
