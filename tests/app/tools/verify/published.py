"""Streams that were milled and stored here, without workers: what a verification looks at, in a second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from tests.app.tools.verify.memory_stream import write_store
from tests.conftest import TopicFactory
from tests.service import Raw, in_own_loop, raw_records, send, service_settings
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.control_topic import settle, settled_stream
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import RawTopicPlan, plan_topic
from tokenmill.app.milling.partition_mill import ChainMill, PartitionMill
from tokenmill.app.settings import Settings
from tokenmill.reading import genesis_point
from tokenmill.wire.chain import genesis_hash
from tokenmill.wire.message import HEADER_NAME, Message, encode_header

SPLITS: Mapping[str, int] = {"train": 500, "validation": 500}
TEXTS = [f"text number {number} of the topic".encode() for number in range(60)]


@dataclass(frozen=True)
class Published:
    """All streams of one raw topic of one partition, under one suffix."""

    settings: Settings
    plan: RawTopicPlan

    @property
    def names(self) -> list[str]:
        """The streams' names."""
        return [stream.name for stream in self.plan.recipes]

    def messages(self, name: str, message_bytes: int) -> list[Message]:
        """Mill the raw topic anew; return a stream's messages, of so many bytes at most, and its carry."""
        (records,) = raw_records(self.settings, self.settings.raw_topics[0])
        (recipe,) = (recipe for stream, recipe in self.plan.recipes.items() if stream.name == name)
        point = genesis_point(0, genesis_hash(recipe.fingerprint, 0))
        chain = ChainMill(recipe, point, message_bytes=message_bytes)
        found = list(PartitionMill(self.plan.stages, [chain]).feed(records).messages[recipe.split])
        carry = chain.carry(chain.next_offset)
        return [*found, carry] if carry is not None else found

    def publish(self, name: str, messages: Sequence[Message]) -> None:
        """Put messages on a stream's token topic."""
        records = [Raw(bytes(m.tokens), 0, None, [(HEADER_NAME, encode_header(m))]) for m in messages]
        send(self.settings, records, f"tokens.{name}")

    def store(self, messages: Mapping[str, Sequence[Message]]) -> Path:
        """Write each stream's messages to the settings' store; return where that is."""
        for name, sent in messages.items():
            write_store(self.settings.store, in_own_loop(partial(settled_stream, self.settings, name)).genesis, sent)
        return self.settings.store


def settled(broker: Broker, topic: TopicFactory, directory: Path, suffix: str = "", raw: str = "") -> Published:
    """Settle the streams of a raw topic, a new one with `TEXTS` unless it is given."""
    settings = service_settings(broker, raw or topic(), directory, splits=SPLITS)
    settings = settings.model_copy(update={"stream_suffix": suffix})
    in_own_loop(lambda: ensure_topics(settings))
    if not raw:
        send(settings, [Raw(text) for text in TEXTS])
    return Published(settings, settle_streams(settings))


def settle_streams(settings: Settings) -> RawTopicPlan:
    """Settle all streams of the first raw topic, as a mill does; return what is made of it."""
    plan = plan_topic(settings, settings.raw_topics[0])
    for stream, recipe in plan.recipes.items():
        in_own_loop(partial(settle, settings, stream, recipe, plan.tokenizer.content, plan.lists))
    return plan


def delete_before(settings: Settings, partition: TopicPartition, offset: int) -> None:
    """Remove a partition's records below ``offset``, as retention does."""

    async def run() -> None:
        async with admin(settings) as client:
            await client.delete_records({partition: RecordsToDelete(offset)})

    in_own_loop(run)
