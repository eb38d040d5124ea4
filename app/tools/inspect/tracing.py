"""What a broker knows of single records: their text, and what becomes of them, by the recipe of a stream."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiokafka import TopicPartition

from tokenmill.records import SourceRecord

from ...kafka.clients import consumer, offsets, read_batches
from ...kafka.control_topic import require_topic
from ...kafka.dead_letters import RecordPlace
from ...kafka.schema_registry import schemas_for_command
from ...kafka.settled_streams import lists_of, settled_stream, settled_streams, tokenizer_of
from ...milling.outcomes import NO_TOKENS, Kind, Outcome, Stages
from ...milling.recipe_stages import decoder_of, reopen_stages
from ...milling.tokenizers import REFERENCE
from ...settings import Settings
from .block_trace import RecordText, record_at, record_text

LOOK_SECONDS: Final = 0.5
"""Between two looks at what came, while a topic is followed."""
Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """What became of a record in a stream."""

    kind: str
    """As the ledger names it; ``missing`` where the raw topic holds no such record."""
    reason: str
    """More of it, for people; empty where there is no more."""
    split: str = ""
    """The split that has it, where one does; of a tombstone or a flush, all have it."""
    tokens: Sequence[int] = ()
    """Of a kept document: its ids, without those around a document."""

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.kind}{f' ({self.reason})' if self.reason else ''}"


async def record_texts(settings: Settings, stream: str, places: Iterable[Place]) -> dict[Place, RecordText]:
    """Return the records of the stream's raw topic at some places; those that the topic no longer holds are left out.

    Raises:
        TopicError, BrokerError: the brokers do not know the stream, or do not answer.

    """
    recipe = (await settled_stream(settings, stream)).genesis.recipe
    decoder = decoder_of(recipe, schemas_for_command(settings, recipe.decode))
    found: dict[Place, RecordText] = {}
    async with consumer(settings) as client:
        await require_topic(client, recipe.raw_topic)
        for partition, offset in sorted(set(places)):
            record = await record_at(client, TopicPartition(recipe.raw_topic, partition), offset)
            if record is not None:
                found[partition, offset] = record_text(record, decoder)
    return found


async def outcome_of(settings: Settings, stream: str, place: Place) -> RecordOutcome:
    """Return what became of a record, by the recipe and the skip list of the stream.

    Raises:
        TopicError, BrokerError: the brokers do not know the stream, or do not answer.
        FingerprintError: the libraries installed here do not give the stream's answers.

    """
    settled = await settled_stream(settings, stream)
    recipe = settled.genesis.recipe
    partition, offset = place
    async with consumer(settings) as client:
        await require_topic(client, recipe.raw_topic)
        record = await record_at(client, TopicPartition(recipe.raw_topic, partition), offset)
    if record is None:
        return RecordOutcome("missing", "the raw topic holds no record at this offset, or none any more")
    schemas = schemas_for_command(settings, recipe.decode)
    stages = reopen_stages(recipe, tokenizer_of(settled), REFERENCE, schemas, lists_of(settled))
    return _outcome(stages, stages.outcome(record, settled.control.skips.get(partition, ())), recipe.split)


def _outcome(stages: Stages, outcome: Outcome, split: str) -> RecordOutcome:
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
        return RecordOutcome(kind.value, "", tokens=batch.ids.tolist())
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
    written anywhere.

    Raises:
        TopicError, BrokerError: the topic has no settled stream, or no broker answers.
        FingerprintError: the libraries installed here do not give the stream's answers.

    """
    (settled, *_) = await settled_streams(settings.model_copy(update={"raw_topics": (raw_topic,)}))
    recipe, skips = settled.genesis.recipe, settled.control.skips
    schemas = schemas_for_command(settings, recipe.decode)
    stages = reopen_stages(recipe, tokenizer_of(settled), REFERENCE, schemas, lists_of(settled))
    async with consumer(settings) as client:
        partitions = [TopicPartition(raw_topic, n) for n in range(await require_topic(client, raw_topic))]
        read: dict[TopicPartition, int] = {}
        while True:
            for partition, (first, end) in (await offsets(client, partitions)).items():
                start = max(first, read.get(partition, end - last))
                async for records in read_batches(client, partition, start, end):
                    for record in records:
                        yield _passing(stages, partition, record, skips.get(partition.partition, ()))
                read[partition] = end
            if not follow:
                return
            client.pause(*client.assignment())  # else it would ask the brokers on, for records nobody takes
            await asyncio.sleep(LOOK_SECONDS)


def _passing(stages: Stages, partition: TopicPartition, record: SourceRecord, skips: Iterable[int]) -> PassingRecord:
    outcome = stages.outcome(record, frozenset(skips))
    told = replace(_outcome(stages, outcome, outcome.split or ""), split=outcome.split or "")
    place = RecordPlace(partition.topic, partition.partition, record.offset)
    return PassingRecord(place, record_text(record, stages.decoder), told)
