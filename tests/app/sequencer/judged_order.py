"""Texts of a domain, and what must have been made of them: the signature log is read, and judged plainly."""

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.app.milling.duplicates.plain_duplicates import PlainWindow
from tests.service import Chain, Raw, Service, raw_records, send, service_settings, stored_blocks
from tokenmill.app.local.broker import Broker
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.milling.duplicates.signatures import REASONS
from tokenmill.app.milling.reference import Reference, ReferenceBlock
from tokenmill.app.milling.steps import Rejected
from tokenmill.app.sequencer.domain_messages import SignedRange, Source, deduplication_in, domain_fingerprint
from tokenmill.app.settings import Domain, Settings
from tokenmill.documents import Record
from tokenmill.store import open_partition

WORDS: Final = ("river", "stone", "light", "paper", "winter", "engine", "garden", "copper")
SMALL: Final = {"window": 40, "bands": 4, "rows": 2, "shingle": 2}
"""A window of which texts of a test fill many slices."""


def records_of(settings: Settings, topic: str, partition: int = 0) -> list[Record]:
    return raw_records(settings, topic)[partition]


def taken_ranges(settings: Settings, domain: Domain) -> Iterator[tuple[SignedRange, int]]:
    """Yield what of the signature log says more of its partition, each range with the offset that was known up to."""
    width, nexts = deduplication_in(domain).width, dict[Source, int]()
    for record in records_of(settings, domain.signatures_topic):
        signed = SignedRange.unpack(record.value, domain_fingerprint(domain), width, len(domain.raw_topics))
        known = nexts.get(signed.source, 0)
        if signed.begin <= known < signed.end:
            nexts[signed.source] = signed.end
            yield signed, known


def judged(settings: Settings, domain: Domain) -> dict[Source, dict[int, Rejected]]:
    """Return the duplicates of each raw partition, by offset, as the order of the signature log has them."""
    window, found = PlainWindow(deduplication_in(domain)), dict[Source, dict[int, Rejected]]()
    for signed, known in taken_ranges(settings, domain):
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


def are_signed(settings: Settings, domain: Domain) -> bool:
    signed = signed_ends(settings, domain)
    return all(
        signed.get((number, partition), 0) == len(records)
        for number, raw_topic in enumerate(domain.raw_topics)
        for partition, records in enumerate(raw_records(settings, raw_topic))
    )


def signed_ends(settings: Settings, domain: Domain) -> Mapping[Source, int]:
    return {signed.source: signed.end for signed, _ in taken_ranges(settings, domain)}


def texts(rng: random.Random, count: int) -> list[bytes]:
    kept: list[list[str]] = []
    for _ in range(count):
        words = [rng.choice(WORDS) for _ in range(rng.randrange(1, 30))]
        if kept and rng.random() < 0.5:
            words = list(rng.choice(kept[-30:]))
            if rng.random() < 0.5:
                words[rng.randrange(len(words))] = rng.choice(WORDS)
        kept.append(words)
    return [" ".join(words).encode() for words in kept]


def feed(settings: Settings, rng: random.Random, count: int) -> None:
    for topic in settings.raw_topics:
        send(settings, [Raw(text, rng.randrange(2)) for text in texts(rng, count)], topic)


def require_one_order(service: Service) -> None:
    """Wait until all is stored, and compare it with what a list keeps in the order of the signature log."""
    settings = service.settings
    (domain,) = settings.domains()

    def complete() -> bool:
        blocks = {chain: len(found) for chain, found in kept_blocks(settings, domain).items()}
        return are_signed(settings, domain) and stored_blocks(settings, blocks) == blocks

    service.wait_until(complete)
    for (stream, partition), blocks in kept_blocks(settings, domain).items():
        held = open_partition(settings.store, stream, partition)
        assert [held.read(block.number).tobytes() for block in blocks] == [block.tokens for block in blocks]
    reasons = [one.reason for found in judged(settings, domain).values() for one in found.values()]
    assert {"duplicate_exact", "duplicate_near"} == set(reasons)


def domain_settings(
    broker: Broker, topic: Callable[..., str], folder: Path, packing: str = "concat", **others: Any
) -> Settings:
    first = topic(2)
    dedup = {"name": "near", "domain": f"domain-of-{first}", **SMALL}
    return service_settings(
        broker, first, folder, raw_topics=(first, topic(2)), dedup=dedup, packing=packing, allow_flush=False, **others
    )
