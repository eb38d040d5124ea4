"""Settling a stream on its control topic, and reading what stands there."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import InvalidTimestampError, UnknownTopicOrPartitionError

from tokenmill import __version__
from tokenmill.errors import FingerprintError, TopicError
from tokenmill.recipe import Recipe
from tokenmill.recipe_differences import differences
from tokenmill.recipe_stages import RAW_BYTES_SHA256
from tokenmill.wire.control_log import ControlLog
from tokenmill.wire.genesis import GENESIS_KEY, Genesis
from tokenmill.wire.tokenizer_parts import tokenizer_parts

from .. import telemetry as metrics
from ..settings import Settings, Stream
from .clients import consumer, offsets, producer, read_range
from .refusal import refused_time

CONTROL_PREFIX: Final = "control."
LIBRARIES: Final = ("tokenizers", "numpy", "orjson", "faust-streaming", "aiokafka")
WAIT_SECONDS: Final = 1.0
"""How often a reader looks again for a genesis that a mill has yet to write."""

MOST_NAMED: Final = 100
"""Junk records that one process names; of more it only counts how many."""
SHOWN: Final = 200
"""Characters of the reason why a record is junk, which may quote it."""

log = structlog.get_logger(__name__)
_named: Final[set[tuple[str, int]]] = set()
"""The junk that this process has named: control topics are read more than once."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A stream whose genesis stands on its control topic."""

    stream: Stream
    genesis: Genesis
    control: ControlLog


async def read_control_topic(settings: Settings, topic: str) -> ControlLog:
    """Return what a control topic says now, from its first record to its end.

    Raises:
        TopicError: the topic is missing.

    """
    async with consumer(settings) as client:
        return await _read(client, topic)


async def _read(client: AIOKafkaConsumer, topic: str) -> ControlLog:
    await require_topic(client, topic)
    control = ControlLog(topic.removeprefix(CONTROL_PREFIX))
    await read_on(client, topic, control)
    return control


async def read_on(client: AIOKafkaConsumer, topic: str, control: ControlLog) -> None:
    """Add what a control topic says behind what has been read of it, up to its end; ``client`` is nobody else's.

    Junk changes nothing. It is counted, and each such record is named once in the log of this process.

    Raises:
        FingerprintError: another version of TokenMill settled the stream; names topic and offset.

    """
    partition = TopicPartition(topic, 0)
    first, end = (await offsets(client, [partition]))[partition]
    async for record in read_range(client, partition, max(first, control.read_to), end):
        try:
            junk = control.add(record.key, record.value)
        except FingerprintError as error:
            raise FingerprintError(f"offset {record.offset} of {topic}: {error}") from error
        control.read_to = record.offset + 1
        if junk is not None:
            name_junk(topic, record.offset, record.key, junk)
    control.read_to = max(control.read_to, end)


def name_junk(topic: str, offset: int, key: bytes | None, why: str) -> None:
    """Count a junk record and name it in the log, once in this process."""
    if (topic, offset) in _named:
        return
    _named.add((topic, offset))
    metrics.CONTROL_JUNK.labels(topic).inc()
    if len(_named) <= MOST_NAMED:
        log.warning(
            "a record on a control topic is ignored", topic=topic, offset=offset, key=key, reason=why[:SHOWN],
            advice="something that is no mill wrote there: let only mills and `tokenmill` write to control topics",
        )  # fmt: skip


async def require_topic(client: AIOKafkaConsumer, topic: str) -> int:
    """Return the number of the topic's partitions.

    Raises:
        TopicError: the topic is missing.

    """
    try:
        found = await client._client.fetch_all_metadata()  # noqa: SLF001 - aiokafka's consumer knows only what it reads
        partitions = found.partitions_for_topic(topic)
    except UnknownTopicOrPartitionError:
        partitions = None
    if not partitions:
        raise TopicError(
            f"topic {topic!r} is missing; `tokenmill topics create` makes the topics that the settings need"
        )
    return len(partitions)


async def settle(settings: Settings, stream: Stream, recipe: Recipe, tokenizer: bytes | None) -> Settled:
    """Return the stream's genesis, after writing it where there was none.

    When this returns, a genesis with this recipe's fingerprint is the first one on the control topic, and the
    tokenizer stands there too. Two workers that find the topic empty may both write; both read back the first.

    Raises:
        FingerprintError: the stream was settled with other settings.
        TopicError: a topic is missing.

    """
    async with consumer(settings) as client:
        control = await _read(client, stream.control_topic)
        if control.genesis is None:
            genesis = await _new_genesis(client, settings, stream, recipe)
            await write_control(settings, stream.control_topic, [(GENESIS_KEY, genesis.pack())])
            control = await _read(client, stream.control_topic)
            log.info("genesis written", stream=stream.name, fingerprint=recipe.fingerprint.hex())
        genesis_found = control.genesis
        if genesis_found is None:
            raise TopicError(
                f"{stream.control_topic!r} lost the genesis that was just written to it: check the topic's retention"
            )
        require_fingerprint(genesis_found, recipe)
        if tokenizer is not None and control.tokenizer(recipe.tokenizer_sha256) is None:
            await write_control(settings, stream.control_topic, list(tokenizer_parts(tokenizer)))
        return Settled(stream, genesis_found, control)


def require_fingerprint(genesis: Genesis, recipe: Recipe) -> None:
    """Check that the stream was settled with this recipe.

    Raises:
        FingerprintError: it was not; the message names what differs.

    """
    if genesis.recipe.fingerprint != recipe.fingerprint:
        back = "set them back"
        if genesis.recipe.decoded_otherwise(recipe):
            back = f'decode = "{recipe.decode}" has other rules since: use the version that made the stream'
        elif genesis.recipe.bounded_otherwise(recipe) and genesis.recipe.normalized_length is None:
            back = "texts that normalizing makes very long are refused since: use the version that made the stream"
        raise other_settings(genesis, differences(genesis.recipe, recipe), back)


def other_settings(genesis: Genesis, differing: list[str], back: str = "set them back") -> FingerprintError:
    """Return the error that tells which settings differ from the stream's, and what to do: ``back``, or a new name."""
    return FingerprintError(
        f"stream {genesis.stream!r} was settled with other settings ({'; '.join(differing)}): {back}, or give the new "
        "ones a stream of their own with stream_suffix"
    )


async def wait_for_genesis(settings: Settings, stream: Stream) -> Settled:
    """Return the stream's genesis, waiting until a mill has written it and the tokenizer, if it has one."""
    said = False
    while True:
        control = await read_control_topic(settings, stream.control_topic)
        genesis = control.genesis
        if genesis is not None and has_tokenizer(control, genesis):
            return Settled(stream, genesis, control)
        if not said:
            log.info("waiting for the mill to settle the stream", stream=stream.name)
            said = True
        await asyncio.sleep(WAIT_SECONDS)


def has_tokenizer(control: ControlLog, genesis: Genesis) -> bool:
    """Return whether a control topic holds all of the stream's tokenizer, or the stream needs none."""
    digest = genesis.recipe.tokenizer_sha256
    return digest == RAW_BYTES_SHA256 or control.tokenizer(digest) is not None


async def write_control(settings: Settings, topic: str, records: list[tuple[bytes, bytes]]) -> None:
    """Append records (key, value) to a control topic; durable when this returns.

    Raises:
        ClockError: the brokers do not take records of our time.

    """
    async with producer(settings) as client:
        for key, value in records:
            try:
                await client.send_and_wait(topic, value, key=key, partition=0)
            except InvalidTimestampError as error:
                raise refused_time(topic) from error


async def _new_genesis(client: AIOKafkaConsumer, settings: Settings, stream: Stream, recipe: Recipe) -> Genesis:
    segment_blocks = settings.for_topic(stream.raw_topic).segment_blocks
    return Genesis(stream.name, recipe, await _starts(client, settings, stream), segment_blocks, _versions())


async def _starts(client: AIOKafkaConsumer, settings: Settings, stream: Stream) -> tuple[int, ...]:
    """Return where each raw partition's chain starts: its first record, or the first one from the configured moment."""
    count = await require_topic(client, stream.raw_topic)
    partitions = [TopicPartition(stream.raw_topic, number) for number in range(count)]
    held = await offsets(client, partitions)
    moment = settings.for_topic(stream.raw_topic).start_milliseconds
    if moment is None:
        return tuple(held[partition][0] for partition in partitions)
    found: Mapping[TopicPartition, Any] = await client.offsets_for_times(dict.fromkeys(partitions, moment))
    return tuple(held[p][1] if found.get(p) is None else int(found[p].offset) for p in partitions)


def _versions() -> dict[str, str]:
    return {"tokenmill": __version__, **{library: version(library) for library in LIBRARIES}}
