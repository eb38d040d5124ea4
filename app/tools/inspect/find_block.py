"""One block of a chain by its number: from a store, else from the token topic."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from aiokafka import TopicPartition

from tokenmill.errors import InputError, StoreError
from tokenmill.stages.engines import REFERENCE, Engine, open_engine
from tokenmill.store import open_partition, read_stream
from tokenmill.store.layout import SegmentPaths, partition_directory
from tokenmill.store.segment import Segment
from tokenmill.wire.genesis import Genesis
from tokenmill.wire.pieces import Piece, decode_entry

from ...kafka.clients import consumer, offsets
from ...kafka.settled_streams import settled_stream, tokenizer_of
from ...kafka.token_topic import message_of, message_with
from ...settings import Settings
from .samples import engine_in, genesis_in


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A block, where it was found, and what is needed to understand it."""

    genesis: Genesis
    engine: Engine
    tokens: npt.NDArray[np.unsignedinteger]
    pieces: list[Piece]
    chain: bytes
    """The chain hash after it."""
    where: str
    """The file, or the message."""


async def find_block(settings: Settings, stream: str, partition: int, block: int, store: Path | None) -> FoundBlock:
    """Return a block from ``store`` where that holds it, else from the token topic.

    Raises:
        InputError: neither holds it.
        TopicError, BrokerError: it is not in the store, and the topic cannot be asked.

    """
    found = _in_store(store, stream, partition, block) if store is not None else None
    return found or await _in_topic(settings, stream, partition, block)


def _in_store(store: Path, stream: str, partition: int, block: int) -> FoundBlock | None:
    try:
        info = read_stream(store, stream)
        reader = open_partition(store, stream, partition, check=True)
    except StoreError:
        return None
    if not reader.first_block <= block < reader.blocks:
        return None
    first = block - block % info.segment_blocks
    segment = Segment(SegmentPaths(partition_directory(store, stream, partition), first), info, partition)
    tokens = reader.read(block)
    chain = reader.chain_before(block + 1) or b""
    pieces = decode_entry(segment.entry(block - first))
    where = f"{segment.paths.tokens} block {block - first}"
    return FoundBlock(genesis_in(info), engine_in(store, info), tokens, pieces, chain, where)


async def _in_topic(settings: Settings, stream: str, partition: int, block: int) -> FoundBlock:
    settled = await settled_stream(settings, stream)
    recipe = settled.genesis.recipe
    tokens = TopicPartition(settled.stream.tokens_topic, partition)
    async with consumer(settings) as client:
        span = (await offsets(client, [tokens]))[tokens]
        record = await message_with(client, tokens, recipe.fingerprint, block, span)
    if record is None:
        raise InputError(
            f"{tokens.topic}[{partition}] does not hold block {block} (nor does a store): "
            f"`tokenmill inspect stream {stream}` says which blocks there are"
        )
    message = message_of(record, tokens)
    index = block - message.first
    size = recipe.block_bytes
    return FoundBlock(
        settled.genesis,
        open_engine(tokenizer_of(settled), REFERENCE),
        np.frombuffer(message.tokens[index * size : (index + 1) * size], recipe.token_dtype),
        decode_entry(message.entries[index]),
        message.after if block == message.end - 1 else b"",
        f"{tokens.topic}[{partition}] offset {record.offset} block {index}",
    )
