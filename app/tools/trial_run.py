"""``tokenmill try``: documents of files through the recipe that the settings ask for, on this machine alone."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from tokenmill.errors import SettingsError, nearest

from ..funnel.trial import Trial
from ..mill.recipes import RawTopicPlan, plan_topic
from ..milling.columns import PART_BYTES, PART_RECORDS
from ..milling.decoding import FORMATS
from ..milling.steps.pipeline import PROFILES
from ..milling.tokenizers import RAW_BYTES
from ..settings import Settings
from ..sources.items import DocumentSource, ItemChunk, Place, Refused, where_words
from ..sources.reading_order import ReadAhead
from ..tasks import in_thread
from .produce.summary import COUNTED, PassedOver

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
        refused = [{"place": one.where, "detail": one.why} for one in self.examples]
        return {
            "sources": self.sources,
            "seconds": round(self.seconds, 3),
            **{name: getattr(self, name) for name in COUNTED},
            "refusals": refused,
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
            known = ", ".join(PROFILES)
            raise SettingsError(
                f"--profile {profile}: there is no such profile{nearest(profile, PROFILES)}; there are {known}. "
                "--steps takes steps and several profiles"
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


@dataclass(slots=True)
class TrialRun:
    """Reads sources, one after the other, and tries what they hold."""

    trial: Trial
    sources: Sequence[DocumentSource]
    report: Callable[[TrialProgress], None]
    limit: int | None = None
    progress: TrialProgress = field(init=False)
    _values: list[bytes] = field(default_factory=list)
    _places: list[str] = field(default_factory=list)
    _bytes: int = 0
    _source_read: int = 0
    _between: bool = True
    """Whether the next chunk is the first of a source."""

    def __post_init__(self) -> None:
        self.progress = TrialProgress(limit=self.limit, bytes_total=sum(source.size for source in self.sources))

    async def run(self) -> None:
        """Try all sources, up to the limit; cancelled, it ends between two parts: `rest` then tries what was read."""
        began, fed = time.monotonic(), time.monotonic()
        with ReadAhead(chain.from_iterable(source.chunks(Place()) for source in self.sources)) as reading:
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
            if self.limit is not None and progress.documents + len(self._values) >= self.limit:
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
