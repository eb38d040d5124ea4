"""Copying rows from many places in memory with one call.

An era lies in the segments of several partitions, each a map of its own; the samples of a batch lie anywhere in these.
numpy copies fastest out of one array. So the places are given to it as items of one array that begins at the lowest of
them and reaches to the highest: nothing between them is touched, and nothing is copied twice.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_INTERFACE_VERSION: Final = 3
"""Of numpy's array interface: https://numpy.org/doc/stable/reference/arrays.interface.html."""

Rows = npt.NDArray[np.unsignedinteger]
Addresses = npt.NDArray[np.int64]


def addresses_of(tokens: Rows, starts: npt.NDArray[np.int64]) -> Addresses:
    """Return where in memory the tokens stand that have these numbers in a contiguous array, counted through its rows.

    They are good for as long as the array is kept.
    """
    return starts * tokens.itemsize + int(tokens.__array_interface__["data"][0])


def gather_rows(addresses: Addresses, columns: int, maps: Sequence[Rows]) -> Rows:
    """Return ``columns`` tokens from each of these addresses on, ``[len(addresses), columns]``, in memory of their own.

    Args:
        addresses: at least one, as `addresses_of` gives them.
        columns: tokens to copy from each; all of them lie in the array that the address is of.
        maps: the arrays that the addresses are of, all of one dtype.

    """
    dtype = maps[0].dtype
    width = columns * dtype.itemsize
    first = int(addresses.min())
    items = addresses - first
    if dtype.itemsize > 1:
        items //= dtype.itemsize
    memory = np.asarray(_Memory(first, int(items.max()) + 1, dtype.itemsize, width))
    return memory[items].view(dtype).reshape(len(addresses), columns)


class _Memory:
    """Items of ``width`` bytes, each beginning ``stride`` bytes behind the one before."""

    def __init__(self, first: int, count: int, stride: int, width: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "data": (first, True),  # read-only
            "shape": (count,),
            "strides": (stride,),
            "typestr": f"|V{width}",
            "version": _INTERFACE_VERSION,
        }
