"""docs/core.md: the path of a text through the code is the one that the page names."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/core.md").read_text()
STEPS = re.findall(r"\| `([\w/]+\.py)` `([\w.]+)` \|", PAGE)
ORDER = re.findall(r"`(\w+)`", next(line for line in PAGE.splitlines() if "←" in line))


@pytest.mark.parametrize(("module", "name"), STEPS)
def test_each_step_is_where_the_page_says(module: str, name: str) -> None:
    """A module that is moved or a class that is renamed takes the page along."""
    body: list[ast.stmt] = ast.parse((ROOT / module).read_text()).body
    for part in name.split("."):
        found = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
        body = next(node.body for node in found if node.name == part)


def test_the_page_has_the_whole_path() -> None:
    """Every step is in a row that is understood above."""
    assert len(STEPS) == sum(line.startswith("| ") for line in PAGE.splitlines()) - PAGE.count("| step | read |")
    assert len(PAGE.splitlines()) < 100


def test_imports_of_the_core_go_one_way() -> None:
    """As the page draws them; the root's modules import none of the packages but for types."""
    assert ORDER[-1] == "consumers"
    level = {name: number for number, name in enumerate(ORDER)}
    wrong = [
        (file.relative_to(ROOT).as_posix(), imported)
        for name in ORDER
        for file in (ROOT / name if name == "consumers" else ROOT / "tokenmill" / name).rglob("*.py")
        for imported in _packages(file)
        if level.get(imported, -1) > level[name] or imported == "app"
    ]
    assert wrong == []
    assert all(level[one] < level[other] for one, other in pairwise(ORDER))
    roots = [file for file in (ROOT / "tokenmill").glob("*.py") if set(_packages(file)) & level.keys()]
    assert roots == []


def _packages(file: Path) -> Iterator[str]:
    """Yield the package of the project that each import of a module is from."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tokenmill."):
            yield str(node.module).split(".")[1]
