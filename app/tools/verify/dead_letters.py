"""Every record that the reference dead-letters is in the dead-letter topic: counted by (topic, partition, offset)."""

from collections.abc import AsyncIterator, Mapping, Sequence

from aiokafka import TopicPartition

from tokenmill.wire.dead_letters import RecordPlace, decode_dead_letter

from ...kafka.clients import consumer, read_range
from ...settings import Settings, dead_letter_topic
from .result import ChainResult, Difference


async def check_dead_letters(
    settings: Settings, raw_topic: str, chains: Sequence[ChainResult], spans: Mapping[int, tuple[int, int]] | None
) -> tuple[list[Difference], list[str]]:
    """Return the first missing dead letter of each partition of one raw topic, and notes.

    ``spans`` are the ranges of the dead-letter topic's partitions at the mark, None where there is none. Records that
    stand there more than once, or that other streams of the topic dead-letter, are no difference; nor is what never
    was a record, of which `produce` writes dead letters.
    """
    wanted: dict[int, set[int]] = {}
    for chain in chains:
        wanted.setdefault(chain.partition, set()).update(chain.dead_letters)
    if not any(wanted.values()):
        return [], []
    topic = dead_letter_topic(raw_topic)
    async for place in _places(settings, topic, spans or {}):
        if place.topic == raw_topic:
            wanted.get(place.partition, set()).discard(place.offset)
    missing = {partition: offsets for partition, offsets in sorted(wanted.items()) if offsets}
    cut = [(number, first) for number, (first, _) in (spans or {}).items() if first > 0]
    if missing and cut:
        count = sum(map(len, missing.values()))
        starts = ", ".join(f"{topic}[{number}] starts at offset {first}" for number, first in cut)
        return [], [f"{starts}: {count} dead letters are not there; they may have been before"]
    return [_missing(topic, partition, offsets, chains) for partition, offsets in missing.items()], []


def _missing(topic: str, partition: int, offsets: set[int], chains: Sequence[ChainResult]) -> Difference:
    first = min(offsets)
    stream = next(c.stream for c in chains if c.partition == partition and first in c.dead_letters)
    more = f" (nor {len(offsets) - 1} more of the partition)" if len(offsets) > 1 else ""
    text = f"{topic} does not hold this record, which must be dead-lettered{more}"
    return Difference("dead letters", "missing", stream, partition, text, offset=first)


async def _places(settings: Settings, topic: str, spans: Mapping[int, tuple[int, int]]) -> AsyncIterator[RecordPlace]:
    """Yield the places of the records that have dead letters; what is no such letter is passed over."""
    if not spans:
        return  # no broker is asked for nothing
    async with consumer(settings) as client:
        for number, span in spans.items():
            async for record in read_range(client, TopicPartition(topic, number), *span):
                letter = decode_dead_letter(record)
                if letter is not None and isinstance(letter.place, RecordPlace):
                    yield letter.place
