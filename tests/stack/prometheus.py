"""Questions to a Prometheus, the stack's or one that runs here, and the questions that the dashboard asks."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.scraping import ask, free_port

from .engine import ROOT

PROGRAM: Final = shutil.which("prometheus")
DASHBOARDS: Final = ROOT / "deploy" / "helm/tokenmill/files/dashboards"
STEP_SECONDS: Final = 5
VARIABLES: Final = {"__rate_interval": "1m", "__interval": "15s", "__range": "5m"}
"""What Grafana would put for its own variables; all others stand for a choice, and all is chosen."""
MAY_BE_EMPTY: Final = {"Time to catch up, by topic"}
"""Where nothing waits, there is nothing to catch up with."""


class Panel(NamedTuple):
    title: str
    expression: str


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: object) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=30) as answer:  # noqa: S310 - ours
            return json.load(answer)["data"]

    def points(self, expression: str, since: float) -> int:
        """Return how many numbers a query has had since a moment (Unix seconds); not counting what is no number."""
        result = self.ask("query_range", query=expression, start=since, end=time.time(), step=STEP_SECONDS)["result"]
        return sum(value not in {"NaN", "+Inf", "-Inf"} for series in result for _, value in series["values"])

    def value(self, expression: str) -> float:
        return sum(float(series["value"][1]) for series in self.ask("query", query=expression)["result"])


@contextmanager
def running(directory: Path) -> Iterator[Prometheus]:
    port, log = free_port(), directory / "prometheus.log"
    options = {"config.file": "prometheus.yml", "storage.tsdb.path": "data", "web.listen-address": f"127.0.0.1:{port}"}
    command = [str(PROGRAM), *(f"--{name}={value}" for name, value in options.items())]
    with log.open("wb") as written:
        process = subprocess.Popen(command, cwd=directory, stdout=written, stderr=written)
    try:
        while ask(port, "/-/ready").code != HTTPStatus.OK:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait()


def dashboard_queries() -> list[Panel]:
    files = sorted(DASHBOARDS.glob("*.json"))
    return [panel for file in files for panel in _queries(json.loads(file.read_text()).get("panels", []))]


def _queries(panels: list[dict[str, Any]]) -> list[Panel]:
    found = []
    for panel in panels:
        title = panel.get("title", "")
        found += [Panel(title, _chosen(target["expr"])) for target in panel.get("targets", []) if target.get("expr")]
        found += _queries(panel.get("panels", []))  # those of a row that is folded up
    return found


def _chosen(expression: str) -> str:
    """Return the expression with a value for each variable, as Grafana does before it asks."""
    return re.sub(r"\$\{?(\w+)(?::\w+)?\}?", lambda match: VARIABLES.get(match[1], ".*"), expression)
