"""The token topic's side of a chain: its blocks in order, accepted as every reader accepts them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from tokenmill.acceptance import Acceptor, Blocks, Dropped, Gap, Taken
from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, TokenMillError
from tokenmill.message import Message
from tokenmill.recipe import Recipe

from ..kafka import read_range
from ..tail import message_of
from .compare import BlockBytes
from .result import Kind


class RogueMessageError(TokenMillError):
    """A message that a reader of the token topic refuses, at a known place."""

    def __init__(self, kind: Kind, block: int, text: str) -> None:
        """Keep apart what a difference names."""
        super().__init__(text)
        self.kind: Kind = kind
        self.block = block


@dataclass(frozen=True, slots=True)
class TopicBlock:
    """One accepted block, and its message where the block is the message's last."""

    bytes: BlockBytes
    message: Message | None


class TokenTopic:
    """The blocks of one token partition between two offsets; never more than one message in memory."""

    def __init__(
        self, client: AIOKafkaConsumer, partition: TopicPartition, recipe: Recipe, span: tuple[int, int]
    ) -> None:
        """Read ``span`` of the partition with ``client``, which is this object's alone."""
        self.first: int | None = None
        """Number of the first block that is retained, if any; known after `start`."""
        self.next_block = 0
        """Number of the block after the last one taken."""
        self.messages = 0
        self.dropped = 0
        self.lost = 0
        """Blocks missing before a later one; known when `take` has raised that."""
        self.last: Message | None = None
        """The last message whose blocks were all taken, or a later carry: where the chain's cursor is."""
        self.carries: list[Message] = []
        """Carries that stand before the block that comes next; whoever checks them removes them."""
        self.carry_count = 0
        self._client = client
        self._partition = partition
        self._recipe = recipe
        self._span = span
        self._messages = self._accepted()
        self._current: tuple[Message, Blocks] | None = None
        self._refused: RogueMessageError | None = None

    async def start(self) -> None:
        """Load the first message."""
        await self._advance()
        if self._current is not None:
            self.first = self.next_block = self._current[1].first

    async def take(self, number: int) -> TopicBlock | None:
        """Return a block, the numbers asked for in order; None where the topic does not hold it at the mark.

        After the return, the carries that stand before the following block are in `carries`.

        Raises:
            RogueMessageError: what comes next in the topic is refused by its readers, or later blocks stand there
                without those before them.

        """
        if self._refused is not None:
            raise self._refused
        if self._current is None or number < self._current[1].first:
            return None
        message, blocks = self._current
        index = number - blocks.first
        size = self._recipe.block_bytes
        view = memoryview(blocks.tokens)[index * size : (index + 1) * size]
        last = number + 1 == blocks.end
        block = TopicBlock(BlockBytes(view, blocks.entries[index], blocks.chains[index]), message if last else None)
        self.next_block = number + 1
        if last:
            self.last = message
            await self._advance()
        return block

    async def _advance(self) -> None:
        """Load the next message that brings blocks, noting the carries before it; a refused one waits for `take`."""
        self._current = None
        while True:
            try:
                accepted = await anext(self._messages, None)
            except RogueMessageError as error:
                self._refused = error
                return
            if accepted is None:
                return
            message, blocks = accepted
            if not message.is_carry:
                self._current = message, blocks
                return
            self.carry_count += 1
            self.carries.append(message)
            self.last = message

    async def _accepted(self) -> AsyncIterator[tuple[Message, Blocks]]:
        """Yield each message that continues the chain, with its new blocks.

        A message after a gap is passed over. The missing blocks may have been written again above it, so what follows
        it is then read once more, as long as that brings something.
        """
        acceptor: Acceptor | None = None
        start, end = self._span
        while True:
            gap: Gap | None = None
            gap_offset = end
            async for record in read_range(self._client, self._partition, start, end):
                message = self._decode(record)
                acceptor = acceptor or self._new_acceptor(message)
                verdict = self._offer(acceptor, message, record.offset, again=start != self._span[0])
                if isinstance(verdict, Taken):
                    yield message, verdict.blocks
                elif isinstance(verdict, Gap) and gap is None:
                    gap, gap_offset = verdict, record.offset
            if acceptor is None or gap is None:
                return
            if acceptor.next_block == gap.wanted:
                text = f"blocks {gap.wanted} to {gap.found - 1} are missing, and later ones are there"
                self.lost = gap.found - gap.wanted
                raise RogueMessageError("missing", gap.wanted, f"{self._name}: {text}")
            start = gap_offset

    def _new_acceptor(self, first: Message) -> Acceptor:
        """Begin at block 0, or, where retention cut the beginning off, with the first message."""
        fingerprint, size, number = self._recipe.fingerprint, self._recipe.block_bytes, self._partition.partition
        if self._span[0] == 0:
            return Acceptor(fingerprint, number, size)
        return Acceptor(fingerprint, number, size, block=first.first, chain=first.before)

    def _decode(self, record: ConsumerRecord) -> Message:
        try:
            return message_of(record)
        except DamagedError as error:
            raise RogueMessageError("foreign", self.next_block, str(error)) from error

    def _offer(self, acceptor: Acceptor, message: Message, offset: int, *, again: bool) -> Taken | Dropped | Gap:
        """Offer a message; count it, unless it is read ``again``."""
        try:
            verdict = acceptor.offer(message)
        except (DamagedError, DifferenceError, FingerprintError) as error:
            kind: Kind = "different" if isinstance(error, DifferenceError) else "foreign"
            raise RogueMessageError(kind, message.first, f"offset {offset} of {self._name}: {error}") from error
        if not again:
            self.messages += 1
            self.dropped += 0 if isinstance(verdict, Gap) else verdict.dropped
        return verdict

    @property
    def _name(self) -> str:
        return f"{self._partition.topic}[{self._partition.partition}]"
