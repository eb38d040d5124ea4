"""Windows: x and y at any token of a partition, across the borders of blocks, for those who sample by themselves."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from tokenmill.errors import InputError, missing_extra
from tokenmill.store import PartitionReader, open_partition, partitions_in
from tokenmill.store.layout import StorePath

from . import arguments
from .waiting import OpenedStream

if TYPE_CHECKING:
    from .batch import XY


class Windows(OpenedStream):
    """The committed tokens of each partition as one long row, of which any stretch can be taken.

    Tokens are counted from the partition's block 0, so an index means the same tokens in every store of the stream, for
    ever. Documents follow each other as they were packed, padding included. No order and no state: that is `Batches`.
    By number, ``windows[i]``, all of them are a map-style data set, for other samplers.
    """

    @arguments.naming_unknown
    def __init__(
        self,
        store: StorePath,
        stream: str,
        length: int | None = None,
        *,
        check: bool = True,
        cache: StorePath | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        """Open the partitions that there are.

        Args:
            store: directory of the store, or the address of a bucket; of that, what it has now.
            stream: name of the stream.
            length: tokens of x, and of y; None: the stream's ``sequence_length``.
            check: hold every block against its CRC when it is first touched, and refuse damage.
            cache: of a bucket: a folder on a disk of this host, for what is read; all processes share it.
            cache_bytes: most bytes of segments in it; None: all that are read.

        Raises:
            StoreError: the store holds no such stream.
            BucketError: the bucket holds no such stream, or does not answer.
            DiskError: a file may not be read, or its disk fails.
            InputError: an argument cannot be used.
            DamagedError: the files are damaged.
        """
        self._find(store, stream, check=check, cache=cache, cache_bytes=cache_bytes)
        length = self._info.block_tokens - 1 if length is None else length
        self.length = arguments.whole("length", length, 1, "tokens")
        """Tokens of x, and of y."""
        with self._reachable:
            self._open(partitions_in(self._store, stream))
        self._ends = {partition: reader.blocks for partition, reader in self._readers.items()}
        """The blocks of each partition as of the last `refresh`."""

    def __repr__(self) -> str:
        return f"Windows({str(self._store)!r}, {self._info.name!r}, {self.length}, partitions {self.partitions})"

    @property
    def partitions(self) -> list[int]:
        """The numbers of the partitions that were there at opening, ascending."""
        return list(self._readers)

    def refresh(self) -> None:
        """See what has been committed since.

        Raises StoreError where the store is not there any more, DamagedError where the files are damaged.
        """
        with self._reachable:
            self._reachable.require()
            self._ends = {partition: reader.refresh() for partition, reader in self._readers.items()}

    def __len__(self) -> int:
        """Return how many windows there are in all partitions, as of the last `refresh`: they begin at any token."""
        return sum(len(self.indices(partition)) for partition in self._readers)

    def __bool__(self) -> bool:
        return True

    def indices(self, partition: int) -> range:
        """Return at which tokens of a partition a window can begin, as of the last `refresh`.

        Raises InputError where there is no such partition.
        """
        reader = self._reader(partition)
        stop = self._ends[reader.partition] * reader.block_tokens - self.length
        return range(reader.first_block * reader.block_tokens, max(stop, reader.first_block * reader.block_tokens))

    def rows(self, partition: int, indices: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return the windows that begin at these tokens, ``[len(indices), length + 1]``, int64.

        x is all columns but the last, y all but the first. Needs no torch.

        Raises:
            InputError: there is no such partition, or a window is not wholly there (`indices`).
            StoreError: the store is not there any more.
            DamagedError: a file is damaged or cut off (with ``check``: a block).
        """
        reader = self._reader(partition)
        starts = arguments.row_of("indices", indices)
        allowed = self.indices(partition)
        if len(starts) and not (allowed.start <= starts.min() and starts.max() < allowed.stop):
            raise InputError(
                f"windows of {self.length} tokens in partition {partition} begin at tokens {allowed.start} to "
                f"{allowed.stop - 1} (as of the last refresh): ask for one of these, or refresh and wait"
            )
        rows = np.empty((len(starts), self.length + 1), np.int64)
        size = reader.block_tokens
        with self._reachable:
            for row, start in zip(rows, starts.tolist(), strict=True):
                first = start // size
                blocks = reader.gather(np.arange(first, (start + self.length) // size + 1))
                row[:] = blocks.reshape(-1)[start - first * size :][: self.length + 1]
        return rows

    def at(self, partition: int, indices: Sequence[int] | npt.NDArray[np.integer]) -> "XY":
        """Return the windows that begin at these tokens: x and y, ``[len(indices), length]``, int64, in one buffer.

        Raises ImportError where torch is not installed; `rows` does without; InputError or DamagedError as in `rows`.
        """
        rows = self.rows(partition, indices)
        try:
            import torch  # noqa: PLC0415 - windows need it here alone

            from .batch import XY  # noqa: PLC0415 - as above
        except ModuleNotFoundError as error:
            raise ImportError(missing_extra(error.name) or str(error)) from error
        wide = torch.from_numpy(rows)
        return XY(wide[:, :-1], wide[:, 1:])

    def __getitem__(self, place: SupportsIndex | tuple[int, int]) -> "XY":
        """Return x and y, ``[length]`` each, at ``windows[partition, token]``; or of window i, ``windows[i]``.

        Windows are numbered by partition and token, as of the last `refresh`. Raises IndexError where there is no
        window of that number; a loop over all ends with it; ImportError, InputError or DamagedError as in `at`.
        """
        asked = arguments.place_of("the place", place)
        if isinstance(asked, int):
            return self.__getitems__([asked])[0]
        found = self.at(asked[0], [asked[1]])
        return found._replace(x=found.x[0], y=found.y[0])

    def __iter__(self) -> "Iterator[XY]":
        """Yield all windows by their numbers, as of the last `refresh`; raises as `at`."""
        return map(self.__getitem__, range(len(self)))

    def __getitems__(self, indices: Sequence[int]) -> "list[XY]":
        """Return several windows by their numbers, as torch's loaders ask for a batch; raises as ``windows[i]``."""
        wanted = arguments.numbers_in(indices, len(self), "windows")
        found: list[XY] = [None] * len(wanted)  # type: ignore[list-item]
        first = 0
        for partition in self._readers:
            allowed = self.indices(partition)
            mine = np.flatnonzero((first <= wanted) & (wanted < first + len(allowed)))
            if len(mine):
                both = self.at(partition, wanted[mine] - first + allowed.start)
                for slot, x, y in zip(mine.tolist(), both.x, both.y, strict=True):
                    found[slot] = both._replace(x=x, y=y)
            first += len(allowed)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_readers": list(self._readers)}

    def __setstate__(self, values: dict[str, Any]) -> None:
        """Map the files again, as another process must; windows keep their numbers."""
        self.__dict__.update(values)
        self._open(values["_readers"])

    def _open(self, partitions: Iterable[int]) -> None:
        opened = partial(open_partition, self._store, self._info.name, check=self._check)
        self._readers: dict[int, PartitionReader] = {partition: opened(partition) for partition in partitions}

    def _reader(self, partition: int) -> PartitionReader:
        number = arguments.whole("partition", partition, 0, "partitions before it")
        if number not in self._readers:
            raise InputError(
                f"partition is {number}, which was not there: give one of {self.partitions}, or open again"
            )
        return self._readers[number]
