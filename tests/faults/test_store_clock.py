"""The clock jumps by days while a store is written: nothing of it is in the store."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.app.segments.test_token_partition import BLOCKS, Appending
from tests.conftest import TopicFactory
from tests.faults.trial import Trial
from tests.service import service_settings
from tests.store.chains import SUFFIXES
from tokenmill.app.local.broker import Broker
from tokenmill.app.segments import token_partition as block_appender

DAY: Final = 86_400.0


def jumping(trial: Trial) -> Callable[[], float]:
    """Return a clock that is at most a day off, each time another way."""
    now = time.time

    def clock() -> float:
        trial.fired("jumps of the clock")
        return now() + trial.rng.uniform(-DAY, DAY)

    return clock


@pytest.mark.fault("clock-moved")
async def test_segments_are_the_same_whatever_the_clock_says(
    broker: Broker, topic: TopicFactory, tmp_path: Path, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition appended, committed, sealed twice: by a steady clock, and by one that jumps at every look."""
    monkeypatch.setattr(block_appender, "COMMIT_SECONDS", 0.0)
    found = []
    name = topic()
    for place in ("steady", "jumping"):
        settings = service_settings(broker, name, tmp_path / place, splits={"train": 1000}, segment_blocks=4)
        appending = await Appending.begin(settings)
        with monkeypatch.context() as patch:
            if place == "jumping":
                patch.setattr(time, "time", jumping(trial))
            for first in range(BLOCKS):
                await appending.feed(first, first + 1)
            await appending.end()
        assert appending.stored == BLOCKS
        (directory,) = settings.store.glob("*/0")
        found.append({file.name: file.read_bytes() for file in directory.iterdir() if file.suffix[1:] in SUFFIXES})
    assert len(found[0]) == 2 * len(SUFFIXES)
    assert found[0] == found[1]
    trial.held("exact", "complete")
