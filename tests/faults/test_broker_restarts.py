"""The only broker goes, again and again, under load: all arrives once it is back, and meanwhile nothing grows."""

import time
from pathlib import Path

import pytest

from tests.brokers import pause, resume
from tests.conftest import topics_on
from tests.faults.alive import assert_alive_again
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.faults.serving import Serving
from tests.faults.trial import Trial
from tests.service import service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.logs import LINES, WINDOW_SECONDS

BURST = 3
"""Documents at once: a backlog would only make every probe wait behind it."""
PROCESSES = 4
LOGGERS = 6
"""How many of a process's loggers repeat themselves while no broker answers: four of aiokafka, asyncio, our own."""
GROWTH_BYTES = 256 << 20
"""What four processes may grow by while no broker answers: some queues of 8 MiB, and what Python does not give back."""


@pytest.mark.fault("broker-killed", "broker-paused")
@pytest.mark.timeout(1800)
@pytest.mark.needs("minutes")
def test_broker_that_goes_again_and_again_loses_and_repeats_nothing(tmp_path: Path, trial: Trial) -> None:
    """In order, by SIGKILL, by SIGSTOP: nobody but `serve` starts a worker, and every chain lives after each."""
    down = trial.rounds(6, 25)
    with Broker(tmp_path / "broker") as broker:
        raw_topic = topics_on(broker, "restarts")(2)
        splits = {"train": 900, "dev": 100}
        packing = trial.rng.choice(["concat", {"name": "fit", "open_blocks": 8, "max_age_offsets": 300}])
        settings = service_settings(broker, raw_topic, tmp_path, session_timeout=2.0, splits=splits, packing=packing)
        with Serving(settings, tmp_path) as service:
            assert_alive_again(service, trial)
            with Feeder(settings, trial.rng, burst=BURST) as feeder:
                for end in [*[broker.stop] * trial.rounds(0, 1), *[broker.kill] * trial.rounds(1, 5)]:
                    time.sleep(trial.rng.uniform(0.5, 1.5))
                    end()
                    assert not broker.running
                    trial.fired("broker ended in order" if end == broker.stop else "broker SIGKILL")
                    lines, grown = watched(service, trial, down if end == broker.kill else 1)
                    broker.start()
                    assert_alive_again(service, trial)
                    assert lines < PROCESSES * LOGGERS * LINES * (2 + down / WINDOW_SECONDS), service.log[-8000:]
                    assert grown < GROWTH_BYTES
                sent = feeder.sent
                for _ in range(trial.rounds(1, 12)):
                    pause(broker)
                    time.sleep(trial.rounds(3, 5))  # longer than the session time-out
                    resume(broker)
                    trial.fired("broker SIGSTOP")
                    time.sleep(trial.rounds(1, 5))
                assert_alive_again(service, trial)
                assert feeder.sent > sent
            judge(service, trial)


def watched(service: Serving, trial: Trial, seconds: float) -> tuple[int, int]:
    """Let the fault last; return by how many lines the log has grown meanwhile, and all processes' memory in bytes."""
    lines, held = service.log.count("\n"), service.rss()
    time.sleep(seconds)
    said, grown = service.log.count("\n") - lines, service.rss() - held
    trial.held("loud", seconds_without_broker=round(seconds), lines_without_broker=said)
    return said, grown
