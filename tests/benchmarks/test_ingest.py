"""The benchmark runs from end to end, and says what it promises. What the numbers are is nobody's business here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.field import CONTENDERS, OURS
from benchmarks.report import KEYS


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "benchmarks.ingest", "--quick", "--no-picture"]
    command += ["--directory", str(directory / "work"), "--output", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(Path(directory, "ingest.json").read_text())
    return found


@pytest.mark.needs("minutes")
def test_every_contender_has_every_number(result: dict[str, Any]) -> None:
    assert {"machine", "versions", "rounds", "cells"} <= result.keys()
    (cell,) = result["cells"]
    assert list(cell["contenders"]) == [contender.name for contender in CONTENDERS]
    for numbers in cell["contenders"].values():
        assert all(0 < numbers[key]["min"] <= numbers[key]["median"] <= numbers[key]["max"] for key in KEYS)
    assert set(cell["ratios"]) == set(cell["contenders"]) - {OURS}
    assert all(set(ratios) == set(KEYS) for ratios in cell["ratios"].values())


@pytest.mark.needs("minutes")
def test_all_contenders_made_the_same_number_of_tokens(result: dict[str, Any]) -> None:
    """Of the same documents; a run in which one does not fails by itself."""
    (cell,) = result["cells"]
    assert len({numbers["tokens_on_disk"] for numbers in cell["contenders"].values()}) == 1
    assert all(numbers["tokens_on_disk"] > 0 for numbers in cell["contenders"].values())
