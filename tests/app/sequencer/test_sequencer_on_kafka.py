"""Mills, a sequencer and a segment worker on a real broker: what is kept is what one order of all partitions keeps."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.sequencer.judged_order import SMALL, judged, kept_blocks, signed_once
from tests.service import Raw, Service, send, service_settings, stored_blocks
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.store import open_partition

KILLS = 12
WORDS = ("river", "stone", "light", "paper", "winter", "engine", "garden", "copper")


def texts(rng: random.Random, count: int) -> list[bytes]:
    """Return texts of which many come again, or nearly so."""
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
    """Send texts to all partitions."""
    for topic in settings.raw_topics:
        send(settings, [Raw(text, rng.randrange(2)) for text in texts(rng, count)], topic)


def require_one_order(service: Service) -> None:
    """Wait until all is stored, and compare it with what a list keeps in the order of the signature log."""
    settings = service.settings
    (domain,) = settings.domains()

    def complete() -> bool:
        blocks = {chain: len(found) for chain, found in kept_blocks(settings, domain).items()}
        return (
            len(signed_once(settings, domain)) == 2 * len(domain.raw_topics)
            and stored_blocks(settings, blocks) == blocks
        )

    service.wait_until(complete)
    for (stream, partition), blocks in kept_blocks(settings, domain).items():
        held = open_partition(settings.store, stream, partition)
        assert [held.read(block.number).tobytes() for block in blocks] == [block.tokens for block in blocks]
    reasons = [one.reason for found in judged(settings, domain).values() for one in found.values()]
    assert {"duplicate_exact", "duplicate_near"} == set(reasons)


def domain_settings(broker: Broker, topic: Callable[..., str], folder: Path, packing: str = "concat") -> Settings:
    """Return settings for two topics of one domain, with two partitions each."""
    first = topic(2)
    dedup = {"name": "near", "domain": f"domain-of-{first}", **SMALL}
    return service_settings(
        broker, first, folder, raw_topics=(first, topic(2)), dedup=dedup, packing=packing, allow_flush=False
    )


@pytest.mark.parametrize("packing", ["concat", "fit"])
def test_what_is_kept_is_what_one_order_keeps(
    broker: Broker, topic: Callable[..., str], tmp_path: Path, packing: str
) -> None:
    """Of two topics with two partitions each, which two mills share."""
    settings = domain_settings(broker, topic, tmp_path, packing)
    feed(settings, random.Random(packing), 300)
    with Service(settings, tmp_path) as service:
        service.mill(2)
        service.sequencer()
        service.segment()
        require_one_order(service)


def test_kills_of_mills_and_sequencers_change_nothing(
    broker: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    """While texts come in; a new one of each begins from the logs, also beside one that still runs."""
    settings = domain_settings(broker, topic, tmp_path)
    rng = random.Random("kills")
    with Service(settings, tmp_path) as service:
        service.segment()
        running = [*service.mill(2), service.sequencer()]
        for number in range(KILLS):
            feed(settings, rng, 60)
            time.sleep(rng.uniform(0, 3))
            worker = running.pop(rng.randrange(len(running)))
            worker.kill() if number % 4 else worker.pause()
            running.append(service.sequencer() if worker.role == "sequencer" else service.mill()[0])
        for worker in service.workers:
            worker.resume()
        require_one_order(service)
