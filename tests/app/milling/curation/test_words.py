"""Words and sentences by spaCy's blank English pipeline, in a time that has a bound."""

import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from time import process_time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import curious_texts
from tokenmill.app.milling.curation.words import CHUNK_CHARACTERS, REMEMBERED_CHARACTERS, english, pieces, suffix_search

pytestmark = pytest.mark.skipif(find_spec("spacy") is None, reason="needs spaCy")


@pytest.fixture(scope="module")
def spacy() -> Any:
    """Return the module: it takes a second, and every process of a run loads this file."""
    return import_module("spacy")


@pytest.fixture(scope="module")
def stock(spacy: Any) -> Any:
    """Return spaCy's pipeline as datatrove opens it."""
    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    return pipeline


@given(text=curious_texts)
@example(text="foo:)")
@example(text="foo:) )")  # a special case is not joined where a longer one crosses a space
def test_words_and_sentences_are_those_of_spacy_without_white_space(stock: Any, text: str) -> None:
    text = text.replace("IS_ALPHA", "")
    with stock.memory_zone():
        read = stock(text)
        expected, count = [token.text.strip() for token in read if token.text.strip()], sum(1 for _ in read.sents)
    assert list(english().words(text)) == expected
    sentences = english().sentences(text)
    assert "".join(sentences) == text
    assert len(sentences) == max(count, 1)


def test_sentences_end_behind_punctuation() -> None:
    assert english().sentences("Is it? Yes!\n “No.” he said") == ["Is it?", " Yes!", "\n “No.”", " he said"]


def test_the_word_that_spacy_cannot_hold_is_left_out_everywhere() -> None:
    for _ in range(3):
        assert english().words("an IS_ALPHA, (IS_ALPHA) is.IS_ALPHA_x") == ("an", ",", "(", ")", "is._x")
    assert english().words("IS_ALPHA_x is no such word") == ("IS_ALPHA_x", "is", "no", "such", "word")
    assert english().words("IS_IS_ALPHAALPHA IS_ALPHA") == ("IS_ALPHA",)
    assert english().sentences("IS_ALPHA. IS_ALPHA! Yes.")


@given(st.lists(st.sampled_from(["x" * 1000, "y" * 1024, "z" * 1025, " ", "\n", "語" * 3000]), max_size=8))
def test_pieces_make_up_the_text_and_have_no_chunk_that_is_too_long(texts: list[str]) -> None:
    text = "".join(texts)
    found = list(pieces(text))
    assert "".join(found) == text
    assert all(len(chunk) <= CHUNK_CHARACTERS for piece in found for chunk in piece.split())
    long = [chunk for chunk in text.split() if len(chunk) > CHUNK_CHARACTERS]
    assert len(found) == 1 + sum(-(-len(chunk) // CHUNK_CHARACTERS) - 1 for chunk in long)


def test_a_long_chunk_is_cut_into_words_by_its_pieces() -> None:
    assert english().words("a " + "x" * CHUNK_CHARACTERS) == ("a", "x" * CHUNK_CHARACTERS)
    long = "x" * CHUNK_CHARACTERS + "yes"
    assert english().words(f"a {long} no.") == ("a", "x" * CHUNK_CHARACTERS, "yes", "no", ".")
    assert english().sentences(f"{long}. No") == [f"{long}.", " No"]


@pytest.mark.slow
@given(curious_texts.map(lambda text: "".join(text.split())), st.integers(0, 80), st.sampled_from("(.-a1'$"))
def test_a_suffix_is_found_in_the_end_of_a_text(spacy: Any, text: str, more: int, filling: str) -> None:
    spacy_search = spacy.util.compile_suffix_regex(spacy.blank("en").Defaults.suffixes).search
    expression: re.Pattern[str] = spacy_search.__self__
    text = filling * more + text
    expected, found = expression.search(text), suffix_search(expression)(text)
    assert (found and found.span()) == (expected and expected.span())


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", ["(", "$", ":)", "'s", "—", "a:@", "http://a:b@", "🙂", "...", "語", "\u0301", "\0", "a-"]
)
@pytest.mark.cases(4)
def test_no_chunk_takes_a_square_of_time(part: str) -> None:
    """Forty times the time of plain text is far below what spaCy takes by itself for any of these."""
    size = REMEMBERED_CHARACTERS + 1
    nasty = (part * size)[:size]
    assert _seconds(nasty) < 40 * _plain_seconds(size) + 0.1


@cache
def _plain_seconds(size: int) -> float:
    return _seconds(("The quick brown fox (it said) does not jump over 12.5 dogs. " * size)[:size])


def _seconds(text: str) -> float:
    begin = process_time()
    english().words(text)
    return process_time() - begin


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_words_need_no_torch_and_leave_it_to_others() -> None:
    """A worker beside an installed torch is as small as one without; who wants torch afterwards has it."""
    code = (
        "import sys; from tokenmill.app.milling.curation.words import english; assert english().words('a b'); "
        "assert 'torch' not in sys.modules; import importlib.util as u; "
        "print(u.find_spec('torch') is None or bool(__import__('torch').__version__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
