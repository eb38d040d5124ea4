"""SIGSTOP past the Kafka session: another worker takes over, and the stopped one comes back as a zombie."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.faults.alive import next_blocks
from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder, document, flush_all
from tests.faults.oracle import judge, token_messages
from tests.faults.packings import each_packing
from tests.faults.trial import Trial
from tests.service import Raw, Service, Worker, send
from tokenmill.app.settings import Settings
from tokenmill.errors import LockedError
from tokenmill.store.layout import PartitionLock, partition_directory

SESSION_SECONDS = 2.0
BACKLOG = 2500
"""Documents that wait when the mill starts: its queue of messages is far from empty when it is stopped."""

MESSAGE_BYTES = 200
OTHER_MESSAGE_BYTES = 700
"""The heir's messages hold three blocks and more, the zombie's one."""
AHEAD = 20
"""Blocks by which the heir is ahead in every chain when the zombie goes on: all that it sends is there already."""


@pytest.mark.fault("mill-stopped")
@each_packing
def test_blocks_of_a_zombie_mill_are_dropped_by_number(
    configured: Configured, tmp_path: Path, trial: Trial, packing: dict[str, Any]
) -> None:
    """A mill that is stopped with messages on their way may send them after another wrote the blocks, cut otherwise.

    The zombie's message ends inside one of the heir's, which goes on where the zombie's cursor never was.
    """
    # The zombie's messages are small: one of a chain is in flight at a time, so that publishing takes seconds.
    settings = configured(
        4,
        session_timeout=SESSION_SECONDS,
        splits={"train": 500, "dev": 500},
        message_bytes=OTHER_MESSAGE_BYTES,
        **packing,
    )
    send(settings, [Raw(document(trial.rng), trial.rng.randrange(4)) for _ in range(BACKLOG)])
    flush_all(settings)
    with Service(settings, tmp_path) as service:
        segment = service.segment()
        service.settings = settings.model_copy(update={"message_bytes": MESSAGE_BYTES})
        (zombie,) = service.mill()
        service.wait_until(lambda: any(next_blocks(zombie).values()))
        zombie.pause()
        before = next_blocks(zombie)
        service.settings = settings
        (heir,) = service.mill()
        service.wait_until(lambda: all(next_blocks(heir).get(chain, 0) > before[chain] + AHEAD for chain in before))
        zombie.resume()
        account, chains = judge(service, trial)
        # How many of its messages still come through is chance: it ends where it reads that another wrote after it.
        trial.fired("mill that went on after another had taken its partitions")
        trial.held(zombie_blocks=account.duplicates)
        cuts = {message.count for chain in chains for message in token_messages(settings, chain)}
        assert 1 in cuts, f"none of the zombie's messages is there: {cuts}"
        assert max(cuts) >= 3, f"none of the heir's messages is there: {cuts}"
        service.wait_until(lambda: segment.beats.counted("duplicates") >= account.duplicates)


@pytest.mark.fault("segment-worker-stopped")
@pytest.mark.needs("minutes")
def test_stopped_segment_worker_keeps_its_directories(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Who takes over from a stopped segment worker says what it waits for, and writes nothing until it may."""
    settings = configured(2, session_timeout=SESSION_SECONDS, splits={"train": 1000})

    with Service(settings, tmp_path) as service:
        with Feeder(settings, trial.rng):
            service.mill()
            stopped, heir = service.segment(), service.segment()
            for end in (stopped.resume, stopped.kill):
                service.wait_until(lambda: paused_as_owner(stopped, settings))
                kept = stopped.partitions.keys()
                service.wait_until(lambda: is_waiting(heir, kept))  # noqa: B023 - called before the next round
                assert {owned_blocks(heir)[name] for name in kept} == {None}
                assert "waiting for the directory" in heir.log
                trial.fired("directory held by a stopped process")
                end()
                service.wait_until(lambda: not is_waiting(heir, kept))  # noqa: B023
        judge(service, trial)
        assert all(block is not None for block in owned_blocks(heir).values())


def paused_as_owner(worker: Worker, settings: Settings) -> bool:
    """Stop a segment worker; let it go on if it held less than it said, as it may between two owners."""
    if not worker.partitions or not all(owned_blocks(worker).values()):
        return False
    worker.pause()
    holds = all(_is_held(worker, settings, name) for name in worker.partitions)
    if not holds:
        worker.resume()
    return holds


def _is_held(worker: Worker, settings: Settings, name: str) -> bool:
    topic, _, number = name.rpartition("/")
    (stream,) = [stream.name for stream in settings.streams() if stream.tokens_topic == topic]
    try:
        PartitionLock(partition_directory(settings.store, stream, int(number))).close()
    except LockedError as error:
        return f"process {worker.process.pid};" in str(error)
    return False


def is_waiting(worker: Worker, names: Collection[str]) -> bool:
    """Return whether a segment worker has all these partitions and waits for another process to give them up."""
    found = [worker.partitions.get(name, {}).get("waiting") or "" for name in names]
    return all("is being written by" in text for text in found)


def owned_blocks(worker: Worker) -> dict[str, int | None]:
    """Return the next block of each partition of a segment worker; None where it may not write yet."""
    return {name: partition["block"] for name, partition in worker.partitions.items()}
