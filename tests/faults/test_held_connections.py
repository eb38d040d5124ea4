"""Clients hold `/metrics` open, at few descriptors, while workers die: the service works on, and answers who asks."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import TopicFactory
from tests.faults.feeding import Feeder
from tests.faults.trial import Trial
from tests.marked import until
from tests.scraping import ask, free_port, scrape, total
from tests.service import service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.page_server import ACCEPTED_AT_ONCE, CONNECTIONS

SECONDS: Final = 90.0
DESCRIPTORS: Final = 256
"""That the service may have open."""
CLIENTS: Final = 400
"""At a time; each is replaced when it is ended."""
MORE: Final = 20
"""Threads and files that a service may have more than at its beginning, for reasons of its own."""
RESTARTS: Final = "tokenmill_worker_restarts_total"
RECORDS: Final = "tokenmill_records_consumed_total"
LIMITED: Final = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))
sys.argv = ["tokenmill", "serve"]
runpy.run_module("tokenmill.app.cli", run_name="__main__", alter_sys=True)
"""


class Holder:
    """Opens connections and keeps them half open, all the while; `ended` counts those that the server ended."""

    def __init__(self, port: int) -> None:
        """Begin at once."""
        self.ended = 0
        self._port = port
        self._clients: list[socket.socket] = []
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()

    def stop(self) -> None:
        """Let go of all."""
        self._enough.set()
        self._thread.join()
        for client in self._clients:
            client.close()

    def _hold(self) -> None:
        while not self._enough.wait(0.01):
            for _ in range(min(50, CLIENTS - len(self._clients))):
                with suppress(OSError):
                    client = socket.create_connection(("127.0.0.1", self._port), timeout=1)
                    client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
                    client.setblocking(False)
                    self._clients.append(client)
            for client in [client for client in self._clients if _is_over(client)]:
                client.close()
                self._clients.remove(client)
                self.ended += 1


def _is_over(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.fixture
def limited(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Iterator[tuple[Settings, subprocess.Popen[bytes]]]:
    """Yield the settings and the process of a service that may have few files open."""
    settings = service_settings(broker, topic(2), tmp_path, session_timeout=2.0, metrics_port=free_port())
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", LIMITED], env={**os.environ, **settings.environment()}, stdout=log, stderr=log
        )
    yield settings, process
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def pid_of(port: int, worker: str) -> int:
    """Return the process of a worker, as the service tells it."""
    (row,) = [row for row in json.loads(ask(port, "/api/status").text)["workers"] if row["name"] == worker]
    return int(row["pid"])


def entries(pid: int, what: str) -> int:
    """Return how many threads (task) or open files (fd) a process has."""
    return len(list(Path(f"/proc/{pid}/{what}").iterdir()))


@pytest.mark.fault("http-held-open")
@pytest.mark.needs("minutes")
def test_held_connections_end_no_service(limited: tuple[Settings, subprocess.Popen[bytes]], trial: Trial) -> None:
    """Scrapes are answered, killed workers come again, text is milled, and threads and files stay few."""
    settings, process = limited
    port, pid = settings.metrics_port, process.pid
    assert until(lambda: ask(port, "/readyz").code == 200, SECONDS)
    calm = {what: entries(pid, what) for what in ("task", "fd")}
    holder = Holder(port)
    try:
        with Feeder(settings, trial.rng):
            for worker in ("mill-1", "segment"):
                ended = holder.ended
                assert until(lambda: holder.ended > ended + CLIENTS, SECONDS)  # noqa: B023 - called here
                trial.fired("half-open requests", holder.ended - ended)
                os.kill(pid_of(port, worker), signal.SIGKILL)
                trial.fired(f"{worker} SIGKILL")
                assert until(lambda: total(scrape(port), RESTARTS, worker=worker) > 0, SECONDS)  # noqa: B023
                assert until(lambda: ask(port, "/readyz").code == 200, SECONDS)
                records = total(scrape(port), RECORDS)
                assert until(lambda: total(scrape(port), RECORDS) > records, SECONDS)  # noqa: B023
                assert entries(pid, "task") <= calm["task"] + MORE
                assert entries(pid, "fd") <= calm["fd"] + CONNECTIONS + 2 * ACCEPTED_AT_ONCE + MORE
    finally:
        holder.stop()
    assert until(lambda: entries(pid, "fd") <= calm["fd"] + MORE, SECONDS)
    assert process.poll() is None
    trial.held("alive")
