"""``tokenmill steps``."""

import json
import tomllib

import pytest
from typer.testing import CliRunner

from tokenmill.app.cli import create_cli
from tokenmill.app.milling.steps.pipeline import PROFILES, STEPS
from tokenmill.app.settings import Settings
from tokenmill.errors import InputError


def said(*arguments: str) -> str:
    told = CliRunner().invoke(create_cli("steps"), ["steps", *arguments], catch_exceptions=False)
    assert told.exit_code == 0
    return told.stdout


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_shown_is_a_settings_file(name: str) -> None:
    assert Settings(**tomllib.loads(said("show", name))).steps == Settings.model_validate({"steps": name}).steps


def test_a_step_is_shown_with_its_parameters() -> None:
    assert "# regex_exp =    # must be given; a text\n" in said("show", "regex")
    with pytest.raises(InputError, match=r"'gophr' is no profile and no step \(did you mean gopher\?\)"):
        said("show", "gophr")


def test_all_profiles_and_steps_are_listed() -> None:
    lines = said("list").splitlines()
    found = json.loads(said("list", "--json"))
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == [*PROFILES, *STEPS]
    assert list(found["profiles"]) == list(PROFILES)
    assert found["profiles"]["c4"]["steps"] == [{"name": "c4_quality"}]
    assert list(found["steps"]) == list(STEPS)
