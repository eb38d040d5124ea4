"""Records of a raw partition in columns: what a fetch brought, what becomes of it, and what chains make of it.

The outcomes are what `Stages.outcome` says of each record, with little done for each. How documents pass through the
steps is noted for a chain's figures; a recipe without a list of steps has none, and nothing of that runs.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt

from tokenmill.documents import Document, SourceRecord
from tokenmill.recipe import Recipe
from tokenmill.wire.totals import LANGUAGE, Amount, Figures, Totals

from .decoding import FunctionDecoder, one_by_one
from .document_columns import DocumentColumns, Integers, divide, document_metas
from .outcomes import Kind, Outcome, Stages
from .packing.document_shapes import DocumentShape, chosen, filtered_out
from .packing.packed_blocks import Stretches, TokenizedDocuments
from .steps import CustomStep, Step
from .steps.protocol import Answer, each_alone
from .tokenizers import TokenBatch

GONE: Final = -1
"""In place of a text's size, behind the step that dropped its document."""


@dataclass(frozen=True, slots=True)
class ChainPassage:
    """The way of one split's documents through the steps, whether or not they are kept in the end."""

    labels: Sequence[str]
    entered: Integers
    """The index of each document's record, ascending; shape ``[documents]``."""
    sizes: Integers
    """Shape ``[steps + 1, documents]``: bytes of each text as it came to each step and left the last one, or `GONE`."""
    changed: npt.NDArray[np.bool_]
    """Shape ``[steps, documents]``: whether a step changed the text."""
    reasons: list[str | None]
    """Why each document that is `GONE` was filtered out, in order; None where the step could not answer for it."""

    @classmethod
    def concatenate(cls, parts: Sequence["ChainPassage"]) -> "ChainPassage | None":
        """Return the passage of consecutive parts; None where there is none."""
        if len(parts) <= 1:
            return next(iter(parts), None)
        return cls(
            parts[0].labels,
            np.concatenate([part.entered for part in parts]),
            np.concatenate([part.sizes for part in parts], axis=1),
            np.concatenate([part.changed for part in parts], axis=1),
            [reason for part in parts for reason in part.reasons],
        )

    def count(self, figures: Figures, low: int, high: int) -> None:
        """Add the documents of records ``[low, high)`` to the figures of each step."""
        first, last = np.searchsorted(self.entered, (low, high)).tolist()
        if first == last:
            return
        sizes, steps = self.sizes[:, first:last], [figures.step(label) for label in self.labels]
        there = sizes != GONE
        amounts = list(map(Amount, there.sum(axis=1).tolist(), np.where(there, sizes, 0).sum(axis=1).tolist()))
        for step, came, left in zip(steps, amounts, amounts[1:], strict=False):
            step.taken, step.passed = step.taken.plus(came), step.passed.plus(left)
        for (number, reason), (documents, size) in self._dropped(first, last).items():
            step, amount = steps[number], Amount(documents, size)
            if reason is None:
                step.refused = step.refused.plus(amount)
            else:
                step.filtered[reason] = step.filtered.get(reason, Amount()).plus(amount)

    def _dropped(self, first: int, last: int) -> dict[tuple[int, str | None], list[int]]:
        """Return how many of documents ``[first, last)`` each step dropped, and their bytes, by its number and why."""
        before, gone = (np.flatnonzero(self.sizes[-1, low:high] == GONE) for low, high in ((0, first), (first, last)))
        sizes = self.sizes[:, first:last][:, gone]
        numbers = (sizes != GONE).sum(axis=0) - 1
        dropped: dict[tuple[int, str | None], list[int]] = {}
        reasons = self.reasons[len(before) : len(before) + len(gone)]
        lost = sizes[numbers, np.arange(len(gone))]
        for number, size, reason in zip(numbers.tolist(), lost.tolist(), reasons, strict=True):
            counts = dropped.setdefault((number, reason), [0, 0])
            counts[0] += 1
            counts[1] += size
        return dropped

    def count_kept(
        self, figures: Figures, kept: Integers, tokens: Integers, languages: Sequence[object] | None
    ) -> None:
        """Add kept documents: the indices of their records, their numbers of tokens, and their languages if known."""
        if not len(kept):
            return
        _add_powers(figures.token_lengths, tokens)
        _add_powers(figures.text_lengths, self.sizes[-1, np.searchsorted(self.entered, kept)])
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
        self._labels, self._entered, self._owners = labels, indices, owners
        self._sizes = np.full((len(labels) + 1, len(texts)), GONE)
        self._sizes[0] = text_sizes(texts)
        self._changed = np.zeros((len(labels), len(texts)), np.bool_)
        self._reasons = np.full(len(texts), None)
        self._present = np.arange(len(texts))
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
        sizes, present = self._sizes[self._step, self._present], self._present
        self._changed[self._step, present[others]] = True
        sizes[others] = text_sizes([changed[at].text for at in others])
        reasons = [outcome.reason if outcome.kind is Kind.FILTERED else None for _, outcome in dropped]
        self._reasons[present[~stays]] = reasons
        self._present = present[stays]
        self._step += 1
        self._sizes[self._step, self._present] = sizes[stays]

    def passages(self, splits: Sequence[str]) -> dict[str, ChainPassage]:
        """Return the way of each split's documents."""
        found = {}
        for number, split in enumerate(splits):
            own = self._owners == number
            sizes = self._sizes[:, own]
            reasons = self._reasons[own][sizes[-1] == GONE].tolist()
            found[split] = ChainPassage(self._labels, self._entered[own], sizes, self._changed[:, own], reasons)
        return found


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


PART_RECORDS: Final = 4096
"""Records that are decoded, and whose documents are tokenized, before the next ones are: short documents are then
still in the processor's cache (200 bytes each and what Python makes of them are some 2 MB), and a call of the fast
engine, which costs 0.2 ms, has enough of them."""
PART_BYTES: Final = 2 * 1024 * 1024
"""Bound of a part's values, so that texts and what is made of them do not follow the size of a fetch; one record may be
larger."""


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Consecutive records of a raw partition, in the order of their offsets."""

    records: Sequence[SourceRecord]
    values: Sequence[bytes | None]
    """Those of the records; taken out once, for a record that is touched again may have left the processor's cache."""
    offsets: Integers
    """Shape ``[records]``, ascending."""
    sizes: Integers
    """Shape ``[records]``: bytes of each value, 0 without one."""

    @classmethod
    def of(cls, records: Sequence[SourceRecord]) -> Self:
        """Return the records in columns."""
        values = [record.value for record in records]
        sizes = np.array([len(value or b"") for value in values], dtype=np.int64)
        if records and records[-1].offset - records[0].offset == len(records) - 1:  # none is missing
            offsets = np.arange(records[0].offset, records[-1].offset + 1, dtype=np.int64)
        else:
            offsets = np.array([record.offset for record in records], dtype=np.int64)
        return cls(records, values, offsets, sizes)

    def part(self, low: int, high: int) -> Self:
        """Return the records ``[low, high)``."""
        between = slice(low, high)
        return type(self)(self.records[between], self.values[between], self.offsets[between], self.sizes[between])

    def index(self, offset: int) -> int:
        """Return how many records are below ``offset``."""
        return int(np.searchsorted(self.offsets, offset))

    def parts(self) -> Iterator[tuple[int, int]]:
        """Divide the records into ranges of at most `PART_RECORDS` and about `PART_BYTES`, one record at least."""
        return divide(self.sizes, items=PART_RECORDS, room=PART_BYTES)


class KeptDocuments(NamedTuple):
    """Documents in the order of their offsets: those that one split keeps after all steps, if nothing else is said."""

    indices: Integers
    """Of each document's record among the records; shape ``[documents]``."""
    documents: DocumentColumns

    def since(self, index: int) -> "KeptDocuments":
        """Return the documents of the records from ``index`` on."""
        first = int(np.searchsorted(self.indices, index))
        return KeptDocuments(self.indices[first:], self.documents.since(first))


@dataclass(frozen=True, slots=True)
class OutcomeColumns:
    """The outcomes of consecutive records; one that is in no column belongs to no split."""

    records: Sequence[SourceRecord]
    kept: dict[str, KeptDocuments]
    """By split."""
    others: list[tuple[int, Outcome]] = field(default_factory=list)
    """The outcomes that are no kept documents, with the indices of their records, ascending."""
    passages: dict[str, ChainPassage] = field(default_factory=dict)
    """By split, how its documents passed through the steps; empty where the totals have no figures of each step."""

    @classmethod
    def sort(
        cls,
        stages: Stages,
        fetch: RecordColumns,
        skips: Collection[int] = (),
        note: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Find each record's outcome; raises nothing for any record (see `Stages.outcome`).

        ``note`` is called with the first and the last offset of the records in work: with one record's, twice, before a
        user's function sees it.
        """
        columns = cls(fetch.records, {})
        noted = note if isinstance(stages.decoder, FunctionDecoder) else None  # which may do anything
        indices, documents = columns._decode(stages, fetch.values, skips, noted)
        owners = stages.splits.owners(documents)
        (indices, documents), owners = columns._step(stages, KeptDocuments(indices, documents), owners, note)
        for number, split in enumerate(stages.splits.splits):
            chosen = owners == number
            columns.kept[split] = KeptDocuments(indices[chosen], documents.chosen(chosen))
        columns.others.sort(key=itemgetter(0))
        return columns

    @property
    def dead_letters(self) -> list[Outcome]:
        """The records that must be dead-lettered."""
        return [outcome for _, outcome in self.others if outcome.kind is Kind.DEAD_LETTERED]

    @property
    def rejected(self) -> list[Outcome]:
        """The documents that steps filtered out."""
        return [outcome for _, outcome in self.others if outcome.kind is Kind.FILTERED]

    def kept_texts(self) -> list[tuple[int, str]]:
        """Return the offset and the text of each kept document, of all splits, in the order of their offsets."""
        return sorted(
            (self.records[index].offset, text)
            for kept in self.kept.values()
            for index, text in zip(kept.indices.tolist(), kept.documents.texts, strict=True)
        )

    def filter_seen(self, stages: Stages) -> None:
        """Filter out what was seen before, as ``stages.seen`` says it of these records."""
        if not stages.seen:
            return
        for split, (indices, documents) in self.kept.items():
            offsets = [self.records[index].offset for index in indices.tolist()]
            stays = np.array([offset not in stages.seen for offset in offsets], np.bool_)
            self.kept[split] = KeptDocuments(indices[stays], documents.chosen(stays))
            self.others.extend(
                (index, stages.duplicate(self.records[index], split, stages.seen[self.records[index].offset]))
                for index in indices[~stays].tolist()
            )
        self.others.sort(key=itemgetter(0))

    def _decode(
        self,
        stages: Stages,
        values: Sequence[bytes | None],
        skips: Collection[int],
        note: Callable[[int, int], None] | None,
    ) -> KeptDocuments:
        aside: list[int] = []
        if None in values or skips:
            aside = [n for n, value in enumerate(values) if value is None or self.records[n].offset in skips]
            self.others.extend((index, stages.outcome(self.records[index], skips)) for index in aside)
        indices = np.delete(np.arange(len(values)), aside)
        whole = cast("list[bytes]", [values[index] for index in indices.tolist()] if aside else values)
        if note is None:
            documents, refused = stages.decoder.many(whole)
        else:
            offsets = [self.records[index].offset for index in indices.tolist()]
            documents, refused = one_by_one(stages.decoder, whole, lambda at: note(offsets[at], offsets[at]))
        for at, error in refused:
            index = int(indices[at])
            split = stages.splits.split_of_bytes(whole[at])
            self.others.append((index, stages.refused(self.records[index], split, error)))
        return KeptDocuments(np.delete(indices, [at for at, _ in refused]), documents)

    def _step(
        self,
        stages: Stages,
        decoded: KeptDocuments,
        owners: npt.NDArray[np.intp],
        note: Callable[[int, int], None] | None,
    ) -> tuple[KeptDocuments, npt.NDArray[np.intp]]:
        """Take the documents that a split owns through all steps; return those that stay, and whose they are."""
        names = tuple(stages.splits.splits)
        owned = owners != len(names)
        indices, documents, owners = decoded.indices[owned], decoded.documents.chosen(owned), owners[owned]
        counted = stages.counted_labels
        notes = PassageNotes(counted, indices, owners, documents.texts) if counted else None
        for label, step in zip(stages.labels, stages.steps, strict=True):
            before = len(self.others)
            stays = np.ones(len(documents), np.bool_)
            changed: dict[int, Document] = {}
            for at, answer in self._answers(step, KeptDocuments(indices, documents), note):
                if isinstance(answer, Document):
                    changed[at] = answer
                    continue
                stays[at] = False
                index, split = int(indices[at]), names[owners[at]]
                self.others.append((index, stages.dropped(self.records[index], split, label, answer)))
            if notes is not None:
                notes.step(stays, documents.texts, changed, self.others[before:])
            documents = documents.changed(changed)
            if not stays.all():
                indices, documents, owners = indices[stays], documents.chosen(stays), owners[stays]
        if notes is not None:
            self.passages.update(notes.passages(names))
        return KeptDocuments(indices, documents), owners

    def _answers(
        self, step: Step, decoded: KeptDocuments, note: Callable[[int, int], None] | None
    ) -> Iterator[tuple[int, Answer]]:
        """Yield `Step.many`; before a user's function sees a document, ``note`` is called with its record's offset."""
        if note is None or not isinstance(step, CustomStep):
            yield from step.many(decoded.documents)
            return
        offsets = [self.records[index].offset for index in decoded.indices.tolist()]
        yield from each_alone(step, decoded.documents, lambda at: note(offsets[at], offsets[at]))
        note(self.records[0].offset, self.records[-1].offset)  # what hangs from here on is not the last document


@dataclass(frozen=True, slots=True)
class ChainOutcomes:
    """The outcomes of a fetch or a part of it, as one chain sees them, without texts; indices are the whole fetch's."""

    fetch: RecordColumns
    kept: Integers
    """The index of each kept document's record; shape ``[documents]``."""
    documents: TokenizedDocuments
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
        shape: DocumentShape,
        first: int = 0,
    ) -> Self:
        """Look at ``columns``, and at the documents ``kept`` of the chain's split that it wants, with their ``tokens``.

        The columns' records begin at ``first`` of the fetch; the documents may begin in the middle of these, at the
        first record that the chain has not passed. ``shape`` is the recipe's.
        """
        others = [
            (first + index, outcome.kind, outcome.reason)
            for index, outcome in columns.others
            if outcome.kind_in(recipe.split) is not Kind.OTHER_SPLIT
        ]
        failed = [(first + int(kept.indices[at]), error.reason) for at, error in tokens.failed.items()]
        others += [(index, Kind.DEAD_LETTERED, reason) for index, reason in failed]
        documents, indices = kept.documents, first + kept.indices
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
            replace(passage, entered=passage.entered + first) if passage is not None else None,
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
            [language for part in parts for language in part.languages or ()] or None,
        )

    def flushes(self, first: int) -> list[int]:
        """Return the indices of the flushes from ``first`` on."""
        return [index for index, kind, _ in self.others if kind is Kind.FLUSH and index >= first]

    def between(self, low: int, high: int) -> tuple[TokenizedDocuments, Integers]:
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
            if kind is Kind.FILTERED:
                totals.filtered[reason] += 1
            elif kind is Kind.DEAD_LETTERED:
                totals.dead_lettered[reason] += 1
            elif kind is Kind.TOMBSTONE:
                totals.tombstones += 1
            else:
                totals.flushes += 1
        if self.passage is not None:
            self.passage.count(totals.figures, low, high)
            lengths = np.diff(self.documents.bounds[first : last + 1])
            languages = self.languages[first:last] if self.languages is not None else None
            self.passage.count_kept(totals.figures, self.kept[first:last], lengths, languages)
