"""The stack of docker-compose.yml under a name, with ports and volumes of its own."""

import json
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import yaml

from .engine import Engine

LOG_LINES: Final = 40
PROFILES: Final = ("--profile", "tools", "--profile", "train")
"""Docker enables the profile of a service that is named; podman-compose wants to be told."""
PID_OF_HOST: Final = "import os, signal; os.kill({pid}, signal.SIGKILL)"


class Project:
    """Commands on the stack. A context manager: in the end nothing of it is left, its volumes included."""

    def __init__(self, engine: Engine, name: str, directory: Path, image_tag: str, raw_topics: Sequence[str]) -> None:
        """Start nothing yet; ``directory`` is what containers see as ``/data``."""
        self.name = name
        self.engine = engine
        self.data = directory
        self.image = f"tokenmill:{image_tag}"
        self.kafka_port, self.prometheus_port, grafana_port = free_ports(3)
        variables = {
            "KAFKA_PORT": self.kafka_port,
            "PROMETHEUS_PORT": self.prometheus_port,
            "GRAFANA_PORT": grafana_port,
            "DATA": directory,
            "TOKENMILL_RAW_TOPICS": ",".join(raw_topics),
            "IMAGE_TAG": image_tag,
            "GRAFANA_PASSWORD": secrets.token_hex(16),
        }
        # A file of its own: somebody's .env is not for tests.
        self._settings = directory.with_suffix(".env")
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # podman-compose forgets containers that `--scale` made, and its `down` then fails on their network.
        containers = self._ids()
        if containers:
            self.engine.call([*self.engine.run, "rm", "--force", *containers], check=False)
        self.compose("down", "--volumes", check=False)

    def compose(self, *arguments: str, seconds: float = 300, check: bool = True) -> str:
        command = [*self.engine.compose, "-p", self.name, "--env-file", str(self._settings), *PROFILES, *arguments]
        return self.engine.call(command, seconds=seconds, environment=self._environment, check=check).stdout

    def up(self, services: Sequence[str], mills: int = 1) -> None:
        """Bring services up, with so many mills, and take away those mills that are too many."""
        self.compose("up", "--detach", "--no-build", "--scale", f"mill={mills}", *services)
        # podman-compose adds and never removes; with docker there is nothing left to do here.
        for container in self.containers("mill")[mills:]:
            self.remove(container)

    def remove(self, container: str) -> None:
        self.engine.out("stop", container)
        self.engine.out("rm", container)

    def images(self) -> dict[str, str]:
        """Return the image of every service, as compose reads its file."""
        services: dict[str, dict[str, str]] = yaml.safe_load(self.compose("config"))["services"]
        return {name: service["image"] for name, service in services.items()}

    def cli(self, *arguments: str, seconds: float = 600) -> str:
        """Run one of TokenMill's commands in a container and return what it prints.

        Raises:
            CommandError: it did not end with 0.

        """
        return self.compose("run", "--rm", "-T", "cli", *arguments, seconds=seconds)

    def containers(self, service: str) -> list[str]:
        of_service = f"label=com.docker.compose.service={service}"
        return sorted(self._listed("--filter", of_service, "--format", "{{.Names}}"), key=_number)

    def healthy(self, container: str) -> bool:
        """Return whether a container of ours says that it is well, as its engine asks."""
        command = [*self.engine.run, "exec", container, "python", "-m", "tokenmill.app.telemetry.health"]
        return self.engine.call(command, check=False).returncode == 0

    def inspect(self, container: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = json.loads(self.engine.out("inspect", container))
        return found[0]

    def kill(self, container: str) -> int:
        """Kill a container's process from outside, as the kernel would, and return its id.

        An engine's own `kill` is somebody's wish, after which the container is not started again.
        """
        pid = int(self.inspect(container)["State"]["Pid"])
        script = PID_OF_HOST.format(pid=pid)
        command = ("run", "--rm", "--pid", "host", "--user", "0", "--entrypoint", "python", self.image, "-c", script)
        self.engine.out(*command)
        return pid

    def log(self, container: str) -> str:
        """Return all that a container has printed since the container was made."""
        done = self.engine.call([*self.engine.run, "logs", container])
        return done.stdout + done.stderr

    def logs(self) -> str:
        parts = []
        for name in self._listed("--format", "{{.Names}}"):
            done = self.engine.call([*self.engine.run, "logs", "--tail", str(LOG_LINES), name], check=False)
            parts += [f"--- {name}", done.stdout, done.stderr]
        return "\n".join(parts)

    def _ids(self) -> list[str]:
        return self._listed("--quiet")

    def _listed(self, *options: str) -> list[str]:
        mine = ("--filter", f"label=com.docker.compose.project={self.name}")
        return self.engine.out("ps", "--all", *mine, *options).split()


def _number(name: str) -> int:
    """Return a container's number within its service: ``project_mill_2``, ``project-mill-2``."""
    return int(name.replace("-", "_").rpartition("_")[2])


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on, below those that the system gives to clients."""
    found = []
    for port in range(22000, 32000, 13):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                found.append(port)
        if len(found) == count:
            return found
    raise OSError("no port is free")
