"""Canonical JSON."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import json_objects, json_values
from tokenmill.recipe import canonical_json


@given(json_values)
def test_the_value_is_what_was_written(value: object) -> None:
    assert json.loads(canonical_json(value)) == value


@given(json_objects, st.randoms(use_true_random=False))
@pytest.mark.slow
def test_equal_objects_have_equal_bytes(value: dict[str, object], random: object) -> None:
    keys = list(value)
    getattr(random, "shuffle")(keys)  # noqa: B009 - Hypothesis types its randoms as objects
    assert canonical_json({key: value[key] for key in keys}) == canonical_json(value)


def test_there_are_no_spaces_and_no_escapes_without_need() -> None:
    assert canonical_json({"b": ["é", 1, None], "a": {"z": True, "y": "\n"}}) == (
        '{"a":{"y":"\\n","z":true},"b":["é",1,null]}'.encode()
    )


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json([number])
