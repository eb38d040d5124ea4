"""Whether the service lives again after a fault that can heal: a new document comes through in every chain."""

import itertools
import json
import math
import time

from tests.faults.oracle import Judged, partitions_of
from tests.faults.trial import Trial
from tests.service import Raw, send
from tokenmill.app.settings import Settings
from tokenmill.documents import Document
from tokenmill.errors import StoreError
from tokenmill.segments import open_partition
from tokenmill.splits import SplitRule

_numbers = itertools.count()


def assert_alive_again(service: Judged, trial: Trial) -> float:
    """Send every chain a document longer than a block; return after how many seconds the last of them is committed.

    The fault must have healed when this is called. How long it took is a figure of the trial, no promise is tested
    by it: other programs run on this machine. Tokens must be bytes.
    """
    settings = service.settings
    mark, began = f"probe {next(_numbers)} ", time.monotonic()
    wanted: dict[tuple[str, int], int] = {}
    for raw_topic in settings.raw_topics:
        streams = [stream for stream in settings.streams() if stream.raw_topic == raw_topic]
        text = mark * (2 * settings.for_topic(raw_topic).block_tokens // len(mark) + 2)
        probes = [document_for(settings, raw_topic, stream.split, text) for stream in streams]
        numbers = range(partitions_of(settings, raw_topic))
        wanted |= {(s.name, number): _blocks(settings, s.name, number) for s in streams for number in numbers}
        send(settings, [Raw(probe, number) for number in numbers for probe in probes], raw_topic)

    def come() -> bool:
        service.tend()
        for chain in [chain for chain, first in wanted.items() if _has_come(settings, chain, first, mark.encode())]:
            del wanted[chain]
        return not wanted

    service.wait_until(come)
    seconds = time.monotonic() - began
    trial.held("alive", probes=1, probe_seconds=math.ceil(seconds))
    return seconds


def document_for(settings: Settings, raw_topic: str, split: str, text: str) -> bytes:
    """Return a record with this text, and an id by which it falls to the split."""
    own = settings.for_topic(raw_topic)
    rule = SplitRule(own.shards, own.splits, own.split_by)
    ids = (f"{hash(text):x}-{number}" for number in itertools.count())
    chosen = next(name for name in ids if rule.split_of_document(Document(text=text, id=name)) == split)
    return json.dumps({"id": chosen, "text": text}).encode()


def _blocks(settings: Settings, stream: str, partition: int) -> int:
    try:
        return open_partition(settings.store, stream, partition).blocks
    except StoreError:  # no segment worker has heard of the stream yet
        return 0


def _has_come(settings: Settings, chain: tuple[str, int], first: int, mark: bytes) -> bool:
    """Return whether a committed block from ``first`` on holds the mark."""
    last = _blocks(settings, *chain)
    if last <= first:
        return False
    reader = open_partition(settings.store, *chain)
    return any(mark in reader.read(number).tobytes() for number in range(first, last))
