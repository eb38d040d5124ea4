"""Recipes: the fingerprint stands for all that decides the tokens, and a recipe survives its JSON."""

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tests.mills import RECIPE
from tests.strategies import sources
from tokenmill.errors import FingerprintError
from tokenmill.recipe import FINGERPRINT_BYTES, FORMAT, LATER, Recipe, canonical_json

OTHERS: dict[str, list[Any]] = {
    "allow_flush": [False],
    "begin_of_document": [(0,), (0, 1), (1, 0)],
    "dedup": [{"name": "near", "version": 1}, {"name": "near", "version": 1, "rows": 9}],
    "end_of_document": [1, (), (0, 0), (0, 1)],
    "packing_parameters": [{"long": "drop"}, {"long": "split"}, {"long": "drop", "short": "drop"}],
    "padding": [0, 1],
    "segment_tokens": [2, 3],
    "special_tokens_in_text": ["tokens"],
    "pipeline": [({"name": "regex"},), ({"name": "regex", "a": 1},), ({"name": "regex"}, {"name": "regex"})],
    "text_fields": [("text",), ("content", "text"), ()],
    "metadata_fields": [("label",), ("label", "score")],
    "function": ["a:b"],
    "steps": [(), ({"name": "not_empty"}, {"name": "min_chars", "characters": 2}), ({"name": "other"},)],
    "splits": [(("train", 2),), (("train", 1), ("b", 1)), (("b", 1), ("train", 1))],
}


def _others(name: str) -> list[Any]:
    if name in OTHERS:
        return OTHERS[name]
    value = getattr(RECIPE, name)
    return [value + 1] if isinstance(value, int) else [value + "x", ""]


def test_every_field_decides_the_fingerprint() -> None:
    """Changing any field, in any of these ways, is another stream: no two of them share a fingerprint."""
    changed = [replace(RECIPE, **{field.name: value}) for field in fields(Recipe) for value in _others(field.name)]
    fingerprints = {recipe.fingerprint for recipe in [RECIPE, *changed]}
    assert len(fingerprints) == 1 + len(changed)
    assert {len(fingerprint) for fingerprint in fingerprints} == {FINGERPRINT_BYTES}


def test_the_formats_version_decides_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = RECIPE.fingerprint
    monkeypatch.setattr("tokenmill.recipe.FORMAT", FORMAT + 1)
    assert RECIPE.fingerprint != before


def test_the_fingerprint_of_a_recipe_stays() -> None:
    """A change of this number is a change of every stream's fingerprint: raise `FORMAT` only on purpose."""
    assert RECIPE.fingerprint.hex() == "bb240137596668d4ff58f798e840345a"


@given(sources)
def test_a_recipe_survives_the_genesis(source: object) -> None:
    for recipe in getattr(source, "recipes"):  # noqa: B009 - see the strategy
        again = Recipe.from_dict(json.loads(canonical_json(recipe.to_dict())))
        assert again == recipe
        assert again.fingerprint == recipe.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"format": FORMAT + 1},
        {"format": None},
        {"surprise": 1},
        {"allow_flush": True},
        {"begin_of_document": []},
        {"end_of_document": [0]},
    ],
)
def test_recipes_of_other_versions_are_refused(change: dict[str, Any]) -> None:
    """Another format, or fields that this version does not know: their meaning is unknown."""
    with pytest.raises(FingerprintError, match="knows format 1"):
        Recipe.from_dict({**RECIPE.to_dict(), **change})


def test_a_recipe_with_a_field_missing_is_refused() -> None:
    """There are no defaults but those of fields that came later: what stands in a genesis is complete."""
    for field in fields(Recipe):
        if field.name in LATER:
            continue
        values = RECIPE.to_dict()
        del values[field.name]
        with pytest.raises(FingerprintError):
            Recipe.from_dict(values)


def test_a_field_that_came_later_stands_in_a_recipe_only_where_it_says_something() -> None:
    """So the streams from before keep their fingerprints, and no two recipes that mean the same have two."""
    assert not LATER.keys() & RECIPE.to_dict().keys()
    refusing = replace(RECIPE, allow_flush=False)
    assert refusing.to_dict() == {**RECIPE.to_dict(), "allow_flush": False}
    assert Recipe.from_dict(refusing.to_dict()) == refusing


@pytest.mark.parametrize(("dtype", "size"), [("uint8", 1), ("uint16", 2), ("uint32", 4)])
def test_tokens_are_little_endian(dtype: str, size: int) -> None:
    recipe = replace(RECIPE, dtype=dtype, block_tokens=5)
    assert np.array([1], recipe.token_dtype).tobytes() == (1).to_bytes(size, "little")
    assert recipe.block_bytes == 5 * size
