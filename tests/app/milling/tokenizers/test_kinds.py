"""Every kind of tokenizer, with the vocabularies of models in use: ids of texts and documents are `tokenizers`' own.

Not of the engine ``tokenizers`` here, but of the library, asked for what anyone would ask it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests import vocabularies
from tests.mills import RAW, RECIPE, Source, named
from tests.vocabularies.files import library
from tests.vocabularies.texts import COLLECTION, LONG, SPECIAL_LOOKING, mixtures
from tokenmill.app.milling.recipe_stages import complete
from tokenmill.app.milling.tokenizers import (
    Engine,
    EngineName,
    SpecialTokens,
    TemplateName,
    TokenizerFile,
    choose_engine,
    dtype_for,
    open_engine,
)
from tokenmill.app.milling.tokenizers.gigatoken import SINGLY_CHARACTERS
from tokenmill.app.milling.tokenizers.vocabulary import end_of
from tokenmill.errors import SettingsError


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
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """The tokens that it puts around a text."""
    padding: str = ""
    """What pads where no token ends a document; empty where nobody knows."""


KINDS: Final = {
    "gpt2": Kind(vocabularies.gpt2, "gigatoken", "<u2", "<|endoftext|>"),
    "whisper": Kind(vocabularies.whisper_multilingual, "gigatoken", "<u2", "<|endoftext|>"),
    "claude": Kind(vocabularies.claude, "gigatoken", "<u2", "<EOT>"),
    "tekken": Kind(vocabularies.tekken, "gigatoken", "<u4", "</s>"),
    "llama 3 style": Kind(
        vocabularies.llama3_style, "gigatoken", "<u2", "<|end_of_text|>", before=("<|begin_of_text|>",)
    ),
    "gemma style": Kind(vocabularies.gemma_style, "gigatoken", "<u2", "<eos>", before=("<bos>",), padding="<pad>"),
    "gpt-neox style": Kind(vocabularies.gpt_neox_style, "gigatoken", "<u2", "<|endoftext|>", padding="<|padding|>"),
    "qwen 2.5 style": Kind(vocabularies.qwen25_style, "gigatoken", "<u2", "<|endoftext|>"),
    "sentencepiece": Kind(vocabularies.mistral_sentencepiece, "gigatoken", "<u2", "</s>"),
    "wordpiece": Kind(
        vocabularies.wordpiece,
        "tokenizers",
        "<u2",
        "[SEP]",
        spells=False,
        before=("[CLS]",),
        after=("[SEP]",),
        padding="[PAD]",
    ),
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
def _library(name: str, special: SpecialTokens = "text") -> Tokenizer:
    return library(KINDS[name].content(), special=special == "tokens")


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


FRAMED: Final = [
    pytest.param(name, marks=[minutes] if name == "tekken" else [])  # it adds nothing to a text, as GPT-NeoX does not
    for name in ("llama 3 style", "gemma style", "wordpiece", "gpt-neox style", "tekken")
]
"""Kinds of which whole documents are milled."""
WITH_ENGINES: Final = [
    pytest.param(*one.values, engine, marks=one.marks)
    for one in FRAMED
    for engine in ("gigatoken", "tokenizers")
    if one.values[0] in FAST or engine == "tokenizers"
]
MODES: Final[tuple[SpecialTokens, ...]] = ("text", "tokens")


@cache
def _source(name: str, engine: EngineName, special: SpecialTokens) -> Source:
    """Return a stream whose documents are as the tokenizer has them."""
    kind = KINDS[name]
    draft = replace(RECIPE, decode="json", max_text_bytes=0, block_tokens=1 << 24, special_tokens_in_text=special)
    template: TemplateName = "tokenizer" if kind.before or kind.after else "none"
    end = None if template == "tokenizer" else "none"
    recipe, stages = complete(draft, _file(name), end, engine, padding=None if kind.padding else 0, template=template)
    assert stages.engine.kind == engine
    return Source(stages, (recipe,))


def _milled(source: Source, value: str) -> list[int]:
    """Return the ids of the document that a text becomes."""
    recipe, mill = source.recipes[0], source.mill()
    mill.feed([named(0, 1, value)])  # in JSON: of plain text, a byte order mark at its beginning is none of it
    carry = mill.chains[recipe.split].carry(1)
    assert carry is not None
    return list(np.frombuffer(carry.open_tokens, recipe.token_dtype).tolist())


def _assert_right_document(name: str, engine: EngineName, special: SpecialTokens, value: str) -> None:
    tokenizer = _library(name, special)
    none = value.isspace() or not value or not tokenizer.encode(value, add_special_tokens=False).ids
    right = [] if none else tokenizer.encode(value, add_special_tokens=True).ids
    assert _milled(_source(name, engine, special), value) == right, value[:80]


@pytest.mark.parametrize(("name", "engine"), WITH_ENGINES)
@pytest.mark.parametrize("special", MODES)
@pytest.mark.cases(1)
def test_documents_of_a_collection_have_the_librarys_ids(name: str, engine: EngineName, special: SpecialTokens) -> None:
    for value in COLLECTION:
        _assert_right_document(name, engine, special, value)


@pytest.mark.parametrize(("name", "engine"), WITH_ENGINES)
@pytest.mark.parametrize("special", MODES)
@given(data=st.data())
@pytest.mark.cases(3)
def test_documents_of_any_text_have_the_librarys_ids(
    name: str, engine: EngineName, special: SpecialTokens, data: st.DataObject
) -> None:
    _assert_right_document(name, engine, special, data.draw(mixtures((*SPECIAL_LOOKING, *_added(name)))))


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", FRAMED)
def test_the_recipe_has_what_stands_around_a_document(name: str) -> None:
    kind, recipe = KINDS[name], _source(name, "tokenizers", "text").recipes[0]
    names = _library(name).id_to_token
    assert tuple(map(names, recipe.begin_of_document)) == kind.before
    assert tuple(map(names, recipe.after)) == kind.after
    assert names(recipe.padding_id) == (*kind.after, kind.padding or names(0))[0]


@pytest.mark.cases(3)
@pytest.mark.parametrize(("name", "engine"), WITH_ENGINES)
def test_a_special_token_in_a_text_is_one_only_where_it_was_asked_for(name: str, engine: EngineName) -> None:
    special = next(token for token in _library(name).get_added_tokens_decoder().values() if token.special).content
    for mode in MODES:
        ids = _milled(_source(name, engine, mode), f"a {special} b")[1:]
        assert (_library(name).token_to_id(special) in ids) == (mode == "tokens")


def test_raw_bytes_have_no_special_tokens_in_texts() -> None:
    with pytest.raises(SettingsError, match='special_tokens_in_text = "tokens": raw bytes have no special tokens'):
        choose_engine(RAW, "auto", "tokens")
