"""What the tests of produce share: reading sources without a broker, and topics with one."""

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from aiokafka import TopicPartition

from tokenmill.app.kafka.clients import consumer, offsets, read_range
from tokenmill.app.settings import Settings
from tokenmill.app.sources import Item, Reading, Refused, ShapeOptions, find_sources, read_items, shape_for
from tokenmill.app.sources.formats import Choice
from tokenmill.app.sources.mapping import Mapping

T = TypeVar("T")
Content = list[tuple[bytes | None, bytes | None]]  # keys and values of one partition's records


def reading_of(
    settings: Settings | None = None,
    choice: Choice = "auto",
    mapping: Mapping | None = None,
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    **options: Any,
) -> Reading:
    own = settings or Settings(max_id_bytes=1000)
    shape = shape_for(own.for_topic("raw"), own.max_record_bytes, ShapeOptions(**options))
    return Reading(shape, choice, mapping, encoding, delimiter=delimiter)


def found_in(reading: Reading, *paths: Path | str) -> list[Item | Refused]:
    return list(read_items(find_sources([str(path) for path in paths], reading)))


def values(found: Sequence[Item | Refused]) -> list[bytes]:
    return [item.value for item in found if isinstance(item, Item)]


def refusals(found: Sequence[Item | Refused]) -> list[tuple[str, str]]:
    """Return where, without the folder, and why something was refused."""
    return [(Path(item.where).name, item.why) for item in found if isinstance(item, Refused)]


def peak_of(work: Callable[[], T]) -> tuple[T, int]:
    """Do some work; return its answer, and the most bytes that Python held for it at one time."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def content_of(settings: Settings, topic: str, partitions: int) -> list[Content]:
    found: list[Content] = []
    async with consumer(settings) as client:
        for number in range(partitions):
            partition = TopicPartition(topic, number)
            start, end = (await offsets(client, [partition]))[partition]
            found.append([(record.key, record.value) async for record in read_range(client, partition, start, end)])
    return found
