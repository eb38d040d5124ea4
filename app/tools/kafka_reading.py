"""What tools read of Kafka: ranges, single records, and what a stream's recipe makes of records."""

from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.documents import SourceRecord
from tokenmill.errors import InputError, MovedError
from tokenmill.recipe import Recipe

from ..kafka.clients import offsets, read_range
from ..kafka.control_topic import Settled, lists_of, require_topic, tokenizer_of
from ..kafka.schema_registry import schemas_for_command
from ..milling.decoding import Decoder, open_decoder
from ..milling.outcomes import Stages
from ..milling.recipe_stages import reopen_stages
from ..milling.tokenizers import EngineName
from ..settings import Settings

TOKENS_PREFIX = "tokens."


async def topic_ranges(client: AIOKafkaConsumer, *topics: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return, for each partition of topics, the offset of its first record and the one after its last."""
    counts = {topic: await require_topic(client, topic) for topic in topics}
    return await offsets(client, [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)])


async def record_at(client: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> SourceRecord | None:
    """Return the record at an offset; None where the topic holds none there (any more)."""
    try:
        record = await anext(read_range(client, partition, offset, offset + 1), None)
    except MovedError:
        return None
    return record if record is None or record.offset == offset else None


async def require_offset(client: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> None:
    """Check that an offset is within what a partition holds; raises InputError where it is not, or has none."""
    topic, number = partition
    spans = await topic_ranges(client, topic)
    if partition not in spans:
        raise InputError(f"{topic} has the partitions 0 to {len(spans) - 1}, not {number}")
    first, end = spans[partition]
    if not first <= offset < end:
        raise InputError(f"{topic}[{number}] holds no record at offset {offset}; it reaches from {first} to {end - 1}")


async def require_record(client: AIOKafkaConsumer, partition: TopicPartition, offset: int) -> SourceRecord:
    """Return the record at an offset. Raises as `require_offset`, also where a transaction's marker is there."""
    await require_offset(client, partition, offset)
    record = await record_at(client, partition, offset)
    if record is None:
        raise InputError(f"{partition.topic}[{partition.partition}] holds no record at offset {offset}")
    return record


def recipe_decoder(settings: Settings, recipe: Recipe) -> Decoder:
    """Return what makes documents of a raw topic's values."""
    return open_decoder(recipe, schemas_for_command(settings, recipe.decode))


def stream_stages(settings: Settings, settled: Settled, engine: EngineName) -> Stages:
    """Return what makes outcomes of a raw topic's records; raises FingerprintError where libraries differ."""
    recipe = settled.genesis.recipe
    schemas = schemas_for_command(settings, recipe.decode)
    return reopen_stages(recipe, tokenizer_of(settled), engine, schemas, lists_of(settled))
