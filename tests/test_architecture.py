"""Who may import whom: `tokenmill` is pure, and service and trainer know nothing of each other."""

import subprocess
import sys
from pathlib import Path

import pytest

import tokenmill

OTHERS = ("tokenmill.app", "tokenmill.consumers")
LIST = """
import importlib, pkgutil, sys

def load(name, others):
    module = importlib.import_module(name)
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        child = name + "." + found.name
        if child not in others and found.name != "__main__":
            load(child, others)

load(sys.argv[1], sys.argv[2].split(","))
print("\\n".join(sys.modules))
"""


def _loaded(package: str) -> set[str]:
    """Return the modules that a new interpreter holds after importing a package with all that is in it."""
    command = [sys.executable, "-c", LIST, package, ",".join(OTHERS)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(found.stdout.split())


@pytest.fixture(scope="module")
def pure() -> set[str]:
    """Return what `tokenmill` needs."""
    return _loaded("tokenmill")


def test_every_module_of_the_core_was_imported(pure: set[str]) -> None:
    """None is left out below."""
    folder = Path(tokenmill.__file__).parent
    files = {file.relative_to(folder).with_suffix("").parts for file in folder.rglob("*.py")}
    names = {".".join(("tokenmill", *parts)).removesuffix(".__init__") for parts in files}
    assert names <= pure
    assert len(names) > len(OTHERS)


def test_the_core_needs_no_kafka_no_faust_no_torch_and_neither_side(pure: set[str]) -> None:
    """It can be simulated, and installed, without any of them."""
    foreign = {"aiokafka", "confluent_kafka", "kafka", "faust", "mode", "torch", "pydantic_settings", "typer"}
    assert not {name.partition(".")[0] for name in pure} & foreign
    assert not [name for name in pure if name.startswith(OTHERS)]
