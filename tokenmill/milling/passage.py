"""How the documents of a fetch pass through the steps, in columns, and what a chain's figures count of it.

Nothing here runs for a recipe without a list of steps, whose totals have no figures.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tokenmill.documents import Document
from tokenmill.milling.outcomes import Kind, Outcome
from tokenmill.wire.figures import Amount, Figures

Integers: TypeAlias = npt.NDArray[np.int64]


class Gone(NamedTuple):
    """A document that a step filtered out, or cannot answer for."""

    place: int
    """The index of its record."""
    step: int
    """Number of the step."""
    kind: Kind
    reason: str
    size: int
    """Bytes of the text as it came to the step."""


class Changes(NamedTuple):
    """Texts that steps changed, in the order of their records; each column has the shape ``[changes]``."""

    indices: Integers
    """Of the documents' records."""
    steps: Integers
    """Numbers of the steps."""
    growth: Integers
    """Bytes by which the texts became longer, negative where they became shorter."""


@dataclass(frozen=True, slots=True)
class ChainPassage:
    """The way of one split's documents through the steps, whether or not they are kept in the end."""

    labels: Sequence[str]
    """Of the steps, in their order."""
    entered: Integers
    """The index of each document's record, ascending; shape ``[documents]``."""
    sizes: Integers
    """Bytes of each text as it came to the first step; shape ``[documents]``."""
    final: Integers
    """Bytes of each text as the last step that had it left it; shape ``[documents]``."""
    gone: list[Gone]
    """In the order of their records."""
    changes: Changes

    def shifted(self, first: int) -> "ChainPassage":
        """Return the passage of records that begin at ``first`` of a longer fetch."""
        return replace(
            self,
            entered=self.entered + first,
            gone=[gone._replace(place=gone.place + first) for gone in self.gone],
            changes=self.changes._replace(indices=self.changes.indices + first),
        )

    @classmethod
    def concatenate(cls, parts: Sequence["ChainPassage"]) -> "ChainPassage | None":
        """Return the passage of consecutive parts; None where there is none."""
        if len(parts) <= 1:
            return next(iter(parts), None)
        return cls(
            parts[0].labels,
            np.concatenate([part.entered for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            np.concatenate([part.final for part in parts]),
            [gone for part in parts for gone in part.gone],
            Changes(*map(np.concatenate, zip(*(part.changes for part in parts), strict=True))),
        )

    def count(self, figures: Figures, low: int, high: int) -> None:
        """Add the documents of records ``[low, high)`` to the figures of each step."""
        first, last = np.searchsorted(self.entered, (low, high)).tolist()
        if first == last:
            return
        grown, dropped = self._grown(low, high), self._dropped(low, high)
        here = Amount(last - first, int(self.sizes[first:last].sum()))
        for number, label in enumerate(self.labels):
            step = figures.step(label)
            step.taken = step.taken.plus(here)
            for (kind, reason), (documents, size) in dropped[number].items():
                amount = Amount(documents, size)
                if kind is Kind.FILTERED:
                    step.filtered[reason] = step.filtered.get(reason, Amount()).plus(amount)
                else:
                    step.refused = step.refused.plus(amount)
                here = here.plus(Amount(-documents, -size))
            here = here.plus(Amount(0, grown[number]))
            step.passed = step.passed.plus(here)

    def _dropped(self, low: int, high: int) -> list[dict[tuple[Kind, str], list[int]]]:
        """Return how many documents, and how many bytes of text, each step dropped of these records, and why."""
        dropped: list[dict[tuple[Kind, str], list[int]]] = [{} for _ in self.labels]
        for _, step, kind, reason, size in self.gone[bisect_left(self.gone, (low,)) : bisect_left(self.gone, (high,))]:
            counts = dropped[step].setdefault((kind, reason), [0, 0])
            counts[0] += 1
            counts[1] += size
        return dropped

    def _grown(self, low: int, high: int) -> list[int]:
        """Return by how many bytes each step made the texts of these records longer."""
        indices, steps, growth = self.changes
        first, last = np.searchsorted(indices, (low, high)).tolist()
        grown = np.zeros(len(self.labels), np.int64)
        np.add.at(grown, steps[first:last], growth[first:last])
        return [int(number) for number in grown]

    def count_kept(
        self, figures: Figures, kept: Integers, tokens: Integers, languages: Sequence[object] | None
    ) -> None:
        """Add kept documents: the indices of their records, their numbers of tokens, and their languages if known."""
        if not len(kept):
            return
        _add_powers(figures.token_lengths, tokens)
        _add_powers(figures.text_lengths, self.final[np.searchsorted(self.entered, kept)])
        numbers: dict[object, int] = {}
        codes = [numbers.setdefault(language, len(numbers)) for language in languages or ()]
        for language, number in numbers.items():
            chosen = np.equal(codes, number)
            found = Amount(int(chosen.sum()), int(tokens[chosen].sum()))
            name = str(language)
            figures.languages[name] = figures.languages.get(name, Amount()).plus(found)


class PassageNotes:
    """Notes what the steps do to the documents of a part, while they do it."""

    def __init__(
        self, labels: Sequence[str], indices: Integers, owners: npt.NDArray[np.intp], texts: Sequence[str]
    ) -> None:
        """Begin with all documents that a split owns: the indices of their records, and the numbers of their splits."""
        self._labels = labels
        self._entered, self._owners = indices, owners
        self._sizes = text_sizes(texts)
        self._final = self._sizes.copy()
        self._places = np.arange(len(texts))
        self._gone: list[Gone] = []
        self._changes: list[tuple[int, int, int]] = []
        self._step = 0

    def step(
        self,
        stays: npt.NDArray[np.bool_],
        texts: Sequence[str],
        changed: Mapping[int, Document],
        gone: Iterable[tuple[int, Outcome]],
    ) -> None:
        """Note what the next step did: which of the documents that came to it stay, are changed, are gone.

        ``texts`` and the numbers in ``changed`` are those of the documents that came to it.
        """
        number, places, final = self._step, self._places.tolist(), self._final
        for index, outcome in gone:
            at = int(np.searchsorted(self._entered, index))
            self._gone.append(Gone(index, number, outcome.kind, outcome.reason, int(final[at])))
        for at, document in changed.items():
            if document.text is texts[at]:
                continue
            place, size = places[at], text_size(document.text)
            self._changes.append((int(self._entered[place]), number, size - int(final[place])))
            final[place] = size
        self._places = self._places[stays]
        self._step += 1

    def passages(self, splits: Sequence[str]) -> dict[str, ChainPassage]:
        """Return the way of each split's documents."""
        self._gone.sort(key=itemgetter(0))
        self._changes.sort()
        changes = np.array(self._changes, np.int64).reshape(-1, 3)
        owners_of = {number: self._owners == number for number in range(len(splits))}
        found = {}
        for number, split in enumerate(splits):
            chosen = owners_of[number]
            entered = self._entered[chosen]
            own = np.isin(changes[:, 0], entered)
            mine = set(entered.tolist()) if self._gone else set()
            found[split] = ChainPassage(
                self._labels,
                entered,
                self._sizes[chosen],
                self._final[chosen],
                [gone for gone in self._gone if gone.place in mine],
                Changes(*(np.ascontiguousarray(column) for column in changes[own].T)),
            )
        return found


def text_size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def text_sizes(texts: Sequence[str]) -> Integers:
    """Return `text_size` of each; shape ``[texts]``."""
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    for at in np.flatnonzero(~np.fromiter(map(str.isascii, texts), np.bool_, len(texts))).tolist():
        sizes[at] = len(texts[at].encode())
    return sizes


def _add_powers(counts: "dict[int, int]", lengths: Integers) -> None:
    exponents = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1  # exact below 2**53
    for power, count in enumerate(np.bincount(exponents).tolist()):
        if count:
            counts[power] = counts.get(power, 0) + count
