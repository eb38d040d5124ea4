"""Blocks and the Kafka records that they came from; what becomes of records by the recipe of a stream, and why."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill import errors
from tokenmill.documents import Document, SourceRecord
from tokenmill.recipe import Genesis, Recipe
from tokenmill.store import StreamInfo, open_partition, read_stream, read_tokenizer, streams_in
from tokenmill.store.layout import is_packed
from tokenmill.wire.pieces import PADDING, Piece, decode_entry

from ...kafka.clients import consumer, offsets, read_batches
from ...kafka.control_topic import Settled, lists_of, require_topic, settled_stream, settled_streams, tokenizer_of
from ...kafka.dead_letters import RecordPlace
from ...kafka.schema_registry import schemas_for_command
from ...kafka.token_topic import message_of, message_with, published_head, record_of, topic_ranges
from ...milling.columns import OutcomeColumns, RecordColumns
from ...milling.decoding import Decoder, open_decoder
from ...milling.outcomes import NO_TOKENS, NO_TOKENS_DETAIL, Kind, Outcome, Stages
from ...milling.recipe_stages import reopen_stages
from ...milling.tokenizers import REFERENCE, Engine, EngineName, TokenizerFile, open_engine
from ...sequencer.verdict_log import settled_domain
from ...settings import Domain, Settings
from ..verify.verify_result import meta_of
from .duplicates import Duplicates

LOOK_SECONDS: Final = 0.5
"""Between two looks at what came, while a topic is followed."""
_UNREAD: Final = (errors.BrokerError, errors.SettingsError, errors.TopicError, errors.SourceError, errors.RegistryError)
"""Why records cannot be read; a SettingsError: there is no right to read raw text, or no registry is set."""
Place = tuple[int, int]


def engine_of(settled: Settled) -> Engine:
    """Return the engine of a stream whose tokenizer is on its control topic."""
    return open_engine(tokenizer_of(settled), REFERENCE)


def engine_in(store: Path, info: StreamInfo) -> Engine:
    """Return the engine of a stream in a store, which holds its tokenizer."""
    return open_engine(TokenizerFile(info.name, read_tokenizer(store, info)), REFERENCE)


def recipe_decoder(settings: Settings, recipe: Recipe) -> Decoder:
    """Return what makes documents of a raw topic's values."""
    return open_decoder(recipe, schemas_for_command(settings, recipe.decode))


def stream_stages(settings: Settings, settled: Settled, engine: EngineName) -> Stages:
    """Return what makes outcomes of a raw topic's records; raises FingerprintError where libraries differ."""
    recipe = settled.genesis.recipe
    schemas = schemas_for_command(settings, recipe.decode)
    return reopen_stages(recipe, tokenizer_of(settled), engine, schemas, lists_of(settled))


class FoundBlock(NamedTuple):
    """A block, where it was found, and what is needed to understand it."""

    recipe: Recipe
    engine: Engine
    tokens: npt.NDArray[np.unsignedinteger]
    pieces: list[Piece]
    where: str


def _in_store(store: Path, stream: str, partition: int, block: int) -> FoundBlock | None:
    if stream not in streams_in(store):
        return None
    info = read_stream(store, stream)
    try:
        reader = open_partition(store, stream, partition, check=True)
    except errors.StoreError:
        return None
    if not reader.first_block <= block < reader.blocks:
        return None
    segment, local = reader.locate(block)
    pieces, where = decode_entry(segment.entry(local)), f"{segment.paths.tokens} block {local}"
    recipe = Genesis.from_dict(info.values["genesis"]).recipe
    return FoundBlock(recipe, engine_in(store, info), reader.read(block), pieces, where)


async def _in_topic(settings: Settings, stream: str, partition: int, block: int) -> FoundBlock:
    settled = await settled_stream(settings, stream)
    recipe = settled.genesis.recipe
    tokens = TopicPartition(settled.stream.tokens_topic, partition)
    async with consumer(settings) as client:
        span = (await topic_ranges(client, tokens.topic)).get(tokens)
        record = await message_with(client, tokens, recipe.fingerprint, block, span) if span is not None else None
    if record is None:
        raise errors.InputError(
            f"{tokens.topic}[{partition}] does not hold block {block} (nor does a store): "
            f"`tokenmill inspect stream {stream}` says which blocks there are"
        )
    message = message_of(record, tokens)
    index, size = block - message.first, recipe.block_bytes
    found = np.frombuffer(message.tokens[index * size : (index + 1) * size], recipe.token_dtype)
    where = f"{tokens.topic}[{partition}] offset {record.offset} block {index}"
    return FoundBlock(recipe, engine_of(settled), found, decode_entry(message.entries[index]), where)


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
    tokens: int
    text: str
    pieces: Sequence[TracedPiece]
    note: str | None = None


async def trace_block(
    settings: Settings, stream: str, partition: int, block: int, *, store: Path | None = None
) -> BlockTrace:
    """Return a block from ``store`` or else from the token topic, with the Kafka records of its documents.

    It comes without records, and with a note, where the raw topic cannot be asked. Raises InputError where the block is
    nowhere; and TopicError or BrokerError where it is not in the store, and the topic cannot be asked.
    """
    held = _in_store(store, stream, partition, block) if store is not None else None
    packed = store is not None and is_packed(store, stream)
    if packed and held is None:
        raise errors.InputError(
            f"{store} does not hold block {block} of {stream}/{partition}, which was packed: `tokenmill inspect stream "
            f"{stream}` says which blocks there are"
        )
    found = held or await _in_topic(settings, stream, partition, block)
    texts: dict[int, RecordText] = {}
    note = None
    if packed:
        note = f"{stream} was packed: its records are in the files that it came from, and in no topic"
    else:
        try:
            texts, note = await _records(settings, found, partition)
        except _UNREAD as error:  # the block is worth more than its texts
            note = str(error)
    ends = [*(piece.start for piece in found.pieces), len(found.tokens)]
    pieces = []
    for piece, (_, stop) in zip(found.pieces, pairwise(ends), strict=True):
        place, meta = (found.recipe.raw_topic, partition, piece.offset, piece.position), meta_of(piece)
        about = meta.get("id"), meta.get("fields", {}), found.engine.decode(found.tokens[piece.start : stop].tolist())
        pieces.append(TracedPiece(piece.start, stop, *place, *about, texts.get(piece.offset)))
    text = found.engine.decode(found.tokens.tolist())
    return BlockTrace(stream, partition, block, found.where, len(found.tokens), text, pieces, note)


async def _records(settings: Settings, found: FoundBlock, partition: int) -> tuple[dict[int, RecordText], str | None]:
    places = await _texts(settings, found.recipe, [(partition, piece.offset) for piece in found.pieces])
    texts = {offset: text for (_, offset), text in places.items()}
    gone = sorted({piece.offset for piece in found.pieces if piece.position != PADDING} - set(texts))
    topic = f"{found.recipe.raw_topic}[{partition}]"
    return texts, f"{topic} no longer holds offsets {', '.join(map(str, gone))}" if gone else None


async def _texts(settings: Settings, recipe: Recipe, places: Iterable[Place]) -> dict[Place, RecordText]:
    decoder = recipe_decoder(settings, recipe)
    found: dict[Place, RecordText] = {}
    async with consumer(settings) as client:
        await require_topic(client, recipe.raw_topic)
        for partition, offset in sorted(set(places)):
            record = await record_of(client, TopicPartition(recipe.raw_topic, partition), offset)
            if record is not None:
                found[partition, offset] = record_text(record, decoder)
    return found


def record_text(record: SourceRecord, decoder: Decoder) -> RecordText:
    """Return what people want to see of a Kafka record."""
    value = bytes(record.value or b"")
    try:
        text = decoder(value).text
    except errors.RecordError:
        text = value.decode(errors="replace")
    key = None if record.key is None else record.key.decode(errors="replace")
    return RecordText(key, record.timestamp, len(value), text)


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """What became of a record in a stream."""

    kind: str
    """As the ledger names it; ``missing`` where the raw topic holds no such record; ``unjudged`` where all steps keep
    its document, and there is no verdict on duplicates."""
    reason: str
    split: str = ""
    """The split that has it, where one does; of a tombstone or a flush, all have it."""
    tokens: Sequence[int] = ()
    """Of a kept document, or one that is not judged: its ids, without those around a document."""

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.kind}{f' ({self.reason})' if self.reason else ''}"


async def record_texts(settings: Settings, stream: str, places: Iterable[Place]) -> dict[Place, RecordText]:
    """Return the records of the stream's raw topic at some places, without those that the topic no longer holds."""
    return await _texts(settings, (await settled_stream(settings, stream)).genesis.recipe, places)


async def outcome_of(settings: Settings, stream: str, place: Place) -> RecordOutcome:
    """Return what became of a record, by the recipe and the skip list of the stream; raises as `judged_ranges`."""
    settled = await settled_stream(settings, stream)
    recipe = settled.genesis.recipe
    partition, offset = place
    raw = TopicPartition(recipe.raw_topic, partition)
    async with consumer(settings) as client:
        await require_topic(client, recipe.raw_topic)
        record = await record_of(client, raw, offset)
        if record is None:
            return RecordOutcome("missing", "the raw topic holds no record at this offset, or none any more")
        stages = stream_stages(settings, settled, REFERENCE)
        unjudged = await _Judged(settings, settled, client).tell(raw, [record], stages)
    outcome = stages.outcome(record, settled.control.skips.get(partition, ()))
    return _outcome(stages, outcome, recipe.split, unjudged.get(offset, ""))


class _Judged:
    def __init__(self, settings: Settings, settled: Settled, client: AIOKafkaConsumer) -> None:
        self._settings, self._settled, self._client = settings, settled, client
        self._domain: Domain | None = None

    async def tell(self, raw: TopicPartition, records: Sequence[SourceRecord], stages: Stages) -> dict[int, str]:
        """Tell ``stages`` which of the records are duplicates; return why those are not judged that are not."""
        stages.seen.clear()
        if not self._settled.genesis.recipe.dedup:
            return {}
        try:
            self._domain = self._domain or await settled_domain(self._settings, self._settled)
        except errors.TopicError as error:
            return {record.offset: str(error) for record in records}
        duplicates = Duplicates(self._client, self._domain, raw, records[0].offset)
        await duplicates.tell(stages.seen, records[-1].offset + 1)
        return {record.offset: duplicates.why_unjudged(record.offset) for record in records}


def _outcome(stages: Stages, outcome: Outcome, split: str, unjudged: str) -> RecordOutcome:
    kind = outcome.kind_in(split)
    if kind is Kind.OTHER_SPLIT:
        return RecordOutcome(kind.value, outcome.split or "of no split")
    document = outcome.document
    if kind is Kind.KEPT and document is not None:
        batch = stages.engine.encode([document.text])
        if batch.failed:
            return RecordOutcome(Kind.DEAD_LETTERED.value, str(batch.failed[0]))
        if not len(batch.ids):
            return RecordOutcome(Kind.FILTERED.value, NO_TOKENS)
        return RecordOutcome("unjudged" if unjudged else kind.value, unjudged, tokens=batch.ids.tolist())
    return RecordOutcome(kind.value, ": ".join(part for part in (outcome.reason, outcome.detail) if part))


@dataclass(frozen=True, slots=True)
class PassingRecord:
    """A record, as it passes."""

    place: RecordPlace
    record: RecordText
    outcome: RecordOutcome


async def passing_records(
    settings: Settings, raw_topic: str, last: int, *, follow: bool
) -> AsyncGenerator[PassingRecord, None]:
    """Yield what becomes of the ``last`` records of each partition of a raw topic, and with ``follow`` of later ones.

    By the recipe and skip list that the topic's streams have when this begins, as a mill has it or will; nothing is
    written anywhere. Raises TopicError where the topic has no settled stream, and else as `outcome_of`.
    """
    settings = settings.model_copy(update={"raw_topics": (raw_topic,)})
    own = [stream.name for stream in settings.streams()]
    settled = min(await settled_streams(settings), key=lambda one: one.stream.name not in own)
    stages, skips = stream_stages(settings, settled, REFERENCE), settled.control.skips
    async with consumer(settings) as client, consumer(settings) as verdicts:
        judged = _Judged(settings, settled, verdicts)
        partitions = await topic_ranges(client, raw_topic)
        read: dict[TopicPartition, int] = {}
        while True:
            for partition, (first, end) in (await offsets(client, list(partitions))).items():
                start = max(first, read.get(partition, end - last))
                async for records in read_batches(client, partition, start, end):
                    unjudged = await judged.tell(partition, records, stages)
                    for record in records:
                        outcome = stages.outcome(record, skips.get(partition.partition, ()))
                        split, place = outcome.split or "", RecordPlace(raw_topic, partition.partition, record.offset)
                        told = _outcome(stages, outcome, split, unjudged.get(record.offset, ""))
                        yield PassingRecord(place, record_text(record, stages.decoder), replace(told, split=split))
                read[partition] = end
            if not follow:
                return
            for one in (client, verdicts):
                one.pause(*one.assignment())  # else it would ask the brokers on, for records that are not taken
            await asyncio.sleep(LOOK_SECONDS)


class RejectedDocument(NamedTuple):
    """A document that a stream left out."""

    stream: str
    place: RecordPlace
    timestamp: int
    reason: str
    detail: str
    document: Document
    """As it came to the step that filtered it out."""


async def read_rejected(
    settings: Settings,
    streams: Sequence[str] = (),
    *,
    reasons: Collection[str] = (),
    limit: int,
    progress: Callable[[int, int], None] = lambda _records, _bytes: None,
) -> AsyncGenerator[RejectedDocument, None]:
    """Yield what ``streams`` filtered out, at most ``limit`` documents of a reason, in the order of the raw topic.

    Without names: all streams of the settings' raw topics; without ``reasons``: all that their totals count. Partitions
    are read from their beginnings, up to what the stream has published, until there is enough of each reason.
    ``progress`` is called with the records and bytes that were read. Raises InputError where no stream counts anything
    under one of the ``reasons``; TopicError where a stream is unknown; and FingerprintError where libraries here
    differ.
    """
    found = await settled_streams(settings, streams)
    async with consumer(settings) as client, consumer(settings) as verdicts:
        ends = {one.stream.name: await _ends(client, one) for one in found}
        counted = {name: sum((count for _, count in parts.values()), Counter[str]()) for name, parts in ends.items()}
        every = require_counted(reasons, sum(counted.values(), Counter[str]()))
        for settled in found:
            counts = counted[settled.stream.name]
            wanted = Counter({reason: min(limit, counts[reason]) for reason in reasons or every})
            stages = stream_stages(settings, settled, settings.engine)
            domain: Domain | None = None
            with suppress(errors.TopicError):  # nothing was judged
                domain = await settled_domain(settings, settled) if settled.genesis.recipe.dedup else None
            search = _Search(stages, client, verdicts, settled, domain, wanted, progress)
            for partition, (end, _) in ends[settled.stream.name].items():
                async with aclosing(search.partition(partition, end)) as documents:
                    async for document in documents:
                        yield document


def require_counted(reasons: Collection[str], counted: Counter[str]) -> list[str]:
    """Return all reasons that are counted. Raises `InputError` where one of ``reasons`` is not."""
    every = sorted(+counted)
    for reason in sorted(set(reasons) - set(every)):
        raise errors.InputError(f"nothing is filtered out for {reason!r}; reasons here: {', '.join(every) or 'none'}")
    return every


async def _ends(client: AIOKafkaConsumer, settled: Settled) -> dict[int, tuple[int, Counter[str]]]:
    ends = {}
    for partition in range(await require_topic(client, settled.stream.tokens_topic)):
        head = await published_head(client, TopicPartition(settled.stream.tokens_topic, partition), settled)
        if head is not None:
            ends[partition] = (head.cursor.next_offset, head.totals.filtered)
    return ends


@dataclass(frozen=True, slots=True)
class _Search:
    """Looks for documents that one stream filtered out, partition after partition."""

    _stages: Stages
    _client: AIOKafkaConsumer
    _verdicts: AIOKafkaConsumer
    _settled: Settled
    _domain: Domain | None
    _wanted: Counter[str]
    _progress: Callable[[int, int], None]

    async def partition(self, partition: int, end: int) -> AsyncGenerator[RejectedDocument, None]:
        """Yield what is wanted of the records below ``end``; what is found is wanted no more."""
        raw = TopicPartition(self._settled.stream.raw_topic, partition)
        first, stop = (await offsets(self._client, [raw]))[raw]
        start = max(first, self._settled.genesis.start(partition))
        if start >= min(end, stop) or not +self._wanted:
            return
        duplicates = None if self._domain is None else Duplicates(self._verdicts, self._domain, raw, start)
        async for records in read_batches(self._client, raw, start, min(end, stop)):
            if duplicates is not None:
                await duplicates.tell(self._stages.seen, records[-1].offset + 1)
            for found in self._among(raw, records):
                yield found
            self._progress(len(records), sum(len(record.value or b"") for record in records))
            if not +self._wanted:
                return

    def _among(self, raw: TopicPartition, records: Sequence[SourceRecord]) -> list[RejectedDocument]:
        skips = self._settled.control.skips.get(raw.partition, ())
        fetch = RecordColumns.of(records)
        found: list[RejectedDocument] = []
        for low, high in fetch.parts():
            part = fetch.part(low, high)
            columns = OutcomeColumns.sort(self._stages, part, skips)
            columns.filter_seen(self._stages)
            split = self._settled.stream.split
            filtered = [(o.record, o.reason) for o in columns.rejected if o.split == split]
            if self._wanted[NO_TOKENS] > 0:
                kept = columns.kept[split]
                silent = kept.indices[self._stages.engine.encode(kept.documents.texts).silent]
                filtered += [(part.records[at], NO_TOKENS) for at in silent.tolist()]
            for record, reason in sorted(filtered, key=lambda one: one[0].offset):
                if self._wanted[reason] > 0:
                    self._wanted[reason] -= 1
                    found.append(self._rejected(raw, record, reason))
        return found

    def _rejected(self, raw: TopicPartition, record: SourceRecord, reason: str) -> RejectedDocument:
        """Ask the steps themselves, one after the other: they say which numbers decided."""
        passed: list[Document] = []
        outcome = self._stages.outcome(record, (), passed)
        detail = outcome.detail if outcome.kind is Kind.FILTERED else NO_TOKENS_DETAIL
        place = RecordPlace(raw.topic, raw.partition, record.offset)
        return RejectedDocument(self._settled.stream.name, place, record.timestamp, reason, detail, passed[-1])
