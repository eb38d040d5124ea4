"""Where a verification ends: offsets fixed before anything is read, so that it has an end while the service goes on."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import DamagedError, TokenMillError
from tokenmill.store import open_eras, open_partition, streams_in
from tokenmill.store.eras import ROW_BYTES
from tokenmill.store.layout import ERA_INDEX_FILE, stream_directory

from ...kafka.clients import consumer, offsets
from ...kafka.control_topic import Settled, require_topic
from ...settings import Settings, dead_letter_topic

LOOKS: Final = 10
"""Looks at rows that do not count, before they are called damage: a writer is done with them in a moment."""


LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class StoreEras:
    """How many eras a store held at the mark."""

    eras: int
    damage: str | None = None
    """Why they cannot be read at all (then ``eras`` is 0), or what comes after them."""

    @classmethod
    def look(cls, store: Path | None, stream: str) -> Self | None:
        """Return the mark of a stream; None where there is no store, or the stream is not in it."""
        if store is None or stream not in streams_in(store):
            return None
        try:
            reader = open_eras(store, stream)
            index = stream_directory(store, stream) / ERA_INDEX_FILE
            rows = 0
            for _ in range(LOOKS):
                reader.refresh()
                rows = index.stat().st_size // ROW_BYTES if index.exists() else 0
                if rows <= reader.eras:
                    return cls(reader.eras)
                time.sleep(LOOK_SECONDS)
            if reader.ahead:
                return cls(reader.eras, str(reader.lines_missing))
        except DamagedError as error:
            return cls(0, str(error))
        text = f"{rows - reader.eras} rows of {index} from era {reader.eras} on are not whole. A segment worker that is"
        return cls(reader.eras, f"{text} started cuts them off, and brings these eras again")


@dataclass(frozen=True, slots=True)
class StoreMark:
    """What a store holds of one partition: blocks ``[first, end)``."""

    first: int
    end: int
    damage: str | None = None
    """Why the store cannot be read at all."""


@dataclass(frozen=True, slots=True)
class ChainMarks:
    """The ranges of one chain: first retained offset, end."""

    stream: str
    partition: int
    raw: tuple[int, int]
    tokens: tuple[int, int]
    store: StoreMark | None


@dataclass(frozen=True, slots=True)
class EraMarks:
    """What there was of a stream's eras before its blocks were looked at."""

    end: int
    """The control topic's end offset."""
    store: StoreEras | None


@dataclass(frozen=True, slots=True)
class VerifyMarks:
    """All ranges of a verification."""

    chains: Sequence[ChainMarks]
    dead_letters: dict[str, dict[int, tuple[int, int]]]
    """By raw topic, of its dead-letter topic's partitions; a topic that is missing is left out."""
    eras: dict[str, EraMarks]
    """By stream."""


async def take_marks(settings: Settings, streams: Sequence[Settled], store: Path | None) -> VerifyMarks:
    """Fix the marks in the order eras (store, topic), store, token topics, dead letters, raw topics.

    The data flows the other way, so each mark covers all that those before it were made of: what a later mark's data
    cannot explain is a fault and no race.

    Raises:
        TopicError: a topic is missing.

    """
    async with consumer(settings) as client:
        counts = {s.stream.raw_topic: await require_topic(client, s.stream.raw_topic) for s in streams}
        chains = [(s, partition) for s in streams for partition in range(counts[s.stream.raw_topic])]
        in_store = [StoreEras.look(store, s.stream.name) for s in streams]
        control = await _ranges(client, (TopicPartition(s.stream.control_topic, 0) for s in streams))
        stores = [store_mark(store, s.stream.name, partition) for s, partition in chains]
        tokens = await _ranges(client, (TopicPartition(s.stream.tokens_topic, p) for s, p in chains))
        topics = await client.topics()
        dead = {t: await _all_ranges(client, dead_letter_topic(t)) for t in counts if dead_letter_topic(t) in topics}
        raw = await _ranges(client, (TopicPartition(topic, p) for topic, n in counts.items() for p in range(n)))
    return VerifyMarks(
        [
            ChainMarks(
                s.stream.name,
                p,
                raw[TopicPartition(s.stream.raw_topic, p)],
                tokens.get(TopicPartition(s.stream.tokens_topic, p), (0, 0)),
                mark,
            )
            for (s, p), mark in zip(chains, stores, strict=True)
        ],
        dead,
        {
            s.stream.name: EraMarks(control[TopicPartition(s.stream.control_topic, 0)][1], held)
            for s, held in zip(streams, in_store, strict=True)
        },
    )


async def _ranges(
    client: AIOKafkaConsumer, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the ranges of the partitions that exist; a raw topic may have grown, its token topic not yet."""
    wanted = list(partitions)
    there: dict[str, int] = {}
    for topic in {partition.topic for partition in wanted}:
        there[topic] = await require_topic(client, topic)
    return await offsets(client, [tp for tp in wanted if tp.partition < there[tp.topic]]) if wanted else {}


async def _all_ranges(client: AIOKafkaConsumer, topic: str) -> dict[int, tuple[int, int]]:
    """Return the ranges of all partitions of a topic that exists."""
    partitions = [TopicPartition(topic, number) for number in range(await require_topic(client, topic))]
    return {tp.partition: span for tp, span in (await offsets(client, partitions)).items()}


def store_mark(store: Path | None, stream: str, partition: int) -> StoreMark | None:
    """Return what a store holds of a partition now; None where there is no store."""
    if store is None:
        return None
    if stream not in streams_in(store):
        return StoreMark(0, 0)
    try:
        reader = open_partition(store, stream, partition)
    except TokenMillError as error:
        return StoreMark(0, 0, str(error))
    return StoreMark(reader.first_block, reader.blocks)
