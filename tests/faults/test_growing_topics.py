"""A raw topic gets partitions while everything runs: nobody restarts, creates or configures anything by hand."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import NewPartitions

from tests.faults.alive import assert_alive_again
from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder
from tests.faults.oracle import eras_of, judge, partitions_of, read_control
from tests.faults.packings import each_packing
from tests.faults.serving import Serving
from tests.faults.trial import Trial
from tests.service import in_own_loop
from tokenmill.app.kafka.clients import admin
from tokenmill.app.kafka.topics import partition_count
from tokenmill.app.settings import Settings

BURST = 3
"""Documents at once: a backlog would only make every probe wait behind it."""


def grow(settings: Settings, topic: str, partitions: int) -> None:
    """Give a topic more partitions; on return the brokers tell of them."""

    async def run() -> None:
        async with admin(settings) as client:
            await client.create_partitions({topic: NewPartitions(partitions)})
        while await partition_count(settings, topic) < partitions:  # noqa: ASYNC110 - Kafka tells nobody
            await asyncio.sleep(0.05)

    in_own_loop(run)


@pytest.mark.fault("partitions-added")
@pytest.mark.needs("minutes")
@each_packing
def test_new_partitions_are_milled_from_their_first_record(
    configured: Configured, tmp_path: Path, trial: Trial, packing: dict[str, Any]
) -> None:
    """Mills extend the token topics, segment workers follow; the chains of new partitions begin at offset 0."""
    splits = {"train": 900, "dev": 100}
    settings = configured(1, session_timeout=2.0, splits=splits, **packing)
    (raw_topic,) = settings.raw_topics
    with Serving(settings, tmp_path) as service:
        assert_alive_again(service, trial)
        count = 1
        for _ in range(trial.rounds(2, 10)):
            with Feeder(settings, trial.rng, burst=BURST):
                count += trial.rng.randint(1, 2)
                grow(settings, raw_topic, count)
            with Feeder(settings, trial.rng, burst=BURST):  # it learns of the new ones when it begins
                assert_alive_again(service, trial)
        _, chains = judge(service, trial)
        assert "worker ended" not in service.log
    for stream in settings.streams():
        genesis = read_control(settings, stream).genesis
        assert genesis is not None
        assert len(genesis.starts) == 1
        assert partitions_of(settings, stream.tokens_topic) == count
        known = [len(json.loads(era)["ranges"]) for era in eras_of(settings, stream)]
        assert known == sorted(known), "an era forgot a partition"
        assert known[-1] == count, "a new partition is in no era"
        trial.held(eras_before_the_last_partition=sum(partitions < count for partitions in known))
        grown = [chain for chain in chains if chain.stream == stream and chain.partition]
        assert all(chain.blocks[0].cursor.last_offset >= 0 and chain.blocks for chain in grown)
        trial.fired("token partitions added", len(grown))
