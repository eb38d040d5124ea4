"""Reading what a sequencer has written: what its domains are, and the verdicts that count, from a place on.

A domain is settled by the first record on its topic of slices, also for those who have no settings.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import orjson
import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition

from tokenmill.documents import SourceRecord, index_at
from tokenmill.errors import DamagedError, DifferenceError, FingerprintError, MovedError, TopicError
from tokenmill.wire.chain import record_crc

from ..kafka.clients import consumer, offsets, read_batches, read_partition, read_range
from ..kafka.control_topic import Settled, require_topic, settled_streams, write_control
from ..milling.duplicates.signatures import Verdicts, rejections
from ..milling.steps import Rejected
from ..settings import Domain, Settings
from .domain_messages import (
    DOMAIN_KEY,
    JudgedRange,
    Remembered,
    Source,
    VerdictChain,
    VerdictEnd,
    domain_fingerprint,
    domain_record,
    place_name,
)

log = structlog.get_logger(__name__)


async def _recorded(client: AIOKafkaConsumer, domain: Domain) -> bytes | None:
    """Return what decides the verdicts of a domain, as the first record on its topic of slices has it; None before."""
    async for record in read_partition(client, TopicPartition(domain.slices_topic, 0)):
        if record.key == DOMAIN_KEY:
            return bytes(record.value or b"")
    return None


async def settle_domain(settings: Settings, domain: Domain) -> None:
    """Return when what decides the verdicts is the first record on the domain's topic of slices.

    Raises FingerprintError where the domain was settled with other settings.
    """
    async with consumer(settings) as client:
        while (found := await _recorded(client, domain)) is None:
            await write_control(settings, domain.slices_topic, [(DOMAIN_KEY, domain_record(domain))])
    if found != domain_record(domain):
        raise FingerprintError(
            f"domain {domain.name} was settled with {found.decode(errors='replace')}, and the settings say "
            f"{domain_record(domain).decode()}: set them back, or begin a new domain with a new stream_suffix"
        )


def domain_name(settled: Settled) -> str:
    """Return the name of the domain in which duplicates of a stream's documents are looked for; "": in none."""
    recipe = settled.genesis.recipe
    return f"{recipe.dedup.get('domain', recipe.raw_topic)}{settled.stream.suffix}" if recipe.dedup else ""


async def settled_domain(settings: Settings, settled: Settled) -> Domain:
    """Return the domain of a stream, as the first record on the domain's topic of slices has it.

    Raises TopicError where no sequencer has written it yet; and FingerprintError where it has other parameters than the
    stream, or not its raw topic.
    """
    recipe, name = settled.genesis.recipe, domain_name(settled)
    domain = Domain(name, (recipe.raw_topic,), settled.stream.suffix, recipe.dedup)
    async with consumer(settings) as client:
        await require_topic(client, domain.slices_topic)
        found = await _recorded(client, domain)
    if found is None:
        raise TopicError(
            f"{domain.slices_topic} does not say yet what domain {name} is: start a sequencer, `tokenmill serve`"
        )
    with suppress(ValueError, KeyError, TypeError):
        domain = domain._replace(raw_topics=tuple(orjson.loads(found)["raw_topics"]))
    if domain_record(domain) != found or recipe.raw_topic not in domain.raw_topics:
        raise FingerprintError(
            f"domain {name} was settled with {found.decode(errors='replace')}, and {settled.stream.name} with the "
            f"dedup {dict(recipe.dedup)}: they do not belong together"
        )
    return domain


async def settled_domains(settings: Settings, raw_topics: Sequence[str]) -> list[Domain]:
    """Return the domains of all streams of some raw topics, by name; those that are not settled are left out.

    Raises TopicError where no stream of these raw topics is settled; and as `settled_domain`.
    """
    streams = await settled_streams(settings.model_copy(update={"raw_topics": tuple(raw_topics)}))
    named, found = {name: settled for settled in streams if (name := domain_name(settled))}, []
    for name in sorted(named):
        with suppress(TopicError):
            found.append(await settled_domain(settings, named[name]))
    return found


def told(domain: Domain, judged: JudgedRange) -> dict[int, Rejected]:
    """Return how each duplicate among verdicts is filtered out, by its offset."""
    said = rejections(Verdicts(judged.kinds, judged.places), partial(place_name, domain))
    return {at: one for at, one in zip(judged.offsets.tolist(), said, strict=True) if one is not None}


class VerdictLog:
    """The verdicts on one raw partition that count: `open` and then `next`, up to the log's end when it was opened.

    Whoever reads the log otherwise gives what was read to `take`.
    """

    def __init__(self, domain: Domain, source: Source) -> None:
        self.end = 0
        self.tp = TopicPartition(domain.verdicts_topic(domain.raw_topics[source[0]]), source[1])
        self.fingerprint = domain_fingerprint(domain)
        self._topics = len(domain.raw_topics)
        self._begin(VerdictChain(VerdictEnd()))

    def __str__(self) -> str:
        return f"{self.tp.topic}[{self.tp.partition}]"

    def _begin(self, chain: VerdictChain) -> None:
        self._chain, self._position = chain, 0
        self._found: deque[JudgedRange] = deque()
        self.failed: DifferenceError | None = None
        """Why nothing more counts: the log holds two histories."""

    @property
    def verdict_end(self) -> VerdictEnd:
        """How far the partition is judged with all that was read."""
        return self._chain.verdict_end or VerdictEnd()

    async def open(self, client: AIOKafkaConsumer, verdict_end: VerdictEnd) -> bool:
        """Go behind the verdicts up to ``verdict_end``; return whether they are there. Raises MovedError as `next`."""
        self._begin(VerdictChain(verdict_end))
        await self._find(client, verdict_end.next_offset - 1)
        if verdict_end == VerdictEnd():
            return self._position == 0
        async for record in read_range(client, self.tp, self._position, self.end):
            judged = self._judged(record)
            if judged is not None and judged.after == verdict_end:
                self._position = record.offset + 1
                return True
        return False

    async def open_at(self, client: AIOKafkaConsumer, offset: int) -> None:
        """Go to the verdicts on a raw offset, or to the first ones that are there. Raises MovedError as `next`."""
        self._begin(VerdictChain())
        await self._find(client, offset)

    async def _find(self, client: AIOKafkaConsumer, offset: int) -> None:
        """Find from where on to read for the verdict on a raw offset, and the log's end."""
        low, self.end = (await offsets(client, [self.tp]))[self.tp]
        high = self.end if offset > 0 else low
        while high - low > 1:
            middle = (low + high) // 2
            judged = None
            async for record in read_range(client, self.tp, middle, self.end):
                if (judged := self._judged(record)) is not None:
                    break
            low, high = (middle, high) if judged is not None and judged.begin <= offset else (low, middle)
        self._position = low

    def _judged(self, record: SourceRecord) -> JudgedRange | None:
        """Return the verdicts that a record is; None for one that does not count, which the log names.

        That is what is none of this domain, and what a writer sent that did not know the end of its log: another one
        had written meanwhile, or the log had lost its tail. So ranges rise with offsets, without one that comes again.
        """
        try:
            return JudgedRange.unpack(record.value, self.fingerprint, record.offset, self._topics)
        except DamagedError as error:
            log.warning("passed over", **self.tp._asdict(), offset=record.offset, why=str(error))
            return None

    async def next(self, client: AIOKafkaConsumer) -> JudgedRange | None:
        """Return the next verdicts that count; None at the end.

        Raises DifferenceError where the log holds two histories, behind what counts before; MovedError where retention
        passes what is read.
        """
        while not self._found and self.failed is None and self._position < self.end:
            records = await anext(read_batches(client, self.tp, self._position, self.end), ())
            self._found.extend(self.take(records))
            self._position = records[-1].offset + 1 if records else self.end
        if not self._found and self.failed is not None:
            raise self.failed
        return self._found.popleft() if self._found else None

    def take(self, records: Sequence[SourceRecord]) -> Iterator[JudgedRange]:
        """Yield the verdicts that count among the next records of the log, up to where it has `failed`."""
        for record in records if self.failed is None else ():
            judged = self._judged(record)
            try:
                counts = judged is not None and self._chain.offer(judged)
            except DifferenceError as error:
                self.failed = DifferenceError(f"offset {record.offset} of {self}: {error}")
                return
            if judged is not None and counts:
                yield judged

    async def lacks(self, client: AIOKafkaConsumer, offset: int, verdict_end: VerdictEnd) -> str | None:
        """Return why the log has lost ``verdict_end``, which was acknowledged at ``offset``; None: it has not."""
        end = (await offsets(client, [self.tp]))[self.tp][1]
        if end <= offset:
            return f"ends at {end}, after offset {offset} was acknowledged"
        try:
            async for record in read_range(client, self.tp, offset, offset + 1):
                judged = self._judged(record)
                if judged is not None and judged.after == verdict_end:
                    return None
        except MovedError:
            return None  # retention has passed it
        return f"holds other verdicts at offset {offset} than were acknowledged there"


class VerdictQueue:
    """What was judged of one raw partition, for whoever passes its records in their order."""

    def __init__(self, domain: Domain, end: int = 0) -> None:
        self.begin: int | None = None
        """The raw offset at which the first verdicts begin; None before them."""
        self.end = end
        """The raw offset up to which there are verdicts."""
        self.passed = 0
        """The raw offset up to which records were passed; what was judged before is not kept."""
        self._domain = domain
        self._told: deque[tuple[int, Rejected]] = deque()
        self._remembered: deque[Remembered] = deque()

    def add(self, judged: JudgedRange) -> None:
        """Take the next verdicts."""
        self.begin, self.end = judged.begin if self.begin is None else self.begin, judged.end
        if judged.end > self.passed:
            self._told.extend(told(self._domain, judged).items())
            self._remembered.append(judged.remembered)

    def tell(self, seen: dict[int, Rejected], end: int) -> None:
        """Have in ``seen`` the duplicates before a raw offset that were not told yet, and nothing else."""
        seen.clear()
        while self._told and self._told[0][0] < end:
            seen.update([self._told.popleft()])

    def pass_over(self, records: Sequence[SourceRecord], end: int) -> int | None:
        """Pass all ``records`` before a raw offset; return the first at which another one was judged than is there."""
        other = None
        while self._remembered and self._remembered[0].offset < end:
            offset, crc = self._remembered.popleft()
            if offset >= self.passed and other is None:
                at = index_at(records, offset)
                one = records[at] if at < len(records) else None
                if one is None or (one.offset, record_crc(one.key, one.value)) != (offset, crc):
                    other = offset
        self.passed = max(self.passed, end)
        return other
