"""What was signed and judged of one raw partition, read beside its records: compared with them, and told to stages.

Verdicts name the messages of the signature log that they are on. Each partition fetches those of its own, and what a
fetch brings beside them.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from aiokafka import AIOKafkaConsumer

from tokenmill.errors import DifferenceError
from tokenmill.records import SourceRecord, index_at

from ...kafka.clients import read_batches
from ...milling.duplicates.signatures import Hashes, sign
from ...milling.partition_mill import Looked, PartitionMill
from ...milling.steps import Rejected
from ...sequencer.domain_messages import (
    Integers,
    JudgedRange,
    SignedRange,
    Source,
    VerdictEnd,
    deduplication_in,
)
from ...sequencer.rebuilding import SignatureLog
from ...sequencer.verdict_log import VerdictLog, VerdictQueue
from ...settings import Domain
from .verify_result import Side, VerifyDifference


@dataclass(frozen=True, slots=True)
class JudgedLog:
    """What there was of one raw partition's verdicts, and of its domain's signatures."""

    domain: Domain
    source: Source
    begin: VerdictEnd
    """Behind this, the verdict log has all that is out."""
    end: int
    """Of the verdict log."""
    signatures: tuple[int, int]
    """The signature log's first offset, and its end."""

    @property
    def raw_topic(self) -> str:
        """The raw topic's name."""
        return self.domain.raw_topics[self.source[0]]

    def differs(self, side: Side, text: str, offset: int | None = None) -> VerifyDifference:
        """Return a difference in what is said of a record."""
        return VerifyDifference(side, "different", self.raw_topic, self.source[1], text, offset=offset)


class JudgedRecords:
    """The records of one raw partition: `open`, then `take` each fetch, and `look` at the parts of what it returned."""

    def __init__(self, log: JudgedLog, mill: PartitionMill, seen: dict[int, Rejected], skips: Collection[int]) -> None:
        """Tell what is a duplicate to ``seen``, by offset; records of ``skips`` may have been signed before."""
        self.differences: list[VerifyDifference] = []
        """The first of the verdicts, and the first of the signatures."""
        self._log, self._mill, self._seen = log, mill, seen
        self._skips = np.array(sorted(skips), np.int64)
        self._deduplication = deduplication_in(log.domain)
        self._signatures, self._verdicts = SignatureLog(log.domain), VerdictLog(log.domain, log.source)
        self._queue = VerdictQueue(log.domain, log.begin.next_offset)
        self._looked = 0
        self._signed: deque[tuple[JudgedRange, SignedRange | None]] = deque()
        self._messages: deque[SourceRecord] = deque()

    async def open(self, start: int, verdicts: AIOKafkaConsumer, signatures: AIOKafkaConsumer) -> None:
        """Read verdicts and signatures of the records from ``start`` on, with clients that are this object's alone."""
        self._clients = verdicts, signatures
        self._queue.passed = self._looked = start
        self._seen.clear()
        await self._verdicts.open(verdicts, self._log.begin)
        self._verdicts.end = self._log.end

    async def take(self, records: Sequence[SourceRecord]) -> Sequence[SourceRecord]:
        """Return those of the next records that are before the first document of which there is no verdict."""
        end = records[-1].offset + 1
        while self._queue.end < end and (judged := await self._next()) is not None:
            self._queue.add(judged)
            if judged.end > self._queue.passed:
                self._signed.append((judged, await self._message(judged)))
        if self._queue.end < end:
            behind = index_at(records, self._queue.end)
            kept = _kept(self._mill.look(records[behind:]))
            end = kept[0][0] if kept else end
            records = records[: index_at(records, end)]
        self._queue.tell(self._seen, end)
        if (other := self._queue.pass_over(records, end)) is not None:
            self._differs("verdicts", f"this record of {self._log.raw_topic} is not the one judged", other)
        return records

    def look(self, records: Sequence[SourceRecord]) -> Looked:
        """Return what `PartitionMill.look` does of the next of the records; what they are signed with is compared."""
        looked = self._mill.look(records)
        kept, end = _kept(looked), records[-1].offset + 1
        while self._signed and self._signed[0][0].begin < end:
            judged, signed = self._signed[0]
            if signed is not None and not self._has("signatures"):
                low, high = max(judged.begin, self._looked), min(judged.end, end)
                part = kept[bisect_left(kept, low, key=itemgetter(0)) : bisect_left(kept, high, key=itemgetter(0))]
                self._compare(part, signed, low, high, judged.signature)
            if judged.end > end:
                break
            self._signed.popleft()
        self._looked = end
        return looked

    async def _next(self) -> JudgedRange | None:
        try:
            return await self._verdicts.next(self._clients[0])
        except DifferenceError as error:
            self._differs("verdicts", str(error))
            return None

    async def _message(self, judged: JudgedRange) -> SignedRange | None:
        """Return the part of the signature log that verdicts are on; None where it is gone, or another, which is noted.

        Verdicts come in the order of their messages.
        """
        first, end = self._log.signatures
        if judged.signature < first:
            return None
        topic = self._signatures.tp
        while self._messages and self._messages[0].offset < judged.signature:
            self._messages.popleft()
        if not self._messages:
            self._messages.extend(await anext(read_batches(self._clients[1], topic, judged.signature, end), ()))
        if self._messages and self._messages[0].offset == judged.signature:
            signed = self._signatures.signed(self._messages[0])
            if signed is not None and (signed.source, signed.end) == (self._log.source, judged.end):
                return signed.since(judged.begin)
        text = f"{topic.topic} does not hold at offset {judged.signature} what the verdicts from here on are of"
        self._differs("signatures", text, judged.begin)
        return None

    def _compare(
        self, kept: Sequence[tuple[int, str]], signed: SignedRange, low: int, high: int, signature: int
    ) -> None:
        """Note the first document at the offsets ``[low, high)`` that is signed otherwise than the steps keep it."""
        first, last = np.searchsorted(signed.offsets, (low, high))
        stays = first + np.flatnonzero(~np.isin(signed.offsets[first:last], self._skips))
        offsets = np.array([offset for offset, _ in kept], np.int64)
        hashes = sign(self._deduplication, [text for _, text in kept])
        found = _first_other(offsets, hashes, signed.offsets[stays], signed.hashes[stays])
        if found is not None:
            message = f"the message at offset {signature} of {self._log.domain.signatures_topic}"
            self._differs("signatures", f"{message} {found[1]}", found[0])

    def _has(self, side: Side) -> bool:
        return any(difference.side == side for difference in self.differences)

    def _differs(self, side: Side, text: str, offset: int | None = None) -> None:
        if not self._has(side):
            self.differences.append(self._log.differs(side, text, offset))


def _kept(looked: Looked) -> list[tuple[int, str]]:
    return [one for columns in looked.columns for one in columns.kept_texts()]


def _first_other(mine: Integers, hashes: Hashes, theirs: Integers, signed: Hashes) -> tuple[int, str] | None:
    """Return the first offset that is not signed as it must be, and how it is signed."""
    if other := set(mine.tolist()) ^ set(theirs.tolist()):
        return min(other), "signs this record, of which the steps keep nothing" if min(other) in theirs else "lacks it"
    differs = (hashes != signed).any(axis=1)
    return (int(mine[differs.argmax()]), "has another signature of it") if differs.any() else None
