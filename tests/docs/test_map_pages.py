"""The pages that lead through the repository name what exists: the map, the core, security, decisions, contributing."""

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

from docs.generators.site import ROOT
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps import Rejected, pipeline
from tokenmill.app.milling.steps.pipeline import open_pipeline, read_pipeline, steps_as_toml
from tokenmill.documents import Document, Limits

MAP: Final = (ROOT / "docs/architecture.md").read_text()
CORE: Final = (ROOT / "docs/core.md").read_text()
SECURITY: Final = (ROOT / "SECURITY.md").read_text()
CONTRIBUTING: Final = (ROOT / "CONTRIBUTING.md").read_text()
DECISIONS: Final = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/decisions").glob("*.md"))
STEPS: Final = re.findall(r"\| `([\w/]+\.py)` `([\w.]+)` \|", CORE)


@pytest.mark.parametrize("name", ["docs/architecture.md", "SECURITY.md", *DECISIONS])
def test_code_and_pages_that_are_named_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    code = re.findall(r"`((?:app|consumers|tokenmill|tests|benchmarks)/[\w/]+(?:\.py)?)`", text)
    assert [path for path in code if not (ROOT / path).exists()] == []
    links = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text)]
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []


def test_folders_modules_and_targets_of_contributing_are_there() -> None:
    names = [name for name in re.findall(r"`([\w/.]+/[\w.]*)`", CONTRIBUTING) if "digits" not in name]
    assert [name for name in names if not (ROOT / name).exists() and not name.startswith(".venv/")] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", CONTRIBUTING)) <= targets


def test_the_map_names_every_package_and_every_decision_is_in_their_index() -> None:
    assert len(MAP.splitlines()) <= 250
    tree = MAP.split("## Where things are")[1].split("```")[1]
    packages = {path.parent.name for room in ("app", "tokenmill") for path in (ROOT / room).glob("*/__init__.py")}
    assert packages == set(re.findall(r"^  (\w+)/", tree, re.MULTILINE))
    index = (ROOT / "docs/decisions/README.md").read_text()
    pages = {name.rpartition("/")[2] for name in DECISIONS}
    assert pages - {"README.md"} == set(re.findall(r"\]\((\w+\.md)\)", index))


@pytest.mark.parametrize(("module", "name"), STEPS)
def test_each_step_is_where_the_core_page_says(module: str, name: str) -> None:
    body: list[ast.stmt] = ast.parse((ROOT / module).read_text()).body
    for part in name.split("."):
        found = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
        body = next(node.body for node in found if node.name == part)


def test_the_core_page_has_the_whole_path() -> None:
    assert len(STEPS) == sum(line.startswith("| ") for line in CORE.splitlines()) - CORE.count("| step | read |")
    assert len(CORE.splitlines()) < 100


def test_imports_of_the_core_go_one_way() -> None:
    """As the page draws them: import-linter (`make lint`) keeps them so."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == ["tokenmill"])
    order = re.findall(r"`(\w+)`", next(line for line in CORE.splitlines() if "←" in line))
    assert [*reversed(layers[:-1]), "consumers"] == order


def test_every_claim_about_security_names_a_test_that_there_is() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", SECURITY)
    assert len(named) > 10
    for file, function in named:
        text = (ROOT / file).read_text()
        assert not function or re.search(rf"^(?:async )?def {function}\(", text, re.MULTILINE), (file, function)


def test_security_is_one_page_that_others_point_to() -> None:
    assert len(SECURITY.splitlines()) < 100
    for page in ("README.md", "docs/deploy.md", "docs/kafka_teams.md", "docs/architecture.md"):
        assert "SECURITY.md" in (ROOT / page).read_text(), page
    assert not re.search(r"[\w.]+@[\w.]+|https?://", SECURITY)


def test_the_security_page_says_what_is_trusted() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| (\*\*yes\*\*|no|with the text) \|", SECURITY, re.MULTILINE))
    assert rows["raw records, and files given to `produce`"] == "no"
    assert rows["writers of `tokens.*` and `control.*`"] == "**yes**"
    assert "Hashes detect damage, not forgery" in SECURITY
    assert "allow_flush = false" in SECURITY


def test_the_example_is_a_step_like_every_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits_of_the_page.py").write_text(re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.DOTALL)[0])
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(pipeline.STEPS, dict)
    monkeypatch.setitem(pipeline.STEPS, "digits", import_module("digits_of_the_page").DigitsStep)
    read = read_pipeline([{"name": "digits", "most": 0.25}])
    (step,) = open_pipeline(read.entries, limits=Limits(1000, 100, 100))
    texts = DocumentColumns.without_fields(["a1b2c3", "abc1"], [None, None])
    assert list(step.many(texts)) == [(0, Rejected("too_many_digits"))]
    assert step(Document("abc1")) == Document("abc1")
    assert step.describe() == {"name": "digits", "version": 1, "most": 0.25}
    assert "Largest share of characters that are digits" in steps_as_toml(read.entries)
