"""The three pages over HTTP."""

import json
import socket
import urllib.request
from collections.abc import Iterator

import pytest
import structlog

from tests.scraping import ask, free_port, scrape, total
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.reporting import Fleet
from tokenmill.app.telemetry.server import STALLED_SECONDS, Probes, serving
from tokenmill.app.telemetry.status_document import stopped_words


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def port() -> int:
    """Return a port that nobody listens on."""
    return free_port()


@pytest.fixture
def clock() -> Clock:
    """Return a clock at 0."""
    return Clock()


@pytest.fixture
def probes(port: int, clock: Clock) -> Iterator[Probes]:
    """Yield the probes of pages that are served."""
    probes = Probes(clock)
    fleet = Fleet()
    fleet.heard("mill", 1, [("tokenmill_records_consumed_total", {"topic": "t"}, 3.0)])
    with serving(Settings(metrics_port=port), [fleet], probes, dict):
        yield probes


def test_ready_is_what_the_event_loop_said_last(port: int, probes: Probes) -> None:
    """Not ready at first, then ready, then not, each with its reason; alive all the while."""
    assert ask(port, "/readyz") == (503, "the process has just started\n")
    probes.turn(None)
    assert ask(port, "/readyz") == (200, "ok\n")
    probes.turn("no broker is connected")
    assert ask(port, "/readyz") == (503, "no broker is connected\n")
    assert ask(port, "/healthz") == (200, "ok\n")


def test_a_halted_partition_makes_the_strict_probe_unready_and_no_other(port: int, probes: Probes) -> None:
    """It is named, with a few words; a long list is cut. What is not ready at all goes first."""
    probes.turn(
        None, stopped_words({"raw-text/3": "blocks are missing", "eras of raw-text.train": "two messages differ"}, {})
    )
    assert ask(port, "/readyz") == ask(port, "/healthz") == (200, "ok\n")
    words = "halted: raw-text/3 (blocks are missing), eras of raw-text.train (two messages differ)\n"
    assert ask(port, "/readyz?strict") == ask(port, "/readyz?strict=1") == (503, words)
    probes.turn("not ready: mill-2", "halted: raw-text/3 (blocks are missing)")
    assert ask(port, "/readyz?strict") == (503, "not ready: mill-2\n")
    probes.turn(
        None, stopped_words(dict.fromkeys((f"raw-text/{number}" for number in range(1000)), "blocks are missing"), {})
    )
    assert ask(port, "/readyz?strict").text.endswith("raw-text/9 (blocks are missing), 990 more\n")
    probes.turn(None)
    assert ask(port, "/readyz?strict") == (200, "ok\n")


def test_the_status_is_json(port: int) -> None:
    """As it is when somebody asks."""
    told = {"halted": {}, "at": 1.5}
    with serving(Settings(metrics_port=port), [], Probes(), lambda: told):
        for number in range(2):
            told["at"] = number
            assert json.loads(ask(port, "/status").text) == told
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10) as answer:
            assert (answer.headers["Content-Type"], answer.headers["Cache-Control"]) == ("application/json", "no-store")


def test_an_event_loop_that_stands_still_is_unhealthy(port: int, clock: Clock, probes: Probes) -> None:
    """The server answers in a thread of its own; when the loop turns again, all is well."""
    probes.turn(None)
    clock.now += STALLED_SECONDS + 1
    assert ask(port, "/healthz") == (503, "the event loop has stood still for 21 s\n")
    assert ask(port, "/readyz").code == 503
    probes.turn(None)
    assert ask(port, "/healthz").code == ask(port, "/readyz").code == 200


def test_metrics_are_served_and_other_paths_are_not(port: int, probes: Probes) -> None:
    """Any number of scrapes give the same; a wrong path says which are right."""
    for _ in range(3):
        samples = scrape(port)
        assert total(samples, "tokenmill_records_consumed_total", worker="mill", topic="t") == 3
        assert total(samples, "tokenmill_build_info") == 1
    assert ask(port, "/") == (404, "there are /metrics, /healthz, /readyz, /status\n")


def test_a_port_that_is_taken_stops_no_work_and_is_told(port: int) -> None:
    """The block runs; the log says what to set."""
    with (
        socket.create_server(("127.0.0.1", port)),
        structlog.testing.capture_logs() as logs,
        serving(Settings(metrics_port=port), [], Probes(), dict),
    ):
        pass
    assert [(entry["log_level"], entry["port"]) for entry in logs] == [("warning", port)]
    assert "metrics_port" in logs[0]["event"]


def test_port_0_serves_nothing_and_the_end_frees_the_port(port: int) -> None:
    """Afterwards nobody listens, and the port can be had again at once."""
    with structlog.testing.capture_logs() as logs, serving(Settings(metrics_port=0), [], Probes(), dict):
        pass
    assert logs == []
    for _ in range(2):
        with serving(Settings(metrics_port=port), [], Probes(), dict):
            assert ask(port, "/healthz").code == 200
        assert ask(port, "/healthz").code == 0


def test_the_address_of_metrics_host_serves_and_no_other(port: int) -> None:
    """127.0.0.2 is loopback as well, and another address."""
    with serving(Settings(metrics_port=port, metrics_host="127.0.0.2"), [], Probes(), dict):
        with urllib.request.urlopen(f"http://127.0.0.2:{port}/healthz", timeout=10) as answer:
            assert answer.status == 200
        assert ask(port, "/healthz").code == 0
