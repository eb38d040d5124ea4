"""What a domain must have made of its texts: read the signature log, and judge it plainly."""

from collections.abc import Mapping
from typing import Final

from aiokafka import TopicPartition

from tests.app.milling.duplicates.plain_duplicates import PlainWindow
from tests.service import Chain, in_own_loop, raw_records
from tokenmill.app.kafka.clients import consumer, offsets, read_range
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.milling.duplicates.verdicts import REASONS
from tokenmill.app.milling.reference import Reference, ReferenceBlock
from tokenmill.app.milling.steps import Rejected
from tokenmill.app.sequencer.domain_messages import SignedRange, Source, deduplication_in, domain_fingerprint
from tokenmill.app.settings import Domain, Settings
from tokenmill.records import SourceRecord

SMALL: Final = {"window": 40, "bands": 4, "rows": 2, "shingle": 2}
"""A window of which texts of a test fill many slices."""


def records_of(settings: Settings, topic: str, partition: int = 0) -> list[SourceRecord]:
    """Return all records of a partition."""

    async def read() -> list[SourceRecord]:
        async with consumer(settings) as client:
            tp = TopicPartition(topic, partition)
            return [one async for one in read_range(client, tp, *(await offsets(client, [tp]))[tp])]

    return in_own_loop(read)


def judged(settings: Settings, domain: Domain) -> dict[Source, dict[int, Rejected]]:
    """Return the duplicates of each raw partition, by offset, as the order of the signature log has them."""
    deduplication = deduplication_in(domain)
    window, found = PlainWindow(deduplication), dict[Source, dict[int, Rejected]]()
    nexts: dict[Source, int] = {}
    for record in records_of(settings, domain.signatures_topic):
        value = record.value
        signed = SignedRange.unpack(value, domain_fingerprint(domain), deduplication.width, len(domain.raw_topics))
        known = nexts.get(signed.source, 0)
        if signed.begin > known or signed.end <= known:
            continue
        nexts[signed.source] = signed.end
        for offset, hashes in zip(signed.offsets.tolist(), signed.hashes.tolist(), strict=True):
            if offset >= known:
                kind, (place, other) = window.judge(hashes, (signed.source[0] << 32 | signed.source[1], offset))
                if kind:
                    name = f"{domain.raw_topics[place >> 32]}/{place & 0xFFFFFFFF}/{other}"
                    said = "the text of" if kind == 1 else "resembles"
                    found.setdefault(signed.source, {})[offset] = Rejected(REASONS[kind], f"{said} {name}")
    return found


def kept_blocks(settings: Settings, domain: Domain) -> dict[Chain, list[ReferenceBlock]]:
    """Return every chain as it must become from the raw topics and the order of the signature log.

    All documents that the steps keep must have been judged.
    """
    verdicts, blocks = judged(settings, domain), dict[Chain, list[ReferenceBlock]]()
    for number, raw_topic in enumerate(domain.raw_topics):
        plan = plan_topic(settings, raw_topic)
        for partition, records in enumerate(raw_records(settings, raw_topic)):
            plan.stages.seen.clear()
            plan.stages.seen.update(verdicts.get((number, partition), {}))
            for stream, recipe in plan.recipes.items():
                blocks[stream.name, partition] = list(Reference(recipe, plan.stages, partition, 0).blocks(records))
    return blocks


def signed_once(settings: Settings, domain: Domain) -> Mapping[Source, int]:
    """Return up to which offset each raw partition is signed."""
    width, nexts = deduplication_in(domain).width, dict[Source, int]()
    for record in records_of(settings, domain.signatures_topic):
        signed = SignedRange.unpack(record.value, domain_fingerprint(domain), width, len(domain.raw_topics))
        if signed.begin <= nexts.get(signed.source, 0):
            nexts[signed.source] = max(nexts.get(signed.source, 0), signed.end)
    return nexts
