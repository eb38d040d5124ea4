"""Every record that the reference dead-letters is in the dead-letter topic: counted by (topic, partition, offset)."""

from collections.abc import AsyncIterator, Sequence

from aiokafka import TopicPartition

from ..clients.kafka import consumer, read_range
from ..raw.dead_letters import parse_dead_letter
from ..settings import Settings, dead_letter_topic
from .result import ChainResult, Difference


async def check_dead_letters(
    settings: Settings, raw_topic: str, chains: Sequence[ChainResult], span: tuple[int, int] | None
) -> tuple[list[Difference], list[str]]:
    """Return the first missing dead letter of each partition of one raw topic, and notes.

    ``span`` is the range of the dead-letter topic at the mark, None where there is none. Records that stand there more
    than once, or that other streams of the topic dead-letter, are no difference.
    """
    wanted: dict[int, set[int]] = {}
    for chain in chains:
        wanted.setdefault(chain.partition, set()).update(chain.dead_letters)
    if not any(wanted.values()):
        return [], []
    topic = dead_letter_topic(raw_topic)
    if span is not None:
        async for partition, offset in _places(settings, topic, raw_topic, span):
            wanted.get(partition, set()).discard(offset)
    missing = {partition: offsets for partition, offsets in sorted(wanted.items()) if offsets}
    if missing and span is not None and span[0] > 0:
        count = sum(map(len, missing.values()))
        return [], [
            f"{topic} starts at offset {span[0]}: {count} dead letters are not there; they may have been before"
        ]
    return [_missing(topic, partition, offsets, chains) for partition, offsets in missing.items()], []


def _missing(topic: str, partition: int, offsets: set[int], chains: Sequence[ChainResult]) -> Difference:
    first = min(offsets)
    stream = next(c.stream for c in chains if c.partition == partition and first in c.dead_letters)
    more = f" (nor {len(offsets) - 1} more of the partition)" if len(offsets) > 1 else ""
    text = f"{topic} does not hold this record, which must be dead-lettered{more}"
    return Difference("dead letters", "missing", stream, partition, text, offset=first)


async def _places(
    settings: Settings, topic: str, raw_topic: str, span: tuple[int, int]
) -> AsyncIterator[tuple[int, int]]:
    """Yield partition and offset of the dead letters of ``raw_topic``; what is none of ours is passed over."""
    async with consumer(settings) as client:
        async for record in read_range(client, TopicPartition(topic, 0), *span):
            letter = parse_dead_letter(record)
            if letter is not None and letter.topic == raw_topic:
                yield letter.partition, letter.offset
