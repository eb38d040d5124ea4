"""What differs between two recipes is said in the words of the settings, once for each."""

import re
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mills import RECIPE
from tests.strategies import sources
from tokenmill.recipe import PLAIN, SETTINGS, Recipe, differences, plain_differences, step_in_words

OTHER_TOKENIZER: dict[str, Any] = {
    "tokenizer_sha256": "abab…",
    "vocabulary_size": 50_257,
    "probe": "1" * 64,
    "dtype": "uint16",
    "end_of_document": 50_256,
}
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
    changes: dict[str, Any] = {
        "steps": (),
        "splits": (),
        "function": "x:y",
        "metadata_fields": ("x",),
        "text_fields": ("x",),
    }
    changes["allow_flush"] = False
    changes |= {"begin_of_document": (7,), "padding": 7, "pipeline": ({"name": "sample", "rate": 0.1},)}
    changes |= {"packing_parameters": {"long": "drop"}, "segment_tokens": 7, "dedup": {"name": "near", "version": 1}}
    plain_name = {"block_tokens": "sequence_length", "segment_tokens": "sequence_length"}.get(name, name)
    plain_name = "packing" if name == "packing_parameters" else plain_name
    changed = replace(RECIPE, **{name: changes.get(name, value + more if isinstance(value, int) else f"{value}x")})
    (line,) = differences(RECIPE, changed)
    assert re.match(r"[a-z_]+: the (stream|same)", line)
    assert not re.search(r"[0-9a-f]{32}", line)
    assert differences(RECIPE, RECIPE) == []
    assert bool(plain_differences(RECIPE, changed)) == (plain_name in PLAIN)
    if plain_name in PLAIN:
        assert line.startswith(f"{SETTINGS.get(plain_name, plain_name)}: ")


def test_what_a_draft_leaves_to_the_tokenizer_is_no_difference() -> None:
    """Whatever the stream has; once it is known, it is."""
    assert plain_differences(RECIPE, replace(RECIPE, max_text_bytes=0)) == []
    line = "max_text_bytes: the stream has 1000, here 2097152"
    assert differences(RECIPE, replace(RECIPE, max_text_bytes=2 << 20)) == [line]


@given(sources, sources)
@pytest.mark.slow
def test_recipes_differ_where_their_fingerprints_do(one: object, other: object) -> None:
    for mine in getattr(one, "recipes"):  # noqa: B009 - see the strategy
        for theirs in getattr(other, "recipes"):  # noqa: B009
            assert bool(differences(mine, theirs)) == (mine.fingerprint != theirs.fingerprint)


def test_a_step_is_one_phrase_for_people() -> None:
    assert step_in_words({"name": "c4_quality"}) == "c4_quality"
    assert step_in_words({"name": "regex", "regex_exp": 'a"é', "keep_matched": True}) == (
        'regex(regex_exp = "a\\"é", keep_matched = true)'
    )
