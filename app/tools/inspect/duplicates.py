"""What verdict logs say of documents: which were seen before, and which came again."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition

from ...kafka.clients import consumer
from ...kafka.cluster import partitions_of
from ...kafka.dead_letters import RecordPlace
from ...milling.duplicates.verdicts import REASONS
from ...milling.steps import Rejected
from ...sequencer.domain_messages import JudgedRange, source_number
from ...sequencer.settled_domains import settled_domains
from ...sequencer.verdict_log import VerdictLog, VerdictQueue
from ...settings import Domain, Settings


async def judged_ranges(
    client: AIOKafkaConsumer, domain: Domain, raw: TopicPartition, offset: int = 0
) -> AsyncIterator[JudgedRange]:
    """Yield the verdicts on a raw partition that count, from those on a raw offset on, up to the log's end now.

    Only this iterator uses ``client`` meanwhile. Raises DifferenceError where the log holds two histories.
    """
    log = VerdictLog(domain, (domain.raw_topics.index(raw.topic), raw.partition))
    if raw.partition < await partitions_of(client, log.tp.topic):
        await log.open_at(client, offset)
        while (judged := await log.next(client)) is not None:
            yield judged


async def all_ranges(client: AIOKafkaConsumer, domain: Domain) -> AsyncIterator[tuple[TopicPartition, JudgedRange]]:
    """Yield all verdicts of a domain with the raw partition that they are on; raises as `judged_ranges`."""
    for raw_topic in domain.raw_topics:
        for partition in range(await partitions_of(client, domain.verdicts_topic(raw_topic))):
            raw = TopicPartition(raw_topic, partition)
            async for judged in judged_ranges(client, domain, raw):
                yield raw, judged


class Duplicates:
    """The duplicates of one raw partition from an offset on, for whoever reads its records."""

    def __init__(self, client: AIOKafkaConsumer, domain: Domain, raw: TopicPartition, start: int) -> None:
        self._ranges, self._queue = judged_ranges(client, domain, raw, start), VerdictQueue(domain)

    async def tell(self, seen: dict[int, Rejected], end: int) -> None:
        """Have in ``seen`` those before an offset that were not told yet, and nothing else."""
        while self._queue.end < end and (judged := await anext(self._ranges, None)) is not None:
            self._queue.add(judged)
        self._queue.tell(seen, end)

    def why_unjudged(self, offset: int) -> str:
        """Return why there is no verdict on an offset that `tell` has passed; nothing where there is one."""
        if offset >= self._queue.end:
            return "there is no verdict on duplicates yet"
        return "there is no verdict on duplicates any more" if offset < (self._queue.begin or 0) else ""


class LaterCopy(NamedTuple):
    """A document that was left out, as it resembles a kept one."""

    place: RecordPlace
    reason: str


async def copies_of(settings: Settings, place: RecordPlace) -> list[LaterCopy]:
    """Return the documents that resemble the kept one at a place; all verdicts of its domains are read.

    Raises TopicError where the raw topic has no stream.
    """
    domains = await settled_domains(settings, [place.topic])
    async with consumer(settings) as client:
        return [copy for domain in domains for copy in await _copies(client, domain, place)]


async def _copies(client: AIOKafkaConsumer, domain: Domain, place: RecordPlace) -> list[LaterCopy]:
    kept = np.array([source_number((domain.raw_topics.index(place.topic), place.partition)), place.offset], np.uint64)
    return [
        LaterCopy(RecordPlace(raw.topic, raw.partition, int(judged.offsets[row])), REASONS[judged.kinds[row]])
        async for raw, judged in all_ranges(client, domain)
        for row in np.flatnonzero((judged.places == kept).all(axis=1))
    ]


async def seen_before(settings: Settings, place: RecordPlace) -> dict[str, dict[str, Any] | None]:
    """Return by domain, as JSON types, whether a record is a duplicate, and how often it came again, by reason.

    None: there is no verdict on it, or none any more. Raises TopicError where the raw topic has no stream.
    """
    found: dict[str, dict[str, Any] | None] = {}
    seen: dict[int, Rejected] = {}
    async with consumer(settings) as client:
        for domain in await settled_domains(settings, [place.topic]):
            found[domain.name], raw = None, TopicPartition(place.topic, place.partition)
            duplicates = Duplicates(client, domain, raw, place.offset)
            await duplicates.tell(seen, place.offset + 1)
            verdict = seen.get(place.offset, Rejected("", ""))
            if not duplicates.why_unjudged(place.offset):
                copies = [] if verdict.reason else await _copies(client, domain, place)
                again = dict(Counter(copy.reason for copy in copies))
                found[domain.name] = {"reason": verdict.reason, "detail": verdict.detail, "again": again}
    return found
