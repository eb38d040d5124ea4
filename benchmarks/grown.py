"""A raw topic, a token topic and a store that grow together, filled by the same functions that the workers call."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Final, Self

from aiokafka import TopicPartition

from benchmarks.measuring import BenchmarkError
from tokenmill.app.kafka.clients import consumer, producer, read_range
from tokenmill.app.kafka.control_topic import Settled, settle
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.milling.outcomes import Stages
from tokenmill.app.milling.partition_mill import ChainMill, PartitionMill
from tokenmill.app.settings import Settings
from tokenmill.documents import Record
from tokenmill.eras import EraLog, close_era
from tokenmill.reading import Acceptor, Extent, Taken, genesis_point
from tokenmill.store import EraWriter, PartitionWriter, Store, StreamInfo
from tokenmill.wire.message import HEADER_NAME, Message, encode_header

DOCUMENT_BYTES: Final = 128
"""With its end-of-document id a little more than two blocks of 64 tokens, so that documents cross blocks."""
SEND_AT_ONCE: Final = 2000
"""Documents that are sent, read back and milled together."""


def small_settings(bootstrap_servers: str, store: Path) -> Settings:
    """Return settings that make many small blocks, messages and segments of little text: bytes are the tokens."""
    return Settings(
        bootstrap_servers=bootstrap_servers,
        raw_topics=("growth",),
        tokenizer="bytes",
        decode="text",
        splits={"all": 1000},
        sequence_length=63,
        segment_blocks=512,
        message_bytes=4096,
        store=store,
    )


class Grown:
    """One chain, on its topics and in a store."""

    def __init__(self, settings: Settings, settled: Settled, stages: Stages) -> None:
        """Begin with nothing; callers use `begin`."""
        recipe = settled.genesis.recipe
        self.settings = settings
        self.settled = settled
        self.stages = stages
        self.store = Store.open_or_create(settings.store)
        self.store.add_stream(StreamInfo.from_genesis(settled.genesis, settled.genesis.segment_blocks), None)
        self.append_seconds: list[float] = []
        """For each message: to accept, append and commit it, divided by its tokens."""
        self.messages = 0
        self.records = 0
        self._acceptor = Acceptor(recipe.fingerprint, 0, recipe.block_bytes)
        chain = ChainMill(recipe, genesis_point(0, self._acceptor.chain), message_bytes=settings.message_bytes)
        self._mill = PartitionMill(stages, [chain])

    @classmethod
    async def begin(cls, settings: Settings) -> Self:
        """Make the topics, settle the stream, and bring it into an empty store."""
        await ensure_topics(settings, partitions=1)
        plan = plan_topic(settings, settings.raw_topics[0])
        (stream, recipe), *_ = plan.recipes.items()
        settled = await settle(settings, stream, recipe, plan.tokenizer.content)
        return cls(settings, settled, plan.stages)

    @property
    def blocks(self) -> int:
        """Blocks in the store."""
        return self._acceptor.next_block

    async def grow(self, blocks: int) -> None:
        """Let documents come until there are that many blocks, on the topics and in the store."""
        while self.blocks < blocks:
            records = await self._more_records()
            messages = self._mill.feed(records).messages[self.settled.stream.split]
            await self._publish(messages)
            self._append(messages)
        self._close_era()

    def _close_era(self) -> None:
        """Make all blocks of the store trainable."""
        extents = {0: Extent(self.blocks, self._acceptor.chain)}
        with EraWriter.open(self.store, self.settled.stream.name) as eras:
            log = EraLog(self.settled.genesis.recipe.fingerprint, eras.last)
            era = close_era(log, extents, now=0, era_blocks=1, overdue=True)
            if era is not None:
                eras.append([(era, era.number)])

    async def _more_records(self) -> list[Record]:
        rng = Random(self.records)  # noqa: S311 - text of chance, the same each time
        topic, start = TopicPartition(self.settled.stream.raw_topic, 0), self.records
        async with producer(self.settings) as client:
            sent = [
                await client.send(topic.topic, rng.randbytes(DOCUMENT_BYTES // 2).hex().encode(), partition=0)
                for _ in range(SEND_AT_ONCE)
            ]
            await asyncio.gather(*sent)
        self.records += len(sent)
        async with consumer(self.settings) as client:
            found = [record async for record in read_range(client, topic, start, self.records)]
        return [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in found]

    async def _publish(self, messages: Sequence[Message]) -> None:
        topic = self.settled.stream.tokens_topic
        async with producer(self.settings) as client:
            sent = []
            for message in messages:
                headers = [(HEADER_NAME, encode_header(message))]
                sent.append(await client.send(topic, bytes(message.tokens), partition=0, headers=headers))
            await asyncio.gather(*sent)

    def _append(self, messages: Sequence[Message]) -> None:
        """Append as a segment worker does, with one commit a message; messages lie at consecutive offsets from 0."""
        block_tokens = self.settled.genesis.recipe.block_tokens
        with PartitionWriter.open(self.store, self.settled.stream.name, 0) as writer:
            for message in messages:
                started = perf_counter()
                verdict = self._acceptor.offer(message)
                if not isinstance(verdict, Taken):
                    raise BenchmarkError(f"a message was not taken: {verdict}")
                writer.append(verdict.blocks, token_offset=self.messages)
                writer.commit()
                self.append_seconds.append((perf_counter() - started) / (message.count * block_tokens))
                self.messages += 1
