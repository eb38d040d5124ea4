"""docs/core.md: the path of a text through the code is the one that the page names."""

import ast
import re
import tomllib
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
    """As the page draws them: import-linter (`make lint`) keeps them so."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == ["tokenmill"])
    assert [*reversed(layers[:-1]), "consumers"] == ORDER
