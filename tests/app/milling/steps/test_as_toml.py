"""Steps as TOML."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.app.milling.steps.as_toml import steps_as_toml, toml_value
from tokenmill.app.milling.steps.pipeline import canonical_entries
from tokenmill.app.milling.steps.profiles import PROFILES
from tokenmill.app.milling.steps.registry import STEPS
from tokenmill.parameters import parameters_of


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_written_out_is_the_profile(name: str) -> None:
    """Pasted into the settings, it makes the same recipe."""
    written = steps_as_toml(PROFILES[name].steps)
    assert canonical_entries(tomllib.loads(written)["steps"]) == PROFILES[name].steps


@pytest.mark.parametrize("name", STEPS)
def test_every_parameter_of_a_step_stands_there(name: str) -> None:
    """With its value, or as a comment where it has none."""
    written = steps_as_toml([{"name": name}])
    (entry,) = tomllib.loads(written)["steps"]
    for parameter in parameters_of(STEPS[name].step):
        assert (parameter.name in entry) or f"# {parameter.name} = " in written
    assert max(map(len, written.splitlines())) <= 120


@given(st.recursive(st.text(st.characters(codec="utf-8")) | st.booleans() | st.integers(-(2**63), 2**63 - 1), st.lists))
def test_values_read_back_equal(value: Any) -> None:
    """Whatever characters a text has."""
    assert tomllib.loads(f"value = {toml_value(value)}")["value"] == value
