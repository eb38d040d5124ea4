"""SECURITY.md is one page, names tests that there are, and is found from the others."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "SECURITY.md").read_text()


def test_every_claim_names_a_test_that_there_is() -> None:
    """A file, or a function in it."""
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 10
    for file, function in named:
        text = (ROOT / file).read_text()
        assert not function or re.search(rf"^(?:async )?def {function}\(", text, re.MULTILINE), (file, function)


def test_it_is_one_page_that_others_point_to() -> None:
    """Short, linked where people look, without an address that nobody reads."""
    assert len(PAGE.splitlines()) < 100
    for page in ("README.md", "docs/deploy.md", "docs/kafka_teams.md", "docs/architecture.md"):
        assert "SECURITY.md" in (ROOT / page).read_text(), page
    assert not re.search(r"[\w.]+@[\w.]+|https?://", PAGE)


def test_it_says_what_is_trusted() -> None:
    """The trust model: who may do what, and what hashes are for."""
    rows = dict(re.findall(r"^\| ([^|]+) \| (\*\*yes\*\*|no|with the text) \|", PAGE, re.MULTILINE))
    assert rows["raw records, and files given to `produce`"] == "no"
    assert rows["writers of `tokens.*` and `control.*`"] == "**yes**"
    assert "Hashes detect damage, not forgery" in PAGE
    assert "allow_flush = false" in PAGE
