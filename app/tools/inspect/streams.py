"""A whole stream: what it is made of, how far it is in topic and store, and what its text looks like."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.stages.engines import REFERENCE, Engine, open_engine
from tokenmill.store import open_partition, streams_in
from tokenmill.store.layout import partition_directory, segment_firsts
from tokenmill.wire.message import Message

from ...kafka.clients import consumer, offsets
from ...kafka.control_topic import Settled, require_topic
from ...kafka.settled_streams import settled_stream, tokenizer_of
from ...kafka.token_topic import furthest, last_messages
from ...settings import Settings
from .samples import beginning, decode


@dataclass(frozen=True, slots=True)
class ChainReport:
    """One partition of a stream, as its last message and the store tell it."""

    partition: int
    raw_range: tuple[int, int]
    """First offset retained, and end."""
    token_range: tuple[int, int]
    next_offset: int
    """The source offset that the next block begins with."""
    blocks: int
    """In the topic."""
    totals: dict[str, Any]
    store_first: int | None
    """The first block that the store holds, or will hold."""
    store_blocks: int | None
    """The block after its last one."""
    segments: int | None
    """In the store, the growing one included."""
    sample: str
    """The beginning of the last block as text; nothing where the last messages are all carries."""


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A stream."""

    name: str
    raw_topic: str
    fingerprint: str
    dtype: str
    block_tokens: int
    tokenizer: str
    """SHA-256 of the tokenizer.json, and its vocabulary's size."""
    segment_blocks: int
    settings: dict[str, Any]
    """The recipe: all that decides the tokens."""
    versions: dict[str, str]
    """Of the libraries at genesis."""
    skips: dict[int, list[int]]
    """Offsets on the skip list, by partition."""
    ignored: dict[int, list[int]]
    """Offsets of the token topic on the ignore list, by partition."""
    chains: Sequence[ChainReport]

    @property
    def totals(self) -> dict[str, int]:
        """Blocks and tokens over all chains."""
        blocks = sum(chain.blocks for chain in self.chains)
        return {"blocks": blocks, "tokens": blocks * self.block_tokens}

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {**asdict(self), **self.totals}


async def inspect_stream(settings: Settings, name: str, store: Path | None = None) -> StreamReport:
    """Return what a stream is and how far it is; what ``store`` holds of it only where that knows the stream.

    Raises:
        TopicError: there is no such stream, or one of its topics is missing.
        DamagedError: its last messages, or the store's commit logs, are damaged.

    """
    settled = await settled_stream(settings, name)
    tokenizer = tokenizer_of(settled)
    recipe, genesis = settled.genesis.recipe, settled.genesis
    engine = open_engine(tokenizer, REFERENCE)
    held = store if store is not None and name in streams_in(store) else None
    async with consumer(settings) as client:
        count = await require_topic(client, settled.stream.tokens_topic)
        await require_topic(client, recipe.raw_topic)
        chains = [await _chain(client, settled, partition, engine, held) for partition in range(count)]
    return StreamReport(
        name=name,
        raw_topic=recipe.raw_topic,
        fingerprint=recipe.fingerprint.hex(),
        dtype=recipe.dtype,
        block_tokens=recipe.block_tokens,
        tokenizer=f"{recipe.tokenizer_sha256[:16]} ({recipe.vocabulary_size} ids)" if tokenizer.content else "bytes",
        segment_blocks=genesis.segment_blocks,
        settings=recipe.to_dict(),
        versions=dict(genesis.versions),
        skips={partition: sorted(found) for partition, found in settled.control.skips.items()},
        ignored=settled.control.ignored.offsets(),
        chains=chains,
    )


async def _chain(
    client: AIOKafkaConsumer, settled: Settled, partition: int, engine: Engine, store: Path | None
) -> ChainReport:
    tokens = TopicPartition(settled.stream.tokens_topic, partition)
    raw = TopicPartition(settled.stream.raw_topic, partition)
    spans = await offsets(client, [tokens, raw])
    messages = await last_messages(client, tokens, settled.control.ignored)
    head = furthest(messages)
    name = settled.stream.name
    reader = open_partition(store, name, partition) if store is not None else None
    return ChainReport(
        partition=partition,
        raw_range=spans[raw],
        token_range=spans[tokens],
        next_offset=head.cursor.next_offset if head else settled.genesis.start(partition),
        blocks=head.cursor.block if head else 0,
        totals=head.totals.to_dict() if head else {},
        store_first=reader.first_block if reader is not None else None,
        store_blocks=reader.blocks if reader is not None else None,
        segments=_segments(partition_directory(store, name, partition)) if store is not None else None,
        sample=_sample(engine, settled, furthest([message for message in messages if not message.is_carry])),
    )


def _segments(directory: Path) -> int:
    return len(segment_firsts(path.name for path in directory.iterdir())) if directory.is_dir() else 0


def _sample(engine: Engine, settled: Settled, message: Message | None) -> str:
    if message is None:
        return ""
    recipe = settled.genesis.recipe
    last = memoryview(message.tokens)[-recipe.block_bytes :]
    return beginning(decode(engine, np.frombuffer(last, recipe.token_dtype)))
