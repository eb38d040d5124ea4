"""The recipes of a raw topic's streams, made from the settings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokenmill.milling.outcomes import Stages
from tokenmill.opening import complete
from tokenmill.recipe import Recipe
from tokenmill.stages.engines import TokenizerFile, load_tokenizer

from ..kafka.schema_registry import schemas_of
from ..kafka.settled_streams import draft_recipe
from ..settings import Settings, Stream


@dataclass(frozen=True, slots=True)
class RawTopicPlan:
    """How one raw topic is milled: stages for all its splits, a recipe for each."""

    raw_topic: str
    tokenizer: TokenizerFile
    stages: Stages
    recipes: Mapping[Stream, Recipe]


def plan_topic(settings: Settings, raw_topic: str) -> RawTopicPlan:
    """Load the tokenizer and return the plan for one raw topic.

    Raises:
        SettingsError: a setting is missing or cannot be used.

    """
    own = settings.for_topic(raw_topic)
    tokenizer = load_tokenizer(own.require_tokenizer())
    streams = [stream for stream in settings.streams() if stream.raw_topic == raw_topic]
    schemas = schemas_of(settings, own.decode)
    first, stages = complete(draft_recipe(own, streams[0]), tokenizer, own.end_of_document, settings.engine, schemas)
    recipes = {stream: replace(first, split=stream.split) for stream in streams}
    return RawTopicPlan(raw_topic, tokenizer, stages, recipes)
