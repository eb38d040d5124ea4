"""One block of a chain, from a store or the token topic, and back to the Kafka records that it came from."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import (
    BrokerError,
    InputError,
    RecordError,
    RegistryError,
    SettingsError,
    SourceError,
    StoreError,
    TopicError,
)
from tokenmill.store import StreamInfo, open_partition, read_stream, read_tokenizer
from tokenmill.store.layout import SegmentPaths, is_packed, partition_directory
from tokenmill.store.segment import Segment
from tokenmill.wire.genesis import Genesis
from tokenmill.wire.pieces import PADDING, Piece, decode_entry

from ...kafka.clients import consumer, offsets, read_range
from ...kafka.control_topic import require_topic
from ...kafka.schema_registry import schemas_for_command
from ...kafka.settled_streams import settled_stream, tokenizer_of
from ...kafka.token_topic import message_of, message_with
from ...milling.decoding import Decoder
from ...milling.recipe_stages import decoder_of
from ...milling.tokenizers import REFERENCE, Engine, TokenizerFile, open_engine
from ...settings import Settings


def decode(engine: Engine, tokens: npt.NDArray[np.unsignedinteger] | Sequence[int]) -> str:
    """Return the text of token ids."""
    return engine.decode([int(token) for token in tokens])


def genesis_in(info: StreamInfo) -> Genesis:
    """Return the genesis that a store's ``stream.json`` repeats."""
    values: dict[str, Any] = info.values["genesis"]
    return Genesis.from_dict(values)


def engine_in(store: Path, info: StreamInfo) -> Engine:
    """Return the engine of a stream in a store, which holds its tokenizer."""
    return open_engine(TokenizerFile(info.name, read_tokenizer(store, info)), REFERENCE)


def meta_of(piece: Piece) -> dict[str, Any]:
    """Return the id and carried fields of a piece's document; nothing of a piece whose meta cannot be read."""
    try:
        meta = json.loads(piece.meta) if piece.meta else {}
    except ValueError:
        return {}
    return meta if isinstance(meta, dict) else {}


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


@dataclass(frozen=True, slots=True)
class RecordText:
    """A Kafka record, as far as people want to see it."""

    key: str | None
    timestamp: int
    value_bytes: int
    text: str
    """The whole text of its document; of a record that cannot be decoded now, its value."""


@dataclass(frozen=True, slots=True)
class TracedPiece:
    """The tokens ``[start, stop)`` of a block, and the record that they came from."""

    start: int
    stop: int
    topic: str
    partition: int
    offset: int
    position: int
    """Number of the first of these tokens among the document's; -1: a flush at this offset padded the block."""
    id: str | int | None
    fields: Mapping[str, Any]
    text: str
    """The tokens as text."""
    record: RecordText | None
    """None where it was not asked for, or could not be had (`BlockTrace.note`)."""

    @property
    def padding(self) -> bool:
        """Whether no document wrote these tokens."""
        return self.position == PADDING


@dataclass(frozen=True, slots=True)
class BlockTrace:
    """A block, its documents, and their records."""

    stream: str
    partition: int
    block: int
    where: str
    """The file, or the message, in which it was found."""
    tokens: int
    text: str
    """All of the block's tokens as text."""
    pieces: Sequence[TracedPiece]
    note: str | None = None
    """Why records are missing."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return asdict(self)


async def trace_block(
    settings: Settings,
    stream: str,
    partition: int,
    block: int,
    *,
    store: Path | None = None,
    records: bool = True,
) -> BlockTrace:
    """Return a block from ``store`` or else from the token topic, with the Kafka records of its documents.

    A block is returned without records, and with a note, where the raw topic cannot be asked: one in the store without
    a broker, and any to a login that may not read raw text.

    Raises:
        InputError: the block is nowhere.
        TopicError, BrokerError: it is not in the store, and the topic cannot be asked.

    """
    found = await find_block(settings, stream, partition, block, store)
    texts: dict[int, RecordText] = {}
    note = None
    if records and store is not None and is_packed(store, stream):
        note = f"{stream} was packed: its records are in the files that it came from, and in no topic"
    elif records:
        try:
            texts, note = await _records(settings, found, partition)
        # SettingsError: no right to read raw text, or no registry is set. The block is worth more than its texts.
        except (BrokerError, SettingsError, TopicError, SourceError, RegistryError) as error:
            note = str(error)
    ends = [*(piece.start for piece in found.pieces), len(found.tokens)]
    pieces = [
        _traced(found, partition, piece, stop, texts.get(piece.offset))
        for piece, (_, stop) in zip(found.pieces, pairwise(ends), strict=True)
    ]
    text = decode(found.engine, found.tokens)
    return BlockTrace(stream, partition, block, found.where, len(found.tokens), text, pieces, note)


def _traced(found: FoundBlock, partition: int, piece: Piece, stop: int, record: RecordText | None) -> TracedPiece:
    meta = meta_of(piece)
    return TracedPiece(
        piece.start,
        stop,
        found.genesis.recipe.raw_topic,
        partition,
        piece.offset,
        piece.position,
        meta.get("id"),
        meta.get("fields", {}),
        decode(found.engine, found.tokens[piece.start : stop]),
        record,
    )


async def _records(settings: Settings, found: FoundBlock, partition: int) -> tuple[dict[int, RecordText], str | None]:
    """Return the records of the block's pieces by offset, and which are gone."""
    recipe = found.genesis.recipe
    decoder = decoder_of(recipe, schemas_for_command(settings, recipe.decode))
    wanted = sorted({piece.offset for piece in found.pieces})
    documents = {piece.offset for piece in found.pieces if piece.position != PADDING}
    texts: dict[int, RecordText] = {}
    gone: list[int] = []
    async with consumer(settings) as client:
        await require_topic(client, recipe.raw_topic)
        for offset in wanted:
            record = await record_at(client, TopicPartition(recipe.raw_topic, partition), offset)
            if record is None:
                gone += [offset] if offset in documents else []
            else:
                texts[offset] = record_text(record, decoder)
    note = f"{recipe.raw_topic}[{partition}] no longer holds offsets {', '.join(map(str, gone))}" if gone else None
    return texts, note


async def record_at(client: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> Any:
    """Return the record at an offset; None where the topic holds none there (any more)."""
    try:
        record = await anext(read_range(client, partition, offset, offset + 1), None)
    except SourceError:
        return None
    return record if record is None or record.offset == offset else None


def record_text(record: Any, decoder: Decoder | None) -> RecordText:
    """Return what people want to see of a Kafka record."""
    value = record.value or b""
    try:
        text = decoder(value).text if decoder is not None else value.decode(errors="replace")
    except RecordError:
        text = value.decode(errors="replace")
    key = None if record.key is None else record.key.decode(errors="replace")
    return RecordText(key, record.timestamp, len(value), text)
