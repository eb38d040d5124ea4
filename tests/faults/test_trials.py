"""The fault tests' own rules: what proves nothing fails, so does a full run that lacks a tool, and what it runs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.needs("minutes")

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = """
import pytest
from hypothesis import given, settings, strategies

def test_short():
    pass

@pytest.mark.needs("minutes")
def test_long():
    pass

@given(strategies.integers())
def test_property(number):
    print("examples:", settings().max_examples)

@pytest.mark.fault("power-lost")
def test_well(trial):
    print(trial.rng.random())
    trial.fired("it")
    trial.held("exact")

@pytest.mark.fault("power-lost")
def test_nothing_fired(trial):
    trial.held("exact")

@pytest.mark.fault("power-lost")
def test_nothing_held(trial):
    trial.fired("it")

@pytest.mark.fault("power-lost")
@pytest.mark.needs("strace")
def test_needs_a_tool(trial):
    trial.fired("it")
    trial.held("exact")
"""


def outcome(folder: Path, *options: str, **environment: str) -> str:
    """Return what pytest says of `TESTS`."""
    (folder / "test_made.py").write_text(TESTS)
    plugins = ["-p", "tests.conftest", "-p", "tests.faults.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, "-n", "0", "-rA", *options, str(folder / "test_made.py")]
    variables = {**os.environ, "PYTEST_ADDOPTS": "", **environment}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_what_proves_nothing_fails_and_a_seed_repeats_a_run(tmp_path: Path) -> None:
    """Without a fault that fired, or an oracle; the seed that is printed gives the same random numbers."""
    first, again = (outcome(tmp_path, FAULT_SEED="5") for _ in range(2))
    assert "PASSED" in first
    assert "ERROR" in first
    assert "no fault fired: the test proves nothing" in first
    assert "nothing was held against anything: the test proves nothing" in first
    assert "test_needs_a_tool" not in first
    assert "test_long" not in first
    assert "::test_short" in first
    assert "examples: 10\n" in first
    assert re.search("^power-lost +FAILED", first, re.MULTILINE)
    numbers = [
        [line for line in said.splitlines() if line.startswith(("0.", "FAULT_SEED=5"))] for said in (first, again)
    ]
    assert numbers[0] == numbers[1]
    assert len(numbers[0]) > 1


def test_a_full_run_fails_where_a_tool_is_missing(tmp_path: Path) -> None:
    """And says which; a run without ``--full`` has left the test out."""
    said = outcome(tmp_path, "--full", PATH="/nonexistent")
    assert "this fault needs 'strace', which this machine does not give" in said
    assert "classes that did not run: " in said


def test_a_full_run_has_what_a_plain_one_leaves_out_from_any_folder(tmp_path: Path) -> None:
    """And properties, with more examples; not what would be the same again."""
    said = outcome(tmp_path, "--full")
    assert re.search("^PASSED .*::test_long$", said, re.MULTILINE)
    assert "examples: 200\n" in said
    assert "test_short" not in said
