"""The pages over HTTP, and who may ask for them."""

import base64
import hashlib
import http.client
import json
import re
import socket
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from aiohttp.test_utils import make_mocked_request
from pydantic import SecretStr

from tests.scraping import ask, free_port, scrape, total
from tokenmill import errors
from tokenmill.app.cli import COMMANDS, create_cli
from tokenmill.app.cli.options import DECLARED
from tokenmill.app.mill.raw_partition import HANGS
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.reporting import Fleet
from tokenmill.app.telemetry.server import A_SECOND, AT_ONCE, STALLED_SECONDS, Asked, Probes, in_force, serving
from tokenmill.app.telemetry.status_document import stopped_words
from tokenmill.errors import TokenMillError
from tokenmill.page_server import Page

TOKEN = "s3cret-t0ken"  # noqa: S105 - as it says


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
            assert json.loads(ask(port, "/api/status").text) == told
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status", timeout=10) as answer:
            assert (answer.headers["Content-Type"], answer.headers["Cache-Control"]) == ("application/json", "no-store")


def request(port: int, path: str, **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Return code, body and headers of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.headers
    connection.close()
    return found


def test_who_has_the_status_gets_a_few_bytes_until_it_changes(port: int) -> None:
    """The moment of its making is no change."""
    known: dict[str, Any] = {"at": 1.5, "halted": {}}
    with serving(Settings(metrics_port=port), [], Probes(), lambda: known):
        tag = request(port, "/api/status")[2]["ETag"]
        known["at"] = 2.5
        code, body, headers = request(port, "/api/status", If_None_Match=tag, Accept_Encoding="gzip")
        assert (code, body, headers["ETag"]) == (304, b"", tag)
        assert len(bytes(headers)) < 500
        known["halted"] = {"raw-text/0": "blocks are missing"}
        code, body, headers = request(port, "/api/status", If_None_Match=tag)
        assert (code, json.loads(body)) == (200, known)
        assert headers["ETag"] != tag


def test_the_page_may_load_nothing_and_be_in_no_frame(port: int) -> None:
    """Its policy names its own style and script by their hashes; no answer lets another server's page read it."""
    with serving(Settings(metrics_port=port), [], Probes(), dict):
        code, body, headers = request(port, "/", Origin="http://evil.example")
        others = [request(port, path, Origin="http://evil.example") for path in ("/metrics", "/api/status", "/healthz")]
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    script = re.findall(rb"<script>(.*?)</script>", body, re.DOTALL)[0]
    assert (code, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
    assert re.findall(rb'(?:src|href)="(?!#|data:,)', body) == re.findall(rb"https?://(?!www.w3.org)", body) == []
    assert len(body) < 100_000
    for _, _, found in [(code, body, headers), *others]:
        assert "frame-ancestors 'none'" in found["Content-Security-Policy"]
        assert found["Cross-Origin-Resource-Policy"] == "same-origin"
        assert not [name for name in found if name.startswith("Access-Control")]


def test_who_lacks_the_token_sees_probes_and_an_empty_page(port: int) -> None:
    """Numbers, status and settings are for those who have it; no answer names it."""
    token, closed = TOKEN, ("/metrics", "/api/status", "/api/settings")
    with serving(Settings(metrics_port=port, http_token=token), [], Probes(), dict):  # type: ignore[arg-type]
        for wrong in (
            {},
            {"Authorization": "Bearer"},
            {"Authorization": f"Basic {token}"},
            {"Authorization": "Bearer ü"},
        ):
            assert {request(port, path, **wrong)[0] for path in closed} == {401}
        answers = {path: request(port, path, Authorization=f"Bearer {token}") for path in closed}
        assert {code for code, _, _ in answers.values()} == {200}
        assert token.encode() not in b"".join(body for _, body, _ in answers.values())
        assert request(port, "/metrics")[2]["WWW-Authenticate"] == "Bearer"
        assert [ask(port, path).code for path in ("/healthz", "/readyz", "/")] == [200, 503, 200]


def test_settings_in_force_come_with_their_origins(port: int) -> None:
    """A secret is asterisks; what nobody set is the default."""
    settings = Settings(metrics_port=port, group="g", http_token=TOKEN)  # type: ignore[arg-type]
    told = in_force(settings, {"group": "TOKENMILL_GROUP", "http_token": "tokenmill.toml"})
    assert told["settings"]["group"] == {"value": "g", "from": "TOKENMILL_GROUP"}
    assert told["settings"]["http_token"] == {"value": "**********", "from": "tokenmill.toml"}
    assert told["settings"]["workers"] == {"value": "2", "from": "default"}
    assert told["settings"].keys() == Settings.model_fields.keys()
    assert told["versions"]["tokenmill"]


def test_requests_are_answered_at_a_bounded_rate(clock: Clock) -> None:
    """So many at once, then so many a second; who has no token takes nothing from it."""
    token = SecretStr("t")
    page = Asked(token, clock).only(lambda _: Page(b"ok"))
    known, unknown = ({"Authorization": f"Bearer {word}"} for word in ("t", "u"))

    def codes(count: int, headers: dict[str, str]) -> Counter[int]:
        return Counter(page(make_mocked_request("GET", "/", headers=headers)).status for _ in range(count))

    assert codes(1000, unknown) == {401: 1000}
    assert codes(1000, known) == {200: AT_ONCE, 429: 1000 - AT_ONCE}
    clock.now += 2
    assert codes(1000, known) == {200: 2 * A_SECOND, 429: 1000 - 2 * A_SECOND}


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
    known = "/, /api/status, /api/store, /api/settings, /metrics, /healthz, /readyz"
    assert ask(port, "/status") == (404, f"there are {known}\n")


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


def test_the_page_advises_by_reasons_and_commands_that_there_are(port: int) -> None:
    """Each reason is one that a partition halts for; each command is one of the command line's."""
    with serving(Settings(metrics_port=port), [], Probes(), dict):
        page = request(port, "/")[1].decode()
    table = re.findall(r"const ADVICE = \{(.*?)\n\};", page, re.DOTALL)[0]
    advice = dict(re.findall(r'"([^"]*)": "tokenmill ([^"]*)"', table))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TokenMillError)]
    assert advice.keys() <= {*(kind.brief for kind in kinds), HANGS}
    words = {" ".join(word for word in command.split() if word.islower()) for command in advice.values()}
    groups = {word.partition(" ")[0] for word in words}
    assert groups <= COMMANDS.keys()
    for group in groups:
        create_cli(group)
    assert {word.replace(" --schema-id", "") for word in words} <= DECLARED.keys()
