"""Two where there should be one: on one store, on one stream, at one genesis."""

import asyncio
from pathlib import Path

import pytest

from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge, read_topic
from tests.faults.test_zombies import is_waiting, owned_blocks
from tests.faults.trial import Trial
from tests.service import Service, Worker
from tokenmill.app.kafka.control_topic import settle
from tokenmill.app.kafka.topics import ensure_topics
from tokenmill.app.mill.recipes import plan_topic
from tokenmill.app.settings import Settings
from tokenmill.errors import FingerprintError
from tokenmill.recipe import GENESIS_KEY

pytestmark = pytest.mark.needs("minutes")

BLOCKS = 50
"""Of each chain, before the second one comes: enough that it repeats some."""


@pytest.mark.fault("store-shared")
def test_second_group_on_a_store_waits_and_names_who_holds_it(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """Two workers of one group share a store; those of another group on it get nothing until the first have ended."""
    settings = configured(4, session_timeout=2.0, splits={"train": 1000})
    with Service(settings, tmp_path) as service:
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
    """Return whether a segment worker has come somewhere in all of its partitions."""
    return all(owned_blocks(worker).values())


@pytest.mark.fault("stream-shared")
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
                service.wait_until(
                    lambda before=before: segment.beats.counted("duplicates") > before + BLOCKS  # type: ignore[misc]
                )
                second.kill()
                (second,) = service.mill()
        service.settings = settings
        account, _ = judge(service, trial)
        trial.fired("blocks written by a second mill", account.duplicates)
        service.wait_until(lambda: segment.beats.counted("duplicates") >= account.duplicates)
        assert not any(partition.get("halted") for partition in segment.partitions.values())


async def settle_first(settings: Settings) -> FingerprintError | None:
    """Settle the first stream; return the error where it was settled with other settings."""
    plan = plan_topic(settings, settings.raw_topics[0])
    stream = settings.streams()[0]
    try:
        await settle(settings, stream, plan.recipes[stream], plan.tokenizer.content)
    except FingerprintError as error:
        return error
    return None


@pytest.mark.fault("genesis-raced")
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
    assert races, "nobody raced"
    assert same, "nobody raced"
    trial.fired("two geneses, with different settings", races)
    trial.fired("two geneses, with the same settings", same)
    trial.held("loud")


@pytest.mark.fault("genesis-raced")
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
        service.wait_until_ended(loser)
        assert loser.process.returncode == FingerprintError.exit_code
        assert "stream_suffix" in (loser.beats.words or "")
        trial.fired("mill refused by the genesis of another")
        service.wait_until(lambda: bool(winner.partitions))
        service.workers.remove(loser)
        service.settings = one if winner is first else two
        with Feeder(service.settings, trial.rng):
            service.segment()
        judge(service, trial)
        trial.held("loud")
