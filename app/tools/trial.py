"""``tokenmill try``: a recipe tried on documents, without Kafka: figures as its streams have them, speeds, examples."""

import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np

from tokenmill.documents import Document, Record
from tokenmill.errors import SettingsError, nearest
from tokenmill.packings import CONCAT
from tokenmill.recipe import Recipe
from tokenmill.wire.totals import Totals

from ..funnel import EvenSample, Retention, TriedDocument, beginning_of, where_they_differ
from ..mill.recipes import RawTopicPlan, plan_topic
from ..milling.columns import PART_BYTES, PART_RECORDS, ChainOutcomes, KeptDocuments, OutcomeColumns, RecordColumns
from ..milling.decoding import FORMATS
from ..milling.document_columns import DocumentColumns, divide
from ..milling.duplicates.signatures import deduplication_of, rejections, sign
from ..milling.duplicates.window import Window
from ..milling.foreign_code import NativeCode
from ..milling.outcomes import Kind, Outcome, Stages
from ..milling.packing.document_shapes import DETAILS, document_shape, filtered_out
from ..milling.partition_mill import BATCH_CHARACTERS, open_packing
from ..milling.steps import Rejected, Step
from ..milling.steps.pipeline import PROFILES
from ..milling.steps.protocol import Answer, counting_key
from ..milling.tokenizers import RAW_BYTES, TokenBatch, joined
from ..settings import Settings
from ..sources.items import DocumentSource, ItemChunk, Place, Refused, where_words
from ..sources.reading_order import ReadAhead
from ..tasks import in_thread
from .produce.sending import COUNTED, PassedOver

HELD_BYTES: Final = 1 << 16
"""Bytes of a value that are held until the plain steps, which are slow, are asked about the examples at the end."""
_TRYING: Final = NativeCode("native code that tries documents")


class StageSpeed(NamedTuple):
    """What one stage took."""

    text_bytes: int
    """That came to it; of decoding, bytes of values."""
    seconds: float

    @property
    def megabytes_per_second(self) -> float | None:
        """Text MB (10**6 bytes) a second; None where no time was taken."""
        return self.text_bytes / self.seconds / 1e6 if self.seconds > 0 and self.text_bytes else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        speed = self.megabytes_per_second
        return {**self._asdict(), "megabytes_per_second": None if speed is None else round(speed, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What became of the documents so far."""

    splits: Mapping[str, Totals]
    records: int
    speeds: Mapping[str, StageSpeed]
    rejected: Mapping[str, Sequence[TriedDocument]]
    """By reason, in the order of the funnel: what steps and tokenizer filtered out."""
    dead_letters: Mapping[str, Sequence[TriedDocument]]
    changes: Mapping[str, int]
    """Texts that each step changed, by its label; steps that changed none are left out."""
    changed: Mapping[str, Sequence[TriedDocument]]
    kept: Sequence[TriedDocument]
    dropped_tokens: Mapping[str, int]
    """By reason, of texts that steps filtered out; a stream's totals have no such number."""

    @property
    def totals(self) -> Totals:
        """The sum of all splits'."""
        return sum(self.splits.values(), Totals())

    @property
    def retention(self) -> Retention:
        """What these say."""
        totals = self.totals
        return Retention(totals, totals.packing["padding"])

    @property
    def unowned(self) -> int:
        """Records that are in no split."""
        owned = (one.kept + one.filtered.total() + one.dead_lettered.total() for one in self.splits.values())
        return self.records - sum(owned)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        totals = self.totals
        return {
            "records": self.records,
            "in_no_split": self.unowned,
            "dead_lettered": dict(totals.dead_lettered),
            "retention": self.retention.to_dict(),
            "languages": {name: amount.documents for name, amount in totals.figures.languages.items()},
            "splits": {split: found.to_dict() for split, found in self.splits.items()},
            "speeds": {name: speed.to_dict() for name, speed in self.speeds.items()},
            "changes": dict(self.changes),
            "dropped_tokens": dict(self.dropped_tokens),
            "examples": {
                "rejected": _listed(self.rejected),
                "dead_lettered": _listed(self.dead_letters),
                "changed": _listed(self.changed),
                "kept": [one.to_dict() for one in self.kept],
            },
        }


class Trial:
    """Takes values of records, part by part; memory does not grow with their number."""

    def __init__(self, stages: Stages, recipes: Iterable[Recipe], examples: int = 5) -> None:
        """Try the ``stages`` of one raw topic for the recipes of its splits; show so many ``examples`` of each kind."""
        self._steps = [_WatchedStep(step, label) for step, label in zip(stages.steps, stages.labels, strict=True)]
        self._stages = replace(stages, steps=self._steps, every_step_counts=True)
        self._recipes = tuple(recipes)
        deduplication = deduplication_of(self._recipes[0].dedup)
        self._folder = TemporaryDirectory(prefix="tokenmill-try-") if deduplication is not None else None
        self._window = Window(deduplication, Path(self._folder.name)) if deduplication and self._folder else None
        self._totals = {recipe.split: Totals() for recipe in self._recipes}
        self._packings = {recipe.split: open_packing(recipe) for recipe in self._recipes if recipe.packing != CONCAT}
        self._records = self._value_bytes = 0
        self._decoding = self._tokenizing = 0.0
        self._changes: Counter[str] = Counter()
        self._dropped_tokens: Counter[str] = Counter()
        self._left_out = defaultdict[tuple[Kind, str], EvenSample[_Candidate]](lambda: EvenSample(examples))
        self._changed = defaultdict[str, EvenSample[_Candidate]](lambda: EvenSample(examples))
        self._kept: EvenSample[TriedDocument] = EvenSample(examples)

    def feed(self, values: Sequence[bytes], places: Sequence[str]) -> None:
        """Try the values of consecutive records, with where each comes from. Raises EngineError or PanicError."""
        fetch = RecordColumns.of([Record(at, -1, None, value) for at, value in enumerate(values, self._records)])
        for low, high in fetch.parts():
            with _TRYING:
                self._try_part(fetch.part(low, high), places[low:high])

    def close(self) -> None:
        """Remove the files that it has."""
        if self._folder is not None:
            self._folder.cleanup()

    def result(self) -> TrialResult:
        """Return what became of all values so far; more may follow."""
        totals = sum(self._totals.values(), Totals())
        steps = totals.figures.steps
        came = {step.step: step.taken.size for step in steps}
        timed = zip(self._stages.labels, self._steps, strict=True)
        order = {row.reason: number for number, row in enumerate(Retention(totals).funnel())}
        shown = {key: [one.shown() for one in sample.items()] for key, sample in self._left_out.items()}
        filtered = sorted((reason for kind, reason in shown if kind is Kind.FILTERED), key=lambda one: order[one])
        refused = sorted(reason for kind, reason in shown if kind is Kind.DEAD_LETTERED)
        changed = {label: [one.shown() for one in sample.items()] for label, sample in self._changed.items()}
        return TrialResult(
            splits={split: found.copy() for split, found in self._totals.items()},
            records=self._records,
            speeds={
                "decoding": StageSpeed(self._value_bytes, self._decoding),
                **{label: StageSpeed(came.get(label, 0), step.seconds) for label, step in timed},
                "tokenizing": StageSpeed(steps[-1].passed.size if steps else 0, self._tokenizing),
            },
            rejected={reason: shown[Kind.FILTERED, reason] for reason in filtered},
            dead_letters={reason: shown[Kind.DEAD_LETTERED, reason] for reason in refused},
            changes=dict(self._changes),
            changed={label: changed[label] for label in self._stages.labels if label in changed},
            kept=self._kept.items(),
            dropped_tokens={reason: self._dropped_tokens[reason] for reason in filtered},
        )

    def _try_part(self, part: RecordColumns, places: Sequence[str]) -> None:
        began, before = perf_counter(), sum(step.seconds for step in self._steps)
        columns = OutcomeColumns.sort(self._stages, part)
        stepped = sum(step.seconds for step in self._steps) - before
        self._decoding += perf_counter() - began - stepped
        self._judge(columns)
        left_out = [outcome for _, outcome in columns.others]
        for step in self._steps:
            self._count_dropped(step.taken_dropped())
        for recipe in self._recipes:
            split = recipe.split
            kept, began = columns.kept[split], perf_counter()
            tokens = self._encode(kept.documents.texts)
            self._tokenizing += perf_counter() - began
            shape, totals = document_shape(recipe), self._totals[split]
            outcomes = ChainOutcomes.of(recipe, part, columns, kept, tokens, shape=shape)
            outcomes.count(totals, 0, len(part.records))
            if split in self._packings:
                totals.packing.update(self._packings[split].add(outcomes.documents).counted)
            filtered = dict(filtered_out(shape, tokens))
            # What tokenizer or packing filtered out, or the tokenizer fails on.
            records = {at: part.records[int(kept.indices[at])] for at in (*filtered, *tokens.failed)}
            left_out += [Outcome(records[at], Kind.FILTERED, split, why, DETAILS[why]) for at, why in filtered.items()]
            left_out += [self._stages.refused(records[at], split, error) for at, error in tokens.failed.items()]
            self._show_kept(recipe, kept, tokens, places, filtered)
            self._show_changed(columns, split, places)
        for outcome in left_out:
            if outcome.split not in self._totals:
                continue
            sample, number = self._left_out[outcome.kind, outcome.reason], outcome.record.offset
            if sample.wants(number):
                sample.add(number, _Candidate(self._stages, outcome, places[number - int(part.offsets[0])]))
        self._records += len(part.records)
        self._value_bytes += int(part.sizes.sum())

    def _judge(self, columns: OutcomeColumns) -> None:
        if self._window is None:
            return
        documents = columns.kept_texts()
        offsets, texts = [offset for offset, _ in documents], [text for _, text in documents]
        places = np.array([(0, offset) for offset in offsets], np.uint64).reshape(-1, 2)
        found = self._window.judge(sign(self._window.deduplication, texts), places)
        told = rejections(found, lambda _, number: f"document {number + 1:,} of those that were tried")
        self._stages.seen.clear()
        self._stages.seen.update((offset, one) for offset, one in zip(offsets, told, strict=True) if one is not None)
        columns.filter_seen(self._stages)
        self._count_dropped([(one.reason, text) for one, text in zip(told, texts, strict=True) if one is not None])

    def _count_dropped(self, dropped: Sequence[tuple[str, str]]) -> None:
        """Count the tokens of texts, by the reason that comes with each."""
        around = len(self._recipes[0].begin_of_document) + len(self._recipes[0].after)
        lengths = np.diff(self._encode([text for _, text in dropped]).offsets).tolist()
        for (reason, _), length in zip(dropped, lengths, strict=True):
            self._dropped_tokens[reason] += length + around if length else 0

    def _encode(self, texts: Sequence[str]) -> TokenBatch:
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ranges = divide(lengths, items=len(texts), room=BATCH_CHARACTERS)
        return joined([self._stages.engine.encode(texts[low:high]) for low, high in ranges])

    def _show_changed(self, columns: OutcomeColumns, split: str, places: Sequence[str]) -> None:
        passage = columns.passages.get(split)
        if passage is None:
            return
        for document, step in np.argwhere(passage.changed.T).tolist():
            index = int(passage.entered[document])
            label, record = passage.labels[step], columns.records[index]
            self._changes[label] += 1
            sample = self._changed[label]
            if sample.wants(record.offset):
                outcome = Outcome(record, Kind.KEPT, split)
                sample.add(record.offset, _Candidate(self._stages, outcome, places[index], step))

    def _show_kept(
        self,
        recipe: Recipe,
        kept: KeptDocuments,
        tokens: TokenBatch,
        places: Sequence[str],
        filtered: Mapping[int, str],
    ) -> None:
        around = len(recipe.begin_of_document) + len(recipe.after)
        lengths = np.diff(tokens.offsets).tolist()
        shown = zip(kept.indices.tolist(), kept.documents.texts, lengths, strict=True)
        for at, (index, text, length) in enumerate(shown):
            number = self._records + index
            if length and at not in filtered and self._kept.wants(number):
                said = f"{length + around:,} token{'' if length + around == 1 else 's'}"
                self._kept.add(number, TriedDocument(places[index], said, beginning_of(text)))


class _Candidate:
    """A document that may be shown: the plain steps are asked about it when it is."""

    def __init__(self, stages: Stages, outcome: Outcome, place: str, step: int | None = None) -> None:
        """Hold what became of a record; ``step`` is the number of the step that changed it, where that is shown."""
        self._stages, self._outcome, self._place, self._step = stages, outcome, place, step
        self._shown: TriedDocument | None = None
        if len(outcome.record.value or b"") > HELD_BYTES:
            self.shown()

    def shown(self) -> TriedDocument:
        if self._shown is None:
            self._shown = self._made()
            self._outcome = self._outcome._replace(record=Record(self._outcome.record.offset, -1, None, None))
        return self._shown

    def _made(self) -> TriedDocument:
        held, passed = self._outcome, list[Document]()
        again = self._stages.outcome(held.record, (), passed)
        if self._step is not None:
            before, after = where_they_differ(passed[self._step].text, passed[self._step + 1].text)
            return TriedDocument(self._place, "", before, after)
        detail = again.detail if again.reason == held.reason else held.detail
        text = passed[-1].text if passed else (held.record.value or b"").decode(errors="replace")
        return TriedDocument(self._place, detail, beginning_of(text))


class _WatchedStep:
    """A step that knows how long it worked over many documents and what it dropped; its answers are the step's."""

    def __init__(self, step: Step, label: str) -> None:
        self._step, self._label = step, label
        self._dropped: list[tuple[str, str]] = []
        self.seconds = 0.0

    @property
    def name(self) -> str:
        return self._step.name

    def describe(self) -> dict[str, Any]:
        return self._step.describe()

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the step's answer, untimed: it is asked for to be shown."""
        return self._step(document)

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Return the step's answers, all of them made within the time that is counted."""
        began = perf_counter()
        answers = list(self._step.many(documents))
        self.seconds += perf_counter() - began
        for at, answer in answers:
            if isinstance(answer, Rejected):
                self._dropped.append((counting_key(self._label, answer.reason), documents.texts[at]))
        return answers

    def taken_dropped(self) -> list[tuple[str, str]]:
        found, self._dropped = self._dropped, []
        return found


def _listed(examples: Mapping[str, Sequence[TriedDocument]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [one.to_dict() for one in found] for name, found in examples.items()}


FEW_SECONDS: Final = 0.5
"""After so long, what was read is tried even if it is little: a pipe may give a line now and then."""


@dataclass(slots=True, kw_only=True)
class TrialProgress(PassedOver):
    """How far a trial is, and what was no document: `tokenmill produce` would not send it."""

    documents: int = 0
    """That went through the recipe."""
    bytes: int = 0
    """Of their values; the others are of sources, on disk."""
    sources: int = 0
    bytes_read: int = 0
    bytes_total: int = 0
    limit: int | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {
            "sources": self.sources,
            "seconds": round(self.seconds, 3),
            **{name: getattr(self, name) for name in COUNTED},
            "refusals": [{"place": one.where, "detail": one.why} for one in self.examples],
        }


def trial_settings(settings: Settings, topic: str, profile: str | None = None) -> Settings:
    """Return one raw topic's settings as a trial takes them, with a profile's steps; without a tokenizer: bytes."""
    if topic not in settings.raw_topics:
        raise SettingsError(f"{topic} is not in raw_topics ({', '.join(settings.raw_topics)}): name one of these")
    own = settings.for_topic(topic)
    if own.decode in FORMATS:
        raise SettingsError(
            f'decode = "{own.decode}": records of {topic} name a schema, and files are read as JSON or text: '
            "try its steps with --decode auto"
        )
    values: dict[str, Any] = {name: getattr(own, name) for name in type(own).model_fields}
    if profile is not None:
        if profile not in PROFILES:
            raise SettingsError(
                f"--profile {profile}: there is no such profile{nearest(profile, PROFILES)}; there are "
                f"{', '.join(PROFILES)}. --steps takes steps and several profiles"
            )
        values["steps"] = PROFILES[profile].steps
    values |= {} if own.tokenizer else {"tokenizer": RAW_BYTES}
    checked = type(own).model_validate(values)
    update = {name: getattr(checked, name) for name in type(own).model_fields}
    return settings.model_copy(update={**update, "raw_topics": (topic,), "topic": {}})


def plan_trial(settings: Settings, examples: int) -> tuple[RawTopicPlan, Trial]:
    """Return how the only raw topic of the settings is milled, and a trial of that."""
    plan = plan_topic(settings, settings.raw_topics[0])
    return plan, Trial(plan.stages, plan.recipes.values(), examples)


class TrialRun:
    """Reads sources, one after the other, and tries what they hold."""

    def __init__(
        self, trial: Trial, sources: Sequence[DocumentSource], report: Callable[[TrialProgress], None], most: int | None
    ) -> None:
        """Try ``most`` documents; None: all."""
        self.progress = TrialProgress(limit=most, bytes_total=sum(source.size for source in sources))
        self.trial, self.report, self._sources = trial, report, sources
        self._values: list[bytes] = []
        self._places: list[str] = []
        self._bytes = self._source_read = 0
        self._between = True  # whether the next chunk is the first of a source

    async def run(self) -> None:
        """Try all sources, up to the limit; cancelled, it ends between two parts: `rest` then tries what was read."""
        began, fed = time.monotonic(), time.monotonic()
        with ReadAhead(chain.from_iterable(source.chunks(Place()) for source in self._sources)) as reading:
            async for found in _taken(reading):
                if found is not None and self._take(found):
                    break
                due = time.monotonic() - fed > FEW_SECONDS
                if self._bytes >= PART_BYTES or len(self._values) >= PART_RECORDS or (due and self._values):
                    await in_thread(self.rest)
                    fed = time.monotonic()
                self.progress.seconds = time.monotonic() - began
                self.report(self.progress)
            await in_thread(self.rest)
        self.progress.seconds = time.monotonic() - began

    def rest(self) -> None:
        """Try what was read and not tried yet."""
        values, places = self._values, self._places
        self._values, self._places, self._bytes = [], [], 0
        self.trial.feed(values, places)
        self.progress.documents += len(values)
        self.progress.bytes += sum(map(len, values))

    def _take(self, chunk: ItemChunk) -> bool:
        """Take what a chunk holds; return whether that is all that is wanted."""
        progress = self.progress
        progress.count_unmet(chunk.unmet)
        progress.sources += self._between
        self._between = chunk.last
        for item, where in chunk.placed():
            if isinstance(item, Refused):
                progress.refuse(item)
                continue
            if progress.limit is not None and progress.documents + len(self._values) >= progress.limit:
                return True
            self._values.append(item.value)
            self._places.append(where_words(where))
            self._bytes += len(item.value)
        self._source_read, before = (0 if chunk.last else chunk.bytes_read), self._source_read
        progress.bytes_read += chunk.bytes_read - before
        return False


async def _taken(reading: ReadAhead[ItemChunk]) -> AsyncIterator[ItemChunk | None]:
    while True:
        found = await reading.take(FEW_SECONDS)
        if found is None and reading.ended:
            found = await reading.take(0)  # raises what reading raised
            if found is None:
                return
        yield found
