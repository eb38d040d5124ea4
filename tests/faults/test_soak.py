"""All faults at random (`make soak` runs it for as long as one likes)."""

from pathlib import Path

import pytest

from tests.faults.soak import soak
from tests.faults.trial import Trial


@pytest.mark.fault("mixed")
@pytest.mark.needs("minutes")
def test_service_survives_all_faults_at_random(tmp_path: Path, trial: Trial) -> None:
    """While they last a reader gets every block once and in order; afterwards everything is there."""
    soak(tmp_path, trial, trial.rounds(8, 600), print)
    assert len(trial.faults) >= trial.rounds(1, 5)
