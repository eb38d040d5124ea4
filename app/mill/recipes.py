"""How a raw topic is milled: stages and recipes, what its partitions share, and the schemas that its records name.

Schemas are fetched before a fetch is milled: waiting for a registry is no part of milling.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from tokenmill.backoff import Backoff
from tokenmill.errors import RegistryError
from tokenmill.milling.outcomes import Stages
from tokenmill.recipe import Recipe
from tokenmill.recipe_stages import complete
from tokenmill.records import SourceRecord
from tokenmill.stages.decoding import FramedDecoder
from tokenmill.stages.engines import TokenizerFile, load_tokenizer
from tokenmill.stages.steps.pipeline import read_pipeline

from ..kafka.control_topic import Settled
from ..kafka.schema_registry import FIRST_PAUSE, LONGEST_PAUSE, schemas_of
from ..kafka.settled_streams import draft_recipe
from ..settings import Settings, Stream

if TYPE_CHECKING:  # commands that make recipes need neither Faust nor a web server, and start sooner without
    from faust.types import TP

    from ..supervisor.in_flight import Board
    from .publisher import Send
    from .skip_list import SkipList

NOTHING: Final[frozenset[int]] = frozenset()

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RawTopicPlan:
    """How one raw topic is milled: stages for all its splits, a recipe for each."""

    raw_topic: str
    tokenizer: TokenizerFile
    stages: Stages
    recipes: Mapping[Stream, Recipe]
    lists: Mapping[str, bytes]
    """Those that its steps name, by SHA-256."""


def plan_topic(settings: Settings, raw_topic: str, earlier: Recipe | None = None) -> RawTopicPlan:
    """Load the tokenizer and return the plan for one raw topic.

    ``earlier`` is the recipe of one of its streams that was settled before, whose rules all of them keep.

    Raises:
        SettingsError: a setting is missing or cannot be used.

    """
    own = settings.for_topic(raw_topic)
    tokenizer = load_tokenizer(own.require_tokenizer())
    streams = [stream for stream in settings.streams() if stream.raw_topic == raw_topic]
    schemas = schemas_of(settings, own.decode)
    pipeline = read_pipeline(own.steps)
    first, stages = complete(
        replace(draft_recipe(own, streams[0], pipeline), steps=earlier.steps if earlier is not None else ()),
        tokenizer,
        own.end_of_document,
        settings.engine,
        schemas,
        begin_of_document=own.begin_of_document,
        padding=own.padding,
        template=own.template,
        lists=pipeline.lists,
    )
    recipes = {stream: replace(first, split=stream.split) for stream in streams}
    return RawTopicPlan(raw_topic, tokenizer, stages, recipes, pipeline.lists)


@dataclass(frozen=True, slots=True, kw_only=True)
class MillContext:
    """What all raw partitions of a topic on one worker share."""

    settings: Settings
    stages: Stages
    streams: Sequence[Settled]
    skip_list: "SkipList"
    retention: Mapping[str, float | None]
    """How long each token topic keeps its messages, in seconds; None: for ever."""
    require_partition: Callable[[int], Awaitable[None]]
    """Returns when all streams have a partition of this number; raises `TopicError` while they cannot."""
    send: "Send"
    partitions: Callable[[str], Awaitable[int]]
    """How many partitions a topic has that is sent to."""
    leader: "Callable[[TP], object]"
    """Something that differs once a partition that is sent to has another leader (`tokenmill.reading.log_end`)."""
    board: "Board | None" = None
    """Where a supervisor reads what is being milled."""
    start_partition: "Callable[[TP, int], Awaitable[int | None]]"
    set_durable: "Callable[[TP, int], None]"


class SchemaWait:
    """Fetches the schemas that one raw partition's records name, before its decoder gets the records."""

    def __init__(self, stages: Stages, where: str, show: Callable[[str | None], None]) -> None:
        """``where`` names the partition; ``show`` is called with what is waited for, and with None after that."""
        decoder = stages.decoder
        self._decoder = decoder if isinstance(decoder, FramedDecoder) else None
        self._where = where
        self._show = show

    async def learn(self, records: Sequence[SourceRecord], first: int, skips: Collection[int] = NOTHING) -> None:
        """Return when every schema is known that a record from offset ``first`` on names, but for those in ``skips``.

        However long that takes: what a record is that names an unknown schema depends on what the schema says. A
        registry that does not answer, refuses, or lacks the schema is asked again and again.
        """
        if self._decoder is None:
            return
        wanted = [r for r in records if r.value is not None and r.offset >= first and r.offset not in skips]
        for number in self._decoder.unknown([record.value for record in wanted if record.value is not None]):
            await self._learn_one(number, wanted)

    async def _learn_one(self, number: int, records: Sequence[SourceRecord]) -> None:
        backoff, said, decoder = Backoff(FIRST_PAUSE, LONGEST_PAUSE), "", self._decoder
        try:
            while decoder is not None:
                try:
                    await asyncio.to_thread(decoder.learn, number)
                except RegistryError as error:
                    reason = f"offset {self._first(number, records)} of {self._where} waits: {error}"
                    if reason != said:
                        log.warning("waiting for the schema registry", reason=reason)
                    said = reason
                    self._show(reason)
                    await asyncio.sleep(backoff.next())
                else:
                    break
        finally:
            self._show(None)
        if said:
            log.warning("the schema registry has answered", schema=number, partition=self._where)

    def _first(self, number: int, records: Sequence[SourceRecord]) -> int:
        """Return the offset of the first record that names the schema."""
        decoder = self._decoder
        named = (r.offset for r in records if decoder is not None and decoder.unknown([r.value or b""]) == [number])
        return next(named)
