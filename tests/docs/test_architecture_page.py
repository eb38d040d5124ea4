"""docs/architecture.md is a map that a person reads in one go; it, SECURITY.md and docs/decisions/ name what exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs/architecture.md"
DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
PAGES = [MAP, ROOT / "SECURITY.md", *DECISIONS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_and_pages_that_are_named_exist(page: Path) -> None:
    """A map of what is gone helps nobody."""
    text = page.read_text()
    code = re.findall(r"`((?:app|consumers|tokenmill|tests|benchmarks)/[\w/]+(?:\.py)?)`", text)
    assert [name for name in code if not (ROOT / name).exists()] == []
    links = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text)]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_map_names_every_package_and_stays_short() -> None:
    """Whoever looks for the place of something finds it in one reading."""
    text = MAP.read_text()
    assert len(text.splitlines()) <= 250
    tree = text.split("## Where things are")[1].split("```")[1]
    packages = {path.parent.name for room in ("app", "tokenmill") for path in (ROOT / room).glob("*/__init__.py")}
    assert packages == set(re.findall(r"^  (\w+)/", tree, re.MULTILINE))


def test_every_page_of_decisions_is_in_their_index() -> None:
    """None can be found by its folder alone."""
    index = (ROOT / "docs/decisions/README.md").read_text()
    assert {f"{path.stem}.md" for path in DECISIONS} - {"README.md"} == set(re.findall(r"\]\((\w+\.md)\)", index))
