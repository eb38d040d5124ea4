"""What one chain makes of consecutive outcomes: the documents it packs, and how all records are counted.

Columns over a whole fetch, so that little is done for each record: its sums are looked up, not added one by one.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tokenmill.documents import document_meta
from tokenmill.outcomes import NO_TOKENS, Kind, Outcome
from tokenmill.packing import PackedDocument
from tokenmill.recipe import Recipe
from tokenmill.records import Record
from tokenmill.totals import Totals


class Fates:
    """Consecutive outcomes as the chain of one recipe sees them."""

    def __init__(
        self, recipe: Recipe, outcomes: Sequence[Outcome], tokens: Sequence[npt.NDArray[np.integer] | None]
    ) -> None:
        """Look at each outcome once; ``tokens`` are those of the documents that the chain keeps."""
        self.outcomes = outcomes
        self.documents: list[PackedDocument] = []
        """The kept documents, from their first token."""
        self.kept: list[int] = []
        """For each of them, its index among the outcomes."""
        self._others: list[tuple[int, Kind, str]] = []
        split, carry, keep = recipe.split, recipe.carry, self._keep
        for index, outcome in enumerate(outcomes):
            kind = outcome.kind_in(split)
            if kind is Kind.OTHER_SPLIT:
                continue
            ids = tokens[index]
            if kind is not Kind.KEPT:
                self._others.append((index, kind, outcome.reason))
            elif outcome.document is not None and ids is not None and len(ids):
                keep(index, PackedDocument(outcome.record.offset, ids, document_meta(outcome.document, carry)))
            else:
                self._others.append((index, Kind.FILTERED, NO_TOKENS))
        # what the first n kept documents have together
        self._tokens = list(accumulate((len(document.tokens) + 1 for document in self.documents), initial=0))
        values = (outcomes[index].record.value or b"" for index in self.kept)
        self._value_bytes = list(accumulate(map(len, values), initial=0))

    def __len__(self) -> int:
        return len(self.outcomes)

    def record(self, index: int) -> Record:
        """Return the record of outcome ``index``; -1 is the last."""
        return self.outcomes[index].record

    def count(self, totals: Totals, low: int, high: int) -> None:
        """Add outcomes ``[low, high)`` to ``totals``."""
        first, last = bisect_left(self.kept, low), bisect_left(self.kept, high)
        totals.records += high - low
        totals.kept += last - first
        totals.tokens += self._tokens[last] - self._tokens[first]
        totals.value_bytes += self._value_bytes[last] - self._value_bytes[first]
        others = self._others[bisect_left(self._others, (low,)) : bisect_left(self._others, (high,))]
        totals.other_split += high - low - (last - first) - len(others)
        for _, kind, reason in others:
            _count_one(totals, kind, reason)

    def _keep(self, index: int, document: PackedDocument) -> None:
        self.kept.append(index)
        self.documents.append(document)


def _count_one(totals: Totals, kind: Kind, reason: str) -> None:
    if kind is Kind.FILTERED:
        totals.filtered[reason] += 1
    elif kind is Kind.DEAD_LETTERED:
        totals.dead_lettered[reason] += 1
    elif kind is Kind.TOMBSTONE:
        totals.tombstones += 1
    else:
        totals.flushes += 1
