"""SIGKILL of both workers while documents become rows and chunks: others go on, in the middle of one as well."""

from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import TopicFactory
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.faults.test_worker_kills import BURST, kill_one
from tests.faults.trial import Trial
from tests.service import Service, service_settings
from tokenmill.app.local.broker import Broker

PACKINGS: Final[tuple[dict[str, Any], ...]] = (
    {"sequence_length": 64, "packing": {"name": "rows", "long": "split"}},
    {"sequence_length": 64, "packing": {"name": "rows", "short": "drop"}, "allow_flush": False},
    {"sequence_length": 64, "packing": {"name": "rows", "long": "drop"}, "begin_of_document": 2, "padding": 3},
    {"sequence_length": 8, "packing": {"name": "chunks", "chunk_tokens": 32, "rest": "pad"}},
    {"sequence_length": 16, "packing": {"name": "chunks", "chunk_tokens": 48}},
)


@pytest.mark.needs("minutes")
@pytest.mark.fault("worker-killed")
def test_killed_workers_lose_and_repeat_no_row_and_no_chunk(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial
) -> None:
    """All is equal to the reference; in a full run with each packing."""
    packings = PACKINGS if trial.full else trial.rng.sample(PACKINGS, 1)
    rounds = trial.rounds(1, 10)
    for number, packing in enumerate(packings):
        directory = tmp_path / str(number)
        directory.mkdir()
        settings = service_settings(broker, topic(2), directory, session_timeout=2.0, splits={"train": 1}, **packing)
        with Service(settings, directory) as service:
            with Feeder(settings, trial.rng, burst=BURST):
                for start in (service.mill, service.segment):
                    start()
                for role in trial.rng.sample(["mill", "segment"] * rounds, 2 * rounds):
                    kill_one(service, role, trial)
            account, chains = judge(service, trial)
        assert account.blocks > 0
        assert all(chain.totals.balanced for chain in chains)
        assert all(chain.totals.packing["cut"] for chain in chains) == (
            "split" in str(packing) or "chunks" in str(packing)
        )
    assert trial.faults == {"mill SIGKILL": rounds * len(packings), "segment SIGKILL": rounds * len(packings)}
