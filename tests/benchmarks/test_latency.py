"""The benchmark runs from end to end; what the numbers are is nobody's business here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.needs("minutes")
def test_every_way_to_a_block_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.latency", "--documents", "2", "--rounds", "1"]
    command += ["--directory", str(tmp_path / "work"), "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seconds = json.loads((tmp_path / "latency.json").read_text())["seconds"]
    assert {name: len(times) for name, times in seconds.items()} == {
        "low load": 2,
        "low load, near duplicates left out": 2,
        "after a clean stop": 1,
        "after SIGKILL": 1,
    }
