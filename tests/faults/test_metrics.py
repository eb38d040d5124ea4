"""Workers die while somebody watches ``/metrics``, or holds it open: no counter falls, and who asks is answered."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder, beside
from tests.faults.serving import Serving, Supervised
from tests.faults.trial import Trial
from tests.scraping import Key, ask, free_port, rising, scrape, total
from tokenmill.app.worker.watchdog import WatchLimits
from tokenmill.page_server import ACCEPTED_AT_ONCE, CONNECTIONS

RECORDS: Final = "tokenmill_records_consumed_total"
KILLS: Final = ("mill-1", "segment", "mill-2", "mill-1")


@dataclass
class Watcher:
    """Keeps what it scraped last, and what fell since the time before."""

    port: int
    scrapes: int = 0
    fallen: list[tuple[Key, float, float]] = field(default_factory=list)
    samples: Mapping[Key, float] = field(default_factory=dict)
    highest: dict[Key, float] = field(default_factory=dict)

    def look(self) -> None:
        if now := scrape(self.port):
            self.scrapes += 1
            self.samples, found = now, rising(now)
            self.fallen += [
                (key, high, found.get(key, -1)) for key, high in self.highest.items() if found.get(key, -1) < high
            ]
            self.highest |= found

    def works(self, worker: str) -> Callable[[], bool]:
        """Return whether a worker is up and its living process has done something, as a condition to wait for."""
        name = RECORDS if worker.startswith("mill") else "tokenmill_commits_total"
        before = total(self.samples, name, worker=worker)
        return lambda: (
            total(self.samples, "tokenmill_worker_up", worker=worker) == 1
            and total(self.samples, name, worker=worker) > before
        )


def is_ready(port: int) -> bool:
    return ask(port, "/readyz").code == 200


@pytest.mark.fault("metrics-scraped")
@pytest.mark.needs("minutes")
def test_no_counter_falls_when_workers_are_killed(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Each kill is seen as a restart of that worker; every counter and histogram of every worker only rises."""
    port = free_port()
    settings = configured(4, session_timeout=2.0, metrics_port=port)
    limits, watcher = WatchLimits(first_backoff=0.5, longest_backoff=1.0), Watcher(port)
    with Supervised(settings, tmp_path, limits) as running, beside(0.1, watcher.look):
        running.wait_until(lambda: ask(port, "/healthz").code == 200)
        running.wait_until(lambda: is_ready(port))
        with Feeder(settings, trial.rng) as feeder:
            for worker in KILLS:
                running.wait_until(watcher.works(worker))
                time.sleep(trial.rng.uniform(0, 0.5))
                killed = running.pid(worker)
                os.kill(killed, signal.SIGKILL)
                trial.fired(f"{worker} SIGKILL")
                running.wait_until(lambda: running.pid(worker) not in {0, killed})  # noqa: B023
                running.wait_until(lambda: is_ready(port))
            for worker in ("mill-1", "mill-2", "segment"):
                running.wait_until(watcher.works(worker))
        topics = {"topic": settings.raw_topics[0]}
        running.wait_until(lambda: total(watcher.samples, "tokenmill_durable_lag_records", **topics) == 0)
        running.wait_until(lambda: total(watcher.samples, "tokenmill_partitions", state="running", **topics) == 4)

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


DESCRIPTORS: Final = 256  # that the service may have open
CLIENTS: Final = 400  # at a time; each is replaced when it is ended
MORE: Final = 20  # threads and files that a service may have more than at its beginning, for reasons of its own


@dataclass
class Holder:
    """Keeps connections to a port half open; `ended` counts those that the server ended, each of which is replaced."""

    port: int
    ended: int = 0
    clients: list[socket.socket] = field(default_factory=list)

    def hold(self) -> None:
        for _ in range(min(50, CLIENTS - len(self.clients))):
            with suppress(OSError):
                client = socket.create_connection(("127.0.0.1", self.port), timeout=1)
                client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
                client.setblocking(False)
                self.clients.append(client)
        for client in [client for client in self.clients if _is_over(client)]:
            client.close()
            self.clients.remove(client)
            self.ended += 1


def _is_over(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def entries(pid: int, what: str) -> int:
    """Return how many threads (task) or open files (fd) a process has."""
    return len(list(Path(f"/proc/{pid}/{what}").iterdir()))


@pytest.mark.fault("http-held-open")
@pytest.mark.needs("minutes")
def test_held_connections_end_no_service(configured: Configured, tmp_path: Path, trial: Trial) -> None:
    """Scrapes are answered, killed workers come again, text is milled, and threads and files stay few."""
    settings = configured(2, session_timeout=2.0)
    with Serving(settings, tmp_path, prefix=("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")) as service:
        port, pid = service.port, service.pid
        service.wait_until(lambda: is_ready(port))
        calm = {what: entries(pid, what) for what in ("task", "fd")}
        holder = Holder(port)
        with beside(0.01, holder.hold), Feeder(settings, trial.rng):
            for worker in ("mill-1", "segment"):
                ended = holder.ended
                service.wait_until(lambda: holder.ended > ended + CLIENTS)  # noqa: B023
                trial.fired("half-open requests", holder.ended - ended)
                rows = json.loads(ask(port, "/api/status").text)["workers"]
                os.kill(next(row["pid"] for row in rows if row["name"] == worker), signal.SIGKILL)
                trial.fired(f"{worker} SIGKILL")
                service.wait_until(
                    lambda: total(scrape(port), "tokenmill_worker_restarts_total", worker=worker) > 0  # noqa: B023
                )
                service.wait_until(lambda: is_ready(port))
                records = total(scrape(port), RECORDS)
                service.wait_until(lambda: total(scrape(port), RECORDS) > records)  # noqa: B023
                assert entries(pid, "task") <= calm["task"] + MORE
                assert entries(pid, "fd") <= calm["fd"] + CONNECTIONS + 2 * ACCEPTED_AT_ONCE + MORE
        for client in holder.clients:
            client.close()
        service.wait_until(lambda: entries(pid, "fd") <= calm["fd"] + MORE)
        assert service.running
    trial.held("alive")
