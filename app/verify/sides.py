"""The two sides of a chain, each followed up to its first difference; one that is wrong does not stop the other."""

from dataclasses import replace

from tokenmill.cursor import Cursor
from tokenmill.errors import DamagedError, StoreError
from tokenmill.message import Message
from tokenmill.pieces import decode_entry
from tokenmill.recipe import Recipe
from tokenmill.reference import ReferenceBlock
from tokenmill.totals import Totals

from .compare import BlockBytes, compare_blocks, document_id
from .result import ChainResult, Difference, Kind, Side
from .store_copy import StoreCopy
from .token_topic import RogueMessageError, TokenTopic, TopicBlock


class TopicSide:
    """The token topic, followed up to its first difference, which goes into the result."""

    def __init__(self, topic: TokenTopic, recipe: Recipe, result: ChainResult) -> None:
        """Follow ``topic``, which must have been started."""
        self.broken = False
        self._topic = topic
        self._recipe = recipe
        self._result = result

    async def take(self, number: int, entry: bytes = b"") -> TopicBlock | None:
        """Return a block, None where there is none; what readers refuse is a difference, near the block's ``entry``."""
        if self.broken:
            return None
        try:
            return await self._topic.take(number)
        except RogueMessageError as error:
            self.differs(error.kind, str(error), error.block, entry if error.block == number else b"")
            return None

    async def compare(self, block: ReferenceBlock) -> None:
        """Hold the topic's block of that number, if it has one, against the reference's."""
        found = await self.take(block.number, block.entry)
        if found is None:
            return
        expected = BlockBytes(block.tokens, block.entry, block.chain)
        finding = compare_blocks(expected, found.bytes, self._recipe.token_dtype)
        if finding is not None:
            known = difference(self._result, "topic", finding.kind, finding.text, block=block.number)
            self._stop(replace(known, offset=finding.offset, document=finding.document))
        elif found.message is not None and (text := _account(found.message, block.cursor, block.totals)):
            self.differs("account", text, block.number, block.entry)
        else:
            self._result.topic_equal += 1

    async def finish(self, blocks: int) -> None:
        """After the source's last of ``blocks`` blocks: the topic must not hold another."""
        found = await self.take(blocks)
        if found is not None:
            text = f"the records below offset {self._result.raw_range[1]} make {blocks} blocks, the topic holds more"
            self.differs("extra", text, blocks, bytes(found.bytes.entry))

    def differs(self, kind: Kind, text: str, block: int, entry: bytes = b"") -> None:
        """Note the first difference and compare no more."""
        if not self.broken:
            self._stop(difference(self._result, "topic", kind, text, block=block, entry=entry))

    def _stop(self, found: Difference) -> None:
        self.broken = True
        self._result.differences.append(found)


class StoreSide:
    """The store, followed up to its first difference, which goes into the result."""

    def __init__(self, copy: StoreCopy, recipe: Recipe, result: ChainResult) -> None:
        """Follow ``copy``."""
        self.broken = False
        self._copy = copy
        self._recipe = recipe
        self._result = result

    def compare(self, number: int, expected: BlockBytes) -> None:
        """Hold the store's block, if it has one, and its checksums against what it must be."""
        if self.broken:
            return
        try:
            found = self._copy.take(number)
            if found is None:
                return
            finding = compare_blocks(expected, found, self._recipe.token_dtype)
            if finding is None:
                self._copy.check(number)
                self._result.store_equal += 1
                return
        except (DamagedError, StoreError) as error:
            self._stop(difference(self._result, "store", "damaged", str(error), block=number, entry=expected.entry))
            return
        kind, text = finding.kind, finding.text
        try:
            self._copy.check(number)
        except DamagedError as error:
            kind, text = "damaged", f"{text}; {error}"
        known = difference(self._result, "store", kind, text, block=number)
        self._stop(replace(known, offset=finding.offset, document=finding.document))

    def finish(self, blocks: int, source: str) -> None:
        """After the last of ``blocks`` blocks of the ``source``: the store must not hold another."""
        held = self._result.store_blocks
        if not self.broken and held is not None and held[1] > max(blocks, held[0]):
            text = f"{source} makes {blocks} blocks, the store holds {held[1]}"
            self._stop(difference(self._result, "store", "extra", text, block=blocks))

    def _stop(self, found: Difference) -> None:
        self.broken = True
        self._result.differences.append(found)


def difference(
    result: ChainResult,
    side: Side,
    kind: Kind,
    text: str,
    *,
    block: int | None = None,
    entry: bytes | memoryview = b"",
) -> Difference:
    """Return a difference in a block; in the first document of its ``entry``, as nothing closer is known."""
    piece = decode_entry(entry)[0] if entry else None
    offset, document = (piece.offset, document_id(piece)) if piece is not None else (None, None)
    return Difference(side, kind, result.stream, result.partition, text, block, offset, document)


def _account(message: Message, cursor: Cursor, totals: Totals) -> str | None:
    """Return how a message's cursor or totals differ from the reference's after the same block."""
    if message.cursor != cursor:
        return f"the message that ends with it has the cursor {message.cursor}, not {cursor}"
    if message.totals.pack() != totals.pack():
        return f"the message that ends with it counts {message.totals.to_dict()}, not {totals.to_dict()}"
    return None
