"""How the documents of a fetch pass through the steps, in columns, and what a chain's figures count of it.

Nothing here runs for a recipe without a list of steps, whose totals have no figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tokenmill.documents import Document
from tokenmill.wire.figures import Amount, Figures

from .outcomes import Kind, Outcome

Integers: TypeAlias = npt.NDArray[np.int64]


class Drops(NamedTuple):
    """Documents that steps dropped, in the order of their records; each column has the shape ``[drops]``."""

    indices: Integers
    """Of the documents' records."""
    steps: Integers
    """Numbers of the steps."""
    sizes: Integers
    """Bytes of each text as it came to the step."""
    reasons: list[str | None]
    """Why each was filtered out; None where the step could not answer for it."""


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
    drops: Drops
    changes: Changes

    def shifted(self, first: int) -> "ChainPassage":
        """Return the passage of records that begin at ``first`` of a longer fetch."""
        return replace(
            self,
            entered=self.entered + first,
            drops=self.drops._replace(indices=self.drops.indices + first),
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
            Drops(
                np.concatenate([part.drops.indices for part in parts]),
                np.concatenate([part.drops.steps for part in parts]),
                np.concatenate([part.drops.sizes for part in parts]),
                [reason for part in parts for reason in part.drops.reasons],
            ),
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
            for reason, (documents, size) in dropped[number].items():
                amount = Amount(documents, size)
                if reason is None:
                    step.refused = step.refused.plus(amount)
                else:
                    step.filtered[reason] = step.filtered.get(reason, Amount()).plus(amount)
                here = here.plus(Amount(-documents, -size))
            here = here.plus(Amount(0, grown[number]))
            step.passed = step.passed.plus(here)

    def _dropped(self, low: int, high: int) -> list[dict[str | None, list[int]]]:
        """Return how many documents, and how many bytes of text, each step dropped of these records, and why."""
        dropped: list[dict[str | None, list[int]]] = [{} for _ in self.labels]
        indices, steps, sizes, reasons = self.drops
        first, last = np.searchsorted(indices, (low, high)).tolist()
        within = slice(first, last)
        for step, size, reason in zip(steps[within].tolist(), sizes[within].tolist(), reasons[within], strict=True):
            counts = dropped[step].get(reason)
            if counts is None:
                counts = dropped[step][reason] = [0, 0]
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
        self._present = np.arange(len(texts))
        self._dropped: list[Integers] = []
        self._drops: list[tuple[int, Integers]] = []
        self._reasons: list[str | None] = []
        self._changed: list[Integers] = []
        self._changes: list[tuple[int, Integers]] = []
        self._step = 0

    def step(
        self,
        stays: npt.NDArray[np.bool_],
        texts: Sequence[str],
        changed: Mapping[int, Document],
        dropped: Sequence[tuple[int, Outcome]],
    ) -> None:
        """Note what the next step did: which of the documents that came to it stay, are changed, are ``dropped``.

        ``texts`` and the numbers in ``changed`` are those of the documents that came to it; all are ascending.
        """
        others = [at for at, document in changed.items() if document.text is not texts[at]]
        if others:
            places, sizes = self._present[others], text_sizes([changed[at].text for at in others])
            self._changed.append(places)
            self._changes.append((self._step, sizes - self._final[places]))
            self._final[places] = sizes
        if dropped:
            gone = self._present[~stays]
            self._dropped.append(gone)
            self._drops.append((self._step, self._final[gone]))
            self._reasons += [outcome.reason if outcome.kind is Kind.FILTERED else None for _, outcome in dropped]
            self._present = self._present[stays]
        self._step += 1

    def passages(self, splits: Sequence[str]) -> dict[str, ChainPassage]:
        """Return the way of each split's documents."""
        dropped, drop_steps, drop_sizes = _joined(self._dropped), *_stacked(self._drops)
        changed, change_steps, growth = _joined(self._changed), *_stacked(self._changes)
        by_drop, by_change = np.argsort(dropped, kind="stable"), np.argsort(changed, kind="stable")
        found = {}
        for number, split in enumerate(splits):
            own = self._owners == number
            drops, changes = by_drop[own[dropped[by_drop]]], by_change[own[changed[by_change]]]
            reasons = [self._reasons[at] for at in drops.tolist()]
            found[split] = ChainPassage(
                self._labels,
                self._entered[own],
                self._sizes[own],
                self._final[own],
                Drops(self._entered[dropped[drops]], drop_steps[drops], drop_sizes[drops], reasons),
                Changes(self._entered[changed[changes]], change_steps[changes], growth[changes]),
            )
        return found


def _stacked(steps: Sequence[tuple[int, Integers]]) -> tuple[Integers, Integers]:
    """Return the number of the step of each item, and the items of all steps."""
    return _joined([np.full(len(items), number) for number, items in steps]), _joined([items for _, items in steps])


def _joined(parts: Sequence[Integers]) -> Integers:
    return np.concatenate([np.empty(0, np.int64), *parts])


def text_sizes(texts: Sequence[str]) -> Integers:
    """Return the bytes of each text in UTF-8; shape ``[texts]``."""
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    for at in np.flatnonzero(~np.fromiter(map(str.isascii, texts), np.bool_, len(texts))).tolist():
        sizes[at] = len(texts[at].encode())
    return sizes


def _add_powers(counts: "dict[int, int]", lengths: Integers) -> None:
    exponents = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1  # exact below 2**53
    for power, count in enumerate(np.bincount(exponents).tolist()):
        if count:
            counts[power] = counts.get(power, 0) + count
