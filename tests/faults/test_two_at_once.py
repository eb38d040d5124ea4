"""Two where there should be one: on one store, on one stream, at one genesis."""

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Configured, each_packing
from tests.faults.feeding import Feeder, document, flush_all
from tests.faults.oracle import judge, next_blocks, read_topic, token_messages
from tests.faults.trial import Trial
from tests.service import Raw, Service, Worker, send
from tokenmill.app.kafka.control_topic import settle
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.errors import FingerprintError, LockedError
from tokenmill.recipe import GENESIS_KEY
from tokenmill.store.layout import PartitionLock, partition_directory


@pytest.mark.fault("store-shared")
@pytest.mark.needs("minutes")
def test_second_group_on_a_store_waits_and_names_who_holds_it(configured: Configured, trial: Trial) -> None:
    """Two workers of one group share a store; those of another group on it get nothing until the first have ended."""
    settings = configured(4, session_timeout=2.0, splits={"train": 1000})
    with Service(settings, settings.store.parent) as service:
        with Feeder(settings, trial.rng):
            service.mill()
            rightful = [service.segment(), service.segment()]
            service.wait_until(lambda: all(worker.partitions and all_write(worker) for worker in rightful))
            service.settings = settings.model_copy(update={"group": f"{settings.group}-by-mistake"})
            intruder = service.segment()
            names = [f"{settings.streams()[0].tokens_topic}/{number}" for number in range(4)]
            service.wait_until(lambda: is_waiting(intruder, names))
            for worker in rightful:
                for name in worker.partitions:
                    assert f"process {worker.process.pid};" in str(intruder.partitions[name]["waiting"])
                    trial.fired("directory refused to another group")
            assert all(all_write(worker) for worker in rightful)
            for worker in rightful:
                worker.kill()
            service.wait_until(lambda: len(owned_blocks(intruder)) == len(names) and all_write(intruder))
        judge(service, trial)
        trial.held("loud")


def all_write(worker: Worker) -> bool:
    return all(owned_blocks(worker).values())


@pytest.mark.fault("stream-shared")
@pytest.mark.needs("minutes")
def test_mills_of_two_groups_write_the_same_stream_once(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Every block stands there twice, cut in different messages and equal; readers drop one and count it."""
    settings = configured(3, session_timeout=2.0, splits={"train": 900, "dev": 100})
    with Service(settings, tmp_path) as service:
        segment = service.segment()
        with Feeder(settings, trial.rng):
            (first,) = service.mill()
            # from its first block on, a segment worker counts all that comes twice; before, it begins where it likes
            service.wait_until(lambda: len(segment.partitions) == 6 and all_write(segment))
            service.settings = settings.model_copy(
                update={"group": f"{settings.group}-by-mistake", "message_bytes": settings.message_bytes // 2}
            )
            (second,) = service.mill()
            for _ in range(trial.rounds(1, 10)):
                service.wait_until(lambda: len(first.partitions) == len(second.partitions) == 3)  # noqa: B023
                before = segment.beats.counted("duplicates")
                service.wait_until(lambda: segment.beats.counted("duplicates") > before + 50)  # noqa: B023
                second.kill()
                (second,) = service.mill()
        service.settings = settings
        account, _ = judge(service, trial)
        trial.fired("blocks written by a second mill", account.duplicates)
        service.wait_until(lambda: segment.beats.counted("duplicates") >= account.duplicates)
        assert not any(partition.get("halted") for partition in segment.partitions.values())


async def settle_first(settings: Settings) -> FingerprintError | None:
    """Settle the first stream; return the error where it was settled with other settings."""
    plan, stream = plan_topic(settings, settings.raw_topics[0]), settings.streams()[0]
    try:
        await settle(settings, stream, plan.recipes[stream], plan.tokenizer.content)
    except FingerprintError as error:
        return error
    return None


@pytest.mark.fault("genesis-raced")
@pytest.mark.needs("minutes")
async def test_one_genesis_wins_a_race(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Of two that find the control topic empty, the first to write wins; the other is refused, or is content."""
    races, same = 0, 0
    for number in range(trial.rounds(3, 30)):
        one = configured()
        for two, refused in ((one.model_copy(update={"min_chars": number + 1}), 1), (one, 0)):
            suffix = {"stream_suffix": f"-{refused}"}
            rivals = [one.model_copy(update=suffix), two.model_copy(update=suffix)]
            await ensure_topics(rivals[0])
            errors = await asyncio.gather(*(settle_first(settings) for settings in rivals))
            assert sum(error is not None for error in errors) == refused
            control = read_topic(rivals[0], rivals[0].streams()[0].control_topic, 0)
            geneses = [record for record in control if record.key == GENESIS_KEY]
            races += refused and len(geneses) == 2
            same += not refused and len(geneses) == 2
    assert min(races, same) > 0, "nobody raced"
    trial.fired("two geneses, with different settings", races)
    trial.fired("two geneses, with the same settings", same)
    trial.held("loud")


@pytest.mark.fault("genesis-raced")
@pytest.mark.needs("minutes")
def test_mill_with_other_settings_loses_the_race(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Two mills start on a new stream with different settings: one ends with the code for it, the other mills."""
    one = configured(2, session_timeout=2.0)
    two = one.model_copy(update={"min_chars": 3, "group": "another"})
    with Service(one, tmp_path) as service:
        service.mill()
        service.settings = two
        service.mill()
        first, second = service.workers
        service.wait_until(lambda: not (first.running and second.running))
        loser, winner = (first, second) if not first.running else (second, first)
        assert service.wait_until_ended(loser) == FingerprintError.exit_code
        assert "stream_suffix" in (loser.beats.words or "")
        trial.fired("mill refused by the genesis of another")
        service.wait_until(lambda: bool(winner.partitions))
        service.workers.remove(loser)
        service.settings = one if winner is first else two
        with Feeder(service.settings, trial.rng):
            service.segment()
        judge(service, trial)
        trial.held("loud")


@pytest.mark.fault("mill-stopped")
@each_packing
def test_blocks_of_a_zombie_mill_are_dropped_by_number(
    configured: Configured, tmp_path: Path, trial: Trial, packing: dict[str, Any]
) -> None:
    """A mill that is stopped with messages on their way may send them after another wrote the blocks, cut otherwise.

    The zombie's message ends inside one of the heir's, which goes on where the zombie's cursor never was.
    """
    # The heir's messages hold three blocks and more, the zombie's one: one of a chain is in flight at a time, so that
    # publishing takes seconds, and its queue is far from empty when it is stopped.
    splits = {"train": 500, "dev": 500}
    settings = configured(4, session_timeout=2.0, splits=splits, message_bytes=700, **packing)
    send(settings, [Raw(document(trial.rng), trial.rng.randrange(4)) for _ in range(2500)])
    flush_all(settings)
    with Service(settings, tmp_path) as service:
        segment = service.segment()
        service.settings = settings.model_copy(update={"message_bytes": 200})
        (zombie,) = service.mill()
        service.wait_until(lambda: any(next_blocks(zombie).values()))
        zombie.pause()
        before = next_blocks(zombie)
        service.settings = settings
        (heir,) = service.mill()
        # so far ahead that all that the zombie sends is there already
        service.wait_until(lambda: all(next_blocks(heir).get(chain, 0) > before[chain] + 20 for chain in before))
        zombie.resume()
        account, chains = judge(service, trial)
        # How many of its messages still come through is chance: it ends where it reads that another wrote after it.
        trial.fired("mill that went on after another had taken its partitions")
        trial.held(zombie_blocks=account.duplicates)
        cuts = {
            message.count for chain in chains for message in token_messages(settings, chain.stream, chain.partition)
        }
        assert 1 in cuts, f"none of the zombie's messages is there: {cuts}"
        assert max(cuts) >= 3, f"none of the heir's messages is there: {cuts}"
        service.wait_until(lambda: segment.beats.counted("duplicates") >= account.duplicates)


@pytest.mark.fault("segment-worker-stopped")
@pytest.mark.needs("minutes")
def test_stopped_segment_worker_keeps_its_directories(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Who takes over from a stopped segment worker says what it waits for, and writes nothing until it may."""
    settings = configured(2, session_timeout=2.0, splits={"train": 1000})

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
