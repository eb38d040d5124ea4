"""The two sides of a chain, each followed up to its first difference; one that is wrong does not stop the other."""

from dataclasses import replace

from tokenmill.errors import DamagedError, StoreError
from tokenmill.recipe import Recipe
from tokenmill.wire.message import Message, encode_header
from tokenmill.wire.pieces import decode_entry

from .compare import BlockBytes, Expected, compare_blocks, document_id
from .era_ends import EraEnds
from .result import ChainResult, Difference, Kind, Side
from .store_copy import StoreCopy
from .token_topic import RogueMessageError, TokenTopic, TopicRun


class TopicSide:
    """The token topic, followed up to its first difference, which goes into the result."""

    def __init__(self, topic: TokenTopic, recipe: Recipe, result: ChainResult, ends: EraEnds) -> None:
        """Follow ``topic``, which must have been started, and hold the ``ends`` of eras against its blocks."""
        self.broken = False
        self._topic = topic
        self._ends = ends
        self._recipe = recipe
        self._result = result

    def compare(self, expected: Message, blocks: Expected) -> None:
        """Hold the topic's blocks with the numbers of a message, as far as there are any, against its ``blocks``.

        Where one of the topic's messages ends, so does the expected one, or its cursor is wrong.
        """
        at = expected.first
        while at < expected.end and (run := self.take(at, expected.end, blocks)) is not None:
            self._compare_run(run, blocks, expected)
            at = run.end

    def take(self, first: int, end: int, near: Expected | None = None) -> TopicRun | None:
        """Return the next run of the topic's blocks; what its readers refuse is a difference, ``near`` some block."""
        if self.broken:
            return None
        try:
            run = self._topic.take(first, end)
        except RogueMessageError as error:
            held = near is not None and near.first <= error.block < near.end
            self.differs(error.kind, str(error), error.block, near.block(error.block).entry if near and held else b"")
            return None
        if run is not None:
            self._check_ends(run)
        return run

    def _check_ends(self, run: TopicRun) -> None:
        """Hold the eras that end in a run against its hashes, up to the first that is wrong."""
        if not self._ends.wrong:
            found = self._ends.first_wrong(run)
            self._result.era_ends = self._ends.checked
            if found is not None:
                self._result.differences.append(other_blocks(self._result, *found))

    def _compare_run(self, run: TopicRun, blocks: Expected, expected: Message) -> None:
        count = len(run.entries)
        if run.chains is not blocks.chains and not self._is_equal(run, blocks):
            self._find(run, blocks)
            return
        message = run.message
        if message is not None and run.end != expected.end:
            text = f"the message that ends with it has the cursor {message.cursor}, past the records that make it"
            self.differs("account", text, run.end - 1, blocks.block(run.end - 1).entry)
        elif message is not None and (wrong := _account(message, expected)):
            self.differs("account", wrong, run.end - 1, blocks.block(run.end - 1).entry)
        else:
            self._result.topic_equal += count

    @staticmethod
    def _is_equal(run: TopicRun, blocks: Expected) -> bool:
        """Compare all bytes; who has the run's own hashes was found equal when it got them (`TokenTopic.roll`)."""
        count, last = len(run.entries), run.end - 1 - blocks.first
        return (
            run.chains[-1] == blocks.chains[last]
            and bytes(run.tokens) == blocks.tokens_from(run.first, count)
            and run.entries == blocks.entries_from(run.first, count)
        )

    def _find(self, run: TopicRun, blocks: Expected) -> None:
        """Find the first block of a run that differs, and how."""
        size = self._recipe.block_bytes
        for index, entry in enumerate(run.entries):
            number = run.first + index
            found = BlockBytes(run.tokens[index * size : (index + 1) * size], entry, run.chains[index])
            finding = compare_blocks(blocks.block(number), found, self._recipe.token_dtype)
            if finding is not None:
                known = difference(self._result, "topic", finding.kind, finding.text, block=number)
                self._stop(replace(known, offset=finding.offset, document=finding.document))
                return
            self._result.topic_equal += 1

    def era_lacks_blocks(self, era: int, block: int) -> None:
        """Note that an era names blocks that the topic does not hold."""
        text = (
            f"the era names blocks up to {block - 1}, the topic ends before block {self._topic.next_block}: it lost "
            "its end. Trainers wait for them: start the mill, which makes them anew, and verify again"
        )
        known = difference(self._result, "control topic", "missing", text, block=self._topic.next_block)
        self._result.differences.append(replace(known, era=era))

    def check_carry(self, found: Message, expected: Message) -> None:
        """Hold a carry against the one that belongs there: cursor, totals, chain hash and open block."""
        if encode_header(found) == encode_header(expected):
            self._result.carries_equal += 1
            return
        text = _account(found, expected) or "holds another open block than the records below its offset make"
        self.differs("account", f"the carry before it {text}", found.first)

    async def finish(self, blocks: int) -> None:
        """After the source's last of ``blocks`` blocks: the topic must not hold another."""
        await self._topic.fill()
        found = self.take(blocks, blocks + 1)
        if found is not None:
            text = f"the records below offset {self._result.raw_range[1]} make {blocks} blocks, the topic holds more"
            self.differs("extra", text, blocks, bytes(found.entries[0]))

    def differs(self, kind: Kind, text: str, block: int, entry: bytes | memoryview = b"") -> None:
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

    @property
    def next_block(self) -> int:
        """Number of the block after the last one that was compared."""
        return self._copy.next_block

    def compare(self, blocks: Expected) -> None:
        """Hold the store's blocks of these numbers, as far as it has any, and their checksums against them."""
        number, end = max(blocks.first, self._copy.first), min(blocks.end, self._copy.end)
        while not self.broken and number < end:
            try:
                equal = self._copy.equal_run(number, blocks)
            except (DamagedError, StoreError):
                equal = 0  # the block that says it is named below
            self._result.store_equal += equal
            number += equal
            if not equal:
                self._compare_one(number, blocks.block(number))
                number += 1

    def _compare_one(self, number: int, expected: BlockBytes) -> None:
        """Find out what is the matter with a block, if anything is."""
        try:
            found = self._copy.take(number)
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


def other_blocks(result: ChainResult, era: int, block: int) -> Difference:
    """Return the difference of an era that ends before ``block`` with another hash than the blocks there."""
    text = (
        "the era speaks of other blocks than the token topic holds before this one: the topic lost its end and got "
        "other text. Trainers halt before that era: give new text a stream of its own (stream_suffix)"
    )
    return replace(difference(result, "control topic", "different", text, block=block), era=era)


def _account(message: Message, expected: Message) -> str | None:
    """Return how a message's cursor or totals differ from those after the same block."""
    if message.cursor != expected.cursor:
        return f"the message that ends with it has the cursor {message.cursor}, not {expected.cursor}"
    if message.totals.pack() != expected.totals.pack():
        return f"the message that ends with it counts {message.totals.to_dict()}, not {expected.totals.to_dict()}"
    return None
