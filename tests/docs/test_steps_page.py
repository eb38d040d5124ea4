"""The page about steps says what the code does."""

import re
import tomllib
from pathlib import Path
from typing import Final

from docs.generators.steps_page import page
from tokenmill.app.milling.steps.pipeline import STEPS, canonical_entries
from tokenmill.parameters import parameters_of

FILE: Final = Path(__file__).parents[2] / "docs" / "steps.md"


def test_the_page_is_made_from_the_code() -> None:
    """``make docs`` would change nothing."""
    assert FILE.read_text() == page(), "run `make docs`"


def test_every_step_and_parameter_is_described() -> None:
    """In a sentence."""
    for name, one in STEPS.items():
        assert f"\n### {name}\n" in page()
        assert (one.__doc__ or "").strip()
        for parameter in parameters_of(one):
            assert parameter.description.endswith("."), (name, parameter.name)


def test_its_examples_are_steps() -> None:
    """As TOML."""
    (block,) = re.findall(r"^```toml\n(.*?)^```", FILE.read_text(), re.MULTILINE | re.DOTALL)
    assert [entry["name"] for entry in canonical_entries(tomllib.loads(block)["steps"])] == ["gopher_quality", "regex"]
