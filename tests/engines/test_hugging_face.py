"""The engine ``tokenizers``."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.engines.conftest import words
from tests.strategies import texts
from tokenmill.engines import PROBE, Engine
from tokenmill.engines.hugging_face import HuggingFace
from tokenmill.errors import SettingsError

special_looking = st.lists(st.sampled_from(["<|endoftext|>", "<|endoftext", "|>", " ", "a", "\n"])).map("".join)


def _ids(engine: Engine, text: str) -> list[int]:
    return list(map(int, engine.encode([text]).ids))


@given(batch=st.lists(texts | special_looking))
def test_ids_do_not_depend_on_the_batch(byte_level_engine: Engine, batch: list[str]) -> None:
    """A text has the ids that it has alone, empty texts none."""
    tokens = byte_level_engine.encode(batch)
    assert tokens.ids.dtype == np.uint32
    assert tokens.offsets.dtype == np.int64
    assert tokens.offsets[0] == 0
    assert tokens.offsets[-1] == len(tokens.ids)
    assert [ids.tolist() for ids in tokens] == [_ids(byte_level_engine, text) for text in batch]


@given(text=texts | special_looking)
def test_byte_level_tokens_spell_the_text(byte_level_engine: Engine, byte_level: bytes, text: str) -> None:
    """Each token stands for bytes (by the file's own vocabulary), and together they are the text's UTF-8."""
    names = {number: name for name, number in json.loads(byte_level)["model"]["vocab"].items()}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's bytes_to_unicode
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
    spelled = b"".join(bytes(byte_of[c] for c in names[number]) for number in _ids(byte_level_engine, text))
    assert spelled == text.encode()
    assert byte_level_engine.decode(_ids(byte_level_engine, text)) == text


def test_special_tokens_in_a_text_are_text(byte_level_engine: Engine) -> None:
    """No text can end a document, and decoding shows what was written."""
    end = byte_level_engine.token_id("<|endoftext|>")
    ids = _ids(byte_level_engine, "a <|endoftext|> b")
    assert end is not None
    assert end not in ids
    assert byte_level_engine.decode([*ids, end]) == "a <|endoftext|> b<|endoftext|>"


def test_special_tokens_are_text_for_a_model_of_words() -> None:
    """Its vocabulary has ``<eos>`` like any word, but a text's ``<eos>`` is two unknown ones."""
    engine = HuggingFace(words())
    assert engine.token_id("<eos>") == 3
    assert [ids.tolist() for ids in engine.encode(["a", "a <eos> b<eos>", "b"])] == [[1], [1, 0, 0, 0], [2]]


def test_special_tokens_are_text_for_a_unigram_model() -> None:
    """Its best path would go through ``</s>``; the text's are spelled, and nothing else changes."""
    pieces = [
        ["<unk>", 0.0],
        ["</s>", 0.0],
        ["a", -1.0],
        ["<", -2.0],
        ["/", -2.0],
        ["s", -2.0],
        [">", -2.0],
        ["s>", -3.0],
    ]
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False) | {"special": True}
    added = [{"id": 0, "content": "<unk>"} | flags, {"id": 1, "content": "</s>"} | flags]
    model = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}
    engine = HuggingFace(words(model=model, pre_tokenizer=None, added_tokens=added))
    assert _ids(engine, "a</s>a") == [2, 3, 4, 7, 2]
    assert _ids(engine, "aZa<unk>s>") == [2, 0, 2, 0, 7]
    assert engine.decode([1]) == "</s>"


def test_added_tokens_that_are_not_special_are_matched() -> None:
    """As every user of the tokenizer file would have it."""
    added = [{"id": 4, "content": "b<", "special": False, "normalized": False}]
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip"], False)
    engine = HuggingFace(words(added_tokens=[token | flags for token in added]))
    assert _ids(engine, "a b< ab<b") == [1, 4, 1, 4, 2]
    assert engine.vocabulary_size == 5


@pytest.mark.parametrize(
    "changed",
    [
        {"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}},
        {
            "padding": {
                "strategy": {"Fixed": 9},
                "direction": "Left",
                "pad_id": 3,
                "pad_type_id": 0,
                "pad_token": "<eos>",
            }
        },
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<eos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<eos>": {"id": "<eos>", "ids": [3], "tokens": ["<eos>"]}},
            }
        },
    ],
    ids=["truncation", "padding", "added special tokens"],
)
def test_what_a_file_says_about_batches_for_models_is_ignored(changed: dict[str, Any]) -> None:
    """Truncation, padding and tokens around a text are not the text's tokens."""
    assert _ids(HuggingFace(words(**changed)), "a b a b") == [1, 2, 1, 2]


def test_dropout_is_ignored(byte_level: bytes, byte_level_engine: Engine) -> None:
    """Nothing is left to chance."""
    content = json.loads(byte_level)
    content["model"]["dropout"] = 0.9
    text = PROBE[0] * 20
    random = Tokenizer.from_str(json.dumps(content)).encode(text).ids
    engine = HuggingFace(json.dumps(content).encode())
    assert _ids(engine, text) == _ids(byte_level_engine, text) != random


def test_many_and_long_texts_are_encoded_in_order(byte_level_engine: Engine) -> None:
    """More than the library is given in one call, and a million characters without a space."""
    batch = ["x" * 1_000_000, *(f"number {n} " * 1000 for n in range(100)), "語" * 300_000, ""]
    tokens = byte_level_engine.encode(batch)
    assert [byte_level_engine.decode(ids.tolist()) for ids in tokens] == batch


def test_no_texts_are_no_tokens(byte_level_engine: Engine) -> None:
    """The batch's one offset is 0."""
    tokens = byte_level_engine.encode([])
    assert (len(tokens), tokens.ids.tolist(), tokens.offsets.tolist()) == (0, [], [0])


def test_every_id_is_below_the_vocabulary_size() -> None:
    """Even where added tokens leave a hole."""
    far = {"id": 70_000, "content": "<far>", "special": True}
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    vocabulary = {"[UNK]": 0, "a": 1, "<far>": 70_000}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    engine = HuggingFace(words(added_tokens=[far | flags], model=model))
    assert engine.vocabulary_size == 70_001
    assert engine.token_id("<far>") == 70_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "cannot be loaded"),
        (b"\xff", "cannot be loaded"),
        (b"<html>", "cannot be loaded"),
        (words(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}, added_tokens=[]), "unk_token"),
        (words(model={"type": "BPE", "vocab": {}, "merges": []}, added_tokens=[]), "no token at all"),
    ],
)
def test_a_tokenizer_that_cannot_encode_every_text_is_refused(content: bytes, message: str) -> None:
    """At start, not at the first text that it fails on."""
    with pytest.raises(SettingsError, match=message):
        HuggingFace(content)
