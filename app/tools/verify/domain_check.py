"""The verdicts of one domain judged again in the order of its signature log; of a partition, beside its records."""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

import numpy as np
from aiokafka import AIOKafkaConsumer

from tokenmill.documents import SourceRecord, index_at
from tokenmill.errors import DifferenceError

from ...kafka.clients import consumer, offsets, read_batches
from ...kafka.control_topic import require_topic
from ...milling.duplicates.signatures import REASONS, sign
from ...milling.partition_mill import Looked, PartitionMill
from ...milling.steps import Rejected
from ...sequencer.domain_messages import JudgedRange, SignedRange, SliceStart, Source, VerdictEnd, deduplication_in
from ...sequencer.rebuilding import DomainOrder, SignatureLog, are_out, first_slice, recorded_slices, verdict_logs
from ...sequencer.verdict_log import VerdictLog, VerdictQueue, told
from ...settings import Domain, Settings
from .verify_result import DomainResult, Side, VerifyDifference

_UNKNOWN: Final = 1 << 62
"""The raw offset from which verdicts are known, where none are."""


@dataclass(frozen=True, slots=True)
class JudgedLog:
    """What there was of one raw partition's verdicts, and of its domain's signatures."""

    domain: Domain
    source: Source
    begin: VerdictEnd
    """Behind this, the verdict log has all that is out."""
    end: int
    signatures: tuple[int, int]
    """The signature log's first offset, and its end."""

    @property
    def raw_topic(self) -> str:
        """The raw topic's name."""
        return self.domain.raw_topics[self.source[0]]

    def differs(self, side: Side, text: str, offset: int | None = None) -> VerifyDifference:
        """Return a difference in what is said of a record."""
        return VerifyDifference(side, "different", self.raw_topic, self.source[1], text, offset=offset)


class DomainCheck:
    """Judges again what a domain's mills have signed; `run` once."""

    def __init__(self, settings: Settings, domain: Domain) -> None:
        self.result = DomainResult(domain.name)
        self.logs: dict[Source, JudgedLog] = {}
        self._settings, self._domain, self._deduplication = settings, domain, deduplication_in(domain)
        self._signatures, self._verdicts = SignatureLog(domain), dict[Source, VerdictLog]()
        self._out: dict[Source, JudgedRange | None] = {}
        self._whole = 0

    async def run(self) -> None:
        """Compare all verdicts there are now with those of the order; name the first other one of each partition."""
        tp = self._signatures.tp
        async with consumer(self._settings) as signatures, consumer(self._settings) as verdicts:
            self._client = verdicts
            await require_topic(verdicts, tp.topic)
            logs = self._verdicts = await verdict_logs(verdicts, self._domain)
            whole = {source: await one.open(verdicts, VerdictEnd()) for source, one in logs.items()}
            slices = await recorded_slices(verdicts, self._domain)
            base = await self._base(slices, (await offsets(signatures, [tp]))[tp][0])
            span = (await offsets(signatures, [tp]))[tp]  # what is out was signed before
            for source, one in logs.items():
                known = VerdictEnd(_UNKNOWN) if base is None else base.verdict_ends.get(source, VerdictEnd())
                begin = VerdictEnd() if whole[source] else known
                self.logs[source] = JudgedLog(self._domain, source, begin, one.end, span)
            fully = base
            if base is not None and base.number:
                wholes = (slices[number] for number in sorted(slices))
                fully = next((one for one in wholes if first_slice(one, self._deduplication) >= base.number), None)
            if base is None or fully is None:
                self.result.notes.append(
                    f"the logs of domain {self._domain.name} no longer hold what a whole window needs: its verdicts "
                    "were taken as they are"
                )
                return
            if base.number:
                self.result.notes.append(
                    f"the logs of domain {self._domain.name} have lost their beginnings: verdicts were judged again of "
                    f"what {tp.topic} holds from offset {fully.signature} on, before which is a whole window"
                )
            self._whole = fully.signature
            order = DomainOrder(self._deduplication, base, self._whole)
            await self._compare(order, slices, signatures, (base.signature, span[1]))

    async def _base(self, slices: dict[int, SliceStart], first: int) -> SliceStart | None:
        """Return the first slice from which all logs go on, which are there then; None: there is none."""
        for number in sorted(slices):
            if slices[number].signature >= first and await are_out(self._client, self._verdicts, slices[number]):
                return slices[number]
        return None

    async def _compare(
        self, order: DomainOrder, slices: dict[int, SliceStart], signatures: AIOKafkaConsumer, span: tuple[int, int]
    ) -> None:
        for source in self._verdicts:
            await self._next(source)
        async for offset, part in self._signatures.accepted(signatures, order, *span):
            await self._judge(order, part, offset)
            for one in order.started:
                if slices.get(one.number, one) != one and not self.result.differences:
                    text = f"{self._domain.slices_topic} says of slice {one.number} that it begins elsewhere"
                    self._differs(next(iter(self.logs)), text)
            order.started.clear()
            if not any(self._out.values()):
                break
        for source, out in self._out.items():
            if out is not None:
                topic = self._signatures.tp.topic
                text = f"verdicts are out on the message at offset {out.signature} of {topic}, which has lost it"
                self._differs(source, text, out.begin)

    async def _next(self, source: Source) -> None:
        try:
            self._out[source] = await self._verdicts[source].next(self._client)
        except DifferenceError as error:
            self._out[source] = None
            self._differs(source, str(error))

    async def _judge(self, order: DomainOrder, part: SignedRange, signature: int) -> None:
        out = self._out.get(part.source)
        if out is None:
            order.judge(part, signature)
            return
        if signature < self._whole:
            try:
                order.take(part, signature, out)
            except DifferenceError:  # what else is kept before the window is whole is not known any more
                self._out = dict.fromkeys(self._out)
                self._differs(part.source, self._other_message(part, signature, out), out.begin)
                return
        else:
            judged = order.judge(part, signature)
            self.result.ranges += 1
            self.result.documents += len(part.offsets)
            self.result.duplicates.update(map(REASONS.__getitem__, judged.kinds.tolist()))
            if judged.after != out.after:
                self._out[part.source] = None
                self._other_verdicts(part, judged, out)
                return
        await self._next(part.source)

    def _other_verdicts(self, part: SignedRange, judged: JudgedRange, out: JudgedRange) -> None:
        right, said = self._said(judged), self._said(out)
        if (out.begin, out.end, out.signature) == (judged.begin, judged.end, judged.signature) and right != said:
            offset = min(offset for offset, _ in right.items() ^ said.items())
            found, wanted = said.get(offset, "kept"), right.get(offset, "kept")
            text = (
                f"the verdict is {found}, and in the order it is {wanted}, by the message at offset "
                f"{judged.signature} of {self._domain.signatures_topic}"
            )
            self._differs(part.source, text, offset)
        else:
            self._differs(part.source, self._other_message(part, judged.signature, out), out.begin)

    def _said(self, judged: JudgedRange) -> dict[int, str]:
        return {offset: f"{one.reason} ({one.detail})" for offset, one in told(self._domain, judged).items()}

    def _other_message(self, part: SignedRange, signature: int, out: JudgedRange) -> str:
        return (
            f"verdicts are on the offsets {out.begin} to {out.end - 1} (CRC {out.remembered.crc}) of the message at "
            f"offset {out.signature} of {self._domain.signatures_topic}, and next in the order are the offsets "
            f"{part.begin} to {part.end - 1} (CRC {part.remembered.crc}) of the one at offset {signature}"
        )

    def _differs(self, source: Source, text: str, offset: int | None = None) -> None:
        self.result.differences.append(self.logs[source].differs("verdicts", text, offset))


class JudgedRecords:
    """The records of one raw partition: `open`, then `take` each fetch, and `look` at the parts of what it returned."""

    def __init__(self, log: JudgedLog, mill: PartitionMill, seen: dict[int, Rejected], skips: Collection[int]) -> None:
        """Tell what is a duplicate to ``seen``, by offset; records of ``skips`` may have been signed before."""
        self.differences: list[VerifyDifference] = []
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
            kept = _kept(self._mill.look(records[index_at(records, self._queue.end) :]))
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
        """Return the part of the signature log that verdicts are on; None where it is gone, or is another."""
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
        first, last = np.searchsorted(signed.offsets, (low, high))
        stays = first + np.flatnonzero(~np.isin(signed.offsets[first:last], self._skips))
        offsets = np.array([offset for offset, _ in kept], np.int64)
        hashes, theirs = sign(self._deduplication, [text for _, text in kept]), signed.offsets[stays]
        if others := set(offsets.tolist()) ^ set(theirs.tolist()):
            other = min(others)
            how = "signs this record, of which the steps keep nothing" if other in theirs else "lacks it"
        elif (differs := (hashes != signed.hashes[stays]).any(axis=1)).any():
            other, how = int(offsets[differs.argmax()]), "has another signature of it"
        else:
            return
        message = f"the message at offset {signature} of {self._log.domain.signatures_topic}"
        self._differs("signatures", f"{message} {how}", other)

    def _has(self, side: Side) -> bool:
        return any(difference.side == side for difference in self.differences)

    def _differs(self, side: Side, text: str, offset: int | None = None) -> None:
        if not self._has(side):
            self.differences.append(self._log.differs(side, text, offset))


def _kept(looked: Looked) -> list[tuple[int, str]]:
    return [one for columns in looked.columns for one in columns.kept_texts()]
