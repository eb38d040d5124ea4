"""What one chain makes of a fetch: the documents that it packs, and how all records are counted."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tokenmill.columns import Columns, Kept
from tokenmill.documents import document_metas
from tokenmill.engines import TokenBatch
from tokenmill.outcomes import NO_TOKENS, Kind
from tokenmill.packing import Documents
from tokenmill.recipe import Recipe
from tokenmill.records import SourceRecord
from tokenmill.totals import Totals

T = TypeVar("T")


class Fates:
    """The outcomes of a fetch as the chain of one recipe sees them. All indices are those of the fetch's records."""

    def __init__(self, recipe: Recipe, columns: Columns, kept: Kept, tokens: TokenBatch) -> None:
        """Look at ``columns``, and at the documents ``kept`` of the chain's split that it wants, with their ``tokens``.

        These may begin in the middle of the fetch, at the first record that the chain has not passed.
        """
        self._columns = columns
        self._others = [
            (index, outcome.kind, outcome.reason)
            for index, outcome in columns.others
            if outcome.kind_in(recipe.split) is not Kind.OTHER_SPLIT
        ]
        lengths = np.diff(tokens.offsets)
        bounds, documents, indices = tokens.offsets, kept.documents, kept.indices
        if not lengths.all():
            self._others += [(indices[n], Kind.FILTERED, NO_TOKENS) for n in np.flatnonzero(lengths == 0).tolist()]
            self._others.sort()
            documents, indices = _chosen(documents, lengths), _chosen(indices, lengths)
            bounds = np.append(bounds[:-1][lengths > 0], bounds[-1:])
        self.kept = np.array(indices, dtype=np.int64)
        """The index of each kept document's record; shape ``[documents]``."""
        metas = document_metas(documents, recipe.carry)
        self.documents = Documents(columns.offsets[self.kept], tokens.ids, bounds, metas)
        # what the first n kept documents have together
        self._tokens = bounds + np.arange(len(bounds))
        self._value_bytes = np.append(0, np.cumsum(columns.sizes[self.kept]))

    def __len__(self) -> int:
        return len(self._columns.records)

    def index(self, offset: int) -> int:
        """Return how many records lie below ``offset``."""
        return self._columns.index(offset)

    def record(self, index: int) -> SourceRecord:
        """Return a record."""
        return self._columns.records[index]

    def flushes(self, first: int) -> list[int]:
        """Return the indices of the flushes from ``first`` on."""
        return [index for index, kind, _ in self._others if kind is Kind.FLUSH and index >= first]

    def between(self, low: int, high: int) -> tuple[Documents, npt.NDArray[np.int64]]:
        """Return the kept documents of records ``[low, high)``, and the records' indices."""
        first, last = np.searchsorted(self.kept, (low, high)).tolist()
        return self.documents.part(first, last), self.kept[first:last]

    def count(self, totals: Totals, low: int, high: int) -> None:
        """Add records ``[low, high)`` to ``totals``; the chain must want all of them."""
        first, last = np.searchsorted(self.kept, (low, high)).tolist()
        others = self._others[bisect_left(self._others, (low,)) : bisect_left(self._others, (high,))]
        totals.records += high - low
        totals.kept += last - first
        totals.tokens += int(self._tokens[last] - self._tokens[first])
        totals.value_bytes += int(self._value_bytes[last] - self._value_bytes[first])
        totals.other_split += high - low - (last - first) - len(others)
        for _, kind, reason in others:
            _count_one(totals, kind, reason)


def _chosen(values: Sequence[T], choice: npt.NDArray[np.int64]) -> list[T]:
    return [value for value, chosen in zip(values, choice.tolist(), strict=True) if chosen]


def _count_one(totals: Totals, kind: Kind, reason: str) -> None:
    if kind is Kind.FILTERED:
        totals.filtered[reason] += 1
    elif kind is Kind.DEAD_LETTERED:
        totals.dead_lettered[reason] += 1
    elif kind is Kind.TOMBSTONE:
        totals.tombstones += 1
    else:
        totals.flushes += 1
