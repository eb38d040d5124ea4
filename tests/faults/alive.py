"""Whether the service lives again after a fault that can heal: new text comes through in every chain."""

import itertools
import json
import time

from tests.faults.oracle import Judged, partitions_of
from tests.faults.trial import Trial
from tests.service import Chain, Raw, Service, Worker, send, stored_blocks
from tokenmill.app.settings import Settings
from tokenmill.documents import Document
from tokenmill.errors import StoreError
from tokenmill.store import open_partition

_numbers = itertools.count()


def assert_alive_again(service: Judged, trial: Trial) -> None:
    """Send every chain a document longer than a block, and wait until the last of them is committed.

    The fault must have healed when this is called. Tokens must be bytes.
    """
    settings = service.settings
    mark, began = f"probe {next(_numbers)} ", time.monotonic()
    counts = {raw_topic: partitions_of(settings, raw_topic) for raw_topic in settings.raw_topics}
    streams = settings.streams()
    wanted = stored_blocks(settings, [(s.name, number) for s in streams for number in range(counts[s.raw_topic])])
    for raw_topic, count in counts.items():
        text = mark * (2 * settings.for_topic(raw_topic).block_tokens // len(mark) + 2)
        probes = [document_for(settings, raw_topic, s.split, text) for s in streams if s.raw_topic == raw_topic]
        send(settings, [Raw(probe, number) for number in range(count) for probe in probes], raw_topic)

    def come() -> bool:
        service.tend()
        for chain in [chain for chain, first in wanted.items() if _has_come(settings, chain, first, mark.encode())]:
            del wanted[chain]
        return not wanted

    service.wait_until(come)
    trial.lived(time.monotonic() - began)


def assert_stores_again(service: Service, trial: Trial) -> None:
    """Wait until the store has more than is milled by now, in every chain: for where documents flow all the while."""
    began, goal = time.monotonic(), milled(service)
    assert goal
    service.wait_until(
        lambda: all(blocks > goal[chain] for chain, blocks in stored_blocks(service.settings, goal).items())
    )
    trial.lived(time.monotonic() - began)


def milled(service: Service) -> dict[Chain, int]:
    """Return the next block of every chain that the mills milled."""
    return {chain: block for worker in service.workers for chain, block in next_blocks(worker).items()}


def next_blocks(worker: Worker) -> dict[Chain, int]:
    """Return the next block of every chain of a mill; nothing of a segment worker."""
    return {
        (f"{name.rpartition('/')[0]}.{split}", int(name.rpartition("/")[2])): chain["block"]
        for name, partition in worker.partitions.items()
        for split, chain in partition.get("chains", {}).items()
    }


def document_for(settings: Settings, raw_topic: str, split: str, text: str) -> bytes:
    """Return a record with this text, and an id by which it falls to the split."""
    own = settings.for_topic(raw_topic)
    rule = own.split_rule()
    ids = (f"{hash(text):x}-{number}" for number in itertools.count())
    chosen = next(name for name in ids if rule.split_of_document(Document(text=text, id=name)) == split)
    return json.dumps({"id": chosen, "text": text}).encode()


def _has_come(settings: Settings, chain: Chain, first: int, mark: bytes) -> bool:
    """Return whether a committed block from ``first`` on holds the mark."""
    try:
        reader = open_partition(settings.store, *chain)
    except StoreError:  # no segment worker has heard of the stream yet
        return False
    return any(mark in reader.read(number).tobytes() for number in range(max(first, 0), reader.blocks))
