"""One Kafka message, whatever topic it is on."""

from dataclasses import asdict
from typing import Any

import numpy as np
from aiokafka import TopicPartition

from tokenmill.errors import InputError, SourceError, TopicError
from tokenmill.records import SourceRecord
from tokenmill.stages.engines import REFERENCE, open_engine
from tokenmill.wire.message import HEADER_NAME, MAGIC, Message
from tokenmill.wire.pieces import Piece, decode_entry

from ...kafka.clients import consumer, offsets, read_range
from ...kafka.control_topic import require_topic
from ...kafka.settled_streams import settled_stream, tokenizer_of
from ...kafka.token_topic import message_of
from ...settings import Settings
from .samples import beginning, decode, meta_of

TOKENS_PREFIX = "tokens."


async def inspect_message(settings: Settings, topic: str, partition: int, offset: int) -> dict[str, Any]:
    """Return, as JSON types, what stands at an offset: of a block message its header, pieces and decoded samples.

    Raises:
        TopicError: the topic is missing.
        InputError: there is no such partition, or no record at this offset.
        DamagedError: the message has TokenMill's header, which is damaged.

    """
    record = await _read(settings, topic, partition, offset)
    headers = [[name, (value or b"").decode(errors="replace")] for name, value in record.headers if name != HEADER_NAME]
    values: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": record.timestamp,
        "key": None if record.key is None else record.key.decode(errors="replace"),
        "headers": headers,
        "value_bytes": None if record.value is None else len(record.value),
    }
    if (dict(record.headers).get(HEADER_NAME) or b"").startswith(MAGIC):
        values["message"] = await _describe(settings, topic, message_of(record, TopicPartition(topic, partition)))
    else:
        values["value"] = None if record.value is None else beginning(record.value.decode(errors="replace"))
        if flush := dict(record.headers).get(HEADER_NAME):
            values["headers"].append([HEADER_NAME, flush.decode(errors="replace")])
    return values


async def _read(settings: Settings, topic: str, partition: int, offset: int) -> SourceRecord:
    async with consumer(settings) as client:
        count = await require_topic(client, topic)
        if not 0 <= partition < count:
            raise InputError(f"{topic} has the partitions 0 to {count - 1}, not {partition}")
        where = TopicPartition(topic, partition)
        first, end = (await offsets(client, [where]))[where]
        try:
            record = await anext(read_range(client, where, offset, offset + 1), None)
        except SourceError:
            record = None
    if record is None or record.offset != offset:
        raise InputError(
            f"{topic}[{partition}] holds no record at offset {offset}; it reaches from {first} to {end - 1}"
        )
    return record


async def _describe(settings: Settings, topic: str, message: Message) -> dict[str, Any]:
    try:
        settled = await settled_stream(settings, topic.removeprefix(TOKENS_PREFIX))
        engine = open_engine(tokenizer_of(settled), REFERENCE)
        dtype = settled.genesis.recipe.token_dtype
    except TopicError:
        engine, dtype = None, None  # a copy of a token topic, for example: there is nothing to decode its tokens with
    size = len(message.tokens) // message.count if message.count else 0
    blocks = []
    for index, entry in enumerate(message.entries):
        part = message.tokens[index * size : (index + 1) * size]
        sample = beginning(decode(engine, np.frombuffer(part, dtype))) if engine is not None else None
        pieces = [piece_values(piece) for piece in decode_entry(entry)]
        blocks.append({"block": message.first + index, "pieces": pieces, "sample": sample})
    opened = decode_entry(message.open_entry) if message.open_entry else []
    return {
        "kind": "carry" if message.is_carry else "blocks",
        "fingerprint": message.fingerprint.hex(),
        "first": message.first,
        "count": message.count,
        "cursor": asdict(message.cursor),
        "chain_before": message.before.hex(),
        "chain_after": message.after.hex(),
        "totals": message.totals.to_dict(),
        "blocks": blocks,
        "open": {"bytes": len(message.open_tokens), "pieces": [piece_values(piece) for piece in opened]},
    }


def piece_values(piece: Piece) -> dict[str, Any]:
    """Return a piece as JSON types."""
    return {"start": piece.start, "offset": piece.offset, "position": piece.position, **meta_of(piece)}
