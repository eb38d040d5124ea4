"""docs/record_to_tokens.md is enough to compute what becomes of a record, and its ids.

`tests/plain_rules.py` is a checker written from the page alone; here it is compared with `Stages.outcome`.
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from tests.app.milling.tokenizers.conftest import words
from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tests.bad_inputs import TABLE
from tests.mills import RAW, RECIPE, Source, cut_blocks
from tests.plain_rules import WHITE, PlainRules, PlainTokenizer, Refused
from tests.strategies import ROWS, json_bytes, json_objects, json_values, nasty_bytes, texts
from tokenmill.app.milling.decoding import REASONS
from tokenmill.app.milling.foreign_code import FUNCTION_FAILED, REJECTED
from tokenmill.app.milling.outcomes import NO_TOKENS, SKIPPED, Kind
from tokenmill.app.milling.packing.document_shapes import TOO_LONG, TOO_SHORT
from tokenmill.app.milling.recipe_stages import complete, open_stages
from tokenmill.app.milling.steps.basic import EMPTY, NORMALIZED_TOO_LARGE
from tokenmill.app.milling.steps.basic import TOO_SHORT as TOO_FEW_CHARS
from tokenmill.app.milling.tokenizers import TOKENIZER_FAILED, TokenizerFile, open_engine
from tokenmill.app.tools.tokenizers import train_tokenizer
from tokenmill.documents import Record, document_meta
from tokenmill.recipe import Recipe

PAGE = (Path(__file__).parents[2] / "docs" / "record_to_tokens.md").read_text()


def check(recipe: Recipe, value: bytes | None, *, headers: Any = (), skipped: bool = False) -> None:
    stages = open_stages(recipe, RAW)
    found = stages.outcome(Record(5, 0, None, value, headers), {5} if skipped else set())
    rules = PlainRules(json.loads(json.dumps(recipe.to_dict())))
    expected = rules.outcome(value, flush=("tokenmill", b"flush") in headers, skipped=skipped)
    if found.kind is Kind.KEPT and found.split is None:
        assert expected.kind == "other_split"
        return
    assert (found.kind.value, found.split, found.reason) == (expected.kind, expected.split, expected.reason)
    if found.document is not None:
        assert expected.document is not None
        assert tuple(found.document[:2]) == tuple(expected.document[:2])
        assert type(found.document.id) is type(expected.document.id)
        assert document_meta(found.document, recipe.metadata_fields) == rules.meta(expected.document)


def recipe_of(**changed: Any) -> Recipe:
    limits: dict[str, Any] = {"max_text_bytes": 60, "max_id_bytes": 12, "max_fields_bytes": 40}
    return replace(RECIPE, **(limits | {"metadata_fields": ("label", "a.n")} | changed))


recipes = st.builds(
    recipe_of,
    decode=st.sampled_from(["auto", "auto", "json", "text"]),
    text_fields=st.sampled_from([("text", "content"), ("a.text", "text"), ("a.b.text",)]),
    id_field=st.sampled_from(["id", "a.id"]),
    metadata_fields=st.sampled_from([(), ("label",), ("a.n", "score", "label")]),
    normalize=st.sampled_from(["none", "NFC", "NFKD"]),
    min_chars=st.sampled_from([0, 0, 3]),
    split_by=st.sampled_from(["id", "content"]),
    allow_flush=st.booleans(),
    shards=st.just(5),
    splits=st.sampled_from([(("a", 5),), (("b", 1), ("a", 2), ("c", 2)), (("a", 2), ("b", 1))]),
)
wide = st.integers(-(2**66), 2**66) | st.sampled_from([-(2**63), -(2**63) - 1, 2**63, 2**64 - 1, 2**64, -0.0, 1e30])
scalars = st.none() | st.booleans() | wide | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
short = st.text(max_size=24) | st.sampled_from(["\u00a0\u3000", "\ufb01", "e\u0301e\u0301", '"\\\n\x01'])
inner = st.fixed_dictionaries(
    {}, optional={"text": short | scalars, "id": scalars, "n": scalars, "b": st.fixed_dictionaries({"text": short})}
)
events = st.fixed_dictionaries(
    {},
    optional={"op": st.sampled_from(["c", "d", "x", 1]), "after": inner, "before": st.none() | inner, "payload": inner},
)
rows: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "text": short | scalars,
        "content": short,
        "id": scalars,
        "label": scalars | st.just([]),
        "score": scalars,
        "a": inner | scalars,
        "a.text": short | scalars,
        "a.n": scalars,
    },
)
changes = st.builds(lambda row, event, deep: row | ({"payload": event} if deep else event), rows, events, st.booleans())
BEGINNINGS = [
    *("{", "[", "[[", "\ufeff[", " [", "\v{", "[-", "[1", "[1.5e", "[tru", "[null"),
    *("\0", "\0\0\0\0\x07", "\x01"),
]
begun = st.builds(
    lambda head, tail: (head + tail).encode(),
    st.sampled_from(BEGINNINGS),
    st.text('[]{}",:1e.- \t\v\0\x01tfnuralsex\ufeff', max_size=9),
)
values = st.one_of(
    nasty_bytes,
    begun,
    rows.map(json_bytes),
    changes.map(json_bytes),
    rows.map(lambda row: b"\xef\xbb\xbf" + json_bytes(row, ascii_only=True)),
    st.binary(max_size=12).map(lambda tail: b"a" * 250 + tail),
    st.sampled_from([row.value for row in TABLE if row.value is not None and len(row.value) < 10_000]),
)


@given(recipes, values)
@example(recipe_of(), b'{"text": "a", "id": -0}')
@example(recipe_of(), b'{"text": "a", "label": 1e400}')
@example(recipe_of(), b'{"text": "a", "label": 18446744073709551616.0}')
@example(recipe_of(), b'{"text": "a", "text": "b", "label": 1, "label": 2}')
@example(recipe_of(), b'{"text": "a", "b": ' + b"[" * 1023 + b"]" * 1023 + b"}")
@example(recipe_of(), b'{"text": "\\ud83d\\ud83d\\ude00"}')
@example(recipe_of(), b'{"text": "\\\\ud83d"}')
@example(recipe_of(), b"[" * 3000)
@example(recipe_of(), b'{"text": "a", "id": -9223372036854775809}')
@example(recipe_of(), b'{"text": "a", "a": {"n": 18446744073709551616}}')
@example(recipe_of(), b'{"op": "d", "before": {"text": "a"}}')
@example(recipe_of(decode="auto"), b"1e400")
@example(recipe_of(decode="auto"), b"-" + b"1" * 50)
@example(recipe_of(), b"\x01abc")
@example(recipe_of(), b"\x01abcd")
@example(recipe_of(max_text_bytes=1000), b"\x1b" * 64 + b"a" * 900)
@example(recipe_of(max_text_bytes=1000), b"\x1b" * 63 + b"a" * 193 + b"\x1b" * 400)
def test_the_page_is_enough_to_compute_an_outcome(recipe: Recipe, value: bytes) -> None:
    check(recipe, value)


@given(recipes, st.builds(lambda row, more: json_bytes(more | row), rows, json_objects))
def test_the_page_is_enough_for_json_documents(recipe: Recipe, value: bytes) -> None:
    check(replace(recipe, max_text_bytes=10_000, max_fields_bytes=10_000, max_id_bytes=10_000), value)


@given(
    recipe=recipes,
    value=st.none() | values,
    headers=st.sampled_from([[], [("tokenmill", b"flush")]]),
    skipped=st.booleans(),
)
def test_the_page_is_enough_for_records_without_a_document(
    recipe: Recipe, value: bytes | None, headers: list[tuple[str, bytes]], *, skipped: bool
) -> None:
    check(recipe, value, headers=headers, skipped=skipped)


@given(st.text(), st.sampled_from(["NFC", "NFKC"]))
def test_normal_forms_are_those_of_the_standard_library(text: str, form: str) -> None:
    check(recipe_of(decode="text", max_text_bytes=10_000, normalize=form), text.encode())


def test_white_space_is_what_the_page_lists() -> None:
    assert {number for number in range(sys.maxunicode + 1) if chr(number).isspace()} == WHITE


def _word_level() -> bytes:
    """Return a tokenizer whose model has the names of special tokens among its words."""
    words = ["[UNK]", "<s>", "<", "s>", "</s>", "a", "b", "é", "ab", "<found>"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[UNK]", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<found>", normalized=False)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=7)
    return str(tokenizer.to_str()).encode()


def _bpe() -> bytes:
    return str(train_tokenizer(["ab aab b <|endoftext|>\n"] * 3, vocabulary_size=270).to_str()).encode()


WORDS = ["<s>", "</s>", "a", "b", "é", "[UNK]", " ", "<found>", "<|endoftext|>", "x"]


@pytest.mark.parametrize("content", [_word_level(), _bpe()], ids=["words", "bpe"])
@given(text=texts | st.lists(st.sampled_from(WORDS)).map("".join))
def test_the_page_is_enough_to_compute_the_ids(content: bytes, text: str) -> None:
    """Special tokens inside a text are text, whatever the model thinks of their names."""
    engine = open_engine(TokenizerFile("any", content), "tokenizers")
    assert engine.encode([text]).ids.tolist() == PlainTokenizer(content).ids(text)


BERT = words(post_processor={"type": "BertProcessing", "cls": ["a", 1], "sep": ["<eos>", 3]})


@pytest.mark.parametrize("special", ["text", "tokens"])
@pytest.mark.parametrize(
    "settings",
    [
        {"end_of_document": None},
        {"end_of_document": "none", "padding": 2},
        {"end_of_document": None, "template": "tokenizer"},
        {"end_of_document": 1, "begin_of_document": "tokenizer", "padding": "b"},
    ],
)
@given(text=st.lists(st.sampled_from(["a", "b", " ", "<eos>", "c", "[UNK]"]), min_size=1, max_size=12).map("".join))
def test_the_page_is_enough_to_compute_a_document(settings: dict[str, Any], special: str, text: str) -> None:
    draft = recipe_of(decode="text", block_tokens=1000, special_tokens_in_text=special)
    recipe, stages = complete(draft, TokenizerFile("any", BERT), **settings)
    mill = Source(stages, (recipe,)).mill()
    mill.feed([Record(5, 0, None, text.encode())])
    carry = mill.chains[recipe.split].carry(6)
    assert carry is not None
    page = PlainTokenizer(BERT, json.loads(json.dumps(recipe.to_dict())))
    expected = [] if text.isspace() else page.document(text)
    assert np.frombuffer(carry.open_tokens, recipe.token_dtype).tolist() == expected


PACKED: list[dict[str, Any]] = [
    *({"packing": "rows", "packing_parameters": parameters} for parameters in ROWS),
    *(
        {"packing": "chunks", "packing_parameters": {"chunk_tokens": 4, **rest}, "block_tokens": 5, "segment_tokens": 2}
        for rest in ({}, {"rest": "pad"})
    ),
]


@pytest.mark.parametrize("packing", PACKED, ids=str)
@given(
    text=st.lists(st.sampled_from(["a", "b", " ", "<eos>", "c"]), min_size=1, max_size=24).map("".join),
    block_tokens=st.integers(3, 9),
)
@pytest.mark.cases(4)
def test_the_page_is_enough_to_compute_rows_and_chunks(packing: dict[str, Any], text: str, block_tokens: int) -> None:
    draft = recipe_of(decode="text", max_text_bytes=1000, **{"block_tokens": block_tokens} | packing)
    recipe, stages = complete(draft, TokenizerFile("any", BERT), None, template="tokenizer", padding=2)
    mill = Source(stages, (recipe,)).mill()
    messages = mill.feed([Record(5, 0, None, text.encode())]).messages[recipe.split]
    reason, blocks = PlainTokenizer(BERT, json.loads(json.dumps(recipe.to_dict()))).blocks(text)
    if text.isspace():
        reason, blocks = EMPTY, []
    padded = [block + [2] * (recipe.block_tokens - len(block)) for block in blocks]
    assert [np.frombuffer(ids, recipe.token_dtype).tolist() for _, ids, _ in cut_blocks(messages, recipe)] == padded
    assert dict(mill.chains[recipe.split].totals.filtered) == ({reason: 1} if reason else {})


def test_the_page_knows_texts_on_which_the_tokenizer_fails() -> None:
    engine, page = open_engine(TokenizerFile("any", panicking()), "tokenizers"), PlainTokenizer(panicking())
    assert engine.encode(["Qaa$"]).ids.tolist() == page.ids("Qaa$")
    assert engine.encode([HARMFUL]).failed[0].reason == TOKENIZER_FAILED
    with pytest.raises(Refused, match=f"^{TOKENIZER_FAILED}$"):
        page.ids(HARMFUL)


APART = "a" * 25_535 + "\ufdfa" * 40_000 + "e\u0301" + "\ufdfa" * 6_000
"""29,326 bytes less than the limit in NFKC, as a slice ends between a letter and its accent; one more if it did not."""


@pytest.mark.parametrize(
    ("normalizer", "normalize", "text", "reason"),
    [
        (None, "NFKC", "\ufdfa" * 47_000 + "a" * 21_864, ""),
        (None, "NFKC", "\ufdfa" * 47_000 + "a" * 21_865, "normalized_too_large"),
        (None, "none", "\ufdfa" * 47_000 + "a" * 21_865, ""),
        ("NFKC", "none", "\ufdfa" * 47_000 + "a" * 21_864, ""),
        ("NFKC", "none", "\ufdfa" * 47_000 + "a" * 21_865, "normalized_too_large"),
        ("NFKC", "none", APART + "b" * 29_326, ""),
        ("NFKC", "none", "a" * 32_767 + "e\u0301" + "\ufdfa" * 44_000 + "b" * 88_095, ""),
        ("NFKC", "none", APART + "b" * 29_327, "normalized_too_large"),
        ("Lowercase", "none", "\u0130" * 786_432, ""),
        ("NFD", "NFKD", "\u1e69" * 524_288, "normalized_too_large"),
        ("NFC", "none", "\U0001d160" * 131_072, ""),
        ("NFC", "none", "\U0001d160" * 131_073, "normalized_too_large"),
    ],
)
@pytest.mark.slow
def test_the_page_knows_which_texts_normalizing_makes_too_long(
    normalizer: str | None, normalize: str, text: str, reason: str
) -> None:
    content = words(normalizer=normalizer and {"type": normalizer}, added_tokens=[])
    tokenizer = TokenizerFile("any", content)
    recipe, stages = complete(
        recipe_of(decode="text", max_text_bytes=0, normalize=normalize, min_chars=0), tokenizer, 0
    )
    found = stages.outcome(Record(5, 0, None, text.encode()))
    rules = PlainRules(json.loads(json.dumps(recipe.to_dict())), content)
    assert found.reason == rules.outcome(text.encode()).reason == reason


def test_special_tokens_really_are_spelled() -> None:
    """The test above would see it if they were not."""
    tokenizer = PlainTokenizer(_word_level())
    assert tokenizer.spelled(1) == [2, 3]
    assert tokenizer.ids("a <s> b [UNK] <found>") == [5, 2, 3, 6, 0, 9]


def test_all_reasons_stand_on_the_page() -> None:
    dead, filters = (set(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)) for part in PAGE.split("| filter |"))
    assert dead == REASONS | {FUNCTION_FAILED, REJECTED, SKIPPED, TOKENIZER_FAILED, NORMALIZED_TOO_LARGE}
    assert filters == {EMPTY, TOO_FEW_CHARS, NO_TOKENS, REJECTED, TOO_LONG, TOO_SHORT}


@given(st.binary(), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 9))
@pytest.mark.slow
def test_the_code_on_the_page_runs(key: bytes, sizes: list[int], rest: int) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)  # noqa: S102 - code of our own page
    splits = [(f"s{number}", size) for number, size in enumerate(sizes)]
    rules = PlainRules({"splits": splits, "shards": sum(sizes) + rest})
    assert names["split_of"](key, sum(sizes) + rest, splits) == rules.split(key)


@given(json_values)
def test_canonical_json_is_what_the_page_says(value: Any) -> None:
    check(recipe_of(metadata_fields=("label",), max_fields_bytes=100_000), json_bytes({"text": "a", "label": value}))
