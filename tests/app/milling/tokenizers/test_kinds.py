"""Every kind of tokenizer, with the vocabularies of models in use: the ids are those of `tokenizers`.

Not of the engine ``tokenizers`` here, but of the library, asked for what anyone would ask it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests import vocabularies
from tests.vocabularies.files import library
from tests.vocabularies.texts import COLLECTION, LONG, SPECIAL_LOOKING, mixtures
from tokenmill.app.milling.tokenizers import Engine, EngineName, TokenizerFile, choose_engine, dtype_for, open_engine
from tokenmill.app.milling.tokenizers.gigatoken import SINGLY_CHARACTERS
from tokenmill.app.milling.tokenizers.vocabulary import end_of


@dataclass(frozen=True)
class Kind:
    """What is expected of a tokenizer."""

    content: Callable[[], bytes]
    auto: EngineName
    """The engine that ``auto`` chooses."""
    dtype: str
    """That of its blocks."""
    end: str
    """The token that ends a document if nobody says which."""
    spells: bool = True
    """Whether its tokens say all that is in a text, once the text is normalized."""


KINDS: Final = {
    "gpt2": Kind(vocabularies.gpt2, "gigatoken", "<u2", "<|endoftext|>"),
    "whisper": Kind(vocabularies.whisper_multilingual, "gigatoken", "<u2", "<|endoftext|>"),
    "claude": Kind(vocabularies.claude, "gigatoken", "<u2", "<EOT>"),
    "tekken": Kind(vocabularies.tekken, "gigatoken", "<u4", "</s>"),
    "llama 3 style": Kind(vocabularies.llama3_style, "gigatoken", "<u2", "<|end_of_text|>"),
    "gemma style": Kind(vocabularies.gemma_style, "gigatoken", "<u2", "<eos>"),
    "gpt-neox style": Kind(vocabularies.gpt_neox_style, "gigatoken", "<u2", "<|endoftext|>"),
    "qwen 2.5 style": Kind(vocabularies.qwen25_style, "gigatoken", "<u2", "<|endoftext|>"),
    "sentencepiece": Kind(vocabularies.mistral_sentencepiece, "gigatoken", "<u2", "</s>"),
    "wordpiece": Kind(vocabularies.wordpiece, "tokenizers", "<u2", "[SEP]", spells=False),
    "unigram": Kind(vocabularies.unigram, "tokenizers", "<u2", "</s>", spells=False),
}
LIKE_OTHERS: Final = {"whisper": "gpt2", "llama 3 style": "qwen 2.5 style"}
"""Kinds that cut texts as another one does, with another vocabulary: what is true of that one is tried with them, too,
where there is time."""
FAST: Final = [name for name, kind in KINDS.items() if kind.auto == "gigatoken"]
SLOW: Final = [name for name in KINDS if name not in FAST]
minutes = pytest.mark.needs("minutes")


def _of(name: str, *others: str) -> ParameterSet:
    return pytest.param(name, *others, marks=[minutes] if name in LIKE_OTHERS else [])


BOTH: Final = [
    *(_of(name, "gigatoken") for name in FAST),
    *(_of(name, "tokenizers") for name in SLOW),
    # what the slow engine does of them is the library's own work
    *(pytest.param(name, "tokenizers", marks=minutes) for name in FAST),
]

pytestmark = pytest.mark.slow  # opening a vocabulary of full size takes a second
on_both_engines = pytest.mark.parametrize(("name", "engine"), BOTH)
on_all_kinds = pytest.mark.parametrize("name", [_of(name) for name in KINDS])


@cache
def _file(name: str) -> TokenizerFile:
    return TokenizerFile(name, KINDS[name].content())


@cache
def _chosen(name: str) -> tuple[Engine, str]:
    return choose_engine(_file(name))


@cache
def _engine(name: str, engine: EngineName) -> Engine:
    """Return an engine by its name: the one that was chosen, if it is that, for opening takes seconds."""
    chosen, _ = _chosen(name)
    return chosen if chosen.kind == engine else open_engine(_file(name), engine)


@cache
def _library(name: str) -> Tokenizer:
    return library(KINDS[name].content())


@cache
def _special(name: str) -> frozenset[int]:
    """Return the ids of special tokens, less the one for unknown text, which a text may well have."""
    added = _library(name).get_added_tokens_decoder()
    unknown = {"<unk>", "[UNK]"}
    return frozenset(n for n, token in added.items() if token.special and token.content not in unknown)


@cache
def _added(name: str) -> tuple[str, ...]:
    return tuple(token.content for token in _library(name).get_added_tokens_decoder().values())[:30]


def _assert_right(name: str, text: str, ids: list[int]) -> None:
    """Ids are the library's; where it takes a special token's name for the token, other tokens spell the name."""
    library = _library(name)
    right = library.encode(text, add_special_tokens=False).ids
    if not _special(name).isdisjoint(right):
        assert _special(name).isdisjoint(ids), text[:80]
        spelled, named = ("".join(str(library.id_to_token(number)) for number in numbers) for numbers in (ids, right))
        assert spelled == named, text[:80]
    else:
        assert ids == right, text[:80]


@on_both_engines
@pytest.mark.cases(2)
def test_ids_of_the_collection_are_those_of_the_library(name: str, engine: EngineName) -> None:
    """Languages, code, emoji, control characters, white space, odd letters, words of 100,000 characters, nothing.

    Names of special tokens are text, alone or next to others.
    """
    names = [token.content for token in _library(name).get_added_tokens_decoder().values() if token.special]
    texts = [*COLLECTION, *LONG, *names[:50], " ".join(names), "".join(names), *(f"x{one}y" for one in names[:50])]
    for text, ids in zip(texts, _engine(name, engine).encode(texts), strict=True):
        _assert_right(name, text, ids.tolist())


@pytest.mark.cases(4)
@on_both_engines
@given(data=st.data())
def test_ids_of_any_text_are_those_of_the_library(name: str, engine: EngineName, data: st.DataObject) -> None:
    text = data.draw(mixtures((*SPECIAL_LOOKING, *_added(name))))
    for rest in ([], ["much " * SINGLY_CHARACTERS] if engine == "gigatoken" else []):
        _assert_right(name, text, _engine(name, engine).encode([text, *rest])[0].tolist())


@pytest.mark.parametrize("name", [_of(name) for name, kind in KINDS.items() if kind.spells])
@given(text=mixtures())
@pytest.mark.cases(2)
def test_tokens_spell_the_text(name: str, text: str) -> None:
    """Decoding gives the text back; normalized, where the tokenizer does that, and ``▁`` as a space where it is one."""
    engine = _engine(name, KINDS[name].auto)
    decoded = engine.decode(engine.encode([text])[0].tolist())
    normalizer = _library(name).normalizer
    if normalizer is None:
        assert decoded == text
    else:
        assert normalizer.normalize_str(decoded) == normalizer.normalize_str(text)


@on_all_kinds
@pytest.mark.cases(4)
def test_engine_dtype_and_end_of_document(name: str) -> None:
    chosen, refused = _chosen(name)
    assert (chosen.kind, refused == "") == (KINDS[name].auto, name in FAST)
    engine = _engine(name, KINDS[name].auto)
    assert dtype_for(engine.vocabulary_size) == np.dtype(KINDS[name].dtype)
    assert engine.vocabulary_size == 1 + max(_library(name).get_vocab(with_added_tokens=True).values())
    assert end_of(_file(name), engine).id == engine.token_id(KINDS[name].end)


@pytest.mark.parametrize(("name", "text"), [_of("whisper", "\U000326cc\ub7a2"), _of("qwen 2.5 style", "\u1df6\u20eb")])
def test_letters_and_marks_that_are_news_to_the_library(name: str, text: str) -> None:
    """What it takes for no letter ends a word, and marks it does not know stay where they are."""
    _assert_right(name, text, _engine(name, "gigatoken").encode([text])[0].tolist())


def test_unknown_words_are_unknown_where_the_vocabulary_can_spell_the_unknown_token() -> None:
    """A cased WordPiece vocabulary has the parts of ``[UNK]``; words it does not know are that token all the same."""
    content = json.loads(vocabularies.wordpiece())
    content["normalizer"] |= {"lowercase": False, "strip_accents": False}
    vocabulary = content["model"]["vocab"]
    for part in ("UN", "##K", "##]"):
        vocabulary.setdefault(part, len(vocabulary))
    engine = open_engine(TokenizerFile("cased", json.dumps(content).encode()), "tokenizers")
    words = [engine.token_id(word) for word in ("hello", "[UNK]", "world")]
    assert engine.encode(["hello \u2603\u2603 world"]).ids.tolist() == words
