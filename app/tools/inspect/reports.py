"""What `inspect` reports: a stream in topic and store, a segment's files (without a broker), one Kafka message."""

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import InputError, TokenMillError, TopicError
from tokenmill.recipe import RAW_BYTES_SHA256
from tokenmill.store import StreamInfo, open_partition, read_stream, streams_in
from tokenmill.store.layout import SegmentPaths, partition_directory, segment_firsts
from tokenmill.store.sealing import chain_after
from tokenmill.store.segment import Segment
from tokenmill.store.store import Start, read_start
from tokenmill.wire.message import HEADER_NAME, MAGIC, Message
from tokenmill.wire.pieces import Piece, decode_entry, split_entries, split_references

from ...funnel import beginning_of
from ...kafka.clients import consumer, offsets
from ...kafka.control_topic import Settled, require_topic, settled_stream
from ...kafka.dead_letters import RecordPlace
from ...kafka.token_topic import TOKENS_PREFIX, furthest, last_messages, message_of, require_record
from ...milling.tokenizers import Engine
from ...settings import Settings
from ..verify.verify_result import meta_of
from .duplicates import seen_before
from .packed import StoredPack
from .tracing import engine_in, engine_of


async def inspect_stream(settings: Settings, name: str, store: Path | None = None) -> dict[str, Any]:
    """Return, as JSON types, what a stream is and how far its chains are, in its topics and, where given, in ``store``.

    Of a chain, ``raw_range`` and ``token_range`` have the first offset retained, and the end; a packed stream has no
    token topic. ``sample`` is the beginning of its last block as text; nothing where the last messages are all carries.
    """
    packed = StoredPack.find(store, name) if store is not None else None
    if packed is not None:
        engine = engine_in(packed.store, read_stream(packed.store, name))
        settled = packed.settled
        chains = []
        for number in range(packed.run.partitions):
            reader = open_partition(packed.store, name, number)
            last = reader.read(reader.blocks - 1) if reader.blocks > reader.first_block else None
            sample = "" if last is None else beginning_of(engine.decode(last.tolist()))
            chains.append(_report_of(settled, number, packed.head(number), packed.store, sample))
    else:
        settled = await settled_stream(settings, name)
        engine, held = engine_of(settled), store if store is not None and name in streams_in(store) else None
        async with consumer(settings) as client:
            numbers = range(await require_topic(client, settled.stream.tokens_topic))
            await require_topic(client, settled.stream.raw_topic)
            chains = [await _chain(client, settled, number, engine, held) for number in numbers]
    recipe, genesis = settled.genesis.recipe, settled.genesis
    own, blocks = recipe.tokenizer_sha256 != RAW_BYTES_SHA256, sum(chain["blocks"] for chain in chains)
    return {
        "name": name,
        "raw_topic": recipe.raw_topic,
        "fingerprint": recipe.fingerprint.hex(),
        "dtype": recipe.dtype,
        "block_tokens": recipe.block_tokens,
        "tokenizer": f"{recipe.tokenizer_sha256[:16]} ({recipe.vocabulary_size} ids)" if own else "bytes",
        "segment_blocks": genesis.segment_blocks,
        "settings": recipe.to_dict(),
        "versions": dict(genesis.versions),
        "skips": {partition: sorted(found) for partition, found in settled.control.skips.items()},
        "ignored": settled.control.ignored.offsets(),
        "chains": chains,
        "blocks": blocks,
        "tokens": blocks * recipe.block_tokens,
    }


async def _chain(
    client: AIOKafkaConsumer, settled: Settled, partition: int, engine: Engine, store: Path | None
) -> dict[str, Any]:
    tokens = TopicPartition(settled.stream.tokens_topic, partition)
    raw = TopicPartition(settled.stream.raw_topic, partition)
    spans = await offsets(client, [tokens, raw])
    messages = await last_messages(client, tokens, settled)
    recipe, sample = settled.genesis.recipe, ""
    newest = furthest([message for message in messages if not message.is_carry])
    if newest is not None:
        block = np.frombuffer(memoryview(newest.tokens)[-recipe.block_bytes :], recipe.token_dtype)
        sample = beginning_of(engine.decode(block.tolist()))
    return _report_of(settled, partition, furthest(messages), store, sample, spans=(spans[raw], spans[tokens]))


def _report_of(
    settled: Settled,
    partition: int,
    head: Message | None,
    store: Path | None,
    sample: str,
    *,
    spans: tuple[tuple[int, int], tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """Return what a chain's furthest message says, and the store; ``spans``: of the raw and the token topic."""
    name, start = settled.stream.name, settled.genesis.start(partition)
    next_offset = head.cursor.next_offset if head else start
    raw, tokens = spans if spans is not None else ((start, next_offset), None)
    reader = open_partition(store, name, partition) if store is not None else None
    return {
        "partition": partition,
        "raw_range": raw,
        "token_range": tokens,
        "next_offset": next_offset,
        "blocks": head.cursor.block if head else 0,
        "totals": head.totals.to_dict() if head else {},
        "store_first": reader.first_block if reader else None,  # also where it holds none yet
        "store_blocks": reader.blocks if reader else None,
        "segments": len(_firsts(partition_directory(store, name, partition))) if store is not None else None,
        "sample": sample,
    }


def _firsts(directory: Path) -> list[int]:
    return segment_firsts(path.name for path in directory.iterdir()) if directory.is_dir() else []


_PARTITION_DEPTH = 3  # <store>/<stream>/<partition>


def inspect_segments(path: Path) -> list[dict[str, Any]]:
    """Return as JSON types what each segment in a partition's directory holds, or that of ``path``; checks all blocks.

    ``documents`` begin in it; ``offsets`` are those of the first and the last source record in it. ``chain_before`` is
    None where only the segment before says it.
    """
    path = path.absolute()
    directory, firsts = (path, _firsts(path)) if path.is_dir() else (path.parent, segment_firsts([path.name]))
    if not path.is_dir() and not (firsts and firsts[0] in _firsts(directory)):
        raise InputError(f"{path} is no file of a segment: name <store>/<stream>/<partition>/<first block>.bin")
    if len(directory.parts) <= _PARTITION_DEPTH or not directory.name.isdigit():
        raise InputError(f"{directory} is no partition of a stream: name <store>/<stream>/<partition>")
    info, partition = read_stream(directory.parent.parent, directory.parent.name), int(directory.name)
    start = read_start(directory, info, partition)
    firsts = [first for first in firsts if first >= start.block or not path.is_dir()]
    return [_report(SegmentPaths(directory, first), info, partition, start) for first in firsts]


def _report(paths: SegmentPaths, info: StreamInfo, partition: int, start: Start) -> dict[str, Any]:
    segment = Segment(paths, info, partition)
    documents = 0
    offsets: list[int] = []
    for number in range(segment.blocks):
        segment.check(number)
        pieces = decode_entry(segment.entry(number))
        documents += sum(piece.position == 0 for piece in pieces)
        offsets = [offsets[0] if offsets else pieces[0].offset, pieces[-1].offset]
    before = segment.manifest.chain_before if segment.manifest else None
    if paths.first == start.block:
        before = start.chain.hex()
    store = paths.directory.parent.parent
    return {
        "stream": info.name,
        "partition": partition,
        "path": str(paths.tokens),
        "first": paths.first,
        "blocks": segment.blocks,
        "sealed": segment.manifest is not None,
        "block_tokens": info.block_tokens,
        "dtype": info.dtype.name,
        "fingerprint": info.fingerprint.hex(),
        "token_bytes": segment.blocks * info.block_bytes,
        "document_bytes": int(segment.rows["docs_end"][-1]) if segment.blocks else 0,
        "documents": documents,
        "offsets": (offsets[0], offsets[1]) if offsets else None,
        "chain_before": before,
        "chain_after": chain_after(segment.rows, -1).hex() if segment.blocks else before,
        "sample": beginning_of(engine_in(store, info).decode(segment.tokens[0].tolist())) if segment.blocks else "",
    }


async def inspect_message(settings: Settings, topic: str, partition: int, offset: int) -> dict[str, Any]:
    """Return, as JSON types, what is at an offset: of a message pieces and samples, else whether it was seen before."""
    async with consumer(settings) as client:
        record = await require_record(client, TopicPartition(topic, partition), offset)
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
        values["value"] = None if record.value is None else beginning_of(record.value.decode(errors="replace"))
        try:
            with suppress(TopicError):  # it is no raw topic of a stream
                values["seen_before"] = await seen_before(settings, RecordPlace(topic, partition, offset))
        except TokenMillError as error:  # the record is worth more than what is known of it
            values["note"] = str(error)
        if flush := dict(record.headers).get(HEADER_NAME):
            values["headers"].append([HEADER_NAME, flush.decode(errors="replace")])
    return values


async def _describe(settings: Settings, topic: str, message: Message) -> dict[str, Any]:
    try:
        settled = await settled_stream(settings, topic.removeprefix(TOKENS_PREFIX))
        engine = engine_of(settled)
        dtype = settled.genesis.recipe.token_dtype
    except TopicError:
        engine, dtype = None, None  # a copy of a token topic, for example: there is nothing to decode its tokens with
    size = len(message.tokens) // message.count if message.count else 0
    blocks = []
    for index, entry in enumerate(message.entries):
        part = message.tokens[index * size : (index + 1) * size]
        sample = beginning_of(engine.decode(np.frombuffer(part, dtype).tolist())) if engine is not None else None
        pieces = [piece_values(piece) for piece in decode_entry(entry)]
        blocks.append({"block": message.first + index, "pieces": pieces, "sample": sample})
    references = split_references(message.references)
    opened = split_entries(message.open_entry, (len(references.counts) or 1) * bool(message.open_entry))
    rows, names = iter(references.rows.tolist()), references.rows.dtype.names or ()
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
        "open": {
            "bytes": len(message.open_tokens),
            "pieces": [piece_values(piece) for entry in opened for piece in decode_entry(entry)],
            "references": [
                [dict(zip(names, next(rows), strict=True)) for _ in range(count)] for count in references.counts
            ],
        },
    }


def piece_values(piece: Piece) -> dict[str, Any]:
    """Return a piece as JSON types."""
    return {"start": piece.start, "offset": piece.offset, "position": piece.position, **meta_of(piece)}
