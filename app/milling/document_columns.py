"""Many documents in columns: three list entries cost less for a short document than an object of its own.

*Bounds* say where consecutive items of different sizes begin, and where the last one ends.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt
import orjson

from tokenmill.documents import NO_FIELDS, Document, Scalar, document_meta

Integers = npt.NDArray[np.int64]


def join_bounds(parts: Iterable[Integers]) -> Integers:
    """Join the bounds of several parts into one array that starts at 0; ``[0]`` where there are no parts."""
    return np.cumsum(np.concatenate([np.zeros(1, np.int64), *map(np.diff, parts)]))


def numbered(counts: Integers) -> tuple[Integers, Integers]:
    """Return the owner of each of so many parts, and its number among those of its owner."""
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]


def divide(sizes: Integers, *, items: int, room: int) -> Iterator[tuple[int, int]]:
    """Divide items into ranges of at most ``items``, of a total size of at most ``room`` where it is more than one."""
    size_to = np.append(0, np.cumsum(sizes))
    low = 0
    while low < len(sizes):
        fitting = int(np.searchsorted(size_to, size_to[low] + room, side="right")) - 1
        high = min(max(fitting, low + 1), low + items, len(sizes))
        yield low, high
        low = high


@dataclass(frozen=True, slots=True)
class DocumentColumns:
    """Documents, in columns of one length; see `Document`."""

    texts: list[str] = field(default_factory=list)
    ids: list[str | int | None] = field(default_factory=list)
    fields: list[Mapping[str, Scalar]] = field(default_factory=list)

    @classmethod
    def of(cls, documents: Iterable[Document]) -> Self:
        """Return these documents."""
        columns = cls()
        for document in documents:
            columns.append(document)
        return columns

    @classmethod
    def without_fields(cls, texts: list[str], ids: list[str | int | None]) -> Self:
        """Return documents without carried fields."""
        return cls(texts, ids, [NO_FIELDS] * len(texts))

    def __len__(self) -> int:
        return len(self.texts)

    def at(self, index: int) -> Document:
        """Return one document."""
        return Document(self.texts[index], self.ids[index], self.fields[index])

    def append(self, document: Document) -> None:
        """Add one document."""
        text, name, fields = document
        self.texts.append(text)
        self.ids.append(name)
        self.fields.append(fields)

    def changed(self, documents: Mapping[int, Document]) -> "DocumentColumns":
        """Return the same documents with those at these indices replaced."""
        if not documents:
            return self
        columns = DocumentColumns(self.texts.copy(), self.ids.copy(), self.fields.copy())
        for index, document in documents.items():
            columns.texts[index], columns.ids[index], columns.fields[index] = document
        return columns

    def since(self, index: int) -> "DocumentColumns":
        """Return the documents from ``index`` on."""
        return DocumentColumns(self.texts[index:], self.ids[index:], self.fields[index:]) if index else self

    def chosen(self, choice: npt.NDArray[np.bool_]) -> "DocumentColumns":
        """Return the documents for which ``choice`` (shape ``[documents]``) is true."""
        if choice.all():
            return self
        picks = choice.tolist()
        texts, ids, fields = compress(self.texts, picks), compress(self.ids, picks), compress(self.fields, picks)
        return DocumentColumns(list(texts), list(ids), list(fields))


class Metas(NamedTuple):
    """The metas of consecutive documents, one after the other."""

    data: bytes
    bounds: Integers
    """Shape ``[documents + 1]``: the meta of document ``n`` is ``data[bounds[n] : bounds[n + 1]]``."""

    @classmethod
    def join(cls, metas: Iterable[bytes]) -> Self:
        """Return these metas."""
        each = list(metas)
        return cls(b"".join(each), np.cumsum([0, *map(len, each)], dtype=np.int64))

    @classmethod
    def concatenate(cls, parts: Sequence["Metas"]) -> "Metas":
        """Return the metas of all parts. No part may be one that `part` returned."""
        if len(parts) == 1:
            return parts[0]
        return cls(b"".join([part.data for part in parts]), join_bounds(part.bounds for part in parts))

    def part(self, low: int, high: int) -> "Metas":
        """Return a view of the metas of documents ``[low, high)``: the others stay in its ``data``."""
        return Metas(self.data, self.bounds[low : high + 1])


def document_metas(documents: DocumentColumns, carried: Sequence[str]) -> Metas:
    """Return `document_meta` of each document."""
    if carried:
        return Metas.join(document_meta(documents.at(index), carried) for index in range(len(documents)))
    ids, dumps = documents.ids, orjson.dumps
    if set(map(type, ids)) == {str}:
        names, every = cast("list[str]", ids), dumps(ids)
        if b"\\" not in every:  # nothing is escaped, so there is no quote within a name
            encoded = names if every.isascii() else map(str.encode, names)
            lengths = np.fromiter(map(len, encoded), np.int64, len(names))
            data = b'{"id":"' + every[2:-2].replace(b'","', b'"}{"id":"') + b'"}'
            return Metas(data, np.append(0, np.cumsum(lengths + len('{"id":""}'))))
    return Metas.join(b"" if name is None else dumps({"id": name}) for name in ids)
