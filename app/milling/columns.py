"""Consecutive records of a raw partition in columns, and their outcomes: what a fetch brought, and what becomes of it.

The outcomes are what `Stages.outcome` says of each record, with little done for each.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Final, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt

from tokenmill.documents import Document
from tokenmill.records import SourceRecord

from .bounds import divide
from .decoding import Decoder, one_by_one
from .document_columns import DocumentColumns
from .outcomes import Kind, Outcome, Stages
from .passage import ChainPassage, PassageNotes
from .steps import CustomStep, Step
from .steps.protocol import Answer, each_alone

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
    offsets: npt.NDArray[np.int64]
    """Shape ``[records]``, ascending."""
    sizes: npt.NDArray[np.int64]
    """Shape ``[records]``: bytes of each value, 0 without one."""

    @classmethod
    def of(cls, records: Sequence[SourceRecord]) -> Self:
        """Return the records in columns."""
        values = [record.value for record in records]
        sizes = np.array([len(value or b"") for value in values], dtype=np.int64)
        return cls(records, values, _offsets(records), sizes)

    def part(self, low: int, high: int) -> Self:
        """Return the records ``[low, high)``."""
        between = slice(low, high)
        return replace(
            self,
            records=self.records[between],
            values=self.values[between],
            offsets=self.offsets[between],
            sizes=self.sizes[between],
        )

    def index(self, offset: int) -> int:
        """Return how many records are below ``offset``."""
        return int(np.searchsorted(self.offsets, offset))

    def parts(self) -> Iterator[tuple[int, int]]:
        """Divide the records into ranges of at most `PART_RECORDS` and about `PART_BYTES`, one record at least."""
        return divide(self.sizes, items=PART_RECORDS, room=PART_BYTES)


class KeptDocuments(NamedTuple):
    """Documents in the order of their offsets: those that one split keeps after all steps, if nothing else is said."""

    indices: npt.NDArray[np.int64]
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

        ``note`` is called with the first and the last offset of the records in work: with one record's, twice, before
        a user's function sees it.
        """
        columns = cls(fetch.records, {})
        indices, documents = columns._decode(stages, fetch.values, skips, note if stages.custom_decoder else None)
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

    def _decode(
        self,
        stages: Stages,
        values: Sequence[bytes | None],
        skips: Collection[int],
        note: Callable[[int, int], None] | None,
    ) -> KeptDocuments:
        """Return the records that are documents, whatever their split; ``values`` are the records'."""
        aside: list[int] = []
        if None in values or skips:
            aside = [n for n, value in enumerate(values) if value is None or self.records[n].offset in skips]
            self.others.extend((index, stages.outcome(self.records[index], skips)) for index in aside)
        indices = np.delete(np.arange(len(values)), aside)
        whole = cast("list[bytes]", [values[index] for index in indices.tolist()] if aside else values)
        if note is None:
            documents, refused = stages.decoder.many(whole)
        else:
            places = iter([self.records[index].offset for index in indices.tolist()])
            documents, refused = one_by_one(partial(_noted, stages.decoder, places, note), whole)
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
        """Take the documents that a split owns through all steps, each over those that are still there.

        Returns the documents that stay and, as in ``owners`` (see `SplitRule.owners`), whose they are.
        """
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


def _noted(decoder: Decoder, places: Iterator[int], note: Callable[[int, int], None], value: bytes) -> Document:
    """Return what ``decoder`` says of the next value, whose record's offset ``note`` is called with before."""
    offset = next(places)
    note(offset, offset)
    return decoder(value)


def _offsets(records: Sequence[SourceRecord]) -> npt.NDArray[np.int64]:
    if records and records[-1].offset - records[0].offset == len(records) - 1:  # none is missing
        return np.arange(records[0].offset, records[-1].offset + 1, dtype=np.int64)
    return np.array([record.offset for record in records], dtype=np.int64)
