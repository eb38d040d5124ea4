"""How anyone reads a token partition: which blocks of a message continue a chain, and where a chain continues.

There is one implementation for every reader of a token topic. With ``n`` the next wanted block and ``h`` the chain hash
before it:

1. A message that begins after ``n`` is a gap. Most gaps heal, for the next owner writes the missing block again, and
   possibly below the reader's position: the reader looks again from the partition's start, then waits.
2. Blocks below ``n`` are dropped, the rest is taken. Writers cut messages differently, so a message may be cut here.
3. The hash before the message, rolled over the dropped blocks, must be ``h``; rolled on over the taken ones, it must be
   the hash after the message. A message that is dropped whole is held against what the reader remembers.
   A difference is loud: after a broker lost the tails of both logs, other text can be at the same offsets.

A new owner of a partition takes the furthest cursor of the contiguous run of messages, not that of the last message: a
zombie's older one may be there. Resuming from an older position is always safe, because the same records give the same
blocks. Everything is read again when a log moved meanwhile (retention, a lost tail): what a half-read log says is no
reason to halt.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from tokenmill.documents import SourceRecord
from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, GapError, MovedError, SourceError
from tokenmill.recipe import Genesis, Recipe
from tokenmill.wire.chain import NO_RECORD, Cursor, genesis_hash, record_crc, roll
from tokenmill.wire.message import Message
from tokenmill.wire.pieces import NO_BLOCKS, split_references
from tokenmill.wire.totals import Totals

MEMORY: Final = 4096
"""Chain hashes remembered for checking duplicates: what zombies write again is seldom older, and it costs 0.5 MB."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Consecutive blocks of one chain that a reader has accepted."""

    first: int
    tokens: bytes | memoryview
    """The blocks' token ids back to back, as they are on the wire and on disk."""
    entries: Sequence[bytes]
    chains: Sequence[bytes]

    @property
    def end(self) -> int:
        """Number of the block after the last one."""
        return self.first + len(self.entries)


@dataclass(frozen=True, slots=True)
class Taken:
    """The message continues the chain."""

    blocks: Blocks
    """What is new; nothing in a carry."""
    dropped: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Every block of the message had been taken before, or the message is an old carry."""

    dropped: int
    checked: bool
    """False where the blocks are older than the reader's memory, so that they could not be compared."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The message begins after the wanted block; nothing was taken."""

    wanted: int
    found: int


class Acceptor:
    """A reader's place in one chain; `offer` moves it on."""

    def __init__(
        self,
        fingerprint: bytes,
        partition: int,
        block_bytes: int,
        *,
        block: int = 0,
        chain: bytes | None = None,
        recall: Callable[[int], bytes | None] = lambda _: None,
    ) -> None:
        """Begin before ``block`` with the hash ``chain``; without these, at the chain's beginning.

        ``recall(block)`` gives the chain hash before an older block where the reader's own bytes still hold it.
        """
        self.next_block = block
        self.chain = chain if chain is not None else genesis_hash(fingerprint, partition)
        self._fingerprint = fingerprint
        self._partition = partition
        self._block_bytes = block_bytes
        self._recall = recall
        self._remembered = deque((self.chain,), MEMORY)

    def offer(self, message: Message) -> Taken | Dropped | Gap:
        """Take what is new in the message.

        Raises FingerprintError where it belongs to another stream; DamagedError where it contradicts itself;
        DifferenceError where it holds other blocks than those that the reader took.
        """
        self._check_form(message)
        if message.first > self.next_block:
            return Gap(self.next_block, message.first)
        chains = roll(message.before, message.tokens, message.entries)
        if (chains[-1] if chains else message.before) != message.after:
            raise DamagedError(f"{self._name(message)} does not hash to what its header says; look at what wrote it")
        if message.end < self.next_block or (message.end == self.next_block and not message.is_carry):
            return Dropped(message.count, checked=self._check_dropped(message, chains))
        dropped = self.next_block - message.first
        if (chains[dropped - 1] if dropped else message.before) != self.chain:
            raise DifferenceError(self._difference(message, self.next_block))
        return Taken(self._take(message, chains, dropped), dropped)

    def chain_at(self, block: int) -> bytes | None:
        """Return the chain hash before a block that was taken, or None where it is known no more."""
        at = block - self.next_block - 1
        return self._remembered[at] if -len(self._remembered) <= at < 0 else self._recall(block)

    def require_hash(self, block: int, chain: bytes) -> None:
        """Raise DifferenceError where the hash before a block that was taken is known, and another one."""
        known = self.chain_at(block)
        if known is not None and known != chain:
            raise DifferenceError(
                f"the token topic holds two histories of partition {self._partition} before block {block}: it or the "
                "raw topic lost its tail and other text came; `tokenmill verify` finds the first block that differs"
            )

    def _check_form(self, message: Message) -> None:
        if message.fingerprint != self._fingerprint:
            raise FingerprintError(
                f"{self._name(message)} has the fingerprint {message.fingerprint.hex()}, the stream's is "
                f"{self._fingerprint.hex()}: something with other settings writes to this topic; end it, "
                "and give it a stream name of its own"
            )
        if len(message.tokens) != message.count * self._block_bytes:
            raise DamagedError(
                f"{self._name(message)} holds {len(message.tokens)} bytes of tokens, "
                f"{message.count} blocks of {self._block_bytes} bytes were announced"
            )
        if message.cursor.block != message.end:
            raise DamagedError(
                f"{self._name(message)} ends before block {message.end}, and its cursor says {message.cursor.block}; "
                "look at what wrote it"
            )

    def _take(self, message: Message, chains: list[bytes], dropped: int) -> Blocks:
        blocks = Blocks(
            first=self.next_block,
            tokens=memoryview(message.tokens)[dropped * self._block_bytes :] if dropped else message.tokens,
            entries=message.entries[dropped:],
            chains=chains[dropped:],
        )
        self._remembered += blocks.chains
        self.next_block, self.chain = blocks.end, self._remembered[-1]
        return blocks

    def _check_dropped(self, message: Message, chains: list[bytes]) -> bool:
        hashes = [message.before, *chains]
        for block in range(message.end, message.first - 1, -1):
            known = self.chain_at(block)
            if known is not None:
                if known != hashes[block - message.first]:
                    raise DifferenceError(self._difference(message, block))
                return True
        return False

    def _difference(self, message: Message, block: int) -> str:
        return (
            f"{self._name(message)} continues other blocks than those taken before block {block}: the token topic or "
            "the raw topic lost its tail and other text came; `tokenmill verify` finds the first block that differs"
        )

    def _name(self, message: Message) -> str:
        kind = "the carry before block" if message.is_carry else "the message with first block"
        return f"{kind} {message.first} (partition {self._partition})"


NewAcceptor: TypeAlias = Callable[..., Acceptor]
"""Makes a reader that begins before a ``block`` with the ``chain`` hash before it; None: the chain's own first hash."""
FIRST_TAIL: Final = 8
"""Messages read at first: more than writers have in flight, so that a zombie's last words do not hide the run."""
LONGEST_TAIL: Final = 32
"""Messages after which the whole partition is read instead: 32 MiB of the usual 1 MiB."""
FirstMessage: TypeAlias = Callable[[int], Awaitable[Message | None]]
"""Reads the first message at or after an offset of the token partition; None where none is."""

ADVICE: Final = "the topic was deleted, recreated or rewritten; begin a new stream with stream_suffix"


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Everything that the next block depends on, except the source."""

    cursor: Cursor
    chain: bytes
    totals: Totals
    open_tokens: bytes = b""
    """The open blocks so far, where a carry holds them."""
    open_entry: bytes = b""
    references: bytes = NO_BLOCKS
    """The same as references, in a packing that has several."""

    @property
    def is_complete(self) -> bool:
        """Whether the tokens of all open blocks are here, so that none has to be read from the source again."""
        return not self.references or bool(self.open_tokens)

    @property
    def needs_from(self) -> int:
        """The lowest offset of the source that continuing here needs."""
        following = self.cursor.next_offset
        return following if self.is_complete else min(following, split_references(self.references).oldest)


@dataclass(frozen=True, slots=True)
class Run:
    """A contiguous run of messages within a tail."""

    point: ResumePoint
    """The furthest one in the run that the source still holds all of that it needs; else the furthest."""
    first: int
    furthest: Cursor


def genesis_point(start_offset: int, chain: bytes) -> ResumePoint:
    """Return the point at which a chain begins: ``start_offset`` is the genesis's for the partition."""
    return ResumePoint(Cursor(start_offset, 0, 0, NO_RECORD), chain, Totals())


class RunFinder:
    """Finds the contiguous runs among the messages of a token partition, whatever their order; `add` each one.

    Holds no message, so a whole partition can be read through it. More than one run means a gap: read more.
    """

    def __init__(self, new_acceptor: NewAcceptor, *, whole: bool, source_first: int = 0) -> None:
        """Make readers with ``new_acceptor``; ``source_first`` is the first offset that the source holds.

        With ``whole``, the messages will be all that there ever were: block 0 must continue the chain's own first hash.
        """
        self._new_acceptor = new_acceptor
        self._source_first = source_first
        self._open = [_new_run(new_acceptor(block=0, chain=None))] if whole else []

    def add(self, message: Message) -> None:
        """Take the next message; raises DifferenceError, DamagedError or FingerprintError as `Acceptor.offer`."""
        place = bisect_right(self._open, message.first, key=lambda run: run.first)
        if not place or message.first > self._open[place - 1].acceptor.next_block:
            self._open.insert(place, _new_run(self._new_acceptor(block=message.first, chain=message.before)))
            place += 1
        run = self._open[place - 1]
        if run.offer(message, self._source_first):
            while place < len(self._open) and self._open[place].first <= run.acceptor.next_block:
                run.join(self._open.pop(place))

    def runs(self) -> list[Run]:
        """Return the runs found so far, in the order of their blocks."""
        begun = [(run, run.furthest) for run in self._open if run.furthest is not None]
        return [Run(run.reached or furthest, run.first, furthest.cursor) for run, furthest in begun]


@dataclass(slots=True)
class _OpenRun:
    first: int
    before: bytes
    """Chain hash before the first block: the reader forgets it when the run grows long."""
    acceptor: Acceptor
    furthest: ResumePoint | None = None
    reached: ResumePoint | None = None
    """The furthest one that the source holds all of that it needs."""

    def offer(self, message: Message, source_first: int) -> bool:
        verdict = self.acceptor.offer(message)
        if isinstance(verdict, Gap):
            return False
        point = resume_point(message)
        if isinstance(verdict, Taken):
            self.furthest = _further(self.furthest, point)
        if point.needs_from >= source_first and (isinstance(verdict, Taken) or verdict.checked):
            self.reached = _further(self.reached, point)
        return isinstance(verdict, Taken)

    def join(self, other: "_OpenRun") -> None:
        """Become one with a run whose beginning this one has reached; raises DifferenceError where they differ."""
        ahead, behind = self.acceptor, other.acceptor
        if ahead.next_block < behind.next_block:
            ahead, behind = behind, ahead
        self.acceptor.require_hash(other.first, other.before)
        ahead.require_hash(behind.next_block, behind.chain)
        self.acceptor = ahead
        self.furthest, self.reached = _further(self.furthest, other.furthest), _further(self.reached, other.reached)


def _further(one: ResumePoint | None, other: ResumePoint | None) -> ResumePoint | None:
    """Return the further one of two points; of two at one place a complete one, if there is one."""
    points = [point for point in (one, other) if point is not None]
    return max(points, key=lambda point: (point.cursor.place, point.is_complete), default=None)


def _new_run(acceptor: Acceptor) -> _OpenRun:
    return _OpenRun(acceptor.next_block, acceptor.chain, acceptor)


def resume_point(message: Message) -> ResumePoint:
    """Return the point after a message."""
    return ResumePoint(
        message.cursor, message.after, message.totals, message.open_tokens, message.open_entry, message.references
    )


class ChainLogs(Protocol):
    """The token partition of a chain and its raw partition; all bounds are of committed records."""

    @property
    def tokens(self) -> str:
        """The token partition's name, for people: ``tokens.stream[3]``."""

    @property
    def source(self) -> str:
        """The raw partition's name, for people."""

    async def token_bounds(self) -> tuple[int, int]:
        """Return the first offset that the token partition holds, and the one after its last."""

    async def source_bounds(self) -> tuple[int, int]:
        """Return the same of the raw partition."""

    def messages(self, start: int, end: int) -> AsyncIterator[Message]:
        """Yield the token partition's messages ``[start, end)``; raises MovedError, DamagedError for strays."""

    async def record(self, offset: int) -> SourceRecord | None:
        """Return the raw partition's record at an offset, None where there is none; raises MovedError."""

    def records(self, start: int, end: int) -> AsyncIterator[Sequence[SourceRecord]]:
        """Yield the raw partition's records ``[start, end)``, several at a time; raises MovedError."""


class Extent(NamedTuple):
    """How far the blocks of a token partition reach without a gap."""

    blocks: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Tail:
    """Where a chain continues, and the end of the token partition when this was found out."""

    point: ResumePoint
    furthest: Cursor
    """The furthest cursor of the run: `point` is before it where the source no longer holds what that would need."""
    end_offset: int
    """Every later acknowledgement must be at or above it; below means that the topic lost its tail."""
    last: Sequence[Message] = ()
    """The last messages before ``end_offset``, at most `FIRST_TAIL`, in their order."""
    gap: tuple[int, int] | None = None
    """The blocks ``[from, to)`` that are missing for good before ``point``: the source no longer reaches them."""
    source_first: int = 0
    """The first offset that the source held when this was found out."""


async def find_tail(logs: ChainLogs, genesis: Genesis, partition: int) -> Tail:
    """Find where the chain of a partition continues.

    Takes the furthest cursor of the contiguous run at the end; where the source no longer reaches it, the run after
    a gap. Reads more, in the end everything, where the last messages do not settle it.

    Raises:
        GapError: blocks are missing and the source no longer holds their text.
        SourceError: the source is not the one that the chain was made of, or no longer reaches the cursor.
        DifferenceError, DamagedError, FingerprintError: the token topic contradicts itself or the stream.

    """
    while True:
        try:
            return await _find_tail(logs, genesis, partition)
        except MovedError:
            continue


async def _find_tail(logs: ChainLogs, genesis: Genesis, partition: int) -> Tail:
    first, end = await logs.token_bounds()
    held = await logs.source_bounds()
    found, whole, last = await _runs(logs, genesis.recipe, partition, first, end, source_first=held[0])
    if not found or (whole and found[0].first):  # the chain's beginning was never here: later blocks do not show it
        begin = genesis_point(genesis.start(partition), genesis_hash(genesis.recipe.fingerprint, partition))
        found = [Run(begin, 0, begin.cursor), *found]
    run = choose(found, logs, held[0])
    await check_source(logs, run.point.cursor, held)
    if run.furthest != run.point.cursor:
        await check_source(logs, run.furthest, held)
    gap = None if run is found[0] else (found[0].furthest.block, run.first)
    return Tail(before_gap(run.point, max(genesis.start(partition), held[0])), run.furthest, end, last, gap, held[0])


async def find_extent(logs: ChainLogs, recipe: Recipe, partition: int, known: int = 0) -> Extent | None:
    """Find how far the blocks of a token partition reach without a gap; None where its first one is not there.

    ``logs`` needs no raw partition. Blocks that retention removed count as there once were: a tail that is one run
    continues what was before it. So do the first ``known`` blocks, once seen without a gap: what retention left of a
    zombie's old messages must not hide the run that goes on behind them. Raises as `find_tail` where the token topic
    contradicts itself or the stream.
    """
    while True:
        try:
            first, end = await logs.token_bounds()
            found, whole, _ = await _runs(logs, recipe, partition, first, end)
        except MovedError:
            continue
        if not found or (whole and found[0].first):
            return None
        beyond = (run.point for run in found if first and run.first <= known < run.furthest.block)
        point = next(beyond, found[0].point)
        return Extent(point.cursor.block, point.chain)


async def _runs(
    logs: ChainLogs, recipe: Recipe, partition: int, first: int, end: int, *, source_first: int = 0
) -> tuple[list[Run], bool, Sequence[Message]]:
    """Read ever more of the tail until it is one run that the source still reaches, or the whole partition is read.

    Returns the runs, whether these messages are all that there ever were, and the last messages.
    """
    new_acceptor = partial(Acceptor, recipe.fingerprint, partition, recipe.block_bytes)
    size = FIRST_TAIL
    while True:
        start = max(first, end - size) if size <= LONGEST_TAIL else first
        whole = start == first == 0
        finder = RunFinder(new_acceptor, whole=whole, source_first=source_first)
        last = deque[Message](maxlen=FIRST_TAIL)
        async for message in logs.messages(start, end):
            finder.add(message)
            last.append(message)
        found = finder.runs()
        if start == first or (len(found) == 1 and found[0].point.needs_from >= source_first):
            return found, whole, tuple(last)
        size *= 2


def choose(found: list[Run], logs: ChainLogs, source_first: int) -> Run:
    """Return the first run whose end the source still reaches; raises GapError or SourceError where it reaches none."""
    for run in found:
        if source_first <= run.point.needs_from:
            return run
    wanted = found[-1].point.needs_from
    if len(found) > 1:
        raise GapError(
            f"{logs.tokens} lacks blocks {found[0].furthest.block} to {found[1].first - 1}, and {logs.source} "
            f"starts at {source_first}: their text is gone; begin a new stream with stream_suffix"
        )
    if found[-1].point.cursor.next_offset >= source_first:
        raise SourceError(
            f"{logs.source} starts at offset {source_first}, and open blocks hold tokens of records from {wanted} on, "
            "which were removed before these blocks were full or closed: raise the topic's retention, and begin a new "
            "stream with stream_suffix"
        )
    raise SourceError(
        f"{logs.source} starts at offset {source_first}, the chain needs {wanted}: records {wanted} to "
        f"{source_first - 1} were removed before they were milled; raise the topic's retention, and begin a new stream "
        "with stream_suffix"
    )


async def place_below(span: tuple[int, int], block: int, first_message: FirstMessage) -> int:
    """Return an offset of ``span`` from which on to read for a block, where numbers rise with offsets."""
    low, high = span
    while high - low > 1:
        middle = (low + high) // 2
        message = await first_message(middle)
        if message is not None and message.first <= block:
            low = middle
        else:
            high = middle
    return low


async def check_source(logs: ChainLogs, cursor: Cursor, held: tuple[int, int]) -> None:
    """Check that the record that a cursor remembers is there, unchanged, if the log (``held``) still reaches it.

    Raises SourceError where it is not, or the log ends before the cursor.
    """
    first, end = held
    if end < cursor.next_offset or end <= cursor.last_offset:
        raise SourceError(f"{logs.source} ends at offset {end}, the chain has passed {cursor.next_offset}: {ADVICE}")
    if cursor.last_offset == NO_RECORD or cursor.last_offset < first:
        return
    if not is_remembered(cursor, await logs.record(cursor.last_offset)):
        raise SourceError(
            f"{logs.source} no longer holds at offset {cursor.last_offset} what the chain was made of: {ADVICE}"
        )


def before_gap(point: ResumePoint, earliest: int) -> ResumePoint:
    """Return the same point, before the offsets without a producer's records that a carry's cursor has passed.

    A log that lost its tail there, and got other text, still holds the remembered record; so the chain goes on right
    behind it, at ``earliest`` or above.
    """
    cursor = point.cursor
    if cursor.within:
        return point
    behind = max(earliest, cursor.last_offset + 1)
    return replace(point, cursor=replace(cursor, next_offset=min(cursor.next_offset, behind)))


def is_remembered(cursor: Cursor, record: SourceRecord | None) -> bool:
    """Return whether a record of the source is the one that the cursor remembers."""
    return (
        record is not None
        and record.offset == cursor.last_offset
        and record_crc(record.key, record.value) == cursor.last_crc
        and record.timestamp == cursor.last_timestamp
    )
