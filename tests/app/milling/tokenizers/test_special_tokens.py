"""Special tokens around texts and in them: the ids of whole documents are those of `tokenizers`, with either engine."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests import vocabularies
from tests.mills import RAW, RECIPE, Source, named
from tests.vocabularies.files import library
from tests.vocabularies.texts import COLLECTION, SPECIAL_LOOKING, mixtures
from tokenmill.app.milling.recipe_stages import complete
from tokenmill.app.milling.tokenizers import EngineName, SpecialTokens, TemplateName, TokenizerFile, choose_engine
from tokenmill.errors import SettingsError


@dataclass(frozen=True)
class Marks:
    """What a tokenizer puts around a text, by name."""

    content: Callable[[], bytes]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    padding: str = ""
    """What pads where no token ends a document; empty where nobody knows."""
    engines: tuple[EngineName, ...] = ("gigatoken", "tokenizers")


KINDS: Final = {
    "llama 3": Marks(vocabularies.llama3_style, ("<|begin_of_text|>",)),
    "gemma": Marks(vocabularies.gemma_style, ("<bos>",), padding="<pad>"),
    "bert": Marks(vocabularies.wordpiece, ("[CLS]",), ("[SEP]",), "[PAD]", ("tokenizers",)),
    "gpt-neox": Marks(vocabularies.gpt_neox_style, padding="<|padding|>"),
    "tekken": Marks(vocabularies.tekken),
}
CASES: Final = [(name, engine) for name, marks in KINDS.items() for engine in marks.engines]
MODES: Final[tuple[SpecialTokens, ...]] = ("text", "tokens")

MARKS: Final = {"llama 3": [pytest.mark.slow], "tekken": [pytest.mark.slow, pytest.mark.needs("minutes")]}
"""Vocabularies that take seconds to open. What Tekken shows, which adds nothing to a text, GPT-NeoX shows as well."""


def _params(cases: Iterable[tuple[str, ...]]) -> list[Any]:
    return [pytest.param(*case, marks=MARKS.get(case[0], [])) for case in cases]


on_all_kinds = pytest.mark.parametrize("name", _params((name,) for name in KINDS))


@cache
def _library(name: str, special: SpecialTokens) -> Tokenizer:
    return library(KINDS[name].content(), special=special == "tokens")


@cache
def _source(name: str, engine: EngineName, special: SpecialTokens) -> Source:
    """Return a stream whose documents are as the tokenizer has them."""
    marks = KINDS[name]
    draft = replace(RECIPE, decode="json", max_text_bytes=0, block_tokens=1 << 24, special_tokens_in_text=special)
    template: TemplateName = "tokenizer" if marks.before or marks.after else "none"
    end = None if template == "tokenizer" else "none"
    file = TokenizerFile(name, marks.content())
    recipe, stages = complete(draft, file, end, engine, padding=None if marks.padding else 0, template=template)
    assert stages.engine.kind == engine
    return Source(stages, (recipe,))


def _milled(source: Source, value: str) -> list[int]:
    """Return the ids of the document that a text becomes."""
    recipe, mill = source.recipes[0], source.mill()
    mill.feed([named(0, 1, value)])  # in JSON: of plain text, a byte order mark at its beginning is none of it
    carry = mill.chains[recipe.split].carry(1)
    assert carry is not None
    return list(np.frombuffer(carry.open_tokens, recipe.token_dtype).tolist())


def _assert_right(name: str, engine: EngineName, special: SpecialTokens, value: str) -> None:
    tokenizer = _library(name, special)
    none = value.isspace() or not value or not tokenizer.encode(value, add_special_tokens=False).ids
    right = [] if none else tokenizer.encode(value, add_special_tokens=True).ids
    assert _milled(_source(name, engine, special), value) == right, value[:80]


@pytest.mark.parametrize(("name", "engine"), _params(CASES))
@pytest.mark.parametrize("special", MODES)
@pytest.mark.slow
@pytest.mark.cases(1)
def test_documents_of_the_collection_have_the_librarys_ids(
    name: str, engine: EngineName, special: SpecialTokens
) -> None:
    for value in COLLECTION:
        _assert_right(name, engine, special, value)


@pytest.mark.parametrize(("name", "engine"), _params(CASES))
@pytest.mark.parametrize("special", MODES)
@given(data=st.data())
@pytest.mark.slow
@pytest.mark.cases(3)
def test_documents_of_any_text_have_the_librarys_ids(
    name: str, engine: EngineName, special: SpecialTokens, data: st.DataObject
) -> None:
    added = [token.content for token in _library(name, special).get_added_tokens_decoder().values()][:30]
    _assert_right(name, engine, special, data.draw(mixtures((*SPECIAL_LOOKING, *added))))


@pytest.mark.slow
@pytest.mark.cases(2)
@on_all_kinds
def test_the_recipe_has_what_stands_around_a_document(name: str) -> None:
    marks, recipe = KINDS[name], _source(name, "tokenizers", "text").recipes[0]
    names = _library(name, "text").id_to_token
    assert tuple(map(names, recipe.begin_of_document)) == marks.before
    assert tuple(map(names, recipe.after)) == marks.after
    assert names(recipe.padding_id) == (*marks.after, marks.padding or names(0))[0]


@pytest.mark.cases(3)
@pytest.mark.parametrize(("name", "engine"), _params(CASES))
def test_a_special_token_in_a_text_is_one_only_where_it_was_asked_for(name: str, engine: EngineName) -> None:
    tokenizer = _library(name, "text")
    added = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    value = f"a {next(iter(added))} b"
    ids = {special: _milled(_source(name, engine, special), value)[1:] for special in MODES}
    assert added[next(iter(added))] in ids["tokens"]
    assert added[next(iter(added))] not in ids["text"]


def test_raw_bytes_have_no_special_tokens_in_texts() -> None:
    with pytest.raises(SettingsError, match='special_tokens_in_text = "tokens": raw bytes have no special tokens'):
        choose_engine(RAW, "auto", "tokens")
