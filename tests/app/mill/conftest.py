"""What tests of a raw partition share."""

from pathlib import Path

import pytest

from tests.app.mill.scripted_partition import World, make_world


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return make_world(tmp_path, monkeypatch, {"train": 1000})
