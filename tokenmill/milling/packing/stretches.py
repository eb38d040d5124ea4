"""Tokens that lie in several arrays, one behind the other: they are copied once, into the message that takes them."""

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.unsignedinteger]


class Stretches:
    """Consecutive tokens of one dtype. Whoever made the arrays changes them no more."""

    __slots__ = ("_arrays", "_size")

    def __init__(self, arrays: Iterable[Array]) -> None:
        """Take arrays of one dimension."""
        self._arrays = [array for array in arrays if len(array)]
        self._size = sum(map(len, self._arrays))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Array]:
        return iter(self._arrays)

    def between(self, start: int, stop: int) -> "Stretches":
        """Return a view of the tokens ``[start, stop)``."""
        return Stretches(self._between(start, stop))

    def _between(self, start: int, stop: int) -> Iterator[Array]:
        for array in self._arrays:
            if stop <= 0:
                return
            yield array[max(start, 0) : stop]
            start, stop = start - len(array), stop - len(array)

    def tobytes(self) -> bytes:
        """Return a copy of the tokens as they stand on disk."""
        return b"".join([array.data for array in self._arrays])
