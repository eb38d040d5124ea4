"""Control topics: streams are settled on them, and found by them; people's requests and eras are there as well."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import InvalidTimestampError

from tokenmill import __version__
from tokenmill.eras import ERA_KEY, Era, EraFollower, LogRecord, why_no_era
from tokenmill.errors import FingerprintError, MissingTopicError, MovedError, TopicError
from tokenmill.recipe import GENESIS_KEY, RAW_BYTES_SHA256, Genesis, Recipe, differences, plain_differences

from ..milling.steps.pipeline import NO_LISTS, Pipeline, list_digests, read_pipeline
from ..milling.tokenizers import RAW_BYTES, TokenizerFile
from ..settings import Settings, Stream, TopicSettings
from ..telemetry import worker_metrics as metrics
from .clients import consumer, offsets, producer, read_batches, read_range, retry
from .cluster import partitions_of
from .control_log import LIST_PREFIX, ControlLog, file_parts
from .security import refused_time
from .topics import Problem, require_topics

CONTROL_PREFIX: Final = "control."
LIBRARIES: Final = ("tokenizers", "numpy", "orjson", "faust-streaming", "aiokafka")
WAIT_SECONDS: Final = 1.0

NAMED_VARIABLE: Final = "_TOKENMILL_NAMED_FD"
"""Names a file of the supervisor's, in which its workers note what junk they have named; like the heartbeat's."""
MOST_NAMED: Final = 100
"""Junk records that one process, or all workers of a supervisor, name; of more they only count how many."""
ATTEMPTS: Final = 3
"""How often in a row eras are read from a log that moves: the second or third try mostly finds it at rest."""

NewEras = Sequence[tuple[Era, int]]

log = structlog.get_logger(__name__)
_named: Final[set[tuple[str, int]]] = set()
"""The junk that this process has named: control topics are read more than once."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A stream whose genesis is on its control topic."""

    stream: Stream
    genesis: Genesis
    control: ControlLog


async def read_control_topic(settings: Settings, topic: str) -> ControlLog:
    """Return what a control topic says now. Raises TopicError where the topic is missing."""
    async with consumer(settings) as client:
        return await _read(client, topic)


async def _read(client: AIOKafkaConsumer, topic: str) -> ControlLog:
    await require_topic(client, topic)
    control = ControlLog(topic.removeprefix(CONTROL_PREFIX))
    await read_on(client, {topic: control})
    return control


async def read_on(client: AIOKafkaConsumer, logs: Mapping[str, ControlLog]) -> None:
    """Add what control topics say behind what was read of them; junk is named once. Only this call uses ``client``."""
    for partition, (first, end) in (await offsets(client, [TopicPartition(topic, 0) for topic in logs])).items():
        topic, control = partition.topic, logs[partition.topic]
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
    """Count a junk record, once in this process; name it in the log, once for all workers of a supervisor."""
    if (topic, offset) in _named:
        return
    _named.add((topic, offset))
    metrics.CONTROL_JUNK.labels(topic).inc()
    if len(_named) <= MOST_NAMED and _is_news(topic, offset):
        say = log.warning if len(_named) == 1 else log.info  # commands show warnings alone: one is enough
        say(
            "a record on a control topic is ignored", topic=topic, offset=offset, key=key, reason=why[:200],
            advice="something that is no mill wrote there: let only mills and `tokenmill` write to control topics",
        )  # fmt: skip


def _is_news(topic: str, offset: int) -> bool:
    if (descriptor := os.environ.get(NAMED_VARIABLE)) is None:
        return True
    file, line = int(descriptor), f"{topic} {offset}\n".encode()
    fcntl.lockf(file, fcntl.LOCK_EX)
    try:
        named = os.pread(file, os.fstat(file).st_size, 0).splitlines(keepends=True)
        if line in named or len(named) >= MOST_NAMED:
            return False
        os.pwrite(file, line, sum(map(len, named)))
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)
    return True


async def require_topic(client: AIOKafkaConsumer, topic: str) -> int:
    """Return the number of the topic's partitions. Raises TopicError where the topic is missing."""
    count = await partitions_of(client, topic)
    if not count:
        raise TopicError(
            f"topic {topic!r} is missing; `tokenmill topics create` makes the topics that the settings need"
        )
    return count


async def settle(
    settings: Settings, stream: Stream, recipe: Recipe, tokenizer: bytes | None, lists: Mapping[str, bytes] = NO_LISTS
) -> Settled:
    """Return the stream's genesis, after writing it where there was none.

    When this returns, a genesis with this recipe's fingerprint is the first one on the control topic, which has the
    tokenizer and the steps' ``lists`` (by SHA-256) too. Two workers may both write; both read back the first. Raises
    FingerprintError where the stream was settled with other settings, and TopicError where a topic is missing.
    """
    async with consumer(settings) as client:
        control = await _read(client, stream.control_topic)
        if control.genesis is None:
            segment_blocks = settings.for_topic(stream.raw_topic).segment_blocks
            starts = await _starts(client, settings, stream)
            genesis = Genesis(stream.name, recipe, starts, segment_blocks, library_versions())
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
            await write_control(settings, stream.control_topic, list(file_parts(tokenizer)))
        for digest in lists.keys() - control.lists().keys():
            await write_control(settings, stream.control_topic, list(file_parts(lists[digest], LIST_PREFIX)))
        return Settled(stream, genesis_found, control)


async def settled_recipe(settings: Settings, raw_topic: str) -> Recipe | None:
    """Return the recipe of the first of a raw topic's streams that is settled; None where none is."""
    for stream in [one for one in settings.streams() if one.raw_topic == raw_topic]:
        if (genesis := (await read_control_topic(settings, stream.control_topic)).genesis) is not None:
            return genesis.recipe
    return None


def require_fingerprint(genesis: Genesis, recipe: Recipe) -> None:
    """Check that the stream was settled with this recipe; the error names what differs."""
    if genesis.recipe.fingerprint != recipe.fingerprint:
        back = "set them back"
        if genesis.recipe.decoded_otherwise(recipe):
            back = f'decode = "{recipe.decode}" has other rules since: use the version that made the stream'
        elif genesis.recipe.normalized_length is None and recipe.normalized_length is not None:
            back = "texts that normalizing makes very long are refused since: use the version that made the stream"
        raise other_settings(genesis, differences(genesis.recipe, recipe), back)


def other_settings(genesis: Genesis, differing: list[str], back: str = "set them back") -> FingerprintError:
    """Return the error that names the differing settings, and what to do: ``back``, or a new name for the stream."""
    return FingerprintError(
        f"stream {genesis.stream!r} was settled with other settings ({'; '.join(differing)}): {back}, or give the new "
        "ones a stream of their own with stream_suffix"
    )


async def wait_for_genesis(settings: Settings, stream: Stream) -> Settled:
    """Return the stream's genesis, waiting until a mill has written it, and the files that it names.

    Raises BrokerError where no broker answers for ``wait_seconds``.
    """
    said = False
    while True:
        control = await retry(settings, partial(read_control_topic, settings, stream.control_topic))
        genesis = control.genesis
        if genesis is not None and has_files(control, genesis):
            return Settled(stream, genesis, control)
        if not said:
            log.info("waiting for the mill to settle the stream", stream=stream.name)
            said = True
        await asyncio.sleep(WAIT_SECONDS)


def has_files(control: ControlLog, genesis: Genesis) -> bool:
    """Return whether a control topic holds all of the stream's tokenizer, if it needs one, and of its steps' lists."""
    digest = genesis.recipe.tokenizer_sha256
    if list_digests(genesis.recipe.pipeline) - control.lists().keys():
        return False
    return digest == RAW_BYTES_SHA256 or control.tokenizer(digest) is not None


async def write_control(settings: Settings, topic: str, records: list[tuple[bytes, bytes]]) -> None:
    """Append records (key, value) to a control topic; durable when this returns."""
    async with producer(settings) as client:
        for key, value in records:
            try:
                await client.send_and_wait(topic, value, key=key, partition=0)
            except InvalidTimestampError as error:
                raise refused_time(topic) from error


async def _starts(client: AIOKafkaConsumer, settings: Settings, stream: Stream) -> tuple[int, ...]:
    count = await require_topic(client, stream.raw_topic)
    partitions = [TopicPartition(stream.raw_topic, number) for number in range(count)]
    held = await offsets(client, partitions)
    moment = settings.for_topic(stream.raw_topic).start_milliseconds
    if moment is None:
        return tuple(held[partition][0] for partition in partitions)
    found: Mapping[TopicPartition, Any] = await client.offsets_for_times(dict.fromkeys(partitions, moment))
    return tuple(held[p][1] if found.get(p) is None else int(found[p].offset) for p in partitions)


def library_versions() -> dict[str, str]:
    """Return the versions that a genesis names."""
    return {"tokenmill": __version__, **{library: version(library) for library in LIBRARIES}}


async def read_eras(
    client: AIOKafkaConsumer, topic: str, follower: EraFollower, end: int | None = None
) -> AsyncIterator[NewEras]:
    """Read the control ``topic`` from the follower's position to its end, or to ``end``; yield the new eras.

    They come fetch by fetch. Only this call uses ``client`` meanwhile. Whatever is raised, the follower's position is
    after what was yielded last. Raises DifferenceError where the last era is not on the topic any more; and MovedError
    where the topic lost its tail again and again, or ends before ``end``.
    """
    given = follower.state
    for attempt in range(ATTEMPTS):
        try:
            async for found in _read_eras(client, topic, follower, end):
                if found:
                    given = follower.state
                    yield found
        # Not GeneratorExit: who left the loop may have read on with the same follower when this is closed.
        except (Exception, asyncio.CancelledError) as error:
            follower.rewind(given)
            if not isinstance(error, MovedError) or attempt == ATTEMPTS - 1:
                raise
        else:
            return


async def _read_eras(
    client: AIOKafkaConsumer, topic: str, follower: EraFollower, end: int | None
) -> AsyncIterator[NewEras]:
    """Read to the end. What one fetch brought was on the topic at one time, with all before it if its last still is."""
    partition = TopicPartition(topic, 0)
    first, last_end = (await offsets(client, [partition]))[partition]
    end = last_end if end is None else end
    start = follower.position
    batch = await _one_fetch(client, partition, first if start is None else max(first, start), end)
    known = start is not None and follower.holds(batch[0] if batch else None)
    if start is not None and not known:
        follower.restart()
        batch = await _one_fetch(client, partition, first, end)
    while batch:
        eras: list[tuple[Era, int]] = []
        for record in batch[known:]:
            if (era := follower.add(record)) is not None:
                eras.append((era, record.offset))
            elif record.key == ERA_KEY and (why := why_no_era(record.value)) is not None:
                name_junk(topic, record.offset, record.key, why)
        known = False
        yield eras
        last = batch[-1]
        batch = await _one_fetch(client, partition, last.offset + 1, end)
        if batch and not await _is_still_there(client, partition, last):
            raise MovedError(f"{topic} lost its tail while it was read")
    follower.finish()


async def _one_fetch(client: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int) -> list[LogRecord]:
    """Return the records of one fetch from ``start`` on; a gap before them is read again: a tail may have been lost."""
    batch = await _first_fetch(client, partition, start, end)
    has_gap = batch and batch[0].offset > start
    if has_gap and await _first_fetch(client, partition, start, batch[0].offset + 1) != batch[:1]:
        raise MovedError(f"{partition.topic} lost its tail while it was read")
    return batch


async def _first_fetch(client: AIOKafkaConsumer, partition: TopicPartition, start: int, end: int) -> list[LogRecord]:
    batch = await anext(read_batches(client, partition, start, end), None) or ()
    return [LogRecord(record.offset, record.key, record.value) for record in batch]


async def _is_still_there(client: AIOKafkaConsumer, partition: TopicPartition, last: LogRecord) -> bool:
    """Return whether the last record of the fetch before, era or not, is there, and so all that was read before it."""
    return last in await _one_fetch(client, partition, last.offset, last.offset + 1)


LISTED: Final = 8
"""Streams that an error message names; more would not help to find a misspelling."""


async def settled_streams(settings: Settings, names: Sequence[str] = ()) -> list[Settled]:
    """Return the streams ``names``, or every one of the settings' raw topics, by name; TopicError: one is not there."""
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
    """Return what to say where ``raw_topics`` have no stream; without ``others``, for this is a first use, in short."""
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

    Where it must be ``whole``, None as well while the genesis' files are not all there. Only this call uses ``client``.
    """
    control = ControlLog(name)
    await read_on(client, {f"{CONTROL_PREFIX}{name}": control})
    genesis = control.genesis
    if genesis is None or (whole and not has_files(control, genesis)):
        return None
    return Settled(Stream(name, genesis.recipe.raw_topic, genesis.recipe.split), genesis, control)


def tokenizer_of(settled: Settled) -> TokenizerFile:
    """Return the stream's tokenizer from its control topic; raises TopicError where that does not hold all of it."""
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
    """Return the lists of the stream's steps by SHA-256; raises TopicError where its control topic lacks one."""
    found = settled.control.lists()
    for digest in list_digests(settled.genesis.recipe.pipeline) - found.keys():
        raise TopicError(
            f"{settled.stream.control_topic!r} does not hold the list {digest[:12]} of a step yet: "
            "start a mill, which writes it there"
        )
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return (", ".join(names[:LISTED]) or "none") + more


async def require_ready(settings: Settings) -> list[Problem]:
    """Do as `require_topics`, but name settings that differ from a settled stream's before what they ask of topics."""
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
    """Return what settings say of a recipe before a tokenizer is opened; ``pipeline``: what `read_pipeline` gave."""
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
