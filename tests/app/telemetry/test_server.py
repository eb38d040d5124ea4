"""The pages over HTTP, who may ask for them, and the question of container engines."""

import base64
import hashlib
import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trustme
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Request
from pydantic import SecretStr, ValidationError

from tests.outages import Hands
from tests.scraping import ask, free_port, parse, scrape, total
from tokenmill import errors
from tokenmill.app.cli import COMMANDS, create_cli, status
from tokenmill.app.cli.options import DECLARED
from tokenmill.app.mill.raw_partition import HANGS
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.reporting import Fleet
from tokenmill.app.telemetry.server import (
    A_SECOND,
    AT_ONCE,
    STALLED_SECONDS,
    Asked,
    Probes,
    in_force,
    run_served,
    serving,
)
from tokenmill.app.telemetry.status_document import VERSION, stopped_words
from tokenmill.app.tools.produce.sending import Acknowledged, Summary
from tokenmill.errors import InputError, TokenMillError
from tokenmill.page_server import HANDSHAKE_SECONDS, Page, PageServer


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def probes(port: int, clock: Hands) -> Iterator[Probes]:
    probes, fleet = Probes(clock), Fleet()
    fleet.heard("mill", 1, [("tokenmill_records_consumed_total", {"topic": "t"}, 3.0)])
    with serving(Settings(metrics_port=port), [fleet], probes, dict):
        yield probes


def test_ready_is_what_the_event_loop_said_last_and_one_that_stands_still_is_unhealthy(
    port: int, clock: Hands, probes: Probes
) -> None:
    """The server answers in a thread of its own; when the loop turns again, all is well."""
    assert ask(port, "/readyz") == (503, "the process has just started\n")
    probes.turn(None)
    assert ask(port, "/readyz") == (200, "ok\n")
    probes.turn("no broker is connected")
    assert ask(port, "/readyz") == (503, "no broker is connected\n")
    assert ask(port, "/healthz") == (200, "ok\n")
    probes.turn(None)
    clock.turn(STALLED_SECONDS + 1)
    assert ask(port, "/healthz") == (503, "the event loop has stood still for 21 s\n")
    assert ask(port, "/readyz").code == 503
    probes.turn(None)
    assert ask(port, "/healthz").code == ask(port, "/readyz").code == 200


def test_a_halted_partition_makes_the_strict_probe_unready_and_no_other(port: int, probes: Probes) -> None:
    halted = {"raw-text/3": "blocks are missing", "eras of raw-text.train": "two messages differ"}
    probes.turn(None, stopped_words(halted, {}))
    assert ask(port, "/readyz") == ask(port, "/healthz") == (200, "ok\n")
    words = "halted: raw-text/3 (blocks are missing), eras of raw-text.train (two messages differ)\n"
    assert ask(port, "/readyz?strict") == ask(port, "/readyz?strict=1") == (503, words)
    probes.turn("not ready: mill-2", "halted: raw-text/3 (blocks are missing)")
    assert ask(port, "/readyz?strict") == (503, "not ready: mill-2\n")
    many = dict.fromkeys((f"raw-text/{number}" for number in range(1000)), "blocks are missing")
    probes.turn(None, stopped_words(many, {}))
    assert ask(port, "/readyz?strict").text.endswith("raw-text/9 (blocks are missing), 990 more\n")
    probes.turn(None)
    assert ask(port, "/readyz?strict") == (200, "ok\n")


def request(port: int, path: str, **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.headers
    connection.close()
    return found


def test_the_status_is_json_of_which_who_has_it_gets_a_few_bytes_until_it_changes(port: int) -> None:
    """The moment of its making is no change."""
    known: dict[str, Any] = {"at": 1.5, "halted": {}}
    with serving(Settings(metrics_port=port), [], Probes(), lambda: known):
        for moment in (1.5, 2):
            known["at"] = moment
            _, body, headers = request(port, "/api/status")
            assert json.loads(body) == known
        assert (headers["Content-Type"], headers["Cache-Control"]) == ("application/json", "no-store")
        tag, known["at"] = headers["ETag"], 2.5
        code, body, headers = request(port, "/api/status", If_None_Match=tag, Accept_Encoding="gzip")
        assert (code, body, headers["ETag"]) == (304, b"", tag)
        assert len(bytes(headers)) < 500
        known["halted"] = {"raw-text/0": "blocks are missing"}
        code, body, headers = request(port, "/api/status", If_None_Match=tag)
        assert (code, json.loads(body)) == (200, known)
        assert headers["ETag"] != tag


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    ours, other = authority.issue_cert("mill.example"), authority.issue_cert("mill.example")
    made = {
        "key": ours.private_key_pem, "other_key": other.private_key_pem, "certificate": ours.cert_chain_pems[0],
        "both": ours.private_key_and_cert_chain_pem, "authority": authority.cert_pem, "stranger": trustme.CA().cert_pem,
    }  # fmt: skip
    for name, pem in made.items():
        pem.write_to_path(folder / name)
    return {name: folder / name for name in made}


@pytest.mark.parametrize("names", [("certificate", "key"), ("both",)])
def test_with_a_certificate_all_is_served_by_https_alone(
    port: int, files: dict[str, Path], names: tuple[str, ...]
) -> None:
    paths = dict(zip(("http_tls_certificate", "http_tls_key"), map(files.__getitem__, names), strict=False))
    settings = Settings(metrics_port=port, **paths)  # type: ignore[arg-type]
    url = f"https://127.0.0.1:{port}/"
    assert settings.page_url == url
    with serving(settings, [], Probes(), lambda: {"version": VERSION}):
        believing = ssl.create_default_context(cafile=files["authority"])
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            believing.wrap_socket(plain, server_hostname="mill.example") as made,
        ):
            made.sendall(b"GET /healthz HTTP/1.1\r\nHost: mill.example\r\n\r\n")
            assert made.recv(1 << 16).startswith(b"HTTP/1.1 200 OK\r\n")
        assert status.ask(url, None, settings.http_tls_certificate) == {"version": VERSION}
        for other in (None, files["stranger"]):
            with pytest.raises(errors.BrokerError, match=r"(?i)certificate.verify.failed"):
                status.ask(url, None, other)
        with pytest.raises((OSError, http.client.HTTPException)):
            request(port, "/healthz")


def test_a_handshake_that_never_ends_is_ended(port: int, files: dict[str, Path]) -> None:
    settings = Settings(metrics_port=port, http_tls_certificate=files["both"])
    with (
        serving(settings, [], Probes(), lambda: {"version": VERSION}),
        socket.create_connection(("127.0.0.1", port), HANDSHAKE_SECONDS + 20) as silent,
    ):
        assert status.ask(f"https://127.0.0.1:{port}", None, files["both"]) == {"version": VERSION}
        assert silent.recv(1) == b""


@pytest.mark.parametrize(
    ("certificate", "key", "words"),
    [
        ("missing", "key", "cannot read http_tls_certificate .*missing: No such file"),
        ("certificate", "missing", "cannot read http_tls_key .*missing: No such file"),
        ("certificate", "other_key", "cannot use http_tls_certificate .*both must be PEM and belong together"),
        ("key", "key", "cannot use http_tls_certificate .*both must be PEM and belong together"),
    ],
)
def test_files_of_tls_that_cannot_be_used_are_named(
    port: int, files: dict[str, Path], certificate: str, key: str, words: str
) -> None:
    folder = files["key"].parent
    settings = Settings(metrics_port=port, http_tls_certificate=folder / certificate, http_tls_key=folder / key)
    with pytest.raises(errors.SettingsError, match=words), serving(settings, [], Probes(), dict):
        pytest.fail("it serves")
    with pytest.raises(ConnectionRefusedError):
        request(port, "/healthz")


def test_a_key_without_its_certificate_is_refused() -> None:
    with pytest.raises(ValidationError, match="set http_tls_certificate"):
        Settings(http_tls_key=Path("key"))


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
    token, closed = "s3cret-t0ken", ("/metrics", "/api/status", "/api/settings")
    with serving(Settings(metrics_port=port, http_token=SecretStr(token)), [], Probes(), dict):
        for wrong in (None, "Bearer", f"Basic {token}", "Bearer ü"):
            headers = {"Authorization": wrong} if wrong else {}
            assert {request(port, path, **headers)[0] for path in closed} == {401}
        answers = {path: request(port, path, Authorization=f"Bearer {token}") for path in closed}
        assert {code for code, _, _ in answers.values()} == {200}
        assert token.encode() not in b"".join(body for _, body, _ in answers.values())
        assert request(port, "/metrics")[2]["WWW-Authenticate"] == "Bearer"
        assert [ask(port, path).code for path in ("/healthz", "/readyz", "/")] == [200, 503, 200]


def test_settings_in_force_come_with_their_origins(port: int) -> None:
    settings = Settings(metrics_port=port, group="g", http_token=SecretStr("s3cret-t0ken"))
    told = in_force(settings, {"group": "TOKENMILL_GROUP", "http_token": "tokenmill.toml"})
    assert told["settings"]["group"] == {"value": "g", "from": "TOKENMILL_GROUP"}
    assert told["settings"]["http_token"] == {"value": "**********", "from": "tokenmill.toml"}
    assert told["settings"]["workers"] == {"value": "2", "from": "default"}
    assert told["settings"].keys() == Settings.model_fields.keys()
    assert told["versions"]["tokenmill"]


def test_requests_are_answered_at_a_bounded_rate(clock: Hands) -> None:
    page = Asked(SecretStr("t"), clock).only(lambda _: Page(b"ok"))
    headers = ({"Authorization": f"Bearer {word}"} for word in "tu")
    known, unknown = (make_mocked_request("GET", "/", headers=each) for each in headers)

    def codes(count: int, request: Request) -> Counter[int]:
        return Counter(page(request).status for _ in range(count))

    assert codes(1000, unknown) == {401: 1000}
    assert codes(1000, known) == {200: AT_ONCE, 429: 1000 - AT_ONCE}
    clock.now += 2
    assert codes(1000, known) == {200: 2 * A_SECOND, 429: 1000 - 2 * A_SECOND}


def test_metrics_are_served_and_other_paths_are_not(port: int, probes: Probes) -> None:
    for _ in range(3):
        samples = scrape(port)
        assert total(samples, "tokenmill_records_consumed_total", worker="mill", topic="t") == 3
        assert total(samples, "tokenmill_build_info") == 1
    known = "/, /api/status, /api/store, /api/settings, /metrics, /healthz, /readyz"
    assert ask(port, "/status") == (404, f"there are {known}\n")


def test_a_port_that_is_taken_stops_no_work_and_is_told(port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        structlog.testing.capture_logs() as logs,
        serving(Settings(metrics_port=port), [], Probes(), dict),
    ):
        pass
    assert [(entry["log_level"], entry["port"]) for entry in logs] == [("warning", port)]
    assert "metrics_port" in logs[0]["event"]


def test_the_port_of_metrics_host_is_served_until_the_end_and_port_0_is_none(port: int) -> None:
    """127.0.0.2 is loopback as well, and another address."""
    with structlog.testing.capture_logs() as logs, serving(Settings(metrics_port=0), [], Probes(), dict):
        pass
    assert logs == []
    for _ in range(2):
        with serving(Settings(metrics_port=port), [], Probes(), dict):
            assert ask(port, "/healthz").code == 200
        assert ask(port, "/healthz").code == 0
    with serving(Settings(metrics_port=port, metrics_host="127.0.0.2"), [], Probes(), dict):
        with urllib.request.urlopen(f"http://127.0.0.2:{port}/healthz", timeout=10) as answer:
            assert answer.status == 200
        assert ask(port, "/healthz").code == 0


def test_the_page_advises_by_reasons_and_commands_that_there_are(port: int) -> None:
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


def test_a_run_serves_its_figures_while_it_lasts_to_who_has_the_token(port: int) -> None:
    begun = list[Summary]()
    with run_served(Settings(http_token=SecretStr("t")), port, lambda: None):
        assert ask(port, "/metrics").code == 401
    with run_served(Settings(), port, lambda: begun[0] if begun else None):
        assert total(parse(ask(port, "/metrics").text), "tokenmill_produced_documents_total") == 0
        begun.append(Summary("t", {0: Acknowledged(3, 30), 1: Acknowledged(4, 50)}, refused=2, bytes_read=99))
        for documents in (7, 8):
            found = parse(ask(port, "/metrics").text)
            names = ("documents", "bytes", "refused", "read_bytes")
            figures = [total(found, f"tokenmill_produced_{name}_total", topic="t") for name in names]
            assert figures == [documents, 80, 2, 99]
            begun[0].partitions[1].documents += 1
        assert ask(port, "/").code == 404
    socket.create_server(("127.0.0.1", port)).close()  # the address is free


def test_a_port_that_is_taken_ends_the_command_and_port_0_serves_nothing(port: int) -> None:
    with (
        run_served(Settings(), port, lambda: None),
        pytest.raises(InputError, match="give another --metrics-port"),
        run_served(Settings(), port, lambda: None),
    ):
        pytest.fail("it serves")
    with run_served(Settings(metrics_host="no such host"), None, lambda: None):
        pass


def asked(port: int, **variables: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tokenmill.app.telemetry.health"]
    environment = {"TOKENMILL_METRICS_PORT": str(port), "http_proxy": "http://127.0.0.1:1", **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(("code", "exit_code"), [(200, 0), (503, 1), (None, 1)])
@pytest.mark.slow
def test_the_exit_code_is_the_services_own_answer(code: int | None, exit_code: int) -> None:
    """What it says is passed on; a proxy in the environment has no say. Where nobody is there it is not well."""
    server = PageServer("127.0.0.1", 0, {"/healthz": lambda _: Page(b"mill-1 is silent", code or 0)})
    server.start()
    left, words = asked(server.port if code else 1)
    server.stop()
    assert left == exit_code
    assert ("mill-1 is silent" if code else "http://127.0.0.1:1/healthz does not answer") in words


@pytest.mark.slow
def test_a_service_with_tls_is_asked_by_https(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    for path in (ours, other):
        trustme.CA().issue_cert("mill.example").private_key_and_cert_chain_pem.write_to_path(path)
    settings, probes = Settings(metrics_port=free_port(), http_tls_certificate=ours), Probes()
    with serving(settings, [], probes, dict):
        found = [asked(settings.metrics_port, TOKENMILL_HTTP_TLS_CERTIFICATE=str(path)) for path in (ours, other)]
    assert found[0] == (0, "ok\n")
    assert found[1][0] == 1
    assert "certificate verify failed" in found[1][1]
