"""What topic, store and reference have of a chain, each compared with what must be, up to its first difference.

The reference has a share of the records: which ones, a seed decides. Libraries encode several times faster with
hundreds of texts than one by one. As an engine's ids depend on the text and the tokenizer alone
(`app.milling.tokenizers.Engine`), a run's documents are encoded before the reference asks for each.
"""

from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, cast

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition
from zlib_ng.zlib_ng import crc32

from tokenmill.documents import SourceRecord
from tokenmill.errors import DamagedError, DifferenceError, StoreError, TokenMillError
from tokenmill.reading import Acceptor, Dropped, Gap, ResumePoint, Taken, resume_point
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
from ...milling.outcomes import Kind as RecordKind
from ...milling.outcomes import Stages
from ...milling.partition_mill import ChainMill
from ...milling.reference import Reference, ReferenceBlock
from ...milling.tokenizers import Engine, TokenBatch
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
        self._crcs = DataCrcs(0, 0)  # of all tokens of the segment below `next_block`, and of its document table
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
            segment.check(local)
            raise damaged(segment.paths.commits, f"the row of block {one.first} is not what was committed")
        try:
            segment.check(local)
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
        self.lost = 0  # blocks missing before a later one; known when `take` has raised that
        self.last: Message | None = None
        """The last message whose blocks were all taken, or a later carry: where the chain's cursor is."""
        self.first: int | None = None
        self.carries: list[Message] = []  # carries that were read and not yet checked; the check removes them
        self.ignored: set[int] = set()
        self._client, self._partition, self._recipe = client, partition, recipe
        self._span, self._ignore_list = span, ignored
        self._begin = since.token_offset if since is not None else 0
        self._chain = since.carry.after if since is not None else None
        self._messages = self._accepted()
        self._ahead: deque[AcceptedMessage] = deque()
        self._ahead_bytes = 0
        self._passed: int | None = None  # the source offset at which the last block that was read ahead ends
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

    def _offer(
        self, acceptor: Acceptor | None, record: SourceRecord, *, again: bool
    ) -> tuple[Acceptor, Message, Taken | Dropped | Gap] | None:
        """Offer a record; None for one that readers pass over. It is counted, unless it is read ``again``."""
        message = readable(record)
        if acceptor is None:
            if self._ignore_list.names(self._partition.partition, record):
                self.ignored.add(record.offset)
                return None
            block, before = self.next_block, self._chain
            if message is not None and self._span[0] > self._begin and message.first > block:
                block, before = message.first, message.before  # retention cut off what was before
            of_chain = self._recipe.fingerprint, self._partition.partition, self._recipe.block_bytes
            acceptor = Acceptor(*of_chain, block=block, chain=before)
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
        equal = run.is_equal(blocks.part(run.first, run.end))
        if not equal and (found := first_difference(blocks, run, self._recipe.token_dtype)) is not None:
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
        if (found := self.take(blocks, blocks + 1)) is not None:
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


class BatchedEngine:
    """An engine that remembers the ids of one batch of texts."""

    def __init__(self, engine: Engine) -> None:
        """Ask ``engine``, which must be the one that defines the stream's ids."""
        self._engine = engine
        self._batch: TokenBatch | None = None
        self._numbers: dict[str, int] = {}

    def prepare(self, texts: Sequence[str]) -> None:
        """Encode these texts now, and forget those before."""
        self._numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        self._batch = self._engine.encode(list(self._numbers))

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``."""
        if len(texts) == 1 and self._batch is not None and texts[0] in self._numbers:
            number = self._numbers[texts[0]]
            return self._batch.part(number, number + 1)
        return self._engine.encode(texts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@dataclass(frozen=True, slots=True)
class ReferenceSample:
    """What the reference recomputes in addition to the fast way."""

    seed: int
    """Decides the places; those of two verifications with one seed are the same."""
    everything: bool = False


EVERY_BYTES: Final = 64 * 1024 * 1024
"""One run in so many bytes of values: the reference takes some fifty times as long, and so a twentieth of the whole."""
RUN_BYTES: Final = 64 * 1024
"""A run is as many records as have so many bytes, and one at least."""
FIRST_BYTES: Final = 256 * 1024
"""The first run, at the very beginning, is longer: much of what can be wrong shows there."""


class Sampler:
    """Chooses the runs of one partition: at its beginning, and one anywhere in each `EVERY_BYTES` after that."""

    def __init__(self, sample: ReferenceSample, place: str) -> None:
        """Choose by the sample's seed; ``place`` names the partition, so that each has places of its own."""
        self._random = Random(f"{sample.seed}/{place}")  # noqa: S311 - not secret; the same places for the same seed
        self._everything = sample.everything
        self._passed = self._window = 0
        self._next: tuple[int, int] = (0, FIRST_BYTES)

    def choose(self, records: Sequence[SourceRecord]) -> tuple[int, int]:
        """Return which of the next records, ``[low, high)``, are a run."""
        if self._everything:
            return 0, len(records)
        sizes = np.array([len(record.value or b"") + 1 for record in records])  # even one without a value is passed
        begins, (start, stop) = self._passed + np.cumsum(sizes) - sizes, self._next
        low, high = np.searchsorted(begins, self._next).tolist()
        self._passed += int(sizes.sum())
        if self._passed >= stop:
            self._window = max(self._window + EVERY_BYTES, self._passed - self._passed % EVERY_BYTES)
            start = max(self._passed, self._window + self._random.randrange(EVERY_BYTES - RUN_BYTES))
            self._next = (start, start + RUN_BYTES)
        return low, high

    def parts(
        self, records: Sequence[SourceRecord], cuts: Iterable[int] = ()
    ) -> Iterator[tuple[Sequence[SourceRecord], bool]]:
        """Divide the next records around the run among them and before the offsets ``cuts``; say what is of the run."""
        low, high = self.choose(records)
        bounds = {0, low, high, len(records), *(sum(record.offset < cut for record in records) for cut in cuts)}
        for start, stop in pairwise(sorted(bounds)):
            yield records[start:stop], low <= start < high


class SampleCheck:
    """The reference at work on one run of records, for one chain."""

    def __init__(self, mill: ChainMill, result: ChainResult, stages: Stages, skips: Collection[int] = ()) -> None:
        """Begin where ``mill``, the fast way, is now; the engine of ``stages`` says which ids are right."""
        self._mill, self._result, self._skips = mill, result, skips
        carry = mill.carry(mill.next_offset, by_value=True)
        self._point: ResumePoint | None = resume_point(carry) if carry is not None else None
        self._engine = BatchedEngine(stages.engine)
        self._stages = replace(stages, engine=cast("Engine", self._engine))

    def compare(self, records: Sequence[SourceRecord], milled: Mapping[str, Sequence[Message]]) -> None:
        """Compute the records' blocks; note where the chain's in ``milled``, or what is left open, first differs."""
        result, recipe, point = self._result, self._mill.recipe, self._point
        differs = any(known.side == "reference" for known in result.differences)
        if point is None or differs or records[-1].offset < point.cursor.next_offset:
            return
        outcomes = [self._stages.outcome(record, self._skips) for record in records]
        kept = [o.document for o in outcomes if o.document is not None and o.kind_in(recipe.split) is RecordKind.KEPT]
        self._engine.prepare([document.text for document in kept])  # all at once
        reference = Reference.resumed(recipe, self._stages, result.partition, point, self._skips)
        blocks = list(reference.blocks(records))
        text = _first_difference(recipe, milled[recipe.split], blocks) or _state_difference(self._mill, reference)
        place = max(records[0].offset, point.cursor.next_offset), records[-1].offset + 1
        if text is not None:
            where = f"in the records at offsets {place[0]} to {place[1] - 1}, {text}"
            result.differences.append(
                VerifyDifference("reference", "different", result.stream, result.partition, where, offset=place[0])
            )
            return
        result.sampled_blocks += len(blocks)
        if result.sampled and result.sampled[-1][1] == place[0]:
            place = result.sampled.pop()[0], place[1]
        result.sampled.append(place)


def _first_difference(recipe: Recipe, messages: Sequence[Message], blocks: Sequence[ReferenceBlock]) -> str | None:
    at = 0
    for message in messages:
        own = blocks[at : at + message.count]
        at += message.count
        tokens, entries = b"".join([block.tokens for block in own]), [block.entry for block in own]
        wanted = BlockRun(message.first, tokens, entries, [block.chain for block in own])
        if (found := first_difference(wanted, BlockRun.of(message), recipe.token_dtype)) is not None:
            return f"block {found[0]} is another than the reference's: {found[1].text}"
        if len(own) < message.count:
            return f"the reference makes {len(blocks)} blocks, and not those from {message.first + len(own)} on"
        if (message.after, message.cursor) != (own[-1].chain, own[-1].cursor):
            return f"after block {own[-1].number} the reference is at {own[-1].cursor}, not at {message.cursor}"
        if message.references != own[-1].references:
            return f"after block {own[-1].number} other blocks are open than in the reference"
        if message.totals.pack() != own[-1].totals.pack():
            return f"the reference counts {own[-1].totals.to_dict()}, not {message.totals.to_dict()}"
    return None if at == len(blocks) else f"the reference makes {len(blocks) - at} blocks more"


def _state_difference(mill: ChainMill, reference: Reference) -> str | None:
    if (carry := mill.carry(mill.next_offset, by_value=True)) is None:
        return None
    if (carry.open_tokens, carry.open_entry, carry.references) != (*reference.open_block, reference.references):
        return "the open block is another than the reference's"
    if carry.totals.pack() != reference.totals.pack():
        return f"the reference counts {reference.totals.to_dict()}, not {carry.totals.to_dict()}"
    return None if carry.after == reference.chain else "the chain hash is another than the reference's"
