"""Every fault class has a test, or a reason why none is needed."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.faults.classes import CLASSES

NOT_APPLICABLE: Final[dict[str, str]] = {}
"""Class and reason, as docs/reliability.md has it."""
UNTESTED: Final[frozenset[str]] = frozenset(
    {
        *("power-lost", "segment-truncated", "bits-flipped", "files-missing", "disk-full", "sync-failed", "disk-gone"),
        *("odd-tokens", "reader-follows", "broker-killed", "broker-paused", "network-broken", "send-failed"),
        *("dead-letters-refused", "source-retained", "source-recreated", "logs-rewritten", "source-gaps"),
        *("groups-moved", "partitions-added", "thin-split", "engine-lies", "settings-changed", "clock-moved"),
        "metrics-scraped",
    }
)
"""Classes that still lack a test."""
FOLDERS: Final = (Path(__file__).parent, Path(__file__).parents[1] / "simulation")


def test_every_class_is_tested() -> None:
    """A name in the table without a test would be a promise that nothing holds."""
    tested = {name for folder in FOLDERS for path in folder.rglob("test_*.py") for name in marked(path)}
    assert tested <= CLASSES.keys()
    assert CLASSES.keys() - tested - NOT_APPLICABLE.keys() <= UNTESTED


def marked(path: Path) -> Iterator[str]:
    """Yield the classes that the tests of a file name (``pytest.mark.fault(...)``)."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.fault":
            for argument in node.args:
                name = ast.literal_eval(argument)
                assert isinstance(name, str), f"{path}: a class is named by a string"
                yield name
