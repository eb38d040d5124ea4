"""Tokenizer files of several kinds, made here."""

import inspect
import json
import pydoc_data.topics
from pathlib import Path
from typing import Any, Final

import pytest
from tokenizers import Tokenizer

from tokenmill.app.milling.tokenizers import Engine, TokenizerFile, open_engine
from tokenmill.app.tools.tokenizers import train_tokenizer


@pytest.fixture(scope="session")
def byte_level() -> bytes:
    """Return the ``tokenizer.json`` of a byte-level BPE, trained on Python's own documentation."""
    texts = [*pydoc_data.topics.topics.values(), inspect.getsource(json)]
    return train_tokenizer(texts, vocabulary_size=1000).to_str().encode()


@pytest.fixture(scope="session")
def byte_level_engine(byte_level: bytes) -> Engine:
    """Return its engine."""
    return open_engine(TokenizerFile("byte level", byte_level))


AROUND: Final = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"a": {"id": "a", "ids": [1], "tokens": ["a"]}},
}
"""A post-processor for `words`, which puts ``a`` before each text."""


def words(**changed: Any) -> bytes:
    """Return a ``tokenizer.json`` for words between white space.

    ``[UNK]`` is 0, ``a`` 1, ``b`` 2, and ``<eos>`` 3, a special token; ``changed`` replaces parts of the file.
    """
    eos = {"id": 3, "content": "<eos>", "special": True}
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [eos | flags],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2, "<eos>": 3}, "unk_token": "[UNK]"},
    }
    content = json.dumps(tokenizer | changed)
    Tokenizer.from_str(content)
    return content.encode()


@pytest.fixture
def words_folder(tmp_path: Path) -> Path:
    """Return a folder as a model's is, with the tokenizer of `words` in it."""
    (tmp_path / "tokenizer.json").write_bytes(words())
    return tmp_path
