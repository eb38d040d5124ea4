"""Where a new store begins when the token topic no longer holds the chain's first blocks."""

from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import GapError
from tokenmill.reading.acceptance import Acceptor, Gap
from tokenmill.recipe import Recipe
from tokenmill.store import Start
from tokenmill.store.layout import partition_directory
from tokenmill.wire.ignoring import IgnoreList
from tokenmill.wire.message import Message

from ..kafka.clients import offsets, read_range
from ..kafka.token_topic import message_of, offered


async def late_start(
    client: AIOKafkaConsumer, tokens: TopicPartition, recipe: Recipe, segment_blocks: int, ignored: IgnoreList
) -> Start | None:
    """Return the first segment border at or above the oldest retained block, with the chain hash before it.

    Segments begin at multiples of their length in every store, so up to one segment's blocks before the border are left
    out. None where the topic does not reach the border yet.

    Raises:
        DamagedError, DifferenceError, FingerprintError: the topic contradicts itself or the stream.

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
            acceptor = _acceptor_before(message, recipe, tokens.partition)
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
        f"segments from there on into {directory} from another store; or move that directory away, and it is begun "
        "anew with what the topic holds; then start the segment worker again"
    )


def _acceptor_before(message: Message, recipe: Recipe, partition: int) -> Acceptor:
    size = recipe.block_bytes
    return Acceptor(recipe.fingerprint, partition, size, block=message.first, chain=message.before)
