"""Copying rows from many places in memory with one call.

An era is in the segments of several partitions, each a map of its own; the samples of a batch are anywhere in these.
numpy copies fastest out of one array. So the places are given to it as items of one array that begins at the lowest of
them and reaches to the highest: nothing between them is touched, and nothing is copied twice.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tokenmill.store import MapWatch

_INTERFACE_VERSION: Final = 3
"""Of numpy's array interface: https://numpy.org/doc/stable/reference/arrays.interface.html."""

_STRETCH_BYTES: Final = 512 << 10
"""Of rows that are copied in one go: several batches share the call's cost, and they fit into a core's own cache."""

Rows = npt.NDArray[np.unsignedinteger]
Addresses = npt.NDArray[np.int64]


def addresses_of(tokens: Rows, starts: npt.NDArray[np.int64]) -> Addresses:
    """Return where in memory the tokens stand that have these numbers in a contiguous array, counted through its rows.

    They are good for as long as the array is kept.
    """
    return starts * tokens.itemsize + int(tokens.__array_interface__["data"][0])


def rows_of(tokens: Rows) -> Addresses:
    """Return where in memory the rows of a contiguous array begin; good for as long as it is kept."""
    first, size = int(tokens.__array_interface__["data"][0]), tokens.strides[0]
    return np.arange(first, first + len(tokens) * size, size)


class Gathering:
    """Rows of ``columns`` tokens, each from an address on, that are copied when they are asked for.

    Keeps the arrays that hold them. Each copy costs a microsecond beside its bytes; what it is copied into is new,
    and so the memory of the copy before, still in the core's cache, if that was let go.
    """

    __slots__ = ("_columns", "_dtype", "_items", "_maps", "_memory", "watch")

    def __init__(
        self,
        addresses: Addresses,
        columns: int,
        dtype: "np.dtype[np.unsignedinteger]",
        maps: Sequence[Rows],
        watch: MapWatch,
    ) -> None:
        """Prepare.

        Args:
            addresses: as `addresses_of` gives them.
            columns: tokens to copy from each; all of them are in the array that the address is of.
            dtype: of the tokens.
            maps: the arrays that the addresses are of.
            watch: looks at the files under them before they are read, so that one that was cut off is an error.

        """
        self.watch = watch
        self._maps = maps
        self._columns = columns
        self._dtype = dtype
        first = int(addresses.min()) if len(addresses) else 0
        self._items = addresses - first
        count = int(self._items.max(initial=-1)) + 1
        self._memory = np.asarray(_Memory(first, count, columns * dtype.itemsize))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self._columns * self._dtype.itemsize

    def rows(self, start: int = 0, stop: int | None = None) -> Rows:
        """Return those of the rows, ``[stop - start, columns]``, in memory of their own.

        Raises:
            DamagedError: a file was cut off since it was mapped.

        """
        self.watch.look(self._maps)
        return self._memory[self._items[start:stop]].view(self._dtype).reshape(-1, self._columns)

    def stretches(self, size: int) -> Iterator[Rows]:
        """Yield all rows as batches of ``size``, which divides them, several at a time: ``[batches, size, columns]``.

        Contiguous, in memory that they have together: whoever keeps one batch, keeps 512 KiB.
        """
        together = self.together(size)
        for start in range(0, len(self._items), together):
            yield self.rows(start, start + together).reshape(-1, size, self._columns)

    def together(self, size: int) -> int:
        """Return how many rows `stretches` copies in one go."""
        return max(_STRETCH_BYTES // max(size * self.row_bytes, 1), 1) * size


class _Memory:
    """Items of ``width`` bytes, one beginning at each byte."""

    def __init__(self, first: int, count: int, width: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "data": (first, True),  # read-only
            "shape": (count,),
            "strides": (1,),
            "typestr": f"|V{width}",
            "version": _INTERFACE_VERSION,
        }
