"""A raw topic with records of every kind, milled by the service's own workers, for tests of what looks at it after."""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiokafka import TopicPartition

from tests.service import Chain, Raw, Service, in_own_loop, send, service_settings
from tokenmill.app.kafka.clients import consumer
from tokenmill.app.kafka.token_topic import published_head
from tokenmill.app.local.broker import Broker
from tokenmill.app.milling.reference import ReferenceBlock
from tokenmill.app.settings import Settings
from tokenmill.documents import FLUSH_HEADER
from tokenmill.errors import StoreError
from tokenmill.store import open_eras
from tokenmill.wire.message import Message

SPLITS = {"train": 500, "validation": 500}
LAST = Raw(b".")
"""The last record of partition 0: behind all full blocks, in an open one."""


@dataclass(frozen=True)
class Milled:
    settings: Settings
    chains: dict[Chain, list[ReferenceBlock]]

    @property
    def raw_topic(self) -> str:
        return self.settings.raw_topics[0]

    @property
    def train(self) -> str:
        return self.settings.streams()[0].name


def mill_everything(broker: Broker, raw_topic: str, directory: Path) -> Milled:
    """Send records of every kind, mill them with two workers, and end these; the last messages are carries.

    All full blocks are in eras, three or more in each stream, and these in the store.
    """
    small = {"splits": SPLITS, "carry_seconds": 0.5, "era_blocks": 30, "era_max_seconds": 0.5}
    settings, sent = service_settings(broker, raw_topic, directory, **small), records()
    with Service(settings, directory) as service:
        service.mill(2)
        service.segment()
        service.wait_until(lambda: all(worker.partitions for worker in service.workers))  # nothing is done twice then
        for part in (sent[:90], sent[90:170], sent[170:]):
            send(settings, part)
            chains = service.wait_until_complete()
            service.wait_until(partial(all_in_eras, settings, chains))
        send(settings, [LAST])
        service.wait_until(lambda: all(is_carry(head(settings, stream.name, 0)) for stream in settings.streams()))
        service.stop()
    return Milled(settings, chains)


def records() -> list[Raw]:
    rng = random.Random(3)
    found = []
    for number in range(240):
        text = " ".join(rng.choice(["mill", "stone", "wheel", "grain", "Körner"]) for _ in range(rng.randint(1, 40)))
        value = json.dumps({"id": f"document {number}", "text": text}).encode() if number % 3 else text.encode()
        found.append(Raw(value, number % 2))
    found[20:20] = [Raw(b"\xff no UTF-8", partition) for partition in (0, 1, 1)]
    found[100:100] = [Raw(None, partition, headers=[FLUSH_HEADER]) for partition in (0, 1)]
    found[150:150] = [Raw(None, 1), Raw(b'{"text": ""}', 0)]
    return found


def head(settings: Settings, stream: str, partition: int) -> Message | None:
    async def read() -> Message | None:
        async with consumer(settings) as client:
            return await published_head(client, TopicPartition(f"tokens.{stream}", partition))

    return in_own_loop(read)


def all_in_eras(settings: Settings, chains: Mapping[Chain, Sequence[ReferenceBlock]]) -> bool:
    wanted = Counter[str]()
    for (stream, _), blocks in chains.items():
        wanted[stream] += len(blocks)
    try:
        return all(open_eras(settings.store, stream).blocks == count for stream, count in wanted.items())
    except StoreError:
        return False


def is_carry(message: Message | None) -> bool:
    return message is not None and message.is_carry
