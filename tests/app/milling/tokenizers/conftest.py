"""Tokenizer files of several kinds, made here."""

import inspect
import json
import pydoc_data.topics
from pathlib import Path
from typing import Any, Final

import pytest
from tokenizers import Tokenizer

from tests.vocabularies.files import added_token, tokenizer_json
from tokenmill.app.milling.tokenizers import Engine, TokenizerFile, open_engine
from tokenmill.app.tools.tokenizers import train_tokenizer


@pytest.fixture(scope="session")
def byte_level() -> bytes:
    """Return the ``tokenizer.json`` of a byte-level BPE, trained on Python's own documentation."""
    texts = [*pydoc_data.topics.topics.values(), inspect.getsource(json)]
    return train_tokenizer(texts, vocabulary_size=1000).to_str().encode()


@pytest.fixture(scope="session")
def byte_level_engine(byte_level: bytes) -> Engine:
    return open_engine(TokenizerFile("byte level", byte_level))


def word_model(*names: str) -> dict[str, Any]:
    """Return a model of words that have these names, with ids from 0 on; the first is for unknown ones."""
    return {"type": "WordLevel", "vocab": {name: at for at, name in enumerate(names)}, "unk_token": names[0]}


def around(*single: str, number: int = 1) -> dict[str, Any]:
    """Return a post-processor that puts the token of this number beside each text, which stands at ``$A``."""
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [text if name == "$A" else {"SpecialToken": {"id": name, "type_id": 0}} for name in single],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]} for name in {*single} - {"$A"}},
    }


AROUND: Final = around("a", "$A")
"""A post-processor for `words`, which puts ``a`` before each text."""


def words(**changed: Any) -> bytes:
    """Return a ``tokenizer.json`` for words between white space.

    ``[UNK]`` is 0, ``a`` 1, ``b`` 2, and ``<eos>`` 3, a special token; ``changed`` replaces parts of the file.
    """
    usual = {
        "added_tokens": [added_token(3, "<eos>")],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": word_model("[UNK]", "a", "b", "<eos>"),
    }
    content = tokenizer_json(**usual | changed)
    Tokenizer.from_str(content.decode())
    return content


@pytest.fixture
def words_folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(words())
    return tmp_path
