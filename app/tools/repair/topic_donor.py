"""The token topic as the giver of a store's lost blocks."""

import asyncio
from collections.abc import Iterator

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import DamagedError
from tokenmill.recipe import Recipe
from tokenmill.store.donor import Given
from tokenmill.wire.chain import next_hash
from tokenmill.wire.message import Message

from ...kafka.clients import consumer, offsets, read_range
from ...kafka.token_topic import message_of, offset_before, record_at
from ...settings import Settings

log = structlog.get_logger(__name__)


class TopicDonor:
    """One token partition (`tokenmill.store.donor.Donor`)."""

    def __init__(self, settings: Settings, recipe: Recipe, tokens: TopicPartition) -> None:
        """Ask no broker yet."""
        self._settings = settings
        self._recipe = recipe
        self._tokens = tokens

    def give(self, first: int, end: int) -> Iterator[Given]:
        """Yield what the topic retains of the blocks ``[first, end)``; messages that no reader takes are passed over.

        Raises:
            BrokerError: no broker answers.
            SourceError: retention removed messages while they were read.

        """
        yield from asyncio.run(self._read(first, end))

    async def _read(self, first: int, end: int) -> list[Given]:
        async with consumer(self._settings) as client:
            span = (await offsets(client, [self._tokens]))[self._tokens]
            low = span[0]
            try:
                oldest = await record_at(client, self._tokens, *span)
                if oldest is None or (span[0] and message_of(oldest, self._tokens).first >= end):
                    return []
                low = await offset_before(client, self._tokens, self._recipe.fingerprint, first, span)
            except DamagedError as error:  # somebody else's message: what is wanted lies anywhere
                log.warning("reading the whole partition", reason=str(error))
            found = await self._collect(client, (low, span[1]), first, end)
            if _numbers(found) < end - first and low > span[0]:  # written again, below what the search looked at
                found = await self._collect(client, span, first, end)
            return found

    async def _collect(self, client: AIOKafkaConsumer, span: tuple[int, int], first: int, end: int) -> list[Given]:
        """Return the blocks ``[first, end)`` in ``span``, up to where each was found once."""
        found: list[Given] = []
        missing = set(range(first, end))
        async for record in read_range(client, self._tokens, *span):
            try:
                blocks = self._blocks(message_of(record, self._tokens))
            except DamagedError:
                continue
            wanted = [block for block in blocks if first <= block.number < end]
            found += wanted
            missing -= {block.number for block in wanted}
            if not missing:
                break
        return found

    def _blocks(self, message: Message) -> list[Given]:
        """Return the blocks of a message, if it is one of this stream's and agrees with itself; else none."""
        size, chain, blocks = self._recipe.block_bytes, message.before, []
        if message.fingerprint != self._recipe.fingerprint or len(message.tokens) != message.count * size:
            return []
        for index, entry in enumerate(message.entries):
            tokens = bytes(message.tokens[index * size : (index + 1) * size])
            blocks.append(Given(message.first + index, tokens, entry, chain))
            chain = next_hash(chain, tokens, entry)
        return blocks if chain == message.after else []


def _numbers(blocks: list[Given]) -> int:
    return len({block.number for block in blocks})
