"""Where a partition of a store begins and reads on, on disk and on its topic, and what is done about a missing block.

A partition continues with the block after the last one that its directory holds. That block is found on the token
topic by its number. Where retention has removed the first blocks, a new store begins at a later one.

Most gaps heal: the next owner writes the missing block again, perhaps below the reader's position. So the reader goes
on to the end of the log as it was when the gap was seen, then looks through the whole partition again (`GapSearch`).
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import DiskError, GapError, LockedError, TokenMillError
from tokenmill.reading import FIRST_TAIL, Acceptor, FirstMessage, Gap, place_below
from tokenmill.recipe import RAW_BYTES_SHA256, Recipe
from tokenmill.store import PartitionWriter, Start, Store, StreamInfo
from tokenmill.store.layout import partition_directory
from tokenmill.wire.message import Message

from ..kafka.clients import offsets, read_range
from ..kafka.control_log import IgnoreList
from ..kafka.control_topic import Settled
from ..kafka.token_topic import message_at, message_of, offered
from ..tasks import Backoff

DISK_SECONDS: Final = 0.5
"""How soon a partition that waits for its disk tries again; then ever later ..."""
LONGEST_DISK_SECONDS: Final = 5.0
"""... up to this: blocks come soon after the disk is back, and until then it is hardly touched."""


async def bring_stream(store: Store, settled: Settled) -> None:
    """Let the store hold what the control topic says of a stream; durable on return.

    Raises FingerprintError where the store's stream has other settings, DiskError where the store cannot be used.
    """
    genesis = settled.genesis
    digest = genesis.recipe.tokenizer_sha256
    tokenizer = None if digest == RAW_BYTES_SHA256 else settled.control.tokenizer(digest)
    await asyncio.to_thread(store.add_stream, StreamInfo.from_genesis(genesis, genesis.segment_blocks), tokenizer)


async def open_writer(
    store: Store, stream: str, partition: int, wanted: Callable[[], bool], wait: Callable[[str, TokenMillError], None]
) -> PartitionWriter | None:
    """Lock and recover a partition's directory, however long another holds it; None once it is no longer ``wanted``.

    ``wait`` is called before each new attempt with what is waited for and why. Raises as `PartitionWriter.open`, but
    for `LockedError` and `DiskError`.
    """
    backoff = Backoff(DISK_SECONDS, LONGEST_DISK_SECONDS)
    while wanted():
        try:
            return await _opened(store, stream, partition)
        except LockedError as error:
            wait("waiting for the directory", error)
            await asyncio.sleep(0.25)  # another process lets go of a lock as it ends, which is a matter of seconds
        except DiskError as error:
            wait("waiting for the disk", error)
            await asyncio.sleep(backoff.next())
    return None


async def _opened(store: Store, stream: str, partition: int) -> PartitionWriter:
    """Open the writer in a thread; if this is cancelled meanwhile, the writer is closed and not left behind."""
    opening = asyncio.create_task(asyncio.to_thread(PartitionWriter.open, store, stream, partition))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(lambda done: None if done.exception() else done.result().close())
        raise


async def holds_beginning(client: AIOKafkaConsumer, tokens: TopicPartition, recipe: Recipe, block: int) -> bool:
    """Return whether the topic holds ``block``, or may still get it: retention has not removed it."""
    span = (await offsets(client, [tokens]))[tokens]
    oldest = await message_at(client, tokens, recipe.fingerprint, span)
    return not span[0] or oldest is None or oldest.first <= block


async def late_start(
    client: AIOKafkaConsumer, tokens: TopicPartition, recipe: Recipe, segment_blocks: int, ignored: IgnoreList
) -> Start | None:
    """Return the first segment border at or above the oldest retained block, with the chain hash before it.

    Segments begin at multiples of their length in every store, so up to one segment's blocks before the border are left
    out. None where the topic does not reach the border yet. Raises DamagedError, DifferenceError or FingerprintError
    where the topic contradicts itself or the stream.
    """
    first, end = (await offsets(client, [tokens]))[tokens]
    acceptor: Acceptor | None = None
    border = 0
    async for record in read_range(client, tokens, first, end):
        if ignored.names(tokens.partition, record):  # where a store begins is free: a later border is as good
            continue
        found = None if acceptor is None else offered(acceptor, record, tokens, ignored)
        if acceptor is None or (found is not None and isinstance(found[1], Gap)):  # what is below was cut off as well
            message = message_of(record, tokens)
            place = (recipe.fingerprint, tokens.partition, recipe.block_bytes)
            acceptor = Acceptor(*place, block=message.first, chain=message.before)
            border = -(-message.first // segment_blocks) * segment_blocks
            offered(acceptor, record, tokens, ignored)
        chain = acceptor.chain_at(border)
        if chain is not None:
            return Start(border, chain)
    return None


def cut_off(store: Path, stream: str, tokens: TopicPartition, wanted: int) -> GapError:
    """Return the error for blocks that retention took before a store that holds the ones before them had them."""
    directory = partition_directory(store, stream, tokens.partition)
    return GapError(
        f"{tokens.topic}[{tokens.partition}] no longer holds block {wanted}, its retention passed it: copy the sealed "
        f"segments from there on into {directory} from another store; or move that directory away, and it begins "
        "again with what the topic holds; then start the segment worker again"
    )


GAP_SECONDS: Final = 2.0
"""Seconds before a reader that misses a block looks through the whole token partition again; doubled with each look
that found nothing ..."""
LONGEST_GAP_SECONDS: Final = 60.0
"""... up to this."""


async def find_start(
    held: tuple[int, int], block: int, chain: bytes, hint: int, first_message: FirstMessage
) -> tuple[int, Message | None]:
    """Return an offset from which a reader that wants ``block`` reads: the hint where it is true, else by number.

    ``held`` are the first offset that the partition holds and the one after its last, ``chain`` is the hash before the
    block, ``hint`` the offset of the message that ended there. Returns the hint's message as well.

    Writers overlap, so what is found can be above a message that holds the block. Then a gap is seen, and everything
    is looked through; if a message comes that shows it. So none begins above the last messages of all writers together:
    among these is the one that reaches furthest.
    """
    first, end = held
    highest = max(first, end - FIRST_TAIL)
    if first <= hint < end:
        message = await first_message(hint)
        if message is not None and hint_holds(message, block, chain):
            return min(hint, highest), message
    return min(await place_below(held, block, first_message), highest), None


def hint_holds(message: Message, block: int, chain: bytes) -> bool:
    """Return whether reading may begin with this message: it holds the wanted block, or ends before it."""
    return message.first < block <= message.end and (message.end > block or message.after == chain)


class GapSearch:
    """What a reader remembers while it misses a block."""

    def __init__(self) -> None:
        self.missing: Gap | None = None
        """The gap as it was seen, or None."""
        self.vain_looks = 0
        """How often, in a row, all that the topic holds was looked through for a missing block, and in vain."""
        self._until = 0
        self._from_first = False
        self._cut = False
        self._lowest: int | None = None
        self._backoff = Backoff(GAP_SECONDS, LONGEST_GAP_SECONDS)

    def began(self, *, cut: bool, from_first: bool = False) -> None:
        """Begin to read again, ``from_first``: at the first offset of the partition, so that all of it is read.

        ``cut``: from there, and retention has removed what was before.
        """
        self.missing = None
        self._from_first = from_first
        self._cut = cut
        self._lowest = None

    def saw(self, message: Message) -> None:
        """Take note of a message, accepted or not."""
        if self._lowest is None or message.first < self._lowest:
            self._lowest = message.first

    def miss(self, gap: Gap, until: int) -> bool:
        """Take note of a gap; ``until`` is the end of the log as it is known. Returns whether it is a new one."""
        if self.missing is not None:
            return False
        self.missing, self._until = gap, until
        return True

    def is_over(self, position: int) -> bool:
        """Return whether a block was missing and everything that was in the log then has been read."""
        return self.missing is not None and position >= self._until

    def pause(self, block: int) -> float:
        """Return how many seconds to wait before all is looked through again; 0 where the missing block was found.

        ``block`` is the wanted one, now that the search is over. The wait doubles with each look that found nothing.
        """
        if self.missing is not None and block > self.missing.wanted:
            self.vain_looks = 0
            self._backoff.reset()
            return 0.0
        self.vain_looks += self._from_first
        return self._backoff.next()

    def is_hopeless(self, block: int) -> bool:
        """Return whether the block is below all blocks retained: all of them were read, and none is as low.

        The first message alone does not show it: after lost tails and with several writers a later one can hold lower
        blocks.
        """
        return self._cut and self._lowest is not None and self._lowest > block
