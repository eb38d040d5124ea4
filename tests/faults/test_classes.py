"""The fault tests' own rules: every class has a test, what proves nothing fails, and what a full run has."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.faults.trial import CLASSES, PAGE
from tests.simulation.test_eras import ERA_RULES
from tests.simulation.test_rules import RULES
from tests.simulation.test_verdicts import NEEDED

ROOT: Final = Path(__file__).parents[2]


def test_every_class_of_the_page_is_tested_and_no_other() -> None:
    """A class without a test would be a promise that nothing holds."""
    found = [path for folder in ("faults", "simulation") for path in (ROOT / "tests" / folder).rglob("test_*.py")]
    calls = [node for path in found for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.fault"]
    assert {ast.literal_eval(name) for mark in marks for name in mark.args} == CLASSES.keys()


def test_page_tells_of_every_rule() -> None:
    """Of chains, of eras and of verdicts, with the violations that its absence was seen to make."""
    simulation = PAGE.read_text().partition("## Simulation")[2].partition("\n## ")[0]
    told = re.findall(r"^\| ([a-z].+) \| [\d,]+ \|$", simulation, re.MULTILINE)
    verdicts = [f"{rule} (*losses*)" if losses else rule for rule, losses, _ in NEEDED]
    assert sorted(told) == sorted([*(rule.name for rule in (*RULES, *ERA_RULES)), *verdicts])


def test_page_names_tests_that_exist() -> None:
    """A test, or a file of tests; what holds a bug must not be renamed away."""
    named = set(re.findall(r"`(test_[a-z_0-9]+)`", PAGE.read_text()))
    files = list((ROOT / "tests").rglob("test_*.py"))
    there = {path.stem for path in files}
    there |= {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert named
    assert named <= there


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
    (folder / "test_made.py").write_text(TESTS)
    plugins = ["-p", "tests.conftest", "-p", "tests.faults.conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, "-n", "0", "-rA", *options, str(folder / "test_made.py")]
    variables = {**os.environ, "PYTEST_ADDOPTS": "", **environment}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.needs("minutes")
def test_what_proves_nothing_fails_and_a_seed_repeats_a_run(tmp_path: Path) -> None:
    """Without a fault that fired, or an oracle; the seed that is printed gives the same random numbers."""
    first, again = (outcome(tmp_path, FAULT_SEED="5") for _ in range(2))
    proves_nothing = ("no fault fired", "nothing was held against anything")
    for wanted in ("PASSED", "ERROR", *(f"{why}: the test proves nothing" for why in proves_nothing), "::test_short"):
        assert wanted in first
    assert "test_needs_a_tool" not in first
    assert "test_long" not in first
    assert "examples: 10\n" in first
    assert re.search("^power-lost +FAILED", first, re.MULTILINE)
    numbers, others = (re.findall(r"^(?:0\.|FAULT_SEED=5).*", said, re.MULTILINE) for said in (first, again))
    assert numbers == others
    assert len(numbers) > 1


@pytest.mark.needs("minutes")
def test_a_full_run_has_what_a_plain_one_leaves_out_and_fails_where_a_tool_is_missing(tmp_path: Path) -> None:
    """From any folder; and properties, with more examples; not what would be the same again."""
    said = outcome(tmp_path, "--full", PATH="/nonexistent")
    assert "this fault needs 'strace', which this machine does not give" in said
    assert "classes that did not run: " in said
    assert re.search("^PASSED .*::test_long$", said, re.MULTILINE)
    assert "examples: 200\n" in said
    assert "test_short" not in said
