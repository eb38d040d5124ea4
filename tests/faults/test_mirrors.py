"""A mirror is killed at random places while text flows and partitions are added: its store is the stream's."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.faults.packings import each_packing
from tests.faults.test_growing_topics import grow
from tests.faults.trial import Trial
from tests.faults.working import working
from tests.mirrors import Mirroring, equal_files
from tokenmill.store import open_eras, partitions_in


@pytest.mark.fault("mirror-killed", "partitions-added")
@each_packing
def test_killed_mirrors_copy_everything_once(
    configured: Configured, tmp_path: Path, trial: Trial, packing: dict[str, Any]
) -> None:
    """By SIGKILL, at its start or while it follows; the last one takes new partitions up without a restart."""
    settings = configured(1, splits={"all": 1000}, era_blocks=40, session_timeout=2.0, **packing)
    (stream,), store = settings.streams(), tmp_path / "mirror"
    with working(settings) as service:
        with Feeder(settings, trial.rng, burst=2):
            for _ in range(trial.rounds(1, 10 if packing else 40)):
                with Mirroring(settings, store) as mirroring:
                    time.sleep(trial.rng.uniform(0.5, 4.0))
                    mirroring.kill()
                    assert mirroring.process.returncode == -signal.SIGKILL, mirroring.log
                    trial.fired("mirror SIGKILL")
        with Mirroring(settings, store) as mirroring:
            service.wait_until((store / stream.name / "0").is_dir)
            grow(settings, settings.raw_topics[0], 2)
            with Feeder(settings, trial.rng, burst=2):
                service.wait_until((settings.store / stream.name / "1").is_dir)
            trial.fired("partition added")
            judge(service, trial)
            service.wait_until(lambda: partitions_in(store, stream.name) == [0, 1])
            service.wait_until(lambda: _trained_on(settings.store, stream.name) == _trained_on(store, stream.name))
            service.stop()
            assert mirroring.stop() == 0, mirroring.log
    with Mirroring(settings, store, "--once") as mirroring:
        assert mirroring.wait() == 0, mirroring.log
    assert "; complete" in mirroring.log
    assert equal_files(store, stream.name) == equal_files(settings.store, stream.name)
    trial.held("exact", "complete", blocks=open_eras(store, stream.name).blocks)


def _trained_on(store: Path, stream: str) -> int:
    return open_eras(store, stream).blocks
