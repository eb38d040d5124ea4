"""The broker that the processes of a test run share."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

from tests.shared_broker import shared_broker
from tokenmill.app.local.broker import Broker


def _use(directory: Path, told: Connection) -> None:
    with shared_broker(directory) as broker:
        told.send(broker.bootstrap_servers)
        told.recv()


def test_last_user_stops_it(tmp_path: Path) -> None:
    """Whoever began and whoever ends first: it runs as long as somebody uses it."""
    with shared_broker(tmp_path) as first:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        other = context.Process(target=_use, args=(tmp_path, there))
        other.start()
        assert here.recv() == first.bootstrap_servers
    assert first.running
    here.send("leave")
    other.join()
    assert other.exitcode == 0
    assert not Broker(tmp_path / "broker").running
