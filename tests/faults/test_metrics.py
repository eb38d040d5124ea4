"""Workers are killed while somebody watches ``/metrics``: no counter falls, and nothing is counted for nobody."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.beside import beside
from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder
from tests.faults.supervised import Supervised
from tests.faults.trial import Trial
from tests.marked import until
from tests.scraping import Key, ask, free_port, rising, scrape, total
from tokenmill.app.worker.watchdog import WatchLimits

SECONDS = 60.0
KILLS = ("mill-1", "segment", "mill-2", "mill-1")
RECORDS = "tokenmill_records_consumed_total"


class Watcher:
    """Keeps what it scraped last, and what fell since the time before."""

    def __init__(self, port: int) -> None:
        self.scrapes = 0
        self.fallen: list[tuple[Key, float, float]] = []
        self.samples: Mapping[Key, float] = {}
        self._port = port
        self._highest: dict[Key, float] = {}

    def look(self) -> None:
        """Scrape."""
        if now := scrape(self._port):
            self.scrapes += 1
            self.samples = now
            found, highest = rising(now), self._highest
            self.fallen += [
                (key, high, found.get(key, -1)) for key, high in highest.items() if found.get(key, -1) < high
            ]
            highest |= found


def works(watcher: Watcher, worker: str) -> bool:
    """Return whether a worker is up and its living process has done something: its counters have grown."""
    before = watcher.samples
    name = RECORDS if worker.startswith("mill") else "tokenmill_commits_total"
    return until(
        lambda: (
            total(watcher.samples, "tokenmill_worker_up", worker=worker) == 1
            and total(watcher.samples, name, worker=worker) > total(before, name, worker=worker)
        ),
        SECONDS,
    )


@pytest.mark.fault("metrics-scraped")
@pytest.mark.needs("minutes")
def test_no_counter_falls_when_workers_are_killed(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Each kill is seen as a restart of that worker; every counter and histogram of every worker only rises."""
    port = free_port()
    settings = configured(4, session_timeout=2.0, metrics_port=port)
    limits, watcher = WatchLimits(first_backoff=0.5, longest_backoff=1.0), Watcher(port)
    with Supervised(settings, tmp_path, limits) as running, beside(0.1, watcher.look):
        assert until(lambda: ask(port, "/healthz").code == 200, SECONDS)
        assert until(lambda: ask(port, "/readyz").code == 200, SECONDS)
        with Feeder(settings, trial.rng) as feeder:
            for worker in KILLS:
                assert works(watcher, worker)
                time.sleep(trial.rng.uniform(0, 0.5))
                killed = running.pid(worker)
                os.kill(killed, signal.SIGKILL)
                trial.fired(f"{worker} SIGKILL")
                assert until(lambda: running.pid(worker) not in {0, killed}, SECONDS)  # noqa: B023 - called at once
                assert until(lambda: ask(port, "/readyz").code == 200, SECONDS)
            for worker in ("mill-1", "mill-2", "segment"):
                assert works(watcher, worker)
        topics = {"topic": settings.raw_topics[0]}
        assert until(lambda: total(watcher.samples, "tokenmill_durable_lag_records", **topics) == 0, SECONDS)
        assert until(lambda: total(watcher.samples, "tokenmill_partitions", state="running", **topics) == 4, SECONDS)

    assert watcher.fallen == []
    end = watcher.samples
    for worker in set(KILLS):
        restarts = total(end, "tokenmill_worker_restarts_total", worker=worker, reason="killed")
        assert restarts == KILLS.count(worker)
    print(f"{watcher.scrapes} scrapes, {feeder.sent} documents")  # noqa: T201 - what the run came to
    assert watcher.scrapes > 20
    # What a killed process did after its last heartbeat is not counted; what was lost with it is counted again.
    assert total(end, RECORDS) > feeder.sent / 2
    assert ask(port, "/healthz").code == 0
    trial.held("loud", scrapes=watcher.scrapes)
