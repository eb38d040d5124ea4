"""aiokafka with the fast path and without it, in the process of the tests."""

from collections.abc import Iterator

import aiokafka.conn
import pytest
from aiokafka.consumer import fetcher
from aiokafka.producer import message_accumulator
from aiokafka.protocol.struct import Struct

from tokenmill.app.kafka import fastpath

REPLACED = (
    (aiokafka.conn, "AIOKafkaProtocol"),
    (aiokafka.conn, "io"),
    (fetcher, "MemoryRecords"),
    (fetcher, "PartitionRecords"),
    (message_accumulator, "BatchBuilder"),
    (Struct, "encode"),
)
"""What `fastpath.install` replaces."""


@pytest.fixture
def fast() -> Iterator[None]:
    before = [getattr(owner, name) for owner, name in REPLACED]
    fastpath.install()
    yield
    for (owner, name), value in zip(REPLACED, before, strict=True):
        setattr(owner, name, value)


@pytest.fixture(params=["stock aiokafka", "fast path"])
def both_ways(request: pytest.FixtureRequest) -> None:
    if request.param == "fast path":
        request.getfixturevalue("fast")
