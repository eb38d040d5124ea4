"""What topic and store hold of a chain, each compared with what must be, up to its first difference."""

from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from zlib_ng.zlib_ng import crc32

from tokenmill.documents import SourceRecord
from tokenmill.errors import DamagedError, DifferenceError, StoreError, TokenMillError
from tokenmill.reading.acceptance import Acceptor, Dropped, Gap, Taken
from tokenmill.recipe import Recipe
from tokenmill.store import StreamInfo
from tokenmill.store.layout import SegmentPaths, damaged, partition_directory
from tokenmill.store.maps import read_part
from tokenmill.store.sealing import DataCrcs, chain_after, check_sealed, check_sizes, entry_span, make_rows
from tokenmill.store.segment import Segment
from tokenmill.wire.message import Message, encode_header

from ...kafka.clients import read_range
from ...kafka.control_log import IgnoreList
from ...kafka.token_topic import REFUSALS, offered, readable
from .era_check import EraEnds
from .verify_bounds import StoreMark, VerifiedChain
from .verify_result import BlockRun, ChainResult, Kind, VerifyDifference, compare_blocks, first_difference


class StoreSide:
    """The blocks of one partition in a store, followed up to the first difference; one segment is mapped at a time."""

    def __init__(self, store: Path, info: StreamInfo, result: ChainResult, mark: StoreMark, *, since: int = 0) -> None:
        """Compare the blocks of ``mark``; those below ``since`` were verified before, and are not asked for."""
        self.next_block = max(mark.first, min(since, mark.end))
        self.broken = False
        self._mark, self._info, self._result = mark, info, result
        self._directory = partition_directory(store, info.name, result.partition)
        self._segment: Segment | None = None
        self._crcs = DataCrcs(0, 0)
        """Of all tokens of the segment below `next_block`, and of its document table."""
        if mark.damage:
            self._stop(result.difference("store", "damaged", mark.damage))

    def compare(self, blocks: BlockRun) -> None:
        """Compare the store's blocks of these numbers, as far as it has any, and their checksums."""
        number, end = max(blocks.first, self._mark.first), min(blocks.end, self._mark.end)
        while not self.broken and number < end:
            border = number - number % self._info.segment_blocks + self._info.segment_blocks
            run = blocks.part(number, min(end, border))
            try:
                equal = self._takes(run)
            except (DamagedError, StoreError):
                equal = False  # the block that says it is named below
            if not equal:
                self._find(run)
            number = run.end

    def _takes(self, run: BlockRun) -> bool:
        """Return whether the store has these blocks of one segment, all of them right, and go on behind them if so."""
        segment = self._locate(run.first)
        low, high = run.first - segment.paths.first, run.end - segment.paths.first
        rows, size, paths = segment.rows[low:high], self._info.block_bytes, segment.paths
        start, stop = entry_span(segment.rows, low)[0], int(rows["docs_end"][-1])
        tokens, documents = bytes(run.tokens), b"".join(run.entries)
        if make_rows(memoryview(tokens), run.entries, run.chains, start).tobytes() != rows.tobytes():
            return False
        if read_part(paths.tokens, low * size, high * size) != tokens:
            return False
        if read_part(paths.documents, start, stop) != documents:
            return False
        crcs = DataCrcs(crc32(tokens, self._crcs.tokens), crc32(documents, self._crcs.documents))
        if high == self._info.segment_blocks and segment.manifest is not None:
            check_sizes(paths, segment.manifest)
            check_sealed(paths, self._info, segment.manifest, crcs)
        self._crcs = crcs
        self.next_block = run.end
        self._result.store_equal += len(run.entries)
        return True

    def _find(self, run: BlockRun) -> None:
        for number in range(run.first, run.end):
            one = run.part(number, number + 1)
            try:
                if not self._takes(one):
                    self._stop(self._difference(one))
            except (DamagedError, StoreError) as error:
                text, entry = str(error), one.entries[0]
                self._stop(self._result.difference("store", "damaged", text, block=number, entry=entry))
            if self.broken:
                return

    def _difference(self, one: BlockRun) -> VerifyDifference:
        """Return how a block differs; damage where its bytes are not those that were committed."""
        segment = self._locate(one.first)
        local = one.first - segment.paths.first
        tokens, entry = memoryview(segment.tokens[local]).cast("B"), bytes(segment.entry(local))
        found = BlockRun(one.first, tokens, [entry], [chain_after(segment.rows, local)])
        finding = compare_blocks(one.block(one.first), found.block(one.first), self._info.dtype)
        if finding is None:
            segment.check_tokens(local)
            segment.check_entry(local)
            raise damaged(segment.paths.commits, f"the row of block {one.first} is not what was committed")
        try:
            segment.check_tokens(local)
            segment.check_entry(local)
        except DamagedError as error:
            finding = finding._replace(kind="damaged", text=f"{finding.text}; {error}")
        return self._result.found_difference("store", one.first, finding)

    def _locate(self, number: int) -> Segment:
        first = number - number % self._info.segment_blocks
        if self._segment is None or self._segment.paths.first != first:
            segment = Segment(SegmentPaths(self._directory, first), self._info, self._result.partition)
            wanted = min(self._mark.end - first, self._info.segment_blocks)
            if segment.blocks < wanted:
                raise damaged(segment.paths.commits, f"{segment.blocks} blocks are committed, {wanted} were before")
            self._segment, self._crcs = segment, DataCrcs(0, 0)
            if number > first:  # what was verified before belongs to the checksums of the whole files as well
                documents = segment.documents(0, entry_span(segment.rows, number - first - 1)[1])
                self._crcs = DataCrcs(crc32(segment.tokens[: number - first].tobytes()), crc32(documents))
        return self._segment

    def finish(self, blocks: int, source: str) -> None:
        """After the last of ``blocks`` blocks of the ``source``: the store must not hold another."""
        held = self._result.store_blocks
        if not self.broken and held is not None and held[1] > max(blocks, held[0]):
            text = f"{source} makes {blocks} blocks, the store holds {held[1]}"
            self._stop(self._result.difference("store", "extra", text, block=blocks))

    def _stop(self, found: VerifyDifference) -> None:
        self.broken = True
        self._result.differences.append(found)


AHEAD_BYTES: Final = 512 * 1024 * 1024
"""Most tokens that are held ahead of the source: only messages whose cursors do not advance get there."""


class RogueMessageError(TokenMillError):
    """A message that a reader of the token topic refuses, at a known place."""

    def __init__(self, kind: Kind, block: int, text: str) -> None:
        super().__init__(text)
        self.kind: Kind = kind
        self.block = block


class AcceptedMessage(NamedTuple):
    """A message with what was new in it."""

    offset: int
    message: Message
    blocks: BlockRun


class TokenTopic:
    """The blocks of one token partition between two offsets; held are those that were read ahead, and no others."""

    def __init__(
        self,
        client: AIOKafkaConsumer,
        partition: TopicPartition,
        recipe: Recipe,
        span: tuple[int, int],
        ignored: IgnoreList,
        *,
        since: VerifiedChain | None = None,
    ) -> None:
        """Read ``span`` of the partition with ``client``, used by nothing else; blocks ``since`` only, where given."""
        self.next_block = since.carry.first if since is not None else 0
        self.messages = self.carry_count = self.dropped = 0
        self.lost = 0
        """Blocks missing before a later one; known when `take` has raised that."""
        self.last: Message | None = None
        """The last message whose blocks were all taken, or a later carry: where the chain's cursor is."""
        self.first: int | None = None
        self.carries: list[Message] = []
        """Carries that were read and not yet checked; the check removes them."""
        self.ignored: set[int] = set()
        self._client, self._partition, self._recipe = client, partition, recipe
        self._span, self._ignore_list = span, ignored
        self._begin = since.token_offset if since is not None else 0
        self._chain = since.carry.after if since is not None else None
        self._messages = self._accepted()
        self._ahead: deque[AcceptedMessage] = deque()
        self._ahead_bytes = 0
        self._passed: int | None = None
        """The source offset at which the last block that was read ahead ends."""
        self._ended = False
        self._refused: RogueMessageError | None = None

    async def start(self) -> None:
        """Find the first block."""
        await self.fill()
        if self._ahead:
            self.first = self._ahead[0].blocks.first
            self.next_block = max(self.next_block, self.first)

    async def fill(self) -> None:
        """Read ahead one message with blocks, at least, if there is one."""
        while not self._ahead and not self._ended:
            await self._advance()

    async def read_to(self, offset: int) -> None:
        """Read ahead all messages that may hold blocks of the records below ``offset``, and the carries before them."""
        while not self._ended and (self._passed is None or self._passed <= offset):
            if self._ahead_bytes > AHEAD_BYTES:
                return
            await self._advance()

    @property
    def ends(self) -> list[int]:
        """The numbers of the blocks before which the messages that were read ahead end."""
        return [accepted.blocks.end for accepted in self._ahead]

    @property
    def next_offset(self) -> int:
        """Where the messages begin whose blocks were not all taken."""
        return self._ahead[0].offset if self._ahead else self._span[1]

    def take(self, first: int, end: int) -> BlockRun | None:
        """Return the next run of blocks within ``[first, end)``; None where the topic holds none of them at the mark.

        The numbers asked for rise. Raises RogueMessageError: readers refuse what is next, or miss blocks before it.
        """
        if not self._ahead:
            if self._refused is not None:
                raise self._refused
            return None
        accepted, blocks = self._ahead[0], self._ahead[0].blocks
        low, high = max(first, blocks.first, self.next_block), min(end, blocks.end)
        if low >= high:
            return None
        self.next_block = high
        if high == blocks.end:
            self._ahead.popleft()
            self._ahead_bytes -= len(blocks.tokens)
            self.last = accepted.message
        return blocks.part(low, high)

    async def _advance(self) -> None:
        """Read the next message that brings something; a refused one waits for `take`."""
        try:
            accepted = await anext(self._messages, None)
        except RogueMessageError as error:
            self._refused = error
            accepted = None
        if accepted is None:
            self._ended = True
        elif accepted.message.is_carry:
            self.carry_count += 1
            self.carries.append(accepted.message)
        else:
            self._ahead.append(accepted)
            self._ahead_bytes += len(accepted.blocks.tokens)
            self._passed = accepted.message.cursor.next_offset

    async def _accepted(self) -> AsyncIterator[AcceptedMessage]:
        """Yield each message that continues the chain, with its new blocks.

        One after a gap is passed over. As the missing blocks may have been written again above it, or below where an
        earlier verification ended, all is read once more, as long as that brings something.
        """
        acceptor: Acceptor | None = None
        (first, end), again = self._span, False
        start = min(max(first, self._begin), end)
        below = start > first
        while True:
            gap: Gap | None = None
            gap_offset = end
            async for record in read_range(self._client, self._partition, start, end):
                found = self._offer(acceptor, record, again=again)
                if found is None:
                    continue
                acceptor, message, verdict = found
                if isinstance(verdict, Taken):
                    new = verdict.blocks
                    run = BlockRun(new.first, new.tokens, new.entries, new.chains, message)
                    yield AcceptedMessage(record.offset, message, run)
                elif isinstance(verdict, Gap) and gap is None:
                    gap, gap_offset = verdict, record.offset
            if acceptor is None or gap is None:
                return
            if acceptor.next_block > gap.wanted:
                start = gap_offset
            elif below:
                start, below = first, False
            else:
                where = f"{self._partition.topic}[{self._partition.partition}]"
                text = f"{where}: blocks {gap.wanted} to {gap.found - 1} are missing, and later ones are there"
                self.lost = gap.found - gap.wanted
                raise RogueMessageError("missing", gap.wanted, text)
            again = True

    def _new_acceptor(self, first: Message) -> Acceptor:
        fingerprint, size, number = self._recipe.fingerprint, self._recipe.block_bytes, self._partition.partition
        if self._span[0] > self._begin and first.first > self.next_block:  # retention cut off what was before
            return Acceptor(fingerprint, number, size, block=first.first, chain=first.before)
        return Acceptor(fingerprint, number, size, block=self.next_block, chain=self._chain)

    def _offer(
        self, acceptor: Acceptor | None, record: SourceRecord, *, again: bool
    ) -> tuple[Acceptor, Message, Taken | Dropped | Gap] | None:
        """Offer a record; None for one that readers pass over. It is counted, unless it is read ``again``."""
        message = readable(record)
        if acceptor is None and self._ignore_list.names(self._partition.partition, record):
            self.ignored.add(record.offset)
            return None
        if acceptor is None and message is not None:
            acceptor = self._new_acceptor(message)
        acceptor = acceptor or Acceptor(self._recipe.fingerprint, self._partition.partition, self._recipe.block_bytes)
        try:
            found = offered(acceptor, record, self._partition, self._ignore_list)
        except REFUSALS as error:
            ahead = self._ahead[-1].blocks.end if self._ahead else self.next_block
            kind: Kind = "different" if isinstance(error, DifferenceError) else "foreign"
            raise RogueMessageError(kind, ahead if message is None else message.first, str(error)) from error
        if found is None:
            self.ignored.add(record.offset)
            return None
        if not again:
            self.messages += 1
            self.dropped += 0 if isinstance(found[1], Gap) else found[1].dropped
        return acceptor, *found


class TopicSide:
    """The token topic, followed up to its first difference, which goes into the result."""

    def __init__(self, topic: TokenTopic, recipe: Recipe, result: ChainResult, ends: EraEnds) -> None:
        """Follow ``topic``, which must have been started, and compare the ``ends`` of eras with its blocks."""
        self.broken = False
        self._topic, self._recipe, self._result, self._ends = topic, recipe, result, ends

    def compare(self, expected: Message, blocks: BlockRun) -> None:
        """Compare the topic's blocks of a message with its ``blocks``; the topic's messages must not end behind it."""
        at = expected.first
        while at < expected.end and (run := self.take(at, expected.end, blocks)) is not None:
            self._compare_run(run, blocks, expected)
            at = run.end

    def take(self, first: int, end: int, near: BlockRun | None = None) -> BlockRun | None:
        """Return the next run of the topic's blocks; what its readers refuse is a difference, ``near`` some block."""
        if self.broken:
            return None
        try:
            run = self._topic.take(first, end)
        except RogueMessageError as error:
            held = near is not None and near.first <= error.block < near.end
            self.differs(error.kind, str(error), error.block, near.block(error.block).entry if near and held else b"")
            return None
        if run is not None and not self._ends.wrong:
            found = self._ends.first_wrong(run)
            self._result.era_ends = self._ends.checked
            if found is not None:
                self._result.differences.append(self._result.other_blocks(*found))
        return run

    def _compare_run(self, run: BlockRun, blocks: BlockRun, expected: Message) -> None:
        if not run.is_equal(blocks.part(run.first, run.end)):
            found = first_difference(blocks, run, self._recipe.token_dtype)
            if found is not None:
                self._result.topic_equal += found[0] - run.first
                self._stop(self._result.found_difference("topic", *found))
                return
        message = run.message
        if message is not None and run.end != expected.end:
            text = f"the message that ends with it has the cursor {message.cursor}, past the records that make it"
            self.differs("account", text, run.end - 1, blocks.block(run.end - 1).entry)
        elif message is not None and (wrong := _account(message, expected)):
            self.differs("account", wrong, run.end - 1, blocks.block(run.end - 1).entry)
        else:
            self._result.topic_equal += len(run.entries)

    def era_lacks_blocks(self, era: int, block: int) -> None:
        """Note that an era names blocks that the topic does not hold."""
        text = (
            f"the era names blocks up to {block - 1}, the topic ends before block {self._topic.next_block}: it lost "
            "its end. Trainers wait for them: start the mill, which makes them again, and verify again"
        )
        known = self._result.difference("control topic", "missing", text, block=self._topic.next_block, era=era)
        self._result.differences.append(known)

    def check_carry(self, found: Message, expected: Message) -> None:
        """Compare a carry with the one that belongs there: cursor, totals, chain hash and open block."""
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

    def differs(self, kind: Kind, text: str, block: int, entry: bytes = b"") -> None:
        """Note the first difference and compare no more."""
        if not self.broken:
            self._stop(self._result.difference("topic", kind, text, block=block, entry=entry))

    def _stop(self, found: VerifyDifference) -> None:
        self.broken = True
        self._result.differences.append(found)


def _account(message: Message, expected: Message) -> str | None:
    if message.cursor != expected.cursor:
        return f"the message that ends with it has the cursor {message.cursor}, not {expected.cursor}"
    if message.totals.pack() != expected.totals.pack():
        return f"the message that ends with it counts {message.totals.to_dict()}, not {expected.totals.to_dict()}"
    if message.references != expected.references:
        return "the message that ends with it refers to other open blocks than the records make"
    return None
