"""The recipes of a raw topic's streams, made from the settings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokenmill.engines import TokenizerFile, load_tokenizer
from tokenmill.opening import complete
from tokenmill.outcomes import Stages
from tokenmill.recipe import Recipe

from ..clients.schema_registry import schemas_of
from ..settings import Settings, Stream, TopicSettings


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
    first, stages = complete(_draft(own, streams[0]), tokenizer, own.end_of_document, settings.engine, schemas)
    recipes = {stream: replace(first, split=stream.split) for stream in streams}
    return RawTopicPlan(raw_topic, tokenizer, stages, recipes)


def _draft(own: TopicSettings, stream: Stream) -> Recipe:
    rule = own.split_rule()
    return Recipe(
        raw_topic=stream.raw_topic,
        start=str(own.start),
        decode=own.decode,
        text_fields=own.text_fields,
        id_field=own.id_field,
        carry=own.carry,
        max_text_bytes=own.max_text_bytes,
        max_id_bytes=own.max_id_bytes,
        max_fields_bytes=own.max_fields_bytes,
        normalize=own.normalize,
        min_chars=own.min_chars,
        function=own.function,
        steps=(),
        shards=rule.shards,
        splits=tuple(rule.splits.items()),
        split_by=own.split_by,
        split=stream.split,
        tokenizer_sha256="",
        end_of_document=0,
        vocabulary_size=0,
        probe="",
        packing="concat",
        block_tokens=own.block_tokens,
        dtype="uint32",
    )
