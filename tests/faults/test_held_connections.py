"""Clients hold `/metrics` open, at few descriptors, while workers die: the service works on, and answers who asks."""

import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.faults.beside import beside
from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder
from tests.faults.serving import Serving
from tests.faults.trial import Trial
from tests.marked import until
from tests.scraping import ask, total
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


class Holder:
    """Keeps connections to a port half open; `ended` counts those that the server ended, each of which is replaced."""

    def __init__(self, port: int) -> None:
        """Hold none yet."""
        self.ended = 0
        self._port = port
        self._clients: list[socket.socket] = []

    def hold(self) -> None:
        """Replace those that are over."""
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

    def let_go(self) -> None:
        """Close all."""
        for client in self._clients:
            client.close()


def _is_over(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def pid_of(port: int, worker: str) -> int:
    """Return the process of a worker, as the service tells it."""
    (row,) = [row for row in json.loads(ask(port, "/api/status").text)["workers"] if row["name"] == worker]
    return int(row["pid"])


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
        assert until(lambda: ask(port, "/readyz").code == 200, SECONDS)
        calm = {what: entries(pid, what) for what in ("task", "fd")}
        holder = Holder(port)
        with beside(0.01, holder.hold), Feeder(settings, trial.rng):
            for worker in ("mill-1", "segment"):
                ended = holder.ended
                assert until(lambda: holder.ended > ended + CLIENTS, SECONDS)  # noqa: B023 - called here
                trial.fired("half-open requests", holder.ended - ended)
                os.kill(pid_of(port, worker), signal.SIGKILL)
                trial.fired(f"{worker} SIGKILL")
                assert until(lambda: total(service.samples(), RESTARTS, worker=worker) > 0, SECONDS)  # noqa: B023
                assert until(lambda: ask(port, "/readyz").code == 200, SECONDS)
                records = total(service.samples(), RECORDS)
                assert until(lambda: total(service.samples(), RECORDS) > records, SECONDS)  # noqa: B023
                assert entries(pid, "task") <= calm["task"] + MORE
                assert entries(pid, "fd") <= calm["fd"] + CONNECTIONS + 2 * ACCEPTED_AT_ONCE + MORE
        holder.let_go()
        assert until(lambda: entries(pid, "fd") <= calm["fd"] + MORE, SECONDS)
        assert service.running
    trial.held("alive")
