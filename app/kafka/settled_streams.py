"""Settled streams: which there are, told by their control topics alone, and whether the settings are theirs."""

from collections.abc import Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer

from tokenmill.errors import MissingTopicError, TopicError
from tokenmill.recipe import RAW_BYTES_SHA256, Recipe
from tokenmill.recipe_differences import plain_differences

from ..milling.steps.pipeline import Pipeline, list_digests, read_pipeline
from ..milling.tokenizers import RAW_BYTES, TokenizerFile
from ..settings import Settings, Stream, TopicSettings
from .clients import consumer
from .control_log import ControlLog
from .control_topic import CONTROL_PREFIX, Settled, has_files, other_settings, read_control_topic, read_on
from .topics import Problem, require_topics

LISTED: Final = 8
"""Streams that an error message names; more would not help to find a misspelling."""


async def settled_streams(settings: Settings, names: Sequence[str] = ()) -> list[Settled]:
    """Return the streams ``names``, or without names every stream of the settings' raw topics, by name.

    What decides the streams' tokens comes from their geneses: the settings need no tokenizer, no splits, no suffix.
    Raises TopicError where a stream of that name, or any stream of these raw topics, is not there or has no genesis
    yet.
    """
    async with consumer(settings) as client:
        topics = sorted(await client.topics())
        there = [name.removeprefix(CONTROL_PREFIX) for name in topics if name.startswith(CONTROL_PREFIX)]
        own = tuple(f"{topic}." for topic in settings.raw_topics)
        wanted = sorted(names or (name for name in there if name.startswith(own)))
        found = []
        for name in wanted:
            if name not in there:
                raise TopicError(f"there is no stream {name!r} on these brokers (streams there: {_listed(there)})")
            found.append(await settled_on(client, name, whole=False))
            if names and found[-1] is None:
                raise TopicError(f"stream {name!r} has no genesis yet: start a mill, which settles it")
    streams = [s for s in found if s is not None and (names or s.genesis.recipe.raw_topic in settings.raw_topics)]
    if not streams:
        raise TopicError(unsettled(settings.raw_topics, [name for name in there if name not in wanted], there))
    return streams


def unsettled(raw_topics: Sequence[str], others: Sequence[str], there: Sequence[str]) -> str:
    """Return what to say where ``raw_topics`` have no stream, and all that is ``there`` are ``others`` or not settled.

    Without others this is a first use and no misspelling, so one short line says what to do.
    """
    own = f"no stream of {', '.join(raw_topics)} is settled"
    if not others:
        return f"{own} yet: start a mill, `tokenmill serve`"
    return (
        f"{own} on these brokers (streams there: {_listed(there)}): set raw_topics, or start a mill, which settles "
        "the streams of the settings"
    )


async def settled_stream(settings: Settings, name: str) -> Settled:
    """Return one stream by its name. Raises TopicError where there is no such stream, or it has no genesis yet."""
    return (await settled_streams(settings, [name]))[0]


async def settled_on(client: AIOKafkaConsumer, name: str, *, whole: bool = True) -> Settled | None:
    """Return a stream whose control topic is there; None where a mill has yet to write a genesis.

    Where it must be ``whole``, None as well while the files that the genesis names are not all there. Only
    this call uses ``client`` meanwhile.
    """
    control = ControlLog(name)
    await read_on(client, {f"{CONTROL_PREFIX}{name}": control})
    genesis = control.genesis
    if genesis is None or (whole and not has_files(control, genesis)):
        return None
    return Settled(Stream(name, genesis.recipe.raw_topic, genesis.recipe.split), genesis, control)


def tokenizer_of(settled: Settled) -> TokenizerFile:
    """Return the stream's tokenizer from its control topic.

    Raises TopicError where the control topic does not hold all of it.
    """
    digest = settled.genesis.recipe.tokenizer_sha256
    if digest == RAW_BYTES_SHA256:
        return TokenizerFile(RAW_BYTES, None)
    content = settled.control.tokenizer(digest)
    if content is None:
        raise TopicError(
            f"{settled.stream.control_topic!r} does not hold the tokenizer {digest[:12]} yet: "
            "start a mill, which writes it there"
        )
    return TokenizerFile(settled.stream.control_topic, content)


def lists_of(settled: Settled) -> dict[str, bytes]:
    """Return the lists of the stream's steps from its control topic, by SHA-256.

    Raises TopicError where the control topic does not hold all of them.
    """
    found = settled.control.lists()
    for digest in list_digests(settled.genesis.recipe.pipeline) - found.keys():
        raise TopicError(
            f"{settled.stream.control_topic!r} does not hold the list {digest[:12]} of a step yet: "
            "start a mill, which writes it there"
        )
    return found


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(names[:LISTED]) or "none") + more


async def require_ready(settings: Settings) -> list[Problem]:
    """Do as `require_topics`, but name the settings that differ from a settled stream's before what they ask of topics.

    Longer blocks or ids, for example, want larger messages than the topics of a stream take that has shorter ones.
    Raises FingerprintError where the topics do not do, and a stream on them was settled with other settings; and
    TopicError or BrokerError as `require_topics`.
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


def draft_recipe(own: TopicSettings, stream: Stream, pipeline: Pipeline | None = None) -> Recipe:
    """Return what the settings say of a stream's recipe before tokenizer and steps are opened.

    ``pipeline`` is what `read_pipeline` returned for the settings' steps, whose list files are read here otherwise.
    Raises SettingsError where a list file cannot be read.
    """
    rule = own.split_rule()
    return Recipe(
        raw_topic=stream.raw_topic,
        start=str(own.start),
        decode=own.decode,
        text_fields=own.text_fields,
        id_field=own.id_field,
        metadata_fields=own.metadata_fields,
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
        packing=own.packing_name,
        block_tokens=own.block_tokens,
        dtype="uint32",
        allow_flush=own.allow_flush,
        packing_parameters=own.packing_parameters,
        segment_tokens=own.sequence_length if own.packing_name == "chunks" else None,
        pipeline=(read_pipeline(own.steps) if pipeline is None else pipeline).entries,
        special_tokens_in_text=own.special_tokens_in_text,
        dedup=own.dedup_table,
    )
