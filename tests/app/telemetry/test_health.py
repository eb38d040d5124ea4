"""The question that container engines ask: answered by the exit code, with words."""

import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from tests.scraping import free_port
from tokenmill.app.settings import Settings
from tokenmill.app.telemetry.server import Probes, serving
from tokenmill.page_server import Page, PageServer


def asked(port: int, **variables: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tokenmill.app.telemetry.health"]
    environment = {"TOKENMILL_METRICS_PORT": str(port), "http_proxy": "http://127.0.0.1:1", **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(("code", "exit_code"), [(200, 0), (503, 1)])
@pytest.mark.slow
def test_the_exit_code_is_the_services_own_answer(code: int, exit_code: int) -> None:
    """What it says is passed on; a proxy in the environment has no say."""
    server = PageServer("127.0.0.1", 0, {"/healthz": lambda _: Page(b"mill-1 is silent", code)})
    server.start()
    left, words = asked(server.port)
    server.stop()
    assert left == exit_code
    assert "mill-1 is silent" in words


@pytest.mark.slow
def test_nobody_there_is_not_well() -> None:
    left, words = asked(1)
    assert left == 1
    assert "http://127.0.0.1:1/healthz does not answer" in words


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
