"""The window: the newest kept documents, among which duplicates are looked for.

It is counted in kept documents, in slices. The open slice and the `SLICES` - 1 before it are looked at; what a document
is depends on those before it alone. Signatures and places are in a file for each slice, of which a table in memory has
so much that one read finds a hash.
"""

import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, gettempdir
from typing import IO, Final

import numpy as np
import numpy.typing as npt

from tokenmill.errors import DamagedError
from tokenmill.store.layout import blaming

from .signatures import PLACE, SLICES, Deduplication, Exact, Hashes, Near, Verdicts, kernels, sign

SLOTS_PER_ENTRY: Final = 1.5
"""Of a full table, two thirds of the slots are taken."""


def compile_window() -> None:
    """Compile the kernels of ``dedup``; as `tokenmill.app.milling.curation.choosing.compile_kernels`."""
    for deduplication in (Exact(SLICES), Near(SLICES)):
        with TemporaryDirectory() as folder:
            texts = [f"Text {number}, of a few more words than there are in a shingle." for number in range(SLICES)]
            window = Window(deduplication, Path(folder))  # a text in each slice, so that older ones are looked at
            signed = sign(deduplication, texts), np.zeros((len(texts), PLACE), np.uint64)
            window.judge(*signed)
            window.keep(*signed)


def slice_size(deduplication: Deduplication) -> int:
    """Return how many kept documents a slice has."""
    return deduplication.window // SLICES


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Slice:
    number: int
    file: IO[bytes]
    rows: "np.memmap[tuple[int, int, int], np.dtype[np.uint64]]"
    tags: npt.NDArray[np.uint16]
    blocks: npt.NDArray[np.uint8 | np.uint16]
    count: int
    allocated: int = 0


class Window:
    """The newest kept documents, in files of one folder; memory has `Deduplication.table_bytes` for each."""

    def __init__(
        self, deduplication: Deduplication, directory: Path | None, kept: int = 0, *, goes_on: bool = True
    ) -> None:
        """Go on after ``kept`` documents, of which the folder has those that count; what it has of later ones goes.

        Without a ``directory``, files have no names, and nothing goes on. ``goes_on`` says whether the folder has those
        that were kept; where not, none of them is known, and it has no files. Raises DamagedError where the folder
        lacks some, DiskError where it cannot be written to, and SettingsError where numba is not installed.
        """
        self.deduplication = deduplication
        self._directory = directory
        self._where = directory if directory is not None else Path(gettempdir())
        self._kernel = kernels()
        self._slice_size = slice_size(deduplication)
        blocks = 1 << (8 if isinstance(deduplication, Near) else 16)
        self._block_size = -(-self._slice_size // blocks)
        self._block_type: type[np.uint8 | np.uint16] = np.uint8 if isinstance(deduplication, Near) else np.uint16
        self.kept = kept
        """Documents that were kept, from the first one on."""
        newest = kept // self._slice_size
        goes_on = goes_on and directory is not None
        oldest = max(0, newest - SLICES + 1) if goes_on else newest
        with ThreadPoolExecutor(SLICES) as pool:
            self._slices = list(pool.map(partial(self._open, goes_on=goes_on), range(oldest, newest + 1)))

    def keep(self, hashes: Hashes, places: Hashes) -> None:
        """Take in documents of which it is known that they are kept: signatures, and places ``[documents, 2]``."""
        for low, high in self._parts(len(hashes)):
            newest = self._slices[-1]
            arguments = newest.tags, newest.blocks, newest.rows, newest.count, self.deduplication.entries
            self._kernel.put(hashes[low:high], *arguments, places[low:high])
            newest.count += high - low
            self.kept += high - low

    def judge(self, hashes: Hashes, places: Hashes) -> Verdicts:
        """Say what the next documents are, one after the other: of their signatures, and places ``[documents, 2]``."""
        kinds, places = np.zeros(len(hashes), np.uint8), places.copy()
        for low, high in self._parts(len(hashes)):
            newest = self._slices[-1]
            part = hashes[low:high], kinds[low:high], places[low:high]
            for one in self._slices:
                call = self._kernel.take if one is newest else self._kernel.look_up
                arguments = one.tags, one.blocks, one.rows, one.count, self.deduplication.entries
                count = call(part[0], *arguments, *part[1:])
            self.kept += count - newest.count
            newest.count = count
        return Verdicts(kinds, places)

    def _parts(self, documents: int) -> Iterator[tuple[int, int]]:
        """Divide documents into parts of which no more can be kept than the newest slice has room for."""
        low = 0
        while low < documents:
            newest = self._slices[-1]
            if newest.count == self._slice_size:
                self._slices = [*self._slices[1 - SLICES :], self._open(newest.number + 1)]
                continue
            high = min(documents, low + self._slice_size - newest.count)
            # the disk must hold these rows: memory that is mapped to a full disk would end the process
            wanted = -(-(newest.count + high - low) // self._block_size) * newest.rows[0].nbytes
            if wanted > newest.allocated:
                with blaming(self._where):
                    os.posix_fallocate(newest.file.fileno(), newest.allocated, wanted - newest.allocated)
                newest.allocated = wanted
            yield low, high
            low = high

    def sync(self) -> None:
        """Make durable what was kept; another thread may go on to judge meanwhile."""
        for one in list(self._slices):
            one.rows.flush()

    def forget(self, kept: int) -> None:
        """Remove the files that nobody needs who goes on after ``kept`` documents."""
        oldest = kept // self._slice_size - SLICES + 1
        for path in self._directory.glob("seen-*.bin") if self._directory is not None else ():
            if int(path.stem.removeprefix("seen-")) < oldest:
                path.unlink(missing_ok=True)

    def _open(self, number: int, *, goes_on: bool = False) -> _Slice:
        size, block = self._slice_size, self._block_size
        shape = (-(-size // block), self.deduplication.width + PLACE, block)
        count = min(size, self.kept - number * size)
        total = int(np.prod(shape)) * 8
        file = self._file(number, total if count and goes_on else 0)
        with blaming(self._where):
            file.truncate(total)
        rows = np.memmap(file, "<u8", "r+", shape=shape)
        slots = int(size * self.deduplication.entries * SLOTS_PER_ENTRY) + 1
        one = _Slice(number, file, rows, np.zeros(slots, np.uint16), np.zeros(slots, self._block_type), count)
        weakref.finalize(one, file.close)
        self._kernel.enter_rows(one.tags, one.blocks, rows, count, self.deduplication.entries)
        return one

    def _file(self, number: int, size: int) -> IO[bytes]:
        """Open the file of a slice, which has so many bytes already."""
        if self._directory is None:
            with blaming(self._where):
                return TemporaryFile()
        path = self._directory / f"seen-{number:012d}.bin"
        if size and (not path.exists() or path.stat().st_size != size):
            raise DamagedError(f"{path} is missing, or not as long as it was: it has what was seen before")
        with blaming(self._directory):
            return path.open("r+b" if size else "w+b")
