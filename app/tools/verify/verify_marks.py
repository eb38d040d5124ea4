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

from ...kafka.clients import consumer
from ...kafka.control_topic import Settled, require_topic
from ...settings import Settings, dead_letter_topic
from ..kafka_reading import topic_ranges

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
    cannot explain is a fault and no race. Raises TopicError where a topic is missing.
    """
    async with consumer(settings) as client:
        counts = {s.stream.raw_topic: await require_topic(client, s.stream.raw_topic) for s in streams}
        chains = [(s, partition) for s in streams for partition in range(counts[s.stream.raw_topic])]
        in_store = {s.stream.name: StoreEras.look(store, s.stream.name) for s in streams}
        control = await _ranges(client, [s.stream.control_topic for s in streams])
        stores = [store_mark(store, s.stream.name, partition) for s, partition in chains]
        tokens = await _ranges(client, [s.stream.tokens_topic for s in streams])
        letters = [dead_letter_topic(topic) for topic in counts]
        there = await client.topics()
        dead = await _ranges(client, [topic for topic in letters if topic in there])
        raw = await _ranges(client, counts)
    return VerifyMarks(
        [
            ChainMarks(
                s.stream.name,
                p,
                raw[TopicPartition(s.stream.raw_topic, p)],
                tokens.get(TopicPartition(s.stream.tokens_topic, p), (0, 0)),  # it may not have grown with the raw one
                mark,
            )
            for (s, p), mark in zip(chains, stores, strict=True)
        ],
        {
            topic: {tp.partition: span for tp, span in dead.items() if tp.topic == dead_letter_topic(topic)}
            for topic in counts
            if dead_letter_topic(topic) in there
        },
        {
            s.stream.name: EraMarks(control[TopicPartition(s.stream.control_topic, 0)][1], in_store[s.stream.name])
            for s in streams
        },
    )


async def _ranges(client: AIOKafkaConsumer, topics: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
    """Return the ranges of all partitions of some topics."""
    return {tp: span for topic in dict.fromkeys(topics) for tp, span in (await topic_ranges(client, topic)).items()}


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
