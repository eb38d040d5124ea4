"""Produce requests and answers on their way: who sends what, and how an answer is made to say something else."""

import io
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from aiokafka.protocol import produce

from tests.faults.proxy import Request

PRODUCE: Final = 0
"""The API's number."""
COUNT_AT: Final = 57
"""Where a record batch says how many records it holds (Kafka's record batch format, version 2)."""
UNKNOWN: Final = -1
"""The error code UNKNOWN_SERVER_ERROR, which no client tries again."""
NOT_ENOUGH_REPLICAS: Final = 19
"""One that clients try again. A single broker never gives it: no topic has fewer replicas than it was made with."""


class Sent(NamedTuple):
    """One batch of a produce request."""

    topic: str
    partition: int
    batch: bytes

    @property
    def records(self) -> int:
        """How many records it holds."""
        found: int = struct.unpack_from(">i", self.batch, COUNT_AT)[0]
        return found


def batches(request: Request) -> Iterator[Sent]:
    """Yield what a produce request sends."""
    kind: Any = getattr(produce, f"ProduceRequest_v{request.version}")
    body = io.BytesIO(request.payload)
    body.seek(8)
    (length,) = struct.unpack(">h", body.read(2))  # the client's name
    body.seek(max(length, 0), io.SEEK_CUR)
    for topic, partitions in kind.SCHEMA.decode(body)[-1]:
        for partition, batch in partitions:
            yield Sent(topic, partition, batch)


def with_error(request: Request, answer: bytes, topic: str, code: int = UNKNOWN) -> bytes:
    """Return an answer that calls every batch for ``topic`` refused, whatever became of it."""
    kind: Any = getattr(produce, f"ProduceResponse_v{request.version}")
    found = kind.decode(io.BytesIO(answer[4:]))
    changed = [
        (name, [(parts[0], code, *parts[2:]) if name == topic else parts for parts in partitions])
        for name, partitions in found.topics
    ]
    encoded: bytes = kind(changed, found.throttle_time_ms).encode()
    return answer[:4] + encoded


def damaged(payload: bytes, topic: str, request: Request) -> bytes:
    """Return a request whose batches for ``topic`` have a byte changed: the broker refuses them by their checksum."""
    for sent in batches(request):
        if sent.topic == topic:
            payload = payload.replace(sent.batch, sent.batch[:-1] + bytes([sent.batch[-1] ^ 1]))
    return payload


class InFlight:
    """Counts the batches that each connection has sent to each partition and not heard of."""

    def __init__(self) -> None:
        """Have seen nothing yet."""
        self.most: Counter[str] = Counter()
        """Topic → most records that were ever under way to one of its partitions, on one connection."""
        self._now: Counter[tuple[int, str, int]] = Counter()

    def sent(self, request: Request) -> None:
        """Take note of a produce request."""
        for sent in batches(request):
            place = (request.connection, sent.topic, sent.partition)
            self._now[place] += sent.records
            self.most[sent.topic] = max(self.most[sent.topic], self._now[place])

    def answered(self, request: Request) -> None:
        """Take note of its answer."""
        for sent in batches(request):
            self._now[request.connection, sent.topic, sent.partition] -= sent.records
