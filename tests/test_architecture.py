"""What a package loads, and what holds for all modules; who may import whom is for import-linter (pyproject.toml)."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
    command = [sys.executable, "-c", LIST, package, ",".join(OTHERS)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return set(found.stdout.split())


@pytest.fixture(scope="module")
def pure() -> set[str]:
    return _loaded("tokenmill")


@pytest.mark.slow
def test_every_module_of_the_core_was_imported(pure: set[str]) -> None:
    folder = Path(tokenmill.__file__).parent
    files = {file.relative_to(folder).with_suffix("").parts for file in folder.rglob("*.py")}
    names = {".".join(("tokenmill", *parts)).removesuffix(".__init__") for parts in files}
    assert names <= pure
    assert len(names) > len(OTHERS)


def test_every_module_of_the_core_is_there_for_readers(pure: set[str]) -> None:
    core = {name for name in pure if name.partition(".")[0] == "tokenmill"}
    assert core - _loaded("tokenmill.consumers") == set()


@pytest.mark.parametrize(("package", "most"), [("tokenmill.store", 45), ("tokenmill.consumers", 75)])
def test_readers_load_no_step_no_tokenizer_and_no_decoder(package: str, most: int) -> None:
    """A trainer's host starts soon, and needs nothing of what makes tokens."""
    look = f"import sys, {package}; print(*(name for name in sys.modules if name.startswith('tokenmill.')))"
    found = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True).stdout.split()
    assert package in found
    assert [name for name in found if name.startswith("tokenmill.app")] == []
    assert len(found) <= most


ROOT = Path(tokenmill.__file__).parents[1]
CODE = {folder: sorted((ROOT / folder).rglob("*.py")) for folder in ("app", "consumers", "tokenmill")}


def test_no_class_name_occurs_twice() -> None:
    found = Counter(
        node.name
        for files in CODE.values()
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in found.items() if count > 1] == []


def test_modules_have_a_size_that_can_be_read() -> None:
    """None over 700 lines: what is read together may stand together."""
    lines = {file: len(file.read_text().splitlines()) for files in CODE.values() for file in files}
    assert {str(file): count for file, count in lines.items() if count > 700} == {}


def test_making_recipes_needs_neither_faust_nor_a_web_server() -> None:
    """Commands that make recipes without a service start sooner."""
    look = "import sys, tokenmill.app.mill.recipes; print(*{name.partition('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True)
    assert not set(found.stdout.split()) & {"faust", "mode", "aiohttp", "torch"}


LOOKS_AT_NO_RECORD: Final = {
    "app/kafka/oauth.py": "the login fails, and is tried again",
    "app/tasks.py": "raised where it is waited for",
    "app/mill/publisher.py": "the process ends",
    "app/segments/token_partition.py": "the process ends",
    "app/tools/pack/parted_sources.py": "the file is read in one piece, which says what is wrong",
    "app/tools/produce/dask_lanes.py": "the command ends, or a file is read in one piece, which says what is wrong",
    "app/worker/ending.py": "the process ends",
    "app/worker/transport.py": "the process ends",
    "app/sources/datasets.py": "less is known beforehand, or the command ends",
    "app/sources/formats/columnar.py": "each row is read by itself",
    "app/sources/reading_order.py": "raised where it is waited for",
    "app/milling/tokenizers/vocabulary.py": "the command ends",
}
"""Where any error is caught, and what becomes of it then: no outcome."""


def test_no_want_of_memory_becomes_an_outcome() -> None:
    """What catches any error lets this one pass: the same record would be another thing on another machine."""
    found = [(file, handler) for files in CODE.values() for file in files for handler in _catching_all(file)]
    wrong = {file.relative_to(ROOT).as_posix() for file, _ in found}
    assert wrong == LOOKS_AT_NO_RECORD.keys(), [f"{file}:{handler.lineno}" for file, handler in found]


def _catching_all(file: Path) -> Iterator[ast.ExceptHandler]:
    """Yield what catches any error, or want of memory among others, and neither raises it nor lets that one pass."""
    for block in ast.walk(ast.parse(file.read_text())):
        handlers: list[ast.ExceptHandler] = getattr(block, "handlers", [])
        for number, handler in enumerate(handlers):
            names = ast.unparse(handler.type) if handler.type is not None else "BaseException"
            raised = any(isinstance(line, ast.Raise) and line.exc is None for line in ast.walk(handler))
            passed = any("MemoryError" in ast.unparse(one.type or handler) for one in handlers[:number])
            wide = re.search(r"\b(Exception|BaseException|MemoryError|ArrowException)\b", names)
            if wide and not raised and not passed:
                yield handler
