"""The skip list: a record that hangs or kills workers is dead-lettered untried, once a person says so."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import InputError
from tokenmill.wire.control_log import skip_request_record

from ..kafka.clients import consumer, offsets
from ..kafka.control_topic import Settled, require_topic, write_control
from ..kafka.settled_streams import settled_streams
from ..kafka.token_topic import published_head
from ..mill.skip_list import has_passed
from ..settings import Settings


@dataclass(frozen=True, slots=True)
class Skipped:
    """What became of a wish to skip a record."""

    streams: Sequence[str]
    """Streams whose mills have been asked."""
    passed: Sequence[str]
    """Streams that were made with other settings and have passed the record: they keep it as it is."""


async def skip(settings: Settings, raw_topic: str, partition: int, offset: int) -> Skipped:
    """Ask the mills of a raw topic to skip a record; the request is durable when this returns.

    The worker that owns the partition sees it within seconds, ends, and puts the record on the skip list when it
    resumes (`tokenmill.app.mill.skip_list`), unless it has published past the record by then. The streams that one mill
    makes stand and fall together: none of them is changed where one has published past the record, for its blocks
    would be different when computed again.

    Raises:
        InputError: the raw topic holds no such record, or every mill's streams have passed it.
        TopicError: the raw topic is missing, or none of its streams is settled yet.

    """
    found = await settled_streams(settings.model_copy(update={"raw_topics": (raw_topic,)}))
    async with consumer(settings) as client:
        await _require_record(client, raw_topic, partition, offset)
        passed = {s.stream.name: at for s in found if (at := await _passed(client, s, partition, offset)) is not None}
    mills: dict[bytes, list[Settled]] = {}
    for settled in found:
        mills.setdefault(replace(settled.genesis.recipe, split="").fingerprint, []).append(settled)
    open_mills = [streams for streams in mills.values() if not any(s.stream.name in passed for s in streams)]
    if not open_mills:
        stream, at = next(iter(passed.items()))
        raise InputError(
            f"stream {stream} has published tokens of offset {offset} of {raw_topic}[{partition}], or is past it (its "
            f"cursor is at {at}): what became of that record is settled; to leave it out, begin new streams with "
            "stream_suffix"
        )
    written = [settled for streams in open_mills for settled in streams]
    for settled in written:
        if offset not in settled.control.skips.get(partition, ()):
            request = skip_request_record(partition, offset)
            await write_control(settings, settled.stream.control_topic, [request])
    names = [settled.stream.name for settled in written]
    return Skipped(names, [s.stream.name for s in found if s.stream.name not in names])


async def _require_record(client: AIOKafkaConsumer, raw_topic: str, partition: int, offset: int) -> None:
    count = await require_topic(client, raw_topic)
    if not 0 <= partition < count:
        raise InputError(f"{raw_topic} has the partitions 0 to {count - 1}, not {partition}")
    where = TopicPartition(raw_topic, partition)
    first, end = (await offsets(client, [where]))[where]
    if not first <= offset < end:
        raise InputError(f"{raw_topic}[{partition}] holds the offsets {first} to {end - 1}, not {offset}")


async def _passed(client: AIOKafkaConsumer, settled: Settled, partition: int, offset: int) -> int | None:
    """Return the published position if it lies past the record, or in the middle of it; None if not."""
    tokens = TopicPartition(settled.stream.tokens_topic, partition)
    if partition >= await require_topic(client, tokens.topic):
        return None
    head = await published_head(client, tokens, settled.control.ignored)
    return head.cursor.next_offset if head is not None and has_passed(head.cursor, offset) else None
