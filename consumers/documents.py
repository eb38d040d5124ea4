"""Documents by index: whole ones, with what came with them and where from, for whatever packing the stream has."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from tokenmill.errors import InputError
from tokenmill.samples.document_index import DocumentIndex
from tokenmill.samples.sequence import Numbers
from tokenmill.store import MapWatch, PartitionReader, StreamInfo, open_eras
from tokenmill.store.layout import StorePath, partition_directory
from tokenmill.store.segment import Tokens

from . import arguments
from .waiting import OpenedStream, freeze_eras, open_trainable

_NONE: Final = -1
_LABELS_AT_ONCE: Final = 1 << 16
_ITERATED_AT_ONCE: Final = 256

OnMissingLabel = Literal["refuse", "drop"]

log = logging.getLogger(__name__)


class Labels:
    """Reads labels, and remembers the first document that has none."""

    def __init__(self, field: str, names: tuple[str | int, ...] | None) -> None:
        self.field = field
        self.names = names
        self._numbers = None if names is None else {_key(name): number for number, name in enumerate(names)}
        self._first = ""

    @classmethod
    def of(cls, field: Any, names: Any) -> Self | None:
        """Return what reads the labels that are asked for, or None; raises InputError where names cannot be."""
        if field is None:
            if names is not None:
                raise InputError(f"label_names is {arguments.shown(names)}, without label_field: give both, or None")
            return None
        if not isinstance(field, str) or not field:
            raise InputError(f"label_field is {arguments.shown(field)}: give the name of a carried field, or None")
        if names is None:
            return cls(field, None)
        given = list(names) if isinstance(names, Sequence) and not isinstance(names, str | bytes | range) else []
        if not given or not all(type(name) in {str, int} for name in given) or len(set(given)) != len(given):
            raise InputError(
                f"label_names is {arguments.shown(names)}: give a list of different texts or whole numbers, in the "
                "order of their numbers, such as ['negative', 'positive'], or None"
            )
        return cls(field, tuple(given))

    def require_field(self, info: StreamInfo) -> None:
        """Raise InputError where the stream does not carry the field."""
        carried = info.recipe.get("metadata_fields")
        if carried is not None and self.field not in carried:
            others = f"give one of {', '.join(carried)}, or " if carried else ""
            raise InputError(
                f"label_field is {self.field!r}, which {info.name} does not carry: {others}mill a stream with it among "
                "its metadata_fields"
            )

    def numbers(self, partition: int, offsets: Numbers, metas: Sequence[Mapping[str, Any]]) -> npt.NDArray[np.int64]:
        """Return the numbers of documents' labels, -1 where one is missing or unknown."""
        values = [meta.get("fields", {}).get(self.field) for meta in metas]
        found = np.fromiter(map(self._number, values), np.int64, len(values))
        if not self._first and len(bad := np.flatnonzero(found < 0)):
            at = int(bad[0])
            value = values[at]
            what = "has none" if value is None else f"is {arguments.shown(value)}"
            identity = metas[at].get("id")
            who = "" if identity is None else f" (id {arguments.shown(identity)})"
            self._first = f"the one at offset {int(offsets[at])} of partition {partition}{who} {what}"
        return found

    def refuse(self, count: int, *, drops: bool) -> None:
        """Raise InputError for so many documents without a usable label; or log that they are left out."""
        wanted = "a whole number, 0 or more" if self.names is None else f"one of {arguments.shown(list(self.names))}"
        if not drops:
            raise InputError(
                f"{count} documents have no label in {self.field!r} that is {wanted}: {self._first}. Give "
                "on_missing_label='drop' to leave them out, or label_names that has all"
            )
        log.warning("leaving out %s documents whose %r is not %s: %s", count, self.field, wanted, self._first)

    def _number(self, value: Any) -> int:
        if self._numbers is not None:
            return self._numbers.get(_key(value), _NONE)
        if isinstance(value, bool):
            return int(value)
        return value if isinstance(value, int) and 0 <= value < 1 << 63 else _NONE


def _key(value: Any) -> tuple[type, Any]:
    """Return what keeps true apart from 1 and 1.0."""
    return type(value), value


@dataclass(frozen=True, slots=True, eq=False)
class StoredDocument:
    """A document as its stream has it, and the Kafka record that it came from."""

    index: int
    """Its number among these documents."""
    tokens: Tokens
    """All of its tokens in the stream, those before and after its text included; of the stream's dtype."""
    id: str | int | None
    fields: Mapping[str, Any]
    """The fields of the record that the stream carries."""
    partition: int
    offset: int
    """Offset of the record in that partition of the raw topic."""
    label: int | None
    """With a ``label_field``: the number of its label."""


class Documents(OpenedStream):
    """The whole documents of some eras, by partition and place: a map-style data set. Needs no torch.

    It is frozen: what comes into the store later changes neither length nor order. Each document is there once, however
    many blocks it is in; one whose beginning or end is in none of these eras is not listed, and neither is padding.
    Opening reads the document table, not the tokens: half a second and 50 MB for a million documents.
    """

    @arguments.naming_unknown
    def __init__(
        self,
        store: StorePath,
        stream: str,
        *,
        eras: range | None = None,
        label_field: str | None = None,
        label_names: Sequence[str | int] | None = None,
        on_missing_label: OnMissingLabel = "refuse",
        check: bool = True,
        cache: StorePath | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        """Open the documents of the eras ``range(first, stop)``; None: of all whose blocks are in the store now.

        Args:
            store: directory of the store, or the address of a bucket.
            stream: name of the stream.
            eras: which eras.
            label_field: carried field that holds a document's label; reads the metas of all documents.
            label_names: the field's values, in the order of their numbers; None: the field holds the number itself.
            on_missing_label: "drop" leaves out the documents without a label, or with another than these;
                `unlabelled` counts them, and the log names the first.
            check: hold blocks and entries against their CRCs when they are first read, and refuse damage.
            cache: of a bucket: a folder on a disk of this host, for what is read; all processes share it.
            cache_bytes: most bytes of segments in it; None: all that are read.

        Raises:
            StoreError: the store holds no such stream.
            BucketError: the bucket holds no such stream, or does not answer.
            DiskError: a file may not be read, or its disk fails.
            InputError: an argument cannot be used, the eras are not all there, or a label is missing or unknown.
            DifferenceError, DamagedError: the store is not what its eras say, or damaged.
        """
        self._find(store, stream, eras=eras, check=check, cache=cache, cache_bytes=cache_bytes)
        named = Labels.of(label_field, label_names)
        drops = arguments.choice("on_missing_label", on_missing_label, ("refuse", "drop")) == "drop"
        self.info = self._info
        """The stream."""
        self._readers: dict[int, PartitionReader] = {}
        self._watch = MapWatch()
        self.unlabelled = 0
        """Documents that were left out because they have no label, or an unknown one."""
        self.labels: npt.NDArray[np.int64] | None = None
        """With a ``label_field``: the number of each document's label, ``[len]``."""
        self.label_names = named.names if named else None
        """The labels, in the order of their numbers; None: they are numbers, or there are none."""
        with self._reachable:
            trainable = open_trainable(self._store, self.info, max(self.info.block_tokens - 1, 1), 1)
            self._frozen = freeze_eras(self._store, self.info, eras, trainable, from_start=False)
            merged = self._frozen.merged
            ranges = [(self._reader(number), part.first, part.stop) for number, part in enumerate(merged.ranges)]
            self._index = DocumentIndex.of_ranges(self.info, ranges, ended=merged.end)
            self.unfinished = self._index.unfinished
            """Documents that begin in these eras, and are not listed: it is not known that their ends are there."""
            if named is not None:
                self._label(named, drops=drops)

    def _label(self, named: Labels, *, drops: bool) -> None:
        named.require_field(self.info)
        labels = np.empty(len(self), np.int64)
        for first in range(0, len(self), _LABELS_AT_ONCE):
            documents = np.arange(first, min(first + _LABELS_AT_ONCE, len(self)))
            for where, partition, rows, metas in self._metas(documents):
                labels[documents[where]] = named.numbers(partition, rows["offset"], metas)
        missing = labels < 0
        self.unlabelled = int(missing.sum())
        if self.unlabelled:
            named.refuse(self.unlabelled, drops=drops)
            self._index = self._index.without(missing)
            labels = labels[~missing]
        self.labels = labels

    def __len__(self) -> int:
        """Return how many documents there are."""
        return len(self._index)

    def __repr__(self) -> str:
        # As that of an EraDataset: what decides the documents, for frameworks that compare data sources by it.
        return (
            f"Documents(stream={self.info.name!r}, fingerprint={self.info.fingerprint.hex()!r}, "
            f"eras={self.eras}, content={self._frozen.content.hash!r}, documents={len(self)})"
        )

    @overload
    def __getitem__(self, index: SupportsIndex) -> StoredDocument: ...
    @overload
    def __getitem__(self, index: slice) -> list[StoredDocument]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> StoredDocument | list[StoredDocument]:
        """Return a document, or those of a slice; raises as `take`."""
        if isinstance(index, slice):
            return self.take(range(len(self))[arguments.slice_of("the index", index)])
        return self.take([arguments.index_of("the index", index)])[0]

    def __iter__(self) -> Iterator[StoredDocument]:
        """Yield all documents, read some hundred at a time; raises as `take`."""
        for first in range(0, len(self), _ITERATED_AT_ONCE):
            yield from self.take(range(first, min(first + _ITERATED_AT_ONCE, len(self))))

    def take(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> list[StoredDocument]:
        """Return documents in the order in which they are asked for, from the end with negative numbers.

        Raises:
            IndexError: there is no document of that number; a loop over all ends with it.
            InputError: the indices are no whole numbers, or the segments were retired since.
            StoreError: the store is not there any more.
            DamagedError: a file is damaged or cut off (with ``check``: a block or an entry).
        """
        documents = arguments.numbers_in(indices, len(self), "documents")
        with self._reachable:
            parts: list[list[Tokens]] = [[] for _ in documents]
            for slot, _, tokens in self._stretches(documents):
                parts[slot].append(tokens)
            whole = [np.concatenate(part) for part in parts]
            found: list[StoredDocument] = [None] * len(documents)  # type: ignore[list-item]
            for where, partition, rows, metas in self._metas(documents):
                for slot, offset, meta in zip(where.tolist(), rows["offset"].tolist(), metas, strict=True):
                    number = int(documents[slot])
                    label = None if self.labels is None else int(self.labels[number])
                    told = (meta.get("id"), meta.get("fields", {}), partition, offset, label)
                    found[slot] = StoredDocument(number, whole[slot], *told)
        return found

    __getitems__ = take  # as torch's loaders ask for a batch

    @property
    def eras(self) -> range:
        """The eras that these documents are in."""
        return self._frozen.eras

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of each document, ``[len]``."""
        return self._index.lengths

    @property
    def _identity(self) -> dict[str, Any]:
        """What decides which document has which number, for states: JSON, with the hash of the last era."""
        return {
            "stream": self.info.name,
            "fingerprint": self.info.fingerprint.hex(),
            "eras": [self.eras.start, self.eras.stop],
            "content": list(self._frozen.content),
            "documents": len(self),
        }

    def label_distribution(self, indices: Sequence[int] | npt.NDArray[np.integer] | None = None) -> dict[Any, int]:
        """Return how many documents have each label, by its name; with ``indices``, of these documents.

        Raises InputError where the documents were opened without a ``label_field``, IndexError where there is no
        document of such a number.
        """
        if self.labels is None:
            raise InputError("these documents have no labels: open Documents with a label_field")
        labels = self.labels if indices is None else self.labels[arguments.numbers_in(indices, len(self), "documents")]
        if self.label_names is not None:
            counts = np.bincount(labels, minlength=len(self.label_names)).tolist()
            return dict(zip(self.label_names, counts, strict=True))
        return dict(zip(*(column.tolist() for column in np.unique(labels, return_counts=True)), strict=True))

    def _era_of_each(self) -> Numbers:
        """Return the era with which each document was whole: that of the last of its blocks."""
        found = np.empty(len(self), np.int64)
        with self._reachable:
            eras = open_eras(self._store, self.info.name)
            ranges = [eras.era(number).ranges for number in self.eras]
        for partition in range(len(self._frozen.merged.ranges)):
            stops = np.array([parts[partition].stop if partition < len(parts) else 0 for parts in ranges])
            mine = np.array(self._index.in_partition(partition), np.int64)
            found[mine] = self.eras.start + np.searchsorted(stops, self._index.last_blocks(mine), side="right")
        return found

    def _stretches(self, documents: Numbers, most: int | None = None) -> Iterator[tuple[int, int, Tokens]]:
        """Yield the tokens of documents in pieces, where they are in the files: read-only views.

        For each piece its document's index in the request, and its place in the document; those of one come in order.
        With ``most``, documents are cut to so many tokens. Raises as `take`.
        """
        pieces = self._index.pieces_of(documents)
        lengths = pieces.lengths
        if most is not None:
            lengths = np.minimum(lengths, most - pieces.positions)
        found: list[tuple[int, int, Tokens]] = [None] * len(lengths)  # type: ignore[list-item]
        wanted = np.flatnonzero(lengths > 0)
        for partition in np.flatnonzero(np.bincount(pieces.partitions)).tolist():
            mine = wanted[pieces.partitions[wanted] == partition]
            for where, tokens, rows in self._reader(partition).parts(pieces.blocks[mine]):
                into = mine[where]
                flat = tokens.reshape(-1)
                begins = rows * tokens.shape[1] + pieces.starts[into]
                told = (into, pieces.slots[into], pieces.positions[into], begins, begins + lengths[into])
                for at, slot, position, start, stop in zip(*(column.tolist() for column in told), strict=True):
                    found[at] = (slot, position, flat[start:stop])
        return (found[at] for at in wanted.tolist())

    def _metas(self, documents: Numbers) -> Iterator[tuple[Numbers, int, npt.NDArray[np.void], list[dict[str, Any]]]]:
        """Yield the first pieces of documents and their metas: their indices in the request, and the partition."""
        partitions = self._index.partitions_of(documents)
        blocks, starts = self._index.first_pieces(documents)
        for partition in np.flatnonzero(np.bincount(partitions)).tolist():
            mine = np.flatnonzero(partitions == partition)
            for where, rows, metas in self._reader(partition).metas(blocks[mine], starts[mine]):
                yield mine[where], partition, rows, metas

    def _reader(self, partition: int) -> PartitionReader:
        found = self._readers.get(partition)
        if found is None:
            self._reachable.require()
            directory = partition_directory(self._store, self.info.name, partition)
            # Documents are asked for in any order: a million blocks, with 32 MiB of rows, are kept mapped.
            mapped = min(max((1 << 20) // self.info.segment_blocks, 8), 256)
            options: dict[str, Any] = {"check": self._check, "open_segments": mapped}
            found = self._readers[partition] = PartitionReader(directory, self.info, partition, **options)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_readers": {}, "_watch": MapWatch()}  # another process maps the files again
