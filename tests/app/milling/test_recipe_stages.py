"""From a draft to a recipe with its stages, and back: nothing but what the genesis says decides the tokens."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.app.milling.tokenizers.conftest import AROUND, words
from tests.mills import RAW, RECIPE, SILENT, text
from tokenmill.app.milling.decoding.protocol import RULES
from tokenmill.app.milling.outcomes import Kind
from tokenmill.app.milling.recipe_stages import DocumentFrame, complete, document_frame, open_stages, reopen_stages
from tokenmill.app.milling.steps.pipeline import read_pipeline
from tokenmill.app.milling.tokenizers import TokenizerFile, open_engine, probe
from tokenmill.app.tools.tokenizers import train_tokenizer
from tokenmill.errors import FingerprintError, SettingsError
from tokenmill.recipe import RAW_BYTES_SHA256, Recipe, canonical_json, plain_differences

PLAIN = TokenizerFile("plain", words())
BEGUN = TokenizerFile("begun", words(post_processor=AROUND))
BOTH = TokenizerFile("both", words(post_processor={"type": "BertProcessing", "cls": ["a", 1], "sep": ["b", 2]}))
BYTES = TokenizerFile("bytes", None)


def _frame(tokenizer: TokenizerFile, **said: Any) -> DocumentFrame:
    settings = {"begin": None, "end": None, "padding": None, "template": "none", "pads": True} | said
    return document_frame(tokenizer, open_engine(tokenizer), **settings)


@pytest.mark.parametrize(
    ("tokenizer", "said", "expected"),
    [
        (PLAIN, {}, ((), (3,), None)),
        (PLAIN, {"begin": "a", "end": "b"}, ((1,), (2,), None)),
        (PLAIN, {"begin": "none", "padding": 0}, ((), (3,), 0)),
        (PLAIN, {"padding": "<eos>"}, ((), (3,), None)),
        (PLAIN, {"end": "none", "padding": "a"}, ((), (), 1)),
        (PLAIN, {"end": "none", "pads": False}, ((), (), None)),
        (PLAIN, {"padding": "a", "pads": False}, ((), (3,), None)),
        (BEGUN, {}, ((), (3,), None)),
        (BEGUN, {"begin": "tokenizer"}, ((1,), (3,), None)),
        (BEGUN, {"template": "tokenizer", "padding": 0}, ((1,), (), 0)),
        (BEGUN, {"template": "tokenizer", "end": "<eos>"}, ((1,), (3,), None)),
        (BOTH, {"template": "tokenizer"}, ((1,), (2,), None)),
        (BOTH, {"template": "tokenizer", "begin": "tokenizer", "padding": "0"}, ((1,), (2,), 0)),
        (BOTH, {"begin": "tokenizer", "end": "tokenizer"}, ((1,), (2,), None)),
        (BYTES, {"begin": 2, "end": "3"}, ((2,), (3,), None)),
        (BYTES, {"end": "none"}, ((), (), 0)),
    ],
)
def test_a_frame_is_what_the_settings_say(tokenizer: TokenizerFile, said: dict[str, Any], expected: Any) -> None:
    assert tuple(_frame(tokenizer, **said)) == expected


@pytest.mark.parametrize(
    ("tokenizer", "said", "named"),
    [
        (PLAIN, {"begin": "<bos>"}, r"^begin_of_document = '<bos>' is no token .*from 0 to 3"),
        (PLAIN, {"end": 4}, r"^end_of_document = 4 is no token"),
        (PLAIN, {"padding": "<pad>"}, r"^padding = '<pad>' is no token"),
        (PLAIN, {"end": "none"}, r"none to pad with: set padding .*allow_flush = false"),
        (PLAIN, {"template": "tokenizer"}, "the tokenizer has no template"),
        (PLAIN, {"begin": "tokenizer"}, "the tokenizer has no template"),
        (BEGUN, {"end": "tokenizer"}, r'^end_of_document = "tokenizer": .*puts nothing there'),
        (BEGUN, {"template": "tokenizer"}, "set padding"),
        (BEGUN, {"template": "tokenizer", "begin": "b"}, r"^begin_of_document = 'b' and template .*remove one"),
        (BOTH, {"template": "tokenizer", "end": "none"}, r"^end_of_document = 'none' and template"),
        (BYTES, {"template": "tokenizer"}, "raw bytes have no template"),
        (BYTES, {"begin": 256}, r"^begin_of_document = 256 is no token .*from 0 to 255"),
    ],
)
def test_what_cannot_be_is_refused(tokenizer: TokenizerFile, said: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        _frame(tokenizer, **said)


def test_ids_of_a_template_outside_the_vocabulary_are_refused() -> None:
    wrong = AROUND | {"special_tokens": {"a": {"id": "a", "ids": [9], "tokens": ["a"]}}}
    with pytest.raises(SettingsError, match=r"^begin_of_document = 9 is no token"):
        _frame(TokenizerFile("wrong", words(post_processor=wrong)), template="tokenizer", padding=0)


SMALL = TokenizerFile("small", train_tokenizer(["ab aab b"], vocabulary_size=260).to_str().encode())
OTHER = TokenizerFile("other", train_tokenizer(["xy xxy y"], vocabulary_size=260).to_str().encode())
BLANK = replace(RECIPE, steps=(), tokenizer_sha256="", end_of_document=-1, vocabulary_size=-1, probe="", dtype="")


def test_a_draft_is_completed_from_its_stages() -> None:
    recipe, stages = complete(BLANK, RAW, None)
    assert replace(recipe, probe="") == replace(RECIPE, probe="", steps=recipe.steps)
    assert recipe.tokenizer_sha256 == RAW_BYTES_SHA256
    assert recipe.probe == probe(stages.engine)
    assert recipe.steps == ({"name": "decode", "rules": RULES.number}, {"name": "not_empty"})


def test_a_tokenizer_file_decides_dtype_and_ids() -> None:
    recipe, stages = complete(BLANK, SMALL, None)
    assert recipe.dtype == "uint16"
    assert recipe.end_of_document == stages.engine.token_id("<|endoftext|>")
    assert recipe.vocabulary_size == stages.engine.vocabulary_size > 1 << 8
    assert recipe.tokenizer_sha256 == SMALL.sha256
    assert recipe.probe != complete(BLANK, RAW, None)[0].probe


@pytest.mark.parametrize(("tokenizer", "limit"), [(RAW, 4 << 20), (SMALL, 3 << 19)])
def test_limit_of_a_text_that_nobody_set_is_the_tokenizers(tokenizer: TokenizerFile, limit: int) -> None:
    """A tokenizer file takes more memory; what is set holds for every one. The recipe has the limit in force."""
    draft, end = replace(BLANK, decode="text", max_text_bytes=0), 0
    recipe, stages = complete(draft, tokenizer, end)
    assert recipe.max_text_bytes == limit
    assert recipe.fingerprint == complete(replace(draft, max_text_bytes=limit), tokenizer, end)[0].fingerprint
    assert complete(replace(draft, max_text_bytes=5 << 20), tokenizer, end)[0].max_text_bytes == 5 << 20
    assert stages.outcome(text(0, "a" * (limit + 1))).reason == "too_large"


NFC = TokenizerFile("NFC", words(normalizer={"type": "NFC"}))
LOWER = TokenizerFile("lower", words(normalizer={"type": "Lowercase"}))


@pytest.mark.parametrize(
    ("tokenizer", "normalize", "max_text_bytes", "limit"),
    [
        (RAW, "NFKC", 0, None),
        (SMALL, "none", 0, None),
        (LOWER, "none", 0, None),
        (SMALL, "NFC", 0, 3 << 19),
        (NFC, "none", 0, 3 << 19),
        (NFC, "none", 1000, 3 << 19),
        (NFC, "none", 3 << 20, 3 << 20),
    ],
)
def test_normalized_texts_have_a_limit_where_a_tokenizer_gets_them(
    tokenizer: TokenizerFile, normalize: str, max_text_bytes: int, limit: int | None
) -> None:
    """That of texts by themselves, or of the longest one by default; the recipe says so, and so the fingerprint."""
    draft = replace(BLANK, normalize=normalize, max_text_bytes=max_text_bytes)
    recipe, _ = complete(draft, tokenizer, 0)
    assert recipe.normalized_length == limit
    assert (limit is None) == all(step["name"] != "normalized_length" for step in recipe.steps)


@pytest.mark.parametrize("tokenizer", [RAW, SMALL])
def test_a_completed_recipe_opens_again(tokenizer: TokenizerFile) -> None:
    recipe, stages = complete(replace(BLANK, min_chars=2, normalize="NFD", metadata_fields=("label",)), tokenizer, None)
    again = reopen_stages(recipe, tokenizer)
    for value in (SILENT, "a", "", "some text", '{"text": "ab", "id": 5, "label": "y"}', '{"text": "\\ud800"}'):
        assert again.outcome(text(0, value)) == stages.outcome(text(0, value))
    assert again.outcome(text(0, SILENT)).kind is Kind.KEPT  # two characters after normalisation


NOT_EMPTY = {"name": "not_empty"}


@pytest.mark.parametrize(
    ("decode", "made_with", "change", "tokenizer", "named"),
    [
        ("auto", RAW, {"probe": "0" * 64}, RAW, "tokenizer: the same file, .* give other ids"),
        ("auto", RAW, {"vocabulary_size": 255}, RAW, "tokenizer: the same file, "),
        ("auto", RAW, {}, SMALL, "tokenizer: the stream has one of 256 ids"),
        ("auto", SMALL, {}, OTHER, r"tokenizer: the stream has one of \d+ ids \(SHA-256"),
        ("text", RAW, {"steps": (NOT_EMPTY | {"version": "0"},)}, RAW, "steps: the stream has .*version 0"),
        ("auto", RAW, {"steps": (NOT_EMPTY,)}, RAW, "the decoder has other rules since; its blocks stay"),
        ("json", RAW, {"steps": (NOT_EMPTY,)}, RAW, "the decoder has other rules since; its blocks stay"),
        ("text", NFC, {"steps": (NOT_EMPTY,)}, NFC, r"no limit, here 1572864\).*blocks stay as they are\)"),
    ],
)
def test_a_stream_that_would_be_milled_otherwise_is_refused(
    decode: str, made_with: TokenizerFile, change: dict[str, Any], tokenizer: TokenizerFile, named: str
) -> None:
    """By other libraries, another file, later rules; what differs is named, and that its blocks stay."""
    recipe = replace(complete(replace(BLANK, decode=decode), made_with, 0)[0], **change)
    with pytest.raises(FingerprintError, match=named):
        reopen_stages(recipe, tokenizer)


def test_a_stream_of_plain_text_goes_on() -> None:
    recipe = complete(replace(BLANK, decode="text"), RAW, None)[0]
    assert recipe.steps == (NOT_EMPTY,)
    assert reopen_stages(recipe, RAW).decoder.describe() == ()


@pytest.mark.parametrize(
    "change", [{"decode": "xml"}, {"normalize": "NFX"}, {"split_by": "size"}, {"shards": 0}, {"function": "nowhere"}]
)
def test_settings_that_cannot_be_used_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        open_stages(replace(RECIPE, **change), RAW)


def test_all_stages_come_from_the_recipe() -> None:
    fields: dict[str, Any] = {"text_fields": ("body",), "id_field": "name", "metadata_fields": ("label",)}
    limits: dict[str, Any] = {"max_text_bytes": 3, "max_id_bytes": 2, "max_fields_bytes": 13, "min_chars": 2}
    shards: dict[str, Any] = {"shards": 1000, "splits": (("train", 980), ("validation", 20)), "split_by": "content"}
    stages = open_stages(replace(RECIPE, decode="json", **fields, **limits, **shards), RAW)

    def of(value: str) -> tuple[str, object]:
        outcome = stages.outcome(text(0, value))
        return outcome.reason, outcome.document and (outcome.document.id, dict(outcome.document.fields))

    assert of('{"body": "abc", "name": "x", "label": "y", "other": 1}') == ("", ("x", {"label": "y"}))
    assert of('{"body": "abcd"}')[0] == "too_large"
    assert of('{"body": "abc", "name": "xyz"}')[0] == "id_too_long"
    assert of('{"body": "abc", "label": "yyy"}')[0] == "fields_too_long"
    assert of('{"text": "abc"}')[0] == "missing_text"
    assert of('{"body": "a"}')[0] == "min_chars"
    splits = {stages.outcome(text(0, '{"body": "abc", "name": "%d"}' % n)).split for n in range(50)}  # noqa: UP031
    assert len(splits) == 1


def test_lists_of_steps_decide_by_their_content(tmp_path: Path) -> None:
    """Reopened elsewhere, the stream needs no file; another content is another stream."""
    found = []
    for content in ("bad\n", "worse\n"):
        (tmp_path / "words.txt").write_text(content)
        pipeline = read_pipeline([{"name": "words", "words": str(tmp_path / "words.txt")}, {"name": "sample"}])
        draft = replace(BLANK, pipeline=pipeline.entries)
        found.append((complete(draft, RAW, None, lists=pipeline.lists)[0], pipeline.lists))
    (tmp_path / "words.txt").unlink()
    (recipe, lists), (other, _) = found
    assert recipe.fingerprint != other.fingerprint
    again = Recipe.from_dict(json.loads(canonical_json(recipe.to_dict())))
    assert again.fingerprint == recipe.fingerprint
    stages = reopen_stages(again, RAW, lists=lists)
    assert [step.name for step in stages.steps] == ["words", "sample", "not_empty"]
    said = plain_differences(recipe, other)
    assert len(said) == 1
    assert said[0].startswith('steps: the stream has words(words = "sha256:')
