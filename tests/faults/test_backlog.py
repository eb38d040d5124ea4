"""Far more text than the service takes in: what it holds in memory is bounded, and everything arrives in the end."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faults.breaking import most_memory
from tests.faults.conftest import Configured
from tests.faults.feeding import flush_all
from tests.faults.oracle import judge
from tests.faults.stalling import FETCH_BYTES, VARIABLE
from tests.faults.trial import Trial
from tests.service import Raw, Service, Worker, send
from tokenmill.app.mill.publisher import PENDING_BYTES

DOCUMENT_BYTES = 8192
TOKEN_BYTES = 1
"""Of a byte of text, in this vocabulary."""
QUEUED_FETCHES = 6
"""Fetches that may lie, whole, between Kafka and the mill: the agent's queue, the one at work, and those on their way
when the queue was found full."""
GROWTH_BYTES = 96 << 20
"""How much larger a worker may become under a backlog than it is without: measured 20 to 40 MB."""


@pytest.mark.fault("backlog")
@pytest.mark.needs("minutes")
def test_backlog_is_bounded_in_memory(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """The token topic takes nothing for a while: the mill stops reading where its queues are full, then goes on."""
    settings = configured(splits={"train": 1000}, sequence_length=2047, message_bytes=256 << 10)
    documents = trial.rounds(40, 96) * (1 << 20) // DOCUMENT_BYTES
    text = b"a document in a backlog " * (DOCUMENT_BYTES // 24)
    stalled = tmp_path / "stalled"
    stalled.touch()
    with Service(settings, tmp_path) as service:
        service.entry = "tests.faults.stalling"
        (mill,) = service.mill(environment={VARIABLE: str(stalled)})
        service.entry = Service.entry
        service.wait_until(lambda: bool(mill.partitions))
        before = most_memory(mill.process.pid)
        send(settings, [Raw(b"%8d %s" % (number, text)) for number in range(documents)])
        flush_all(settings)
        service.wait_until(lambda: stands_still(service, mill))
        position, durable = place(mill)
        assert durable == 0
        trial.fired("the token topic took nothing", 1)
        held = position * DOCUMENT_BYTES
        assert held <= PENDING_BYTES / TOKEN_BYTES + QUEUED_FETCHES * FETCH_BYTES
        stalled.unlink()
        service.wait_until(lambda: place(mill)[1] > documents)
        grown = most_memory(mill.process.pid) - before
        segment = service.segment()
        service.wait_until(lambda: bool(segment.partitions))
        small = most_memory(segment.process.pid)
        judge(service, trial)
        stored = most_memory(segment.process.pid) - small
        assert grown < GROWTH_BYTES
        assert stored < GROWTH_BYTES
    trial.held(
        **{"MB held back": held >> 20, "MB mill grew by": grown >> 20, "MB segment worker grew by": stored >> 20}
    )


def place(mill: Worker) -> tuple[int, int]:
    """Return up to where the only partition has been milled, and up to where that is published."""
    partition: Mapping[str, Any] = next(iter(mill.partitions.values()), {})
    chains = partition.get("chains", {}).values()
    return partition.get("position", 0), min((chain["offset"] for chain in chains), default=0)


def stands_still(service: Service, mill: Worker) -> bool:
    """Return whether a mill that had begun does not come further."""
    position, _ = place(mill)
    seen = [position]

    def beat() -> bool:
        seen.append(place(mill)[0])
        return len(seen) > LOOKS

    service.wait_until(beat)
    return position > 0 and len(set(seen)) == 1


LOOKS = 30
"""Looks, a tenth of a second apart, that find a mill at the same place: it beats twice a second."""
