"""Recipes and what settles a stream: fingerprints, canonical JSON, the genesis, and what differs in people's words."""

import json
import math
import re
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mills import RECIPE, Source
from tests.strategies import json_objects, json_values, sources
from tokenmill.app.kafka.control_log import ControlLog
from tokenmill.errors import DamagedError, FingerprintError
from tokenmill.recipe import (
    FINGERPRINT_BYTES,
    FORMAT,
    GENESIS_KEY,
    LATER,
    PLAIN,
    SETTINGS,
    Genesis,
    Recipe,
    canonical_json,
    differences,
    plain_differences,
    step_in_words,
)

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
def test_a_recipe_survives_the_genesis(source: Source) -> None:
    for recipe in source.recipes:
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
    for missing in {field.name for field in fields(Recipe)} - LATER.keys():
        with pytest.raises(FingerprintError):
            Recipe.from_dict({name: value for name, value in RECIPE.to_dict().items() if name != missing})


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


FIRST = Genesis("raw-text.train", RECIPE, (0, 7), 4096, {"numpy": "2"})


def test_the_first_genesis_wins() -> None:
    """Whatever stood there before, a second worker wrote, or something else later, the stream is settled."""
    second = Genesis("raw-text.train", RECIPE, (5, 5), 8)
    log = ControlLog("raw-text.train")
    for value in (b"garbage", FIRST.pack(), second.pack(), b"more"):
        log.add(GENESIS_KEY, value)
    assert log.genesis == FIRST


def test_a_genesis_survives_its_bytes() -> None:
    assert Genesis.from_dict(json.loads(FIRST.pack())) == FIRST


def test_a_partition_that_was_added_later_starts_at_0() -> None:
    assert [FIRST.start(partition) for partition in range(4)] == [0, 7, 0, 0]


def test_a_genesis_that_was_changed_by_hand_is_none() -> None:
    values = FIRST.to_dict()
    values["recipe"]["min_chars"] = 7
    with pytest.raises(DamagedError, match="changed by hand"):
        Genesis.from_dict(values)
    log = ControlLog()
    assert "changed by hand" in (log.add(GENESIS_KEY, json.dumps(values).encode()) or "")
    assert log.genesis is None


def test_the_genesis_of_another_stream_is_none_here() -> None:
    log = ControlLog("raw-text.validation")
    assert "not of 'raw-text.validation'" in (log.add(GENESIS_KEY, FIRST.pack()) or "")
    assert log.genesis is None


def test_a_genesis_of_another_format_is_refused() -> None:
    """With the version that is needed; it is no junk, for another one behind it would settle the stream again."""
    values: dict[str, Any] = FIRST.to_dict()
    values["recipe"]["format"] = 2
    with pytest.raises(FingerprintError, match="format 2"):
        ControlLog().add(GENESIS_KEY, json.dumps(values).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recipe", []), ("recipe", None), ("recipe", "x"), ("recipe", {}), ("starts", "07"), ("starts", [-1]),
        ("starts", [0.5]), ("starts", [True]), ("segment_blocks", 0), ("segment_blocks", "7"), ("stream", 7),
        ("versions", []), ("starts", [0] * 70_000),
    ],
)  # fmt: skip
def test_what_no_mill_writes_is_no_genesis(name: str, value: object) -> None:
    log = ControlLog()
    assert log.add(GENESIS_KEY, json.dumps({**FIRST.to_dict(), name: value}).encode())
    assert log.genesis is None
    assert log.add(GENESIS_KEY, FIRST.pack()) is None
    assert log.genesis == FIRST


@pytest.mark.parametrize("name", ["steps", "pipeline"])
def test_a_genesis_whose_steps_are_none_is_none(name: str) -> None:
    """Also where its fingerprint is the one of its recipe: whoever writes there can compute that."""
    forged: Any = {name: ("words",)}
    log = ControlLog()
    said = log.add(GENESIS_KEY, replace(FIRST, recipe=replace(RECIPE, **forged)).pack())
    assert (said, log.genesis) == ("its recipe has steps that are no objects", None)


OTHER_TOKENIZER: dict[str, Any] = {"tokenizer_sha256": "abab…", "vocabulary_size": 50_257}
OTHER_TOKENIZER |= {"probe": "1" * 64, "dtype": "uint16", "end_of_document": 50_256}
"""All that follows from one setting."""


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"block_tokens": 1025}, "sequence_length: the stream has 3, here 1024"),
        (
            {"packing": "rows", "packing_parameters": {"long": "drop"}, "block_tokens": 3},
            "packing: the stream has concat, here rows (long = drop, short = pad)",
        ),
        ({"metadata_fields": ("label", "lang")}, "metadata_fields: the stream has nothing, here label,lang"),
        ({"text_fields": ("body",)}, "text_fields: the stream has text,content, here body"),
        ({"splits": (("train", 998), ("b", 2))}, "splits: the stream has train=1, here train=998,b=2"),
        ({"function": "mine:clean", "steps": ()}, "function: the stream has nothing, here mine:clean"),
        ({"allow_flush": False}, "allow_flush: the stream has true, here false"),
        ({"min_chars": 7, "steps": ()}, "min_chars: the stream has 0, here 7"),
        (
            OTHER_TOKENIZER,
            "tokenizer: the stream has one of 256 ids (SHA-256 277089d91c0b…), here one of 50,257 ids (SHA-256 abab……)",
        ),
        ({"end_of_document": 7}, "end_of_document: the stream has id 0, here id 7"),
        ({"begin_of_document": (1, 2)}, "begin_of_document: the stream has none of its own, here ids 1, 2"),
        ({"padding": 7}, "padding: the stream has none of its own, here id 7"),
        ({"special_tokens_in_text": "tokens"}, "special_tokens_in_text: the stream has text, here tokens"),
        (
            {"steps": (*RECIPE.steps, {"name": "normalized_length", "max_bytes": 7})},
            "normalized_length: the stream has no limit, here 7",
        ),
        (
            {"probe": "1" * 64},
            "tokenizer: the same file, to which the libraries that are installed here give other ids",
        ),
        ({"dedup": {"name": "near", "rows": 9}}, "dedup: the stream has nothing, here near(rows = 9)"),
        ({"pipeline": ()}, "steps: the stream has sample(rate = 0.1), here nothing"),
        (
            {"pipeline": ({"name": "words", "words": ["a"]}, {"name": "c4_quality"})},
            'steps: the stream has sample(rate = 0.1), here words(words = ["a"]), c4_quality',
        ),
        (
            {"steps": (*RECIPE.steps, {"name": "language", "model_sha256": "ab"})},
            "steps: the stream has [], here [name language, model_sha256 ab]",
        ),
        (
            {"steps": ({"name": "function", "path": "a:b", "version": "2"},)},
            "function: the stream has [name not_empty], here [name function, path a:b, version 2]",
        ),
    ],
)
def test_a_difference_is_one_line_in_the_words_of_its_setting(change: dict[str, Any], line: str) -> None:
    stream = replace(RECIPE, pipeline=({"name": "sample", "rate": 0.1},)) if "pipeline" in change else RECIPE
    assert differences(stream, replace(RECIPE, **change)) == [line]


@given(st.sampled_from([field.name for field in fields(Recipe)]), st.integers(1, 9))
def test_no_difference_is_passed_over(name: str, more: int) -> None:
    value = getattr(RECIPE, name)
    changes: dict[str, Any] = {"steps": (), "splits": (), "function": "x:y", "allow_flush": False}
    changes |= {"metadata_fields": ("x",), "text_fields": ("x",), "segment_tokens": 7, "padding": 7}
    changes |= {"begin_of_document": (7,), "pipeline": ({"name": "sample", "rate": 0.1},)}
    changes |= {"packing_parameters": {"long": "drop"}, "dedup": {"name": "near", "version": 1}}
    same = {"block_tokens": "sequence_length", "segment_tokens": "sequence_length", "packing_parameters": "packing"}
    plain_name = same.get(name, name)
    changed = replace(RECIPE, **{name: changes.get(name, value + more if isinstance(value, int) else f"{value}x")})
    (line,) = differences(RECIPE, changed)
    assert re.match(r"[a-z_]+: the (stream|same)", line)
    assert not re.search(r"[0-9a-f]{32}", line)
    assert differences(RECIPE, RECIPE) == []
    assert bool(plain_differences(RECIPE, changed)) == (plain_name in PLAIN)
    if plain_name in PLAIN:
        assert line.startswith(f"{SETTINGS.get(plain_name, plain_name)}: ")


def test_what_a_draft_leaves_to_the_tokenizer_is_no_difference() -> None:
    assert plain_differences(RECIPE, replace(RECIPE, max_text_bytes=0)) == []
    line = "max_text_bytes: the stream has 1000, here 2097152"
    assert differences(RECIPE, replace(RECIPE, max_text_bytes=2 << 20)) == [line]


@given(sources, sources)
@pytest.mark.slow
def test_recipes_differ_where_their_fingerprints_do(one: Source, other: Source) -> None:
    for mine in one.recipes:
        for theirs in other.recipes:
            assert bool(differences(mine, theirs)) == (mine.fingerprint != theirs.fingerprint)


def test_a_step_is_one_phrase_for_people() -> None:
    assert step_in_words({"name": "c4_quality"}) == "c4_quality"
    assert step_in_words({"name": "regex", "regex_exp": 'a"é', "keep_matched": True}) == (
        'regex(regex_exp = "a\\"é", keep_matched = true)'
    )
