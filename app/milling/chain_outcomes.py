"""What one chain makes of a fetch: the documents that it packs, and how all records are counted."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from tokenmill.recipe import Recipe
from tokenmill.wire.figures import LANGUAGE
from tokenmill.wire.totals import Totals

from .columns import KeptDocuments, OutcomeColumns, RecordColumns
from .document_columns import document_metas
from .outcomes import Kind
from .packing.document_shapes import chosen, document_shape, filtered_out
from .packing.packed_blocks import Stretches, TokenizedDocuments
from .passage import ChainPassage
from .tokenizers import TokenBatch


@dataclass(frozen=True, slots=True)
class ChainOutcomes:
    """The outcomes of a fetch, or of a part of one, as the chain of one recipe sees them; it holds no text.

    All indices are those of the whole fetch's records.
    """

    fetch: RecordColumns
    kept: npt.NDArray[np.int64]
    """The index of each kept document's record; shape ``[documents]``."""
    documents: TokenizedDocuments
    """The kept documents."""
    others: list[tuple[int, Kind, str]]
    """The outcomes of the chain that are no kept documents, with their reasons; ascending."""
    passage: ChainPassage | None = None
    """How the chain's documents passed through the steps; None where the totals have no figures of each step."""
    languages: Sequence[object] | None = None
    """Of the kept documents, where a step says which language each has."""

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        fetch: RecordColumns,
        columns: OutcomeColumns,
        kept: KeptDocuments,
        tokens: TokenBatch,
        *,
        first: int = 0,
    ) -> Self:
        """Look at ``columns``, and at the documents ``kept`` of the chain's split that it wants, with their ``tokens``.

        The columns' records begin at ``first`` of the fetch; the documents may begin in the middle of these, at the
        first record that the chain has not passed.
        """
        others = [
            (first + index, outcome.kind, outcome.reason)
            for index, outcome in columns.others
            if outcome.kind_in(recipe.split) is not Kind.OTHER_SPLIT
        ]
        failed = [(first + int(kept.indices[at]), error.reason) for at, error in tokens.failed.items()]
        others += [(index, Kind.DEAD_LETTERED, reason) for index, reason in failed]
        shape, documents, indices = document_shape(recipe), kept.documents, first + kept.indices
        filtered = filtered_out(shape, tokens)
        others += [(int(indices[at]), Kind.FILTERED, reason) for at, reason in filtered]
        if failed or filtered:
            others.sort()
            some = np.ones(len(tokens), np.bool_)
            some[[*tokens.failed, *(at for at, _ in filtered)]] = False
            documents, indices, tokens = documents.chosen(some), indices[some], chosen(tokens, some)
        given = shape.give(tokens)
        tokenized = TokenizedDocuments(
            fetch.offsets[indices],
            Stretches([given.tokens]),
            given.bounds,
            document_metas(documents, recipe.metadata_fields),
            left_out=given.left_out,
        )
        passage = columns.passages.get(recipe.split)
        spoken = LANGUAGE in passage.labels if passage is not None else False
        return cls(
            fetch,
            indices,
            tokenized,
            others,
            passage.shifted(first) if passage is not None else None,
            [fields.get(LANGUAGE) for fields in documents.fields] if spoken else None,
        )

    @classmethod
    def concatenate(cls, fetch: RecordColumns, parts: Sequence["ChainOutcomes"]) -> "ChainOutcomes":
        """Return the outcomes of all parts of a fetch, in order."""
        return cls(
            fetch,
            np.concatenate([np.empty(0, np.int64), *(part.kept for part in parts)]),
            TokenizedDocuments.concatenate([part.documents for part in parts]),
            [other for part in parts for other in part.others],
            ChainPassage.concatenate([part.passage for part in parts if part.passage is not None]),
            _joined([part.languages for part in parts]),
        )

    def flushes(self, first: int) -> list[int]:
        """Return the indices of the flushes from ``first`` on."""
        return [index for index, kind, _ in self.others if kind is Kind.FLUSH and index >= first]

    def between(self, low: int, high: int) -> tuple[TokenizedDocuments, npt.NDArray[np.int64]]:
        """Return the kept documents of records ``[low, high)``, and the records' indices."""
        first, last = np.searchsorted(self.kept, (low, high)).tolist()
        return self.documents.part(first, last), self.kept[first:last]

    def count(self, totals: Totals, low: int, high: int) -> None:
        """Add records ``[low, high)`` to ``totals``; the chain must want all of them."""
        first, last = np.searchsorted(self.kept, (low, high)).tolist()
        others = self.others[bisect_left(self.others, (low,)) : bisect_left(self.others, (high,))]
        totals.records += high - low
        totals.kept += last - first
        totals.tokens += int(self.documents.bounds[last] - self.documents.bounds[first])
        totals.value_bytes += int(self.fetch.sizes[self.kept[first:last]].sum())
        totals.other_split += high - low - (last - first) - len(others)
        for _, kind, reason in others:
            _count_one(totals, kind, reason)
        if self.passage is not None:
            self.passage.count(totals.figures, low, high)
            lengths = np.diff(self.documents.bounds[first : last + 1])
            languages = self.languages[first:last] if self.languages is not None else None
            self.passage.count_kept(totals.figures, self.kept[first:last], lengths, languages)


def _joined(parts: Sequence[Sequence[object] | None]) -> list[object] | None:
    """Return the items of all parts; None where no part has any."""
    given = [part for part in parts if part is not None]
    return [item for part in given for item in part] if given else None


def _count_one(totals: Totals, kind: Kind, reason: str) -> None:
    if kind is Kind.FILTERED:
        totals.filtered[reason] += 1
    elif kind is Kind.DEAD_LETTERED:
        totals.dead_lettered[reason] += 1
    elif kind is Kind.TOMBSTONE:
        totals.tombstones += 1
    else:
        totals.flushes += 1
