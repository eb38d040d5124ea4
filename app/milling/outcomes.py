"""What becomes of a record: one outcome each, a function of its bytes, its offset and the recipe alone."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from tokenmill.documents import Document, SourceRecord, is_flush
from tokenmill.errors import RecordError

from .decoding import Decoder
from .splits import SplitRule
from .steps import Rejected, Step
from .steps.protocol import SHORT_FORMS, counting_key, step_labels
from .tokenizers import Engine

SKIPPED: Final = "skipped"
"""Dead-letter reason of a record that a person put on the skip list."""
NO_TOKENS: Final = "no_tokens"
"""Filter reason of a text of which the tokenizer makes no token."""
NO_TOKENS_DETAIL: Final = "the tokenizer makes no token of it"
"""Why such a document was left out: behind all steps, none of them has anything to say."""


class Kind(Enum):
    """The kinds of outcome; every record has exactly one in every chain."""

    KEPT = "kept"
    FILTERED = "filtered"
    TOMBSTONE = "tombstone"
    DEAD_LETTERED = "dead_lettered"
    FLUSH = "flush"
    OTHER_SPLIT = "other_split"


class Outcome(NamedTuple):
    """One record's outcome, before it is seen by one chain (`Outcome.kind_in`)."""

    record: SourceRecord
    kind: Kind
    split: str | None = None
    """The split that owns the record; None where no split does, and for tombstones and flushes, which all count."""
    reason: str = ""
    """Of a filtered or dead-lettered record: one of a closed set; where a step filtered it out, its `counting_key`."""
    detail: str = ""
    """Of a filtered or dead-lettered record: for people; the columns may leave it out for a filtered one."""
    document: Document | None = None
    """Of a kept record: after all steps."""
    exception: str = ""
    """Of a dead-lettered record: the type of what was raised over it, for people; nothing where nothing was."""

    def kind_in(self, split: str) -> Kind:
        """Return the outcome as the chain of ``split`` counts it."""
        if self.split == split or self.kind is Kind.TOMBSTONE or self.kind is Kind.FLUSH:
            return self.kind
        return Kind.OTHER_SPLIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The opened stages of one raw topic, the same for all its splits."""

    decoder: Decoder
    splits: SplitRule
    steps: Sequence[Step]
    engine: Engine
    engine_refused: str = ""
    """Why a faster engine is not used; empty where the fastest is, or the reference was asked for."""
    steps_refused: str = ""
    """Why steps that have kernels run without them; empty where they do not, or plain steps were asked for."""
    allow_flush: bool = True
    """Whether records may fill open blocks; where not, those that ask for it are tombstones."""
    every_step_counts: bool = False
    """Whether the totals have figures of each step even where there are the short forms alone."""
    seen: dict[int, Rejected] = field(default_factory=dict)
    """The verdicts on duplicates, by offset: asked of documents that all steps keep, and filled before these come."""
    labels: tuple[str, ...] = field(init=False)
    """Each step's name; the second and later ones of a name are numbered (`step_labels`)."""
    counted_labels: tuple[str, ...] = field(init=False)
    """The labels of all steps where the totals have figures of each: where there is more than the short forms, or
    `every_step_counts`."""

    def __post_init__(self) -> None:
        labels = step_labels(step.name for step in self.steps)
        object.__setattr__(self, "labels", labels)
        counted = self.every_step_counts or not SHORT_FORMS.issuperset(labels)
        object.__setattr__(self, "counted_labels", labels if counted else ())

    def outcome(
        self, record: SourceRecord, skips: Collection[int] = (), passed: list[Document] | None = None
    ) -> Outcome:
        """Return what becomes of the record; ``skips`` are the offsets that a person put on the skip list.

        The document as it came to each step, and as it left the last one, is appended to ``passed``. Raises nothing:
        what cannot be a document is dead-lettered.
        """
        if record.value is None:
            return Outcome(record, Kind.FLUSH if self.allow_flush and is_flush(record) else Kind.TOMBSTONE)
        if record.offset in skips:
            split = self.splits.split_of_bytes(record.value)
            return Outcome(record, Kind.DEAD_LETTERED, split, SKIPPED, "on the skip list")
        try:
            document = self.decoder(record.value)
        except RecordError as error:
            return self.refused(record, self.splits.split_of_bytes(record.value), error)
        split = self.splits.split_of_document(document)
        return Outcome(record, Kind.KEPT) if split is None else self.after_steps(record, split, document, passed)

    def after_steps(
        self, record: SourceRecord, split: str, document: Document, passed: list[Document] | None = None
    ) -> Outcome:
        """Return what all steps make of a record's document; ``passed`` is as for `outcome`."""
        passed = [] if passed is None else passed
        passed.append(document)
        for label, step in zip(self.labels, self.steps, strict=True):
            try:
                answer = step(document)
            except RecordError as error:
                return self.refused(record, split, error)
            if isinstance(answer, Rejected):
                return self.dropped(record, split, label, answer)
            document = answer
            passed.append(document)
        if (verdict := self.seen.get(record.offset)) is not None:
            return self.duplicate(record, split, verdict)
        return Outcome(record, Kind.KEPT, split, document=document)

    @staticmethod
    def duplicate(record: SourceRecord, split: str, verdict: Rejected) -> Outcome:
        """Return the outcome of a document that was seen before; of no step, its reason stands alone."""
        return Outcome(record, Kind.FILTERED, split, verdict.reason, verdict.detail)

    @classmethod
    def dropped(cls, record: SourceRecord, split: str, label: str, answer: Rejected | RecordError) -> Outcome:
        """Return the outcome of a document that a step filtered out, or cannot answer for."""
        if isinstance(answer, RecordError):
            return cls.refused(record, split, answer)
        return Outcome(record, Kind.FILTERED, split, counting_key(label, answer.reason), answer.detail)

    @staticmethod
    def refused(record: SourceRecord, split: str | None, error: RecordError) -> Outcome:
        """Return the outcome of a record that is no document, or over which a step failed."""
        raised = type(error.__cause__ or error.__context__ or error).__qualname__
        return Outcome(record, Kind.DEAD_LETTERED, split, error.reason, error.detail, exception=raised)
