"""docs/python.md says what the docstrings say, of all that is public."""

import re

import tokenmill.consumers
from docs.generators.python_page import GROUPS, page
from docs.generators.site import ROOT

FILE = ROOT / "docs/python.md"


def test_the_page_is_up_to_date() -> None:
    """`make docs` writes it."""
    assert FILE.read_text() == page()


def test_every_name_of_the_training_side_is_there_once() -> None:
    """With its heading."""
    named = [name for _, module, names in GROUPS.values() for name in names if module is tokenmill.consumers]
    assert sorted(named) == sorted(tokenmill.consumers.__all__)
    assert set(named) < set(re.findall(r"^### (\w+)$", FILE.read_text(), re.MULTILINE))


def test_methods_of_a_base_are_told_once() -> None:
    """With all arguments, where they come first; later, where that is."""
    text = FILE.read_text()
    assert text.count("- `state_after(step: int) -> dict[str, Any]`:") == 1
    assert "As in [Batches](#batches): `behind`, `close`, `decode`," in text
    assert "    on_damage: OnDamage = 'refuse',\n" in text
