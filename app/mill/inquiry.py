"""Inquiries about duplicates: what a mill signs of a raw partition goes to the sequencer, and waits for verdicts.

`VerdictFeed` reads the verdicts on all partitions that a worker owns with one client, and hands them out.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.documents import SourceRecord, index_at
from tokenmill.errors import SequencerError, SourceError
from tokenmill.reading import ADVICE
from tokenmill.wire.chain import record_crc

from ..kafka.clients import Send, ask_repeatedly
from ..kafka.fetched_batches import FetchedBatch, unpacked
from ..milling.duplicates.signatures import sign_records
from ..milling.partition_mill import Looked, PartitionMill
from ..milling.steps import Rejected
from ..sequencer.domain_messages import Remembered, SignedRange, deduplication_in
from ..sequencer.verdict_log import VerdictLog, VerdictQueue
from ..settings import Domain, Settings
from ..tasks import Backoff

READ_AGAIN_SECONDS: Final = 0.1
"""How soon is tried again what failed, and how soon a partition is read that was added while there was none."""
POLL_MS: Final = 200
"""How soon another one is."""
NO_END: Final = 1 << 62


@dataclass(slots=True)
class _Reader:
    offset: int
    deliver: Callable[[Sequence[SourceRecord]], None]


class VerdictFeed:
    """Hands out what is behind a place of each partition that was added, while `run` runs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._readers: dict[TopicPartition, _Reader] = {}
        self._changes = 0

    def add(self, verdicts: TopicPartition, offset: int, deliver: Callable[[Sequence[SourceRecord]], None]) -> None:
        """Hand out the records of a partition from an offset on, in their order."""
        self._readers[verdicts] = _Reader(offset, deliver)
        self._changes += 1

    def remove(self, verdicts: TopicPartition) -> None:
        """Hand out nothing more of a partition."""
        self._changes += self._readers.pop(verdicts, None) is not None

    async def run(self) -> None:
        """Read until cancelled. Raises OffsetOutOfRangeError where a log no longer has what comes next."""
        await ask_repeatedly(self._settings, self._follow, READ_AGAIN_SECONDS, "verdicts cannot be read now")

    async def _follow(self, client: AIOKafkaConsumer) -> None:
        changes, readers = self._changes, dict(self._readers)
        if not readers:
            return
        client.assign(list(readers))
        for verdicts, reader in readers.items():
            client.seek(verdicts, reader.offset)
        while changes == self._changes:
            for verdicts, batches in (await client.getmany(timeout_ms=POLL_MS)).items():
                records = await asyncio.to_thread(unpacked, batches, NO_END)
                readers[verdicts].offset = await client.position(verdicts)
                if records and self._readers.get(verdicts) is readers[verdicts]:
                    readers[verdicts].deliver(records)


SIGNED_BYTES: Final = 1 << 20
"""Of hashes in one message: the topic takes no larger ones than twice as much."""
WAITING_BYTES: Final = 16 << 20
"""Of records that wait for their verdicts; a fetch's share is at most half of it."""
AGAIN_SECONDS: Final = 10.0
"""After as long without a verdict, what was signed is sent again: the signature log may have lost it."""
LONGEST_SECONDS: Final = 300.0
"""The same after several times in vain, as where no sequencer runs."""

Show: TypeAlias = Callable[[SequencerError | None], None]

log = structlog.get_logger(__name__)


class AskedShare(NamedTuple):
    """Records that wait for their verdicts."""

    batch: FetchedBatch
    """Those that are to be milled."""
    looked: Looked
    ranges: Sequence[SignedRange]
    """What was signed of them, and of records that were milled before."""
    size: int
    """Bytes of their values."""

    @property
    def needs(self) -> int:
        """The offset up to which there must be verdicts."""
        return self.ranges[-1].end if self.ranges else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainLogs:
    """What all raw partitions of a topic on one worker share to ask a sequencer."""

    domain: Domain
    send: Send
    feed: VerdictFeed


class Inquiry:
    """Asks about one raw partition: `resume`, then `sign` and `ask`; `next` gives back what is judged."""

    def __init__(self, raw: TopicPartition, logs: DomainLogs, seen: dict[int, Rejected], show: Show) -> None:
        """Tell what is a duplicate to ``seen``, by offset; ``show`` is called with what is waited for, or None."""
        domain = logs.domain
        self.begin = 0
        """The raw offset from which records are wanted: they are signed, also where they are milled already."""
        self._raw, self._logs, self._seen, self._show = raw, logs, seen, show
        self._source = domain.raw_topics.index(raw.topic), raw.partition
        self._log, self._queue = VerdictLog(domain, self._source), VerdictQueue(domain)
        self._deduplication = deduplication_in(domain)
        self._milled = 0
        self._signed = 0
        self._asked: deque[AskedShare] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._stopped = False

    async def resume(self, client: AIOKafkaConsumer, position: int, first: int) -> None:
        """Find what is judged, for a mill that goes on at ``position`` and began at ``first``.

        Only this call uses ``client`` meanwhile. Raises DifferenceError where the verdicts hold two histories, and
        SourceError where retention has passed what is not milled.
        """
        await self._log.open_at(client, position)
        self._queue.passed = position
        while (judged := await self._log.next(client)) is not None:
            self._queue.add(judged)
        if self._log.end and (self._queue.begin is None or self._queue.begin > position):
            raise SourceError(
                f"{self._log} no longer has the verdicts behind offset {position}: its retention must hold what is not "
                "milled; begin a new stream with a new stream_suffix"
            )
        self._signed, self._milled = self._queue.end, position
        self.begin = min(position, max(self._signed, first))
        self._logs.feed.add(self._log.tp, self._log.end, self._deliver)

    def sign(self, mill: PartitionMill, batch: FetchedBatch) -> AskedShare:
        """Take the next records through the steps, and sign what these keep. Raises as `PartitionMill.look`."""
        records: Sequence[SourceRecord] = batch.records
        found, ranges = sign_records(mill, self._deduplication, records, self._milled), []
        offsets, hashes = found.offsets, found.hashes
        most = SIGNED_BYTES // (8 * (1 + self._deduplication.width))
        for low in range(0, len(offsets), most):
            high = min(len(offsets), low + most)
            last = records[-1 if high == len(offsets) else index_at(records, int(offsets[high - 1]))]
            remembered = Remembered(last.offset, record_crc(last.key, last.value))
            one = (self._source, self._signed, last.offset + 1, remembered, offsets[low:high], hashes[low:high])
            ranges.append(SignedRange(*one))
            self._signed = last.offset + 1
        size = sum(len(record.value or b"") for record in records)
        return AskedShare(replace(batch, records=found.milled), found.looked, ranges, size)

    async def ask(self, asked: AskedShare) -> None:
        """Send what was signed, when there is room for more that waits; it is on the signature log on return."""
        while self._asked and self._size + asked.size > WAITING_BYTES and not self._stopped:
            self._changed.clear()
            await self._changed.wait()
        if self._stopped:
            return
        self._asked.append(asked)
        self._size += asked.size
        self._changed.set()
        await self._send(asked)

    async def _send(self, asked: AskedShare) -> None:
        for one in asked.ranges:
            if one.end > self._queue.end:
                await self._logs.send(self._logs.domain.signatures_topic, 0, one.pack(self._log.fingerprint), None, ())

    async def next(self) -> AskedShare:
        """Return the records that were asked about first, when all is known of them.

        Raises DifferenceError where the verdicts hold two histories, SourceError where they are of other records.
        """
        where = f"{self._raw.topic}[{self._raw.partition}]"
        pauses = Backoff(AGAIN_SECONDS, LONGEST_SECONDS)
        pause = pauses.next()
        while not self._asked or self._asked[0].needs > self._queue.end:
            self._changed.clear()
            if self._log.failed is not None:
                raise self._log.failed
            try:  # not `wait_for`, which in Python 3.11 is not cancelled where `stop` has just set the event
                async with asyncio.timeout(pause if self._asked else None):
                    await self._changed.wait()
            except TimeoutError:
                pause = pauses.next()
                reason = (
                    f"{where} waits for verdicts on duplicates behind offset {self._queue.end}: see that a sequencer "
                    f"runs for the domain {self._logs.domain.name} (`tokenmill serve` starts one), and what it says"
                )
                log.warning("waiting", reason=reason)
                self._show(SequencerError(reason))
                for asked in list(self._asked):
                    await self._send(asked)
        self._show(None)
        asked = self._asked.popleft()
        self._size -= asked.size
        self._changed.set()
        self._queue.tell(self._seen, asked.batch.position)
        if (other := self._queue.pass_over(asked.batch.records, asked.batch.position)) is not None:
            raise SourceError(f"{where} no longer holds at offset {other} what was judged: {ADVICE}")
        return asked

    def _deliver(self, records: Sequence[SourceRecord]) -> None:
        for judged in self._log.take(records):
            self._queue.add(judged)
        self._changed.set()

    def stop(self) -> None:
        """Ask and wait for nothing more."""
        self._stopped = True
        self._changed.set()
        self._logs.feed.remove(self._log.tp)
