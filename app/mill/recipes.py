"""How a raw topic is milled: stages and recipes, what its partitions share, and the schemas that its records name.

Schemas are fetched before a fetch is milled: waiting for a registry is no part of milling.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from tokenmill.documents import SourceRecord
from tokenmill.errors import RegistryError
from tokenmill.recipe import Recipe

from ..kafka.clients import Send
from ..kafka.control_topic import Settled, draft_recipe
from ..kafka.schema_registry import FIRST_PAUSE, LONGEST_PAUSE, schemas_of
from ..kafka.topics import Existing
from ..milling.decoding import FramedDecoder
from ..milling.decoding.framed_values import schema_number
from ..milling.outcomes import Stages
from ..milling.recipe_stages import NONE, complete
from ..milling.steps.pipeline import read_pipeline
from ..milling.tokenizers import TokenizerFile, load_tokenizer
from ..milling.tokenizers.vocabulary import end_of, renumbered, shown_token, token_for
from ..settings import Settings, Stream, TopicSettings
from ..tasks import Backoff
from ..worker.in_flight import Board, Deaths

if TYPE_CHECKING:  # commands that make recipes need neither Faust nor a web server, and start sooner without
    from faust.types import TP

    from .inquiry import DomainLogs
    from .topic_changes import SkipList

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
    marks: str
    """What ends and begins a document, and what padding is, with why, for people."""


def plan_topic(settings: Settings, raw_topic: str, settled: Recipe | None = None) -> RawTopicPlan:
    """Load the tokenizer and return the plan for one raw topic.

    The rules of its decoder and steps are those of the recipe that one of its streams was ``settled`` with, or the
    newest; and so are the tokens that end a document and pad, where no setting names them. Raises SettingsError where a
    setting is missing or cannot be used.
    """
    own = settings.for_topic(raw_topic)
    tokenizer = load_tokenizer(own.require_tokenizer())
    streams = [stream for stream in settings.streams() if stream.raw_topic == raw_topic]
    schemas = schemas_of(settings, own.decode)
    pipeline = read_pipeline(own.steps)
    draft = draft_recipe(own, streams[0], pipeline)
    held = settled if settled is not None and settled.tokenizer_sha256 == tokenizer.sha256 else None
    guesses = held is not None and own.end_of_document is None and own.template == NONE
    first, stages = complete(
        draft if settled is None else replace(draft, steps=settled.steps),
        tokenizer,
        held.after if held is not None and guesses else own.end_of_document,
        settings.engine,
        schemas,
        begin_of_document=own.begin_of_document,
        padding=held.padding_id if held is not None and guesses and own.padding is None else own.padding,
        template=own.template,
        lists=pipeline.lists,
    )
    recipes = {stream: replace(first, split=stream.split) for stream in streams}
    marks = _marks(own, tokenizer, stages, first, settled=guesses)
    return RawTopicPlan(raw_topic, tokenizer, stages, recipes, pipeline.lists, marks)


def _marks(own: TopicSettings, tokenizer: TokenizerFile, stages: Stages, recipe: Recipe, *, settled: bool) -> str:
    said, guessed = "as the settings say", "as its streams were settled" if settled else ""

    def shown(ids: tuple[int, ...], why: str) -> str:
        names = ", ".join(shown_token(stages.engine, one) for one in ids)
        return f"{names}, {why}" if ids else "no token"

    is_said = own.end_of_document is not None or own.template != NONE
    end = shown(recipe.after, said if is_said else guessed or end_of(tokenizer, stages.engine).why)
    padding = "the token at its end" if recipe.after else "no token"
    if recipe.padding is not None:
        found = None if own.padding is not None or guessed else token_for("pad", tokenizer, stages.engine)
        padding = shown((recipe.padding,), found.why if found else said if own.padding is not None else guessed)
    around = f"a document begins with {shown(recipe.begin_of_document, said)}, ends with {end}; padding is {padding}"
    for token, number in renumbered(json.loads(tokenizer.content or b"{}"))[:1]:
        around += (
            f"; tokenizers gives {token['content']} the id {number}, and its file {token['id']}: do not train a model "
            "further that has the ids of the file"
        )
    return around


@dataclass(frozen=True, slots=True, kw_only=True)
class MillContext:
    """What all raw partitions of a topic on one worker share."""

    settings: Settings
    stages: Stages
    streams: Sequence[Settled]
    skip_list: "SkipList"
    token_topics: Mapping[str, Existing]
    letter_bytes: dict[str, int]
    """The largest letter of each topic for dead letters, or for what is filtered out, as last looked up."""
    require_partition: Callable[[int], Awaitable[None]]
    """Returns when all streams have a partition of this number; raises `TopicError` while they cannot."""
    send: Send
    partitions: Callable[[str], Awaitable[int]]
    """How many partitions a topic has that is sent to."""
    leader: "Callable[[TP], object]"
    """Something that differs once a partition that is sent to has another leader (`app.mill.publisher.LogEnd`)."""
    board: Board = field(default_factory=Board)
    """Where a supervisor reads what is being milled."""
    deaths: Deaths = field(default_factory=Deaths.inherited)
    """What was being milled when workers of the supervisor died."""
    logs: "DomainLogs | None" = None
    """Where duplicates are asked about; None where they are kept."""
    start_partition: "Callable[[TP, int], Awaitable[int | None]]"
    set_durable: "Callable[[TP, int], None]"


@dataclass(frozen=True, slots=True)
class SchemaWait:
    """Fetches the schemas that one raw partition's records name, before its decoder gets the records."""

    decoder: FramedDecoder
    where: str
    show: Callable[[RegistryError | None], None]
    """Called with what is waited for, and with None after that."""
    work: Callable[[int, int, Callable[[], None]], None]
    """Called in a thread, with the offset of the record over which a schema is learned, twice, and what learns it."""
    _ended: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def stop(self) -> None:
        """Wait no longer: what is to be learned is for the next owner, who may be in this process."""
        self._ended.set()

    async def learn(self, records: Sequence[SourceRecord], first: int, skips: Collection[int] = NOTHING) -> None:
        """Return when every schema is known that a record from offset ``first`` on names, but for those in ``skips``.

        However long that takes: what a record is that names an unknown schema depends on what the schema says. A
        registry that does not answer, refuses, or lacks the schema is asked again and again, until `stop`.
        """
        wanted = {r.offset: r.value for r in records if r.value and r.offset >= first and r.offset not in skips}
        for number in self.decoder.unknown(wanted.values()):
            offset = next(at for at, value in wanted.items() if schema_number(value) == number)
            await self._learn_one(number, offset)

    async def _learn_one(self, number: int, offset: int) -> None:
        backoff, said = Backoff(FIRST_PAUSE, LONGEST_PAUSE), ""
        try:
            while not self._ended.is_set():
                try:
                    with suppress(ValueError):  # which `learn` makes something of
                        await asyncio.to_thread(self.decoder.source.schema, number)  # waiting is no error
                    await asyncio.to_thread(self.work, offset, offset, partial(self.decoder.learn, number))
                except RegistryError as error:
                    reason = f"offset {offset} of {self.where} waits: {error}"
                    if reason != said:
                        log.warning("waiting for the schema registry", reason=reason)
                    said = reason
                    self.show(RegistryError(reason))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(backoff.next()):
                            await self._ended.wait()
                else:
                    break
        finally:
            self.show(None)
        if said and not self._ended.is_set():
            log.warning("the schema registry has answered", schema=number, partition=self.where)
