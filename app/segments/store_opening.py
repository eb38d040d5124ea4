"""Before a partition's first block: its stream in the store, the lock on its directory, and the place on its topic.

A partition continues with the block after the last one that its directory holds. That block is found on the token
topic by its number. Where retention has removed the first blocks, a new store begins at a later one.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import DiskError, GapError, LockedError, TokenMillError
from tokenmill.reading.acceptance import Acceptor, Gap
from tokenmill.recipe import RAW_BYTES_SHA256, Recipe
from tokenmill.store import PartitionWriter, Start, Store, StreamInfo
from tokenmill.store.layout import partition_directory

from ..kafka.clients import offsets, read_range
from ..kafka.control_log import IgnoreList
from ..kafka.control_topic import Settled
from ..kafka.token_topic import message_at, message_of, offered
from ..tasks import Backoff

DISK_SECONDS: Final = 0.5
"""How soon a partition that waits for its disk tries again; then ever later."""


async def bring_stream(store: Store, settled: Settled) -> None:
    """Let the store hold what the control topic says of a stream; durable on return.

    Raises FingerprintError where the store holds a stream of that name that was made with other settings, and DiskError
    where the store cannot be read or written to.
    """
    genesis = settled.genesis
    digest = genesis.recipe.tokenizer_sha256
    tokenizer = None if digest == RAW_BYTES_SHA256 else settled.control.tokenizer(digest)
    info = StreamInfo.from_genesis(genesis, genesis.segment_blocks)
    await asyncio.to_thread(store.add_stream, info, tokenizer)


async def open_writer(
    store: Store, stream: str, partition: int, wanted: Callable[[], bool], wait: Callable[[str, TokenMillError], None]
) -> PartitionWriter | None:
    """Lock and recover a partition's directory, however long another holds it; None once it is no longer ``wanted``.

    ``wait`` is called before each new attempt with what is waited for and why. Raises as `PartitionWriter.open`, but
    for `LockedError` and `DiskError`.
    """
    backoff = Backoff(DISK_SECONDS, 5.0)  # blocks come soon after it is back, and until then it is hardly touched
    while wanted():
        try:
            return await _opened(store, stream, partition)
        except LockedError as error:
            wait("waiting for the directory", error)
            await asyncio.sleep(0.25)
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
