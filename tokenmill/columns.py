"""The outcomes of a whole fetch in columns: what `Stages.outcome` says of each record, with little done for each."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tokenmill.documents import Document
from tokenmill.errors import RecordError
from tokenmill.outcomes import Kind, Outcome, Stages
from tokenmill.records import SourceRecord
from tokenmill.steps import Rejected


class Kept(NamedTuple):
    """The documents that one split keeps, after all steps, in the order of their offsets."""

    indices: list[int]
    """Of each document's record among the records."""
    documents: list[Document]

    def since(self, index: int) -> "Kept":
        """Return the documents of the records from ``index`` on."""
        first = bisect_left(self.indices, index)
        return Kept(self.indices[first:], self.documents[first:]) if first else self


@dataclass(frozen=True, slots=True)
class Columns:
    """The outcomes of consecutive records; one that is in no column belongs to no split."""

    records: Sequence[SourceRecord]
    offsets: npt.NDArray[np.int64]
    """Shape ``[records]``, ascending."""
    sizes: npt.NDArray[np.int64]
    """Bytes of their values; shape ``[records]``."""
    kept: dict[str, Kept]
    """By split."""
    others: list[tuple[int, Outcome]] = field(default_factory=list)
    """The outcomes that are no kept documents, with the indices of their records, ascending."""

    @classmethod
    def sort(
        cls,
        stages: Stages,
        records: Sequence[SourceRecord],
        skips: Collection[int] = (),
        note: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Find each record's outcome; raises nothing for any record (see `Stages.outcome`).

        ``note`` is told the offset, twice, of each record that a user's function is about to see.
        """
        values = [record.value for record in records]
        offsets = np.array([record.offset for record in records], dtype=np.int64)
        sizes = np.array([len(value or b"") for value in values], dtype=np.int64)
        columns = cls(records, offsets, sizes, {split: Kept([], []) for split in stages.splits.splits})
        columns._step(stages, *columns._decode(stages, values, skips), note if stages.custom else None)
        columns.others.sort(key=itemgetter(0))
        return columns

    @property
    def dead_letters(self) -> list[Outcome]:
        """The records that must be dead-lettered."""
        return [outcome for _, outcome in self.others if outcome.kind is Kind.DEAD_LETTERED]

    def index(self, offset: int) -> int:
        """Return how many records lie below ``offset``."""
        return int(np.searchsorted(self.offsets, offset))

    def _decode(self, stages: Stages, values: Sequence[bytes | None], skips: Collection[int]) -> Kept:
        """Return the records that are documents, whatever their split; ``values`` are the records'."""
        indices = [index for index, value in enumerate(values) if value is not None]
        if skips:
            indices = [index for index in indices if self.records[index].offset not in skips]
        if len(indices) < len(values):
            aside = sorted(set(range(len(values))).difference(indices))
            self.others.extend((index, stages.outcome(self.records[index], skips)) for index in aside)
        documents, refused = stages.decoder.many([value for index in indices if (value := values[index]) is not None])
        for at, error in refused:
            index = indices[at]
            split = stages.splits.split_of_bytes(values[index] or b"")
            self.others.append((index, stages.refused(self.records[index], split, error)))
        if refused:
            gone = {at for at, _ in refused}
            indices = [index for at, index in enumerate(indices) if at not in gone]
        return Kept(indices, documents)

    def _step(
        self,
        stages: Stages,
        indices: list[int],
        documents: list[Document],
        note: Callable[[int, int], None] | None,
    ) -> None:
        """Sort the documents by split, and take each through the steps that may not just let it pass."""
        splits = stages.splits.splits_of_documents(documents)
        for at in sorted({at for step in stages.steps for at in step.touched(documents)}):
            index, split = indices[at], splits[at]
            if split is None:
                continue
            if note is not None:
                offset = self.records[index].offset
                note(offset, offset)
            try:
                answer = stages.after_steps(documents[at])
            except RecordError as error:
                splits[at] = None
                self.others.append((index, stages.refused(self.records[index], split, error)))
                continue
            if isinstance(answer, Rejected):
                splits[at] = None
                self.others.append((index, Outcome(self.records[index], Kind.FILTERED, split, answer.reason)))
                continue
            documents[at] = answer
        add_to = {split: (kept.indices.append, kept.documents.append) for split, kept in self.kept.items()}
        for index, document, split in zip(indices, documents, splits, strict=True):
            if split is not None:
                add_index, add_document = add_to[split]
                add_index(index)
                add_document(document)
