"""What runs containers here (Docker, else podman with podman-compose and buildah), and the stack in them."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml

ROOT: Final = Path(__file__).parents[2]
WHAT_TO_INSTALL: Final = (
    "no container engine can be used: install Docker with its compose plugin (and start it), or as root podman and "
    "buildah (podman-compose is in the virtual environment)"
)
PORTABLE: Final = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
"""Of pip's settings, those that mean the same inside a build."""


class CommandError(Exception):
    """A command of the engine failed; says which, and what it printed."""


@dataclass(frozen=True, slots=True)
class Engine:
    run: tuple[str, ...]
    build: tuple[str, ...]
    compose: tuple[str, ...]

    def call(
        self, command: Sequence[str], *, seconds: float = 120, env: Mapping[str, str] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the repository's root; `CommandError` where it should end with 0 and does not."""
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=seconds, check=False)
        if check and done.returncode:
            raise CommandError(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
        return done

    def out(self, *arguments: str) -> str:
        return self.call([*self.run, *arguments]).stdout.strip()

    def has_image(self, image: str) -> bool:
        ways = ([*self.run, "image", "inspect", image], [*self.run, "pull", image])
        return any(self.call(way, seconds=300, check=False).returncode == 0 for way in ways)

    def build_image(self, tag: str, directory: Path, *options: str) -> None:
        secret = _pip_configuration(directory)
        index = ("--secret", f"id=pip.conf,src={secret}") if secret else ()
        self.call([*self.build, *index, *options, "--tag", tag, "."], seconds=1200)


def find_engine() -> Engine | None:
    if _works("docker", "info") and _works("docker", "compose", "version"):
        return Engine(("docker",), ("docker", "build"), ("docker", "compose"))
    beside = Path(sys.executable).with_name("podman-compose")
    composer = str(beside) if beside.exists() else "podman-compose"
    if _works("podman", "info") and _works("buildah", "version") and _works(composer, "version"):
        # chroot and the host's network: what works on every machine, in a container as well. Health checks are
        # Docker's, not OCI's.
        build = "buildah bud --layers --isolation chroot --network host --pull=false --format docker"
        return Engine(("podman",), tuple(build.split()), (composer,))
    return None


def _works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def _pip_configuration(directory: Path) -> Path | None:
    """Write what pip is told here, by files or variables, into one file for the build; None if it is told nothing."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    settings = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = value.strip("'\"")
    lines = [f"{name} = {value}\n" for name, value in settings.items() if name in PORTABLE]
    file = directory / "pip.conf"
    file.write_text("".join(["[global]\n", *lines]))
    return file if lines else None


PROFILES: Final = ("--profile", "tools", "--profile", "train")
"""Docker enables the profile of a service that is named; podman-compose wants to be told."""


class Project:
    """Commands on the stack. A context manager: in the end nothing of it is left, its volumes included."""

    def __init__(self, engine: Engine, name: str, directory: Path, image_tag: str, raw_topics: Sequence[str]) -> None:
        """Start nothing yet; ``directory`` is what containers see as ``/data``."""
        self.name, self.engine, self.data = name, engine, directory
        self.image = f"tokenmill:{image_tag}"
        self.kafka_port, self.prometheus_port, grafana_port = free_ports(3)
        ports = {"KAFKA_PORT": self.kafka_port, "PROMETHEUS_PORT": self.prometheus_port, "GRAFANA_PORT": grafana_port}
        variables = {"DATA": directory, "IMAGE_TAG": image_tag, "TOKENMILL_RAW_TOPICS": ",".join(raw_topics)}
        variables |= {**ports, "GRAFANA_PASSWORD": secrets.token_hex(16)}
        # A file of its own: somebody's .env is not for tests.
        self._settings = directory.with_suffix(".env")
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # podman-compose forgets containers that `--scale` made, and its `down` then fails on their network.
        if containers := self._listed("--quiet"):
            self.engine.call([*self.engine.run, "rm", "--force", *containers], check=False)
        self.compose("down", "--volumes", check=False)

    def compose(self, *arguments: str, seconds: float = 300, check: bool = True) -> str:
        command = [*self.engine.compose, "-p", self.name, "--env-file", str(self._settings), *PROFILES, *arguments]
        return self.engine.call(command, seconds=seconds, env=self._environment, check=check).stdout

    def up(self, services: Sequence[str], mills: int = 1) -> None:
        self.compose("up", "--detach", "--no-build", "--scale", f"mill={mills}", *services)
        # podman-compose adds and never removes; with docker there is nothing left to do here.
        for container in self.containers("mill")[mills:]:
            self.remove(container)

    def remove(self, container: str) -> None:
        self.engine.out("stop", container)
        self.engine.out("rm", container)

    def images(self) -> dict[str, str]:
        services: dict[str, dict[str, str]] = yaml.safe_load(self.compose("config"))["services"]
        return {name: service["image"] for name, service in services.items()}

    def cli(self, *arguments: str) -> str:
        return self.compose("run", "--rm", "-T", "cli", *arguments, seconds=600)

    def containers(self, service: str) -> list[str]:
        of_service = f"label=com.docker.compose.service={service}"
        return sorted(self._listed("--filter", of_service, "--format", "{{.Names}}"), key=_number)

    def healthy(self, container: str) -> bool:
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
        options = ("--rm", "--pid", "host", "--user", "0", "--entrypoint", "python", self.image)
        self.engine.out("run", *options, "-c", f"import os, signal; os.kill({pid}, signal.SIGKILL)")
        return pid

    def log(self, container: str) -> str:
        done = self.engine.call([*self.engine.run, "logs", container])
        return done.stdout + done.stderr

    def logs(self) -> str:
        parts = []
        for name in self._listed("--format", "{{.Names}}"):
            done = self.engine.call([*self.engine.run, "logs", "--tail", "40", name], check=False)
            parts += [f"--- {name}", done.stdout, done.stderr]
        return "\n".join(parts)

    def _listed(self, *options: str) -> list[str]:
        mine = ("--filter", f"label=com.docker.compose.project={self.name}")
        return self.engine.out("ps", "--all", *mine, *options).split()


def _number(name: str) -> int:
    """Return a container's number within its service: ``project_mill_2``, ``project-mill-2``."""
    return int(name.replace("-", "_").rpartition("_")[2])


def free_ports(count: int) -> list[int]:
    found = []
    for port in range(22000, 32000, 13):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                found.append(port)
        if len(found) == count:
            return found
    raise OSError("no port is free")
