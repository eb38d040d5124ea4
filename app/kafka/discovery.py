"""Which streams there are, told by the brokers alone: the control topics and the geneses on them."""

from collections.abc import Sequence
from typing import Final

from aiokafka import AIOKafkaConsumer

from tokenmill.errors import TopicError
from tokenmill.recipe_stages import RAW_BYTES_SHA256
from tokenmill.stages.engines import RAW_BYTES, TokenizerFile
from tokenmill.wire.control_log import ControlLog

from ..settings import Settings, Stream
from .clients import consumer
from .control_topic import CONTROL_PREFIX, Settled, has_tokenizer, read_control_topic, read_on

LISTED: Final = 8
"""Streams that an error message names; more help nobody to find a misspelling."""


async def settled_streams(settings: Settings, names: Sequence[str] = ()) -> list[Settled]:
    """Return the streams ``names``, or without names every stream of the settings' raw topics, by name.

    What decides the streams' tokens comes from their geneses: the settings need no tokenizer, no splits, no suffix.

    Raises:
        TopicError: a stream of that name, or any stream of these raw topics, is not there or has no genesis yet.

    """
    async with consumer(settings) as client:
        there = await _stream_names(client)
    wanted = sorted(names or (name for name in there if name.startswith(tuple(f"{t}." for t in settings.raw_topics))))
    found = [await _settled(settings, name, there) for name in wanted]
    if names:
        for name, settled in zip(wanted, found, strict=True):
            if settled is None:
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
    """Return one stream by its name.

    Raises:
        TopicError: there is no such stream, or it has no genesis yet.

    """
    return (await settled_streams(settings, [name]))[0]


async def settled_on(client: AIOKafkaConsumer, name: str) -> Settled | None:
    """Return a stream whose control topic is there; None where a mill has yet to write genesis or tokenizer to it.

    ``client`` is used by nobody else meanwhile.
    """
    control = ControlLog(name)
    await read_on(client, f"{CONTROL_PREFIX}{name}", control)
    genesis = control.genesis
    if genesis is None or not has_tokenizer(control, genesis):
        return None
    return Settled(Stream(name, genesis.recipe.raw_topic, genesis.recipe.split), genesis, control)


def tokenizer_of(settled: Settled) -> TokenizerFile:
    """Return the stream's tokenizer from its control topic.

    Raises:
        TopicError: the control topic does not hold all of it.

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


async def _stream_names(client: AIOKafkaConsumer) -> list[str]:
    return sorted(
        name.removeprefix(CONTROL_PREFIX) for name in await client.topics() if name.startswith(CONTROL_PREFIX)
    )


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(names[:LISTED]) or "none") + more


async def _settled(settings: Settings, name: str, there: Sequence[str]) -> Settled | None:
    if name not in there:
        raise TopicError(f"there is no stream {name!r} on these brokers (streams there: {_listed(there)})")
    control = await read_control_topic(settings, f"{CONTROL_PREFIX}{name}")
    if control.genesis is None:
        return None
    recipe = control.genesis.recipe
    return Settled(Stream(name, recipe.raw_topic, recipe.split), control.genesis, control)
