"""The broker that all contenders share, and the raw topics on it, filled once."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from aiokafka.admin import NewTopic

from benchmarks.contenders.hand_written import BLOCK, split_of, with_gigatoken
from benchmarks.corpus import Document
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.app.sources import GivenSource, Item
from tokenmill.app.tools.produce.producing import partition_of, produce

PARTITIONS: Final = 2
"""One for each worker, where there are two."""
COUNTED_AT_ONCE: Final = 2048


@dataclass(frozen=True, slots=True)
class RawTopic:
    """A topic full of documents, and what must become of them."""

    name: str
    documents: int
    text_bytes: int
    tokens: int
    """End-of-document ids included."""
    partitions: int
    block_tokens: int
    """Tokens of all full blocks, when every (split, partition) is packed by itself."""


def fill(
    broker: Broker, name: str, found: Iterable[Document], tokenizer: Path, *, partitions: int = PARTITIONS
) -> RawTopic:
    """Make a raw topic of documents; all are acknowledged."""
    settings = Settings(bootstrap_servers=broker.bootstrap_servers, raw_topics=(name,))
    asyncio.run(ensure_topics(settings, partitions=partitions))
    count = _Count(tokenizer, partitions)
    summary = asyncio.run(produce(settings, name, [GivenSource(count.items(found))]))
    if summary.documents != count.documents or summary.refused:
        raise ValueError(f"{summary.documents} of {count.documents} documents were sent: {summary.examples}")
    whole = sum(tokens // BLOCK * BLOCK for tokens in count.chains.values())
    return RawTopic(name, count.documents, count.text_bytes, sum(count.chains.values()), partitions, whole)


class _Count:
    """Counts tokens by split and partition as documents pass by."""

    def __init__(self, tokenizer: Path, partitions: int) -> None:
        self._partitions = partitions
        self.documents = 0
        self.text_bytes = 0
        self.chains: dict[tuple[str, int], int] = {}
        self._encode = with_gigatoken(tokenizer)

    def items(self, found: Iterable[Document]) -> Iterator[Item]:
        """Yield the documents as `produce` takes them, and count each where it puts it."""
        found = iter(found)
        while batch := list(islice(found, COUNTED_AT_ONCE)):
            _, offsets = self._encode([document.text for document in batch])
            for document, length in zip(batch, (offsets[1:] - offsets[:-1]).tolist(), strict=True):
                chain = split_of(document.id), partition_of(self.documents, None, self._partitions)
                self.chains[chain] = self.chains.get(chain, 0) + length + 1
                self.documents += 1
                self.text_bytes += len(document.text.encode())
                yield Item(document.value, document.text)


def make_topics(settings: Settings, names: Sequence[str]) -> None:
    """Create topics with `PARTITIONS` partitions each."""

    async def create() -> None:
        async with admin(settings) as client:
            await client.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])

    asyncio.run(create())


def delete_topics(settings: Settings, names: Sequence[str]) -> None:
    """Delete topics, so that the disk holds one run at a time."""

    async def delete() -> None:
        async with admin(settings) as client:
            await client.delete_topics(list(names))

    asyncio.run(delete())
