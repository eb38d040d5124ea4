"""What is needed of topics, and of the streams on them, before a worker begins."""

from tokenmill.errors import MissingTopicError, TopicError
from tokenmill.recipe import Recipe
from tokenmill.recipe_differences import plain_differences

from ..settings import Settings, Stream, TopicSettings
from .control_topic import other_settings, read_control_topic
from .topic_needs import Problem
from .topics import require_topics


async def require_ready(settings: Settings) -> list[Problem]:
    """Do as `require_topics`, but name the settings that differ from a settled stream's before what they ask of topics.

    Longer blocks or ids, for example, want larger messages than the topics of a stream take that has shorter ones.

    Raises:
        FingerprintError: the topics do not do, and a stream on them was settled with other settings.
        TopicError, BrokerError: as `require_topics`.

    """
    try:
        return await require_topics(settings)
    except MissingTopicError:
        raise
    except TopicError:
        await _require_settings(settings)
        raise


async def _require_settings(settings: Settings) -> None:
    for stream in settings.streams():
        try:
            genesis = (await read_control_topic(settings, stream.control_topic)).genesis
        except TopicError:
            continue  # it is missing
        if genesis is None:
            continue
        own = draft_recipe(settings.for_topic(stream.raw_topic), stream)
        if differing := plain_differences(genesis.recipe, own):
            raise other_settings(genesis, differing)


def draft_recipe(own: TopicSettings, stream: Stream) -> Recipe:
    """Return what the settings say of a stream's recipe before tokenizer and steps are opened."""
    rule = own.split_rule()
    return Recipe(
        raw_topic=stream.raw_topic,
        start=str(own.start),
        decode=own.decode,
        text_fields=own.text_fields,
        id_field=own.id_field,
        carry=own.carry,
        max_text_bytes=own.max_text_bytes or 0,
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
        allow_flush=own.allow_flush,
    )
