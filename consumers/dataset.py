"""Samples by index: a map-style dataset over eras that are all there."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from tokenmill.samples.sequence import EraOrder, Ranks, count_views
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import read_stream
from tokenmill.store.layout import StorePath

from . import arguments
from .batch import BatchDocuments, documents_of
from .sample_lookup import Chunk, RowReader
from .text import HasTokenizer, StoredTokenizer
from .waiting import ReachableStream, freeze_eras, open_trainable


class DocumentSample(NamedTuple):
    """A sample with its documents; a loader puts several together field by field, for `BatchDocuments.from_ids`."""

    x: npt.NDArray[np.int64]
    y: npt.NDArray[np.int64]
    document_ids: npt.NDArray[np.int64]
    """``[sequence_length]``: the number in this sample of the document of each token of x; -1: padding."""
    position_ids: npt.NDArray[np.int64]
    """``[sequence_length]``: the place of each token of x in its document's part, from 0."""
    loss_mask: npt.NDArray[np.bool_]
    """``[sequence_length]``: whether x and y are of one document, which is no padding."""


Sample = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""x and y, ``[sequence_length]`` each, int64: the next token of ``x[j]`` is ``y[j]``."""


class EraDataset(HasTokenizer, Dataset[Sample]):
    """The samples of some eras, by partition, number and view, for samplers that choose an order of their own.

    What torch calls a map-style dataset (a ``DataLoader`` may copy it into workers, by fork or spawn) and Grain a
    ``RandomAccessDataSource``. It is frozen: what comes into the store later changes neither length nor samples.
    Memory and the cost of opening are bounded, however many eras there are. `Batches` is what resumes and follows.
    """

    @arguments.naming_unknown
    def __init__(
        self,
        store: StorePath,
        stream: str,
        *,
        sequence_length: int | None = None,
        eras: range | None = None,
        check: bool = True,
        documents: bool = False,
        cache: StorePath | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        """Open the eras ``range(first, stop)``; None: all whose blocks are in the store now.

        Samples have ``sequence_length`` tokens, the stream's own if None, or a divisor of it.

        With ``documents``, each sample is a `DocumentSample`: the documents of its tokens come with it.

        With ``check``, every block is held against its CRC when it is first read in this process, and refused if it is
        damaged; else samples are whatever the files hold.

        With a bucket as ``store``, ``cache`` is a folder on a disk of this host for the segments that are read, which
        all its processes share, and ``cache_bytes`` bounds it; None: all stay.

        Raises:
            StoreError: the store holds no such stream.
            BucketError: the bucket holds no such stream, or does not answer.
            DiskError: a file may not be read, or its disk fails.
            InputError: the eras are not all there, or the length does not fit.
            DifferenceError, DamagedError: the store is not what its eras say, or damaged.
        """
        self._store = arguments.store_of(store, stream, cache, cache_bytes)
        self._check = arguments.flag("check", check)
        self._with_documents = arguments.flag("documents", documents)
        arguments.eras_of("eras", eras)
        self._info = read_stream(self._store, stream)
        self._tokenizer = StoredTokenizer(self._store, self._info)
        self._reachable = ReachableStream((self._store, stream))
        length = self._info.block_tokens - 1 if sequence_length is None else sequence_length
        self._length = arguments.whole("sequence_length", length, 1, "tokens")
        self._views = count_views(self._info, self._length)
        with self._reachable:
            found = freeze_eras(self._store, self._info, eras, self._open(), from_start=True)
        self.eras = found.eras
        """The eras that these samples are from."""
        self._merged, self._content = found.merged, found.content.hash
        self._order = EraOrder(self._merged, views=self._views, shuffle=False, seed=0, passed=0)
        self._rows: RowReader | None = None

    def __len__(self) -> int:
        """Return how many samples the eras have together."""
        return self._order.samples

    def __getitem__(self, index: SupportsIndex) -> Sample:
        return self.__getitems__([arguments.index_of("the index", index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        """Return several samples, which is cheaper than one by one.

        Raises:
            IndexError: there is no sample of that number; a loop over all ends with it.
            InputError: the indices are no whole numbers.
            StoreError: the store is not there any more.
            DamagedError: a file is damaged or cut off (with ``check``: a block).
        """
        chunk = self._chunk(indices)
        wide = chunk.rows().astype(np.int64)
        if not self._with_documents:
            return [(row[:-1], row[1:]) for row in wide]
        found = self._documents_of(chunk)
        columns = (found.document_ids.numpy(), found.position_ids.numpy(), found.loss_mask.numpy())
        samples: list[Any] = [
            DocumentSample(row[:-1], row[1:], *told) for row, *told in zip(wide, *columns, strict=True)
        ]
        return samples  # of more fields, which only those have who asked for them

    def documents(self, indices: Sequence[int]) -> BatchDocuments:
        """Return which tokens of several samples belong to which document, on the CPU; raises as ``__getitems__``."""
        return self._documents_of(self._chunk(indices))

    def _documents_of(self, chunk: Chunk) -> BatchDocuments:
        sources = partial(chunk.sources, 0, self._length)
        return documents_of(chunk.pieces(0), chunk.samples.views, self._length, torch.device("cpu"), sources=sources)

    def _chunk(self, indices: Sequence[int]) -> Chunk:
        wanted = arguments.numbers_in(indices, len(self), "samples")
        with self._reachable:
            return self._reader().find([(self._order, wanted)])

    def _reader(self) -> RowReader:
        if self._rows is None:
            self._reachable.require()
            trainable = self._open()
            trainable.is_trainable(self._merged)  # sees that the blocks are there
            self._rows = RowReader(trainable, Ranks(1), self._length, skip=False)
        return self._rows

    def __repr__(self) -> str:
        # Grain holds a checkpoint against it, so it says what decides the samples, and nothing of this process or host.
        return (
            f"EraDataset(stream={self._info.name!r}, fingerprint={self._info.fingerprint.hex()!r}, "
            f"sequence_length={self._length}, eras={self.eras}, content={self._content!r})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_rows": None}  # another process maps the files again

    def _open(self) -> TrainableSamples:
        return open_trainable(self._store, self._info, self._length, self._views, check=self._check)
