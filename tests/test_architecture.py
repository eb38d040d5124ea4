"""What a package loads, and what holds for all modules; who may import whom is for import-linter (pyproject.toml)."""

import ast
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import tokenmill

ROOT = Path(tokenmill.__file__).parents[1]
CODE = {folder: sorted((ROOT / folder).rglob("*.py")) for folder in ("app", "consumers", "tokenmill")}


def loaded(modules: str) -> set[str]:
    """Return the modules that a new interpreter holds after importing these."""
    command = [sys.executable, "-c", f"import sys, {modules}; print(*sys.modules)"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_every_module_of_the_core_is_there_for_readers() -> None:
    core, readers = (
        {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in CODE[folder]}
        for folder in ("tokenmill", "consumers")
    )
    assert len(core) > 20
    assert core <= loaded(", ".join(f"tokenmill.{name}" for name in readers if not name.endswith("__main__")))


@pytest.mark.parametrize(("package", "most"), [("tokenmill.store", 45), ("tokenmill.consumers", 75)])
def test_readers_load_no_step_no_tokenizer_and_no_decoder(package: str, most: int) -> None:
    ours = {name for name in loaded(package) if name.startswith("tokenmill.")}
    assert package in ours
    assert not {name for name in ours if name.startswith("tokenmill.app")}
    assert len(ours) <= most


@pytest.mark.parametrize("package", ["tokenmill.app", "tokenmill.consumers"])
def test_a_checkout_has_all_packages_whatever_is_installed(package: str) -> None:
    """Python looks in its working directory first; ``-S`` is an environment that knows of no editable installation."""
    code = (
        f"import sys; sys.path.append({sysconfig.get_paths()['purelib']!r}); import {package} as it; print(it.__file__)"
    )
    said = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert Path(said.stdout.strip()).is_relative_to(ROOT / package.rpartition(".")[2])


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
    assert not loaded("tokenmill.app.mill.recipes") & {"faust", "mode", "aiohttp", "torch"}


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
