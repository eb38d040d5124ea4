"""Where the tokens of this benchmark lie; knows nothing of any loader, so that each runs with its own packages."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

STREAM: Final = "bench.train"
SEED: Final = 1
_READ_BYTES: Final = 1 << 20
"""What a program that copies files reads at a time."""

Tokens = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Stock:
    """``blocks`` blocks of ``block_tokens`` uint16, in whole eras; each loader has them in a folder of its own."""

    directory: Path
    blocks: int
    block_tokens: int

    @property
    def store(self) -> Path:
        """A store of TokenMill, with the stream `STREAM`."""
        return self.directory / "store"

    @property
    def flat(self) -> Path:
        """One file: all blocks, era by era, inside an era by partition and number: the order without a shuffle."""
        return self.directory / "flat" / "tokens.bin"

    @property
    def order(self) -> Path:
        """Which row of the flat file each sample of `Batches` is: int64, shuffled with `SEED`."""
        return self.directory / "flat" / "order.npy"

    def of_flat(self) -> Tokens:
        """Map the flat file, ``[blocks, block_tokens]``."""
        return np.memmap(self.flat, np.uint16, "r", shape=(self.blocks, self.block_tokens))


def forget(directory: Path) -> None:
    """Drop a folder's files from the system's page cache, so that they are read from the disk again.

    Only what is on the disk and mapped by nobody can be dropped: it is synced first, and maps must have been closed.
    """
    for file in filter(Path.is_file, directory.rglob("*")):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def warm(directory: Path) -> None:
    """Have a folder's files in the system's page cache, read from the disk in order.

    How large the pieces are in which the kernel maps them depends on how they came there. This is best for one large
    file that is mapped without a word about it.
    """
    forget(directory)
    buffer = bytearray(_READ_BYTES)
    for path in sorted(filter(Path.is_file, directory.rglob("*"))):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
