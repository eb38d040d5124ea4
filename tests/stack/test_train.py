"""The trainer's container: torch in it, the store before it, and no way to change that."""

import json
import os
from pathlib import Path

import pytest

from .engine import Engine
from .project import Project
from .story import Story

WANTED = os.environ.get("STACK_TRAIN") == "1"
INDEX = os.environ.get("TORCH_INDEX_URL", "")
STEPS = 3

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not WANTED, reason="torch takes 6 GB; STACK_TRAIN=1 make test-stack builds this image too"),
]


@pytest.fixture(scope="module")
def trained(story: Story, project: Project, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build the image, train a few steps on what the story left in the store, and return what was printed."""
    assert story.verified["blocks"]
    name = project.image.replace("tokenmill:", "tokenmill-train:")
    directory: Path = tmp_path_factory.mktemp("build")
    engine.build_image(name, directory, "--target", "train", "--build-arg", f"TORCH_INDEX_URL={INDEX}")
    arguments = ("/store", "raw-text.train", "--steps", str(STEPS), "--batch-size", "2", "--cpu", "--json")
    return project.compose("run", "--rm", "-T", "trainer", *arguments, seconds=600)


def test_a_container_trains_on_the_store_that_the_stack_filled(trained: str) -> None:
    assert json.loads(trained.splitlines()[-1])["step"] == STEPS
