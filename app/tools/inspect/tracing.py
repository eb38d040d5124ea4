"""What a broker adds to a trace: the text of records, and what became of one that has no tokens."""

from collections.abc import Iterable
from dataclasses import dataclass

from aiokafka import TopicPartition

from ...kafka.clients import consumer
from ...kafka.control_topic import require_topic
from ...kafka.schema_registry import schemas_for_command
from ...kafka.settled_streams import lists_of, settled_stream, tokenizer_of
from ...milling.outcomes import NO_TOKENS, Kind, Outcome, Stages
from ...milling.recipe_stages import decoder_of, reopen_stages
from ...milling.tokenizers import REFERENCE
from ...settings import Settings
from .block_trace import RecordText, record_at, record_text

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """What became of a record in a stream."""

    kind: str
    """As the ledger names it; ``missing`` where the raw topic holds no such record."""
    reason: str
    """More of it, for people; empty where there is no more."""

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
    return RecordOutcome(kind.value, ": ".join(part for part in (outcome.reason, outcome.detail) if part))
