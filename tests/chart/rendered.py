"""What Helm makes of the chart, and the containers in it as processes of this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from tests.marked import until
from tests.scraping import ask, free_port

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy/helm/tokenmill"
TOOLS: Final = ROOT / ".venv/chart"
SECONDS: Final = 120.0


def helm(*words: object) -> subprocess.CompletedProcess[str]:
    command = [str(TOOLS / "helm"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def render(*values: object) -> list[dict[str, Any]]:
    done = helm("template", "mine", CHART, "--namespace", "data", *values)
    if done.returncode:
        raise AssertionError(done.stderr)
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [found for found in objects if found["kind"] == kind]


class Pods:
    """Containers of a rendered installation, each as a process with its command, environment and settings."""

    def __init__(self, objects: list[dict[str, Any]], directory: Path) -> None:
        self._objects, self._directory = objects, directory
        (settings,) = [found for found in of_kind(objects, "ConfigMap") if "tokenmill.toml" in found["data"]]
        self._config = directory / f"tokenmill-{len(list(directory.glob('*.toml')))}.toml"
        self._config.write_text(settings["data"]["tokenmill.toml"])

    def run(self, kind: str) -> int:
        command, environment, log = self._parts(kind)
        with log.open("wb") as file:
            return subprocess.run(command, env=environment, stdout=file, stderr=file, check=False).returncode

    @contextmanager
    def pod(self, kind: str) -> Iterator["Pod"]:
        command, environment, log = self._parts(kind)
        with log.open("wb") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        pod = Pod(process, int(environment["TOKENMILL_METRICS_PORT"]), log)
        try:
            yield pod
        finally:
            pod.end()

    def _parts(self, kind: str) -> tuple[list[str], dict[str, str], Path]:
        (workload,) = of_kind(self._objects, kind)
        container = workload["spec"]["template"]["spec"]["containers"][0]
        environment = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
        elsewhere = {
            "TOKENMILL_CONFIG": str(self._config),
            "TOKENMILL_METRICS_PORT": str(free_port()),
            "TOKENMILL_STORE": str(self._directory / "store"),
        }
        log = self._directory / f"{kind}-{len(list(self._directory.glob('*.log')))}.log"
        command = [sys.executable, "-m", "tokenmill.app.cli", *container["args"]]
        return command, os.environ | environment | elsewhere, log


class Pod:
    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self._process, self._port, self._log = process, port, log

    def wait_until_ready(self) -> None:
        until(lambda: self._process.poll() is not None or ask(self._port, "/readyz").code == 200, SECONDS)
        assert ask(self._port, "/readyz").code == 200, self._log.read_text()[-4000:]

    def end(self) -> int:
        self._process.terminate()
        try:
            return self._process.wait(60)  # terminationGracePeriodSeconds
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
