"""The broker that the processes of a test run share."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.conftest import pytest_itemcollected
from tests.shared_broker import shared_broker
from tokenmill.app.local.broker import Broker
from tokenmill.app.processes import Process

WAIT_SECONDS = 60

CONFTEST = """
import pytest
from tests.shared_broker import shared_broker, shared_directory
from tokenmill.app.local.broker import Broker
from tokenmill.app.processes import start

class Stub(Broker):
    def start(self, *, detached: bool = False) -> None:
        self._prepare()
        start(["sleep", "600"], self.log_path, detached=detached).save(self._pid_path)

@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    with shared_broker(shared_directory(tmp_path_factory.getbasetemp()), Stub) as broker:
        yield broker
"""
"""Of a test run whose broker is a process that sleeps: how it ends is what is looked at."""
TESTS = """
import os, time
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", [0, 1])
def test_long(broker, number):
    Path(os.environ["TOLD"], f"{number}").touch()
    time.sleep(600)
"""


def _use(directory: Path, told: Connection) -> None:
    with shared_broker(directory) as broker:
        told.send(broker.bootstrap_servers)
        told.recv()


@pytest.mark.slow
def test_last_user_stops_it(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("options", [["-p", "no:xdist"], ["-n", "2"]], ids=["one process", "xdist"])
@pytest.mark.slow
@pytest.mark.usefixtures("hangup")
@pytest.mark.cases(2)
def test_a_test_run_that_is_ended_leaves_no_broker(
    tmp_path: Path, number: signal.Signals, options: Sequence[str]
) -> None:
    """By a signal to pytest, which then runs no fixture's end; with its worker processes and without."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "conftest.py").write_text(CONFTEST)
    (tmp_path / "run" / "test_run.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", *options]
    command += ["--basetemp", str(tmp_path / "temp"), str(tmp_path / "run")]
    root = str(Path(__file__).parents[1])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": root, "TOLD": str(tmp_path)}
    wanted = [tmp_path / "0", tmp_path / "1"] if "-n" in options else [tmp_path / "0"]
    with (tmp_path / "output").open("wb") as output:
        run = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    broker = None
    try:
        while not all(path.exists() for path in wanted):
            assert run.poll() is None, (tmp_path / "output").read_text()
        broker = Process.load(tmp_path / "temp" / "broker" / "broker.pid")
        assert broker is not None
        assert broker.running
        run.send_signal(number)
        run.wait(WAIT_SECONDS)
        assert broker.ends_within(WAIT_SECONDS)
    finally:
        with suppress(ProcessLookupError):  # as it should be
            os.killpg(run.pid, signal.SIGKILL)
        if broker is not None:
            broker.signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("fixtures", "group"), [(["broker", "milled"], "milled"), (["secured"], "secured"), (["broker"], "tests/a.py")]
)
def test_tests_that_share_a_costly_fixture_are_one_group(fixtures: Sequence[str], group: str) -> None:
    """So that one process of a run starts it, once; any other file goes to whatever process is free."""
    marks: list[pytest.MarkDecorator] = []
    item = SimpleNamespace(fixturenames=fixtures, nodeid="tests/a.py::test_b[c]", add_marker=marks.append)
    pytest_itemcollected(cast("pytest.Item", item))
    assert [mark.args for mark in marks] == [(group,)]
