"""Reading verdicts from Kafka: those that count, from a place on."""

from collections import deque
from functools import partial

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.errors import DamagedError, DifferenceError, MovedError
from tokenmill.records import SourceRecord

from ..kafka.clients import offsets, read_batches, read_range
from ..milling.duplicates.verdicts import Verdicts, rejections
from ..milling.steps import Rejected
from ..settings import Domain
from .domain_messages import JudgedRange, VerdictEnd, place_name
from .verdict_chain import VerdictChain

log = structlog.get_logger(__name__)


def judged_range(record: SourceRecord, verdicts: TopicPartition, fingerprint: bytes) -> JudgedRange | None:
    """Return the verdicts that a record is; None for one that does not count, which the log names.

    That is what is none of this domain, and what a writer sent that did not know the end of its log: another one had
    written meanwhile, or the log had lost its tail. So ranges rise with offsets, without one that comes again.
    """
    try:
        return JudgedRange.unpack(record.value, fingerprint, record.offset)
    except DamagedError as error:
        log.warning("passed over", topic=verdicts.topic, partition=verdicts.partition, offset=record.offset, why=error)
        return None


def told(domain: Domain, judged: JudgedRange) -> dict[int, Rejected]:
    """Return how each duplicate among verdicts is filtered out, by its offset."""
    said = rejections(Verdicts(judged.kinds, judged.places), partial(place_name, domain))
    return {at: one for at, one in zip(judged.offsets.tolist(), said, strict=True) if one is not None}


async def place_of(
    client: AIOKafkaConsumer, verdicts: TopicPartition, fingerprint: bytes, offset: int
) -> tuple[int, int]:
    """Return from which offset on to read for the verdict on the raw offset, and the log's end.

    Only this call uses ``client`` meanwhile.
    """
    low, end = (await offsets(client, [verdicts]))[verdicts]
    high = end
    while high - low > 1:
        middle = (low + high) // 2
        judged = None
        async for record in read_range(client, verdicts, middle, end):
            if (judged := judged_range(record, verdicts, fingerprint)) is not None:
                break
        low, high = (middle, high) if judged is not None and judged.begin <= offset else (low, middle)
    return low, end


class VerdictLog:
    """The verdicts on one raw partition that are out, up to the log's end when it was opened."""

    def __init__(self, verdicts: TopicPartition, fingerprint: bytes) -> None:
        self.end = 0
        """Of the log."""
        self._verdicts, self._fingerprint = verdicts, fingerprint
        self._chain = VerdictChain(VerdictEnd())
        self._position = 0
        self._found: deque[JudgedRange] = deque()
        self._failed: DifferenceError | None = None

    @property
    def verdict_end(self) -> VerdictEnd:
        """How far the partition is judged with all that was read."""
        return self._chain.verdict_end or VerdictEnd()

    async def open(self, client: AIOKafkaConsumer, verdict_end: VerdictEnd) -> bool:
        """Go behind the verdicts that end at ``verdict_end``; return whether they are there.

        Raises MovedError where retention passes what is read.
        """
        self._found.clear()
        self._failed = None
        self._chain = VerdictChain(verdict_end)
        if verdict_end == VerdictEnd():
            self._position, self.end = (await offsets(client, [self._verdicts]))[self._verdicts]
            return self._position == 0
        self._position, self.end = await place_of(
            client, self._verdicts, self._fingerprint, verdict_end.next_offset - 1
        )
        async for record in read_range(client, self._verdicts, self._position, self.end):
            judged = judged_range(record, self._verdicts, self._fingerprint)
            if judged is not None and judged.after == verdict_end:
                self._position = record.offset + 1
                return True
        return False

    async def next(self, client: AIOKafkaConsumer) -> JudgedRange | None:
        """Return the next verdicts that count; None at the end.

        Raises DifferenceError where the log holds two histories, behind what counts before; MovedError where retention
        passes what is read.
        """
        while not self._found and self._failed is None and self._position < self.end:
            records = await anext(read_batches(client, self._verdicts, self._position, self.end), ())
            for record in records:
                judged = judged_range(record, self._verdicts, self._fingerprint)
                try:
                    if judged is not None and self._chain.offer(judged):
                        self._found.append(judged)
                except DifferenceError as error:
                    topic, partition = self._verdicts
                    self._failed = DifferenceError(f"offset {record.offset} of {topic}[{partition}]: {error}")
                    break
            self._position = records[-1].offset + 1 if records else self.end
        if not self._found and self._failed is not None:
            raise self._failed
        return self._found.popleft() if self._found else None

    async def lacks(self, client: AIOKafkaConsumer, offset: int, verdict_end: VerdictEnd) -> str | None:
        """Return why the log has lost ``verdict_end``, which was acknowledged at ``offset``; None: it has not."""
        end = (await offsets(client, [self._verdicts]))[self._verdicts][1]
        if end <= offset:
            return f"ends at {end}, after offset {offset} was acknowledged"
        try:
            async for record in read_range(client, self._verdicts, offset, offset + 1):
                judged = judged_range(record, self._verdicts, self._fingerprint)
                if judged is not None and judged.after == verdict_end:
                    return None
        except MovedError:
            return None  # retention has passed it
        return f"holds other verdicts at offset {offset} than were acknowledged there"
