"""One image, and one story of the stack, for all tests of this folder."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .engine import WHAT_TO_INSTALL, Engine, Project, find_engine
from .story import FILTERED, TOPIC, Story, tell

SERVICES = ["kafka", "topics", "mill", "segments", "prometheus"]
Say = Callable[[str], None]


@pytest.fixture(scope="session")
def engine() -> Engine:
    found = find_engine()
    if found is None:
        pytest.fail(WHAT_TO_INSTALL, pytrace=False)
    return found


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Say:
    """Return what prints past pytest's capture."""
    started, capture = time.monotonic(), request.config.pluginmanager.getplugin("capturemanager")

    def printed(message: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"stack: {time.monotonic() - started:4.0f} s: {message}", flush=True)  # noqa: T201 - minutes pass

    return printed


@pytest.fixture(scope="session")
def image(engine: Engine, say: Say, tmp_path_factory: pytest.TempPathFactory) -> str:
    say("builds the image")
    name = "tokenmill:test"
    engine.build_image(name, tmp_path_factory.mktemp("build"), "--target", "service", "--build-arg", "VERSION=test")
    return name


@pytest.fixture(scope="session")
def tools(engine: Engine, image: str, say: Say, tmp_path_factory: pytest.TempPathFactory) -> str:
    say("builds the tools' image")
    name = "tokenmill-tools:test"
    engine.build_image(name, tmp_path_factory.mktemp("build"), "--target", "tools")
    return name


@pytest.fixture(scope="session")
def project(engine: Engine, image: str, tools: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    data = tmp_path_factory.mktemp("data")
    _open_to_all(data)
    name = f"tokenmill-test-{uuid.uuid4().hex[:8]}"
    with Project(engine, name, data, "test", (TOPIC, FILTERED)) as stack:
        yield stack


@pytest.fixture(scope="session")
def story(project: Project, engine: Engine, say: Say) -> Story:
    """Return what was seen while the stack ran; the stack still runs."""
    images = project.images()
    missing = {service for service in (*SERVICES, "grafana") if not engine.has_image(images[service])}
    if missing - {"grafana"}:
        pytest.fail(f"the images of {', '.join(sorted(missing))} can be had neither here nor from a registry")
    if missing:
        say(f"leaves grafana out: {images['grafana']} cannot be had (its queries are asked all the same)")
    try:
        return tell(project, project.data, [*SERVICES, *([] if missing else ["grafana"])], say)
    except Exception:
        print(project.logs())  # noqa: T201 - what a person needs who reads the failure
        raise


def _open_to_all(directory: Path) -> None:
    directory.chmod(0o755)
    for parent in list(directory.parents)[:2]:
        if parent.stat().st_uid == os.getuid():
            parent.chmod(0o755)
