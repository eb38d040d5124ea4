"""What runs containers here: Docker, else podman with podman-compose and buildah."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
WHAT_TO_INSTALL: Final = (
    "no container engine can be used: install Docker with its compose plugin (and start it), or as root podman and "
    "buildah (podman-compose is in the virtual environment)"
)
BUILD_SECONDS: Final = 1200
PULL_SECONDS: Final = 300
PORTABLE: Final = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
"""Of pip's settings, those that mean the same inside a build."""


class CommandError(Exception):
    """A command of the engine failed; says which, and what it printed."""


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    run: tuple[str, ...]
    build: tuple[str, ...]
    compose: tuple[str, ...]
    compose_up: tuple[str, ...] = field(default=())
    """What `up` takes beside what everyone's does."""

    def call(
        self,
        command: Sequence[str],
        *,
        seconds: float = 120,
        environment: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the repository's root.

        Raises:
            CommandError: ``check``, and it did not end with 0.

        """
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
        if check and done.returncode:
            raise CommandError(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
        return done

    def out(self, *arguments: str, seconds: float = 120) -> str:
        return self.call([*self.run, *arguments], seconds=seconds).stdout.strip()

    def has_image(self, image: str) -> bool:
        """Return whether an image is here, after trying to fetch it."""
        if self.call([*self.run, "image", "inspect", image], check=False).returncode == 0:
            return True
        return self.call([*self.run, "pull", image], seconds=PULL_SECONDS, check=False).returncode == 0

    def build_image(self, tag: str, directory: Path, *options: str) -> None:
        """Build an image from the Dockerfile, with this machine's package index."""
        secret = _pip_configuration(directory)
        index = ("--secret", f"id=pip.conf,src={secret}") if secret else ()
        self.call([*self.build, *index, *options, "--tag", tag, "."], seconds=BUILD_SECONDS)


def find_engine() -> Engine | None:
    if _works("docker", "info") and _works("docker", "compose", "version"):
        return Engine("docker", ("docker",), ("docker", "build"), ("docker", "compose"))
    beside = Path(sys.executable).with_name("podman-compose")
    composer = str(beside) if beside.exists() else "podman-compose"
    if _works("podman", "info") and _works("buildah", "version") and _works(composer, "version"):
        # chroot and the host's network: what works on every machine, in a container as well. Health checks are
        # Docker's, not OCI's.
        build = (
            "buildah",
            "bud",
            "--layers",
            "--isolation",
            "chroot",
            "--network",
            "host",
            "--pull=false",
            "--format",
            "docker",
        )
        return Engine("podman", ("podman",), build, (composer,))
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
    if not lines:
        return None
    file = directory / "pip.conf"
    file.write_text("".join(["[global]\n", *lines]))
    return file
