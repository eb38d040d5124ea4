"""The verdicts of one domain, judged again in the order of its signature log, and compared with all verdict logs."""

from collections import Counter
from typing import Final

from aiokafka import AIOKafkaConsumer

from tokenmill.errors import DifferenceError

from ...kafka.clients import consumer, offsets
from ...kafka.control_topic import require_topic
from ...milling.duplicates.verdicts import REASONS
from ...sequencer.domain_messages import (
    JudgedRange,
    SignedRange,
    SliceStart,
    Source,
    VerdictEnd,
    deduplication_in,
)
from ...sequencer.domain_order import DomainOrder, first_slice
from ...sequencer.rebuilding import SignatureLog, are_out, recorded_slices, verdict_logs
from ...sequencer.verdict_log import VerdictLog, told
from ...settings import Domain, Settings
from .judged_records import JudgedLog
from .verify_result import DomainResult

_UNKNOWN: Final = 1 << 62
"""The raw offset from which verdicts are known, where none are."""


class DomainCheck:
    """Judges again what a domain's mills have signed; `run` once."""

    def __init__(self, settings: Settings, domain: Domain) -> None:
        self.result = DomainResult(domain.name)
        self.logs: dict[Source, JudgedLog] = {}
        """What there was of each raw partition's verdicts."""
        self._settings, self._domain, self._deduplication = settings, domain, deduplication_in(domain)
        self._signatures, self._verdicts = SignatureLog(domain), dict[Source, VerdictLog]()
        self._out: dict[Source, JudgedRange | None] = {}
        self._whole = 0

    async def run(self) -> None:
        """Fix how far the logs go, and compare all verdicts with those of the order; name the first other one of each.

        Raises:
            MovedError: retention passed what was being read.
            DiskError: there is no room for the window.
            SettingsError: numba is not installed.
            BrokerError: no broker answers.

        """
        tp = self._signatures.tp
        async with consumer(self._settings) as signatures, consumer(self._settings) as verdicts:
            await require_topic(verdicts, tp.topic)
            logs = self._verdicts = await verdict_logs(verdicts, self._domain)
            whole = {source: await one.open(verdicts, VerdictEnd()) for source, one in logs.items()}
            slices = await recorded_slices(verdicts, self._domain)
            base = await self._base(verdicts, slices, (await offsets(signatures, [tp]))[tp][0])
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
            await self._compare(order, slices, signatures, verdicts, (base.signature, span[1]))

    async def _base(self, client: AIOKafkaConsumer, slices: dict[int, SliceStart], first: int) -> SliceStart | None:
        """Return the first slice from which all logs go on, which are there then; None: there is none."""
        for number in sorted(slices):
            if slices[number].signature >= first and await are_out(client, self._verdicts, slices[number]):
                return slices[number]
        return None

    async def _compare(
        self,
        order: DomainOrder,
        slices: dict[int, SliceStart],
        signatures: AIOKafkaConsumer,
        verdicts: AIOKafkaConsumer,
        span: tuple[int, int],
    ) -> None:
        for source in self._verdicts:
            await self._next(source, verdicts)
        async for offset, part in self._signatures.accepted(signatures, order, *span):
            await self._judge(order, part, offset, verdicts)
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

    async def _next(self, source: Source, client: AIOKafkaConsumer) -> None:
        """Read the next verdicts that are out."""
        try:
            self._out[source] = await self._verdicts[source].next(client)
        except DifferenceError as error:
            self._out[source] = None
            self._differs(source, str(error))

    async def _judge(self, order: DomainOrder, part: SignedRange, signature: int, client: AIOKafkaConsumer) -> None:
        """Compare the next verdicts that are out of a raw partition with those of the order."""
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
            self._count(part, judged)
            if judged.after != out.after:
                self._out[part.source] = None
                self._other_verdicts(part, judged, out)
                return
        await self._next(part.source, client)

    def _count(self, part: SignedRange, judged: JudgedRange) -> None:
        kinds = Counter(judged.kinds.tolist())
        self.result.ranges += 1
        self.result.documents += len(part.offsets)
        self.result.duplicates.update({REASONS[kind]: count for kind, count in kinds.items()})

    def _other_verdicts(self, part: SignedRange, judged: JudgedRange, out: JudgedRange) -> None:
        """Note the first document of a range with another verdict than the order gives."""
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
