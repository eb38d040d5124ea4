"""What the fault tests share: seeds that repeat a run, how long a run is, and the table of what fired.

A fault test names its class (``pytestmark = pytest.mark.fault("worker-killed")``, or on the function), asks for the
fixture `trial`, and says there what fired and which oracles held; without both it fails. Tests marked
``needs("strace")`` or the like are left out of a plain run; ``--full``, which `make faults` gives, runs them, fails
where the tool is missing, and makes all of them longer.
"""

import os
import random
import secrets
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import TopicFactory
from tests.faults.trial import CLASSES, ORACLES, Trial
from tests.service import service_settings
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings

SEED_VARIABLE: Final = "FAULT_SEED"
SHOWN: Final = "fault evidence"
"""Name of the user property that carries a test's evidence to the summary, from other processes too."""


def _mount() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-Urm", "true"], check=False).returncode == 0


NEEDS: Final[dict[str, Callable[[], bool]]] = {
    "strace": lambda: shutil.which("strace") is not None,
    "mount": _mount,
    "minutes": lambda: True,
}
"""What a test can need beyond a plain run: a tool, a right (`unshare -Urm`), or minutes."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail where a full run lacks what a test needs."""
    for need in [need for marker in item.iter_markers("needs") for need in marker.args]:
        if not NEEDS[need]():
            pytest.fail(f"this fault needs {need!r}, which this machine does not give", pytrace=False)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers from a seed that is printed; ``FAULT_SEED=<number>`` repeats a run's choices."""
    seed = int(os.environ.get(SEED_VARIABLE) or secrets.randbits(32))
    print(f"{SEED_VARIABLE}={seed}")  # noqa: T201 - pytest shows it with a failure
    request.node.user_properties.append((SEED_VARIABLE, seed))
    return random.Random(seed)


Configured = Callable[..., Settings]
"""Makes settings of a service (`tests.service.service_settings`) for a raw topic with one partition, or so many."""


@pytest.fixture
def configured(broker: Broker, topic: TopicFactory, tmp_path: Path) -> Configured:
    return lambda partitions=1, **others: service_settings(broker, topic(partitions), tmp_path, **others)


OTHERS: Final[dict[str, dict[str, Any]]] = {
    "fit": {"packing": {"name": "fit", "open_blocks": 8, "max_age_offsets": 300}},
    "rows": {"sequence_length": 64, "packing": {"name": "rows", "long": "split"}},
    "chunks": {"sequence_length": 16, "packing": {"name": "chunks", "chunk_tokens": 48, "rest": "pad"}},
}
"""The packings beside ``concat``, with blocks of the length that documents of `tests.faults.feeding` fill."""
_OTHER_CASES: Final = [pytest.param(case, id=name, marks=pytest.mark.needs("minutes")) for name, case in OTHERS.items()]
each_packing: Final = pytest.mark.parametrize("packing", [pytest.param({}, id="concat"), *_OTHER_CASES])
"""Runs a test with ``concat``, and in a full run with each of the others."""
FAILED: Final = pytest.StashKey[bool]()


@pytest.fixture
def trial(request: pytest.FixtureRequest, rng: random.Random) -> Iterator[Trial]:
    """Give a run its means and keep what it saw; fail a test that passed though nothing fired or nothing was held."""
    names = [name for marker in request.node.iter_markers("fault") for name in marker.args]
    assert names, "a fault test names its class: @pytest.mark.fault(...)"
    assert set(names) <= CLASSES.keys(), f"{names}: docs/reliability.md has no such class"
    seen, began = Trial(rng, full=request.config.getoption("--full")), time.monotonic()
    yield seen
    failed = request.node.stash.get(FAILED, False)
    shown = {
        "classes": names,
        "failed": failed or not (sum(seen.faults.values()) and seen.oracles),
        "fired": dict(seen.faults),
        "oracles": sorted(seen.oracles, key=ORACLES.index),
        "figures": dict(seen.figures),
        "slowest": seen.slowest,
        "seconds": time.monotonic() - began,
    }
    request.node.user_properties.append((SHOWN, shown))
    if not failed:
        assert sum(seen.faults.values()), "no fault fired: the test proves nothing"
        assert seen.oracles, "nothing was held against anything: the test proves nothing"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test itself failed, so that its end does not complain as well."""
    report = yield
    if call.when == "call":
        item.stash[FAILED] = not report.passed
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line per class: what fired how often, which oracles held, how long it took; then the sums."""
    reports = (report for found in terminalreporter.stats.values() for report in found)
    told = (pair for report in reports if isinstance(report, pytest.TestReport) for pair in report.user_properties)
    shown: list[Any] = [value for name, value in told if name == SHOWN]
    if not shown:
        return
    terminalreporter.section("faults")
    for name in CLASSES:
        if runs := [run for run in shown if name in run["classes"]]:
            terminalreporter.line(_summary(name, runs))
    if terminalreporter.config.getoption("--full"):
        left_out = CLASSES.keys() - {name for run in shown for name in run["classes"]}
        terminalreporter.line(f"classes that did not run: {', '.join(sorted(left_out)) or 'none'}")
    sums = sum((Counter(run["figures"]) for run in shown), Counter[str]())
    slowest = max(run["slowest"] for run in shown)
    terminalreporter.line(f"in all: {_counts(sums)}; alive again within {slowest:.1f} s")


def _summary(name: str, runs: list[dict[str, Any]]) -> str:
    fired = sum((Counter(run["fired"]) for run in runs), Counter[str]())
    oracles = [oracle for oracle in ORACLES if any(oracle in run["oracles"] for run in runs)]
    verdict = "FAILED" if any(run["failed"] for run in runs) else "ok"
    seconds = sum(run["seconds"] for run in runs)
    return f"{name:24} {verdict:6} {seconds:5.0f} s  fired: {_counts(fired)}; held: {', '.join(oracles) or 'nothing'}"


def _counts(found: Counter[str]) -> str:
    return ", ".join(f"{times:,} {what}" for what, times in found.items()) or "nothing"
