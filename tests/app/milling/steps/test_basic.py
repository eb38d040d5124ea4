"""Steps that settings of their own ask for, and bounds of texts."""

import sys
import time
import tracemalloc
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.steps.curated import opened
from tests.strategies import documents
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps import Rejected, Step
from tokenmill.app.milling.steps.basic import (
    FORMS,
    LONG_RUN,
    NORMALIZED_TOO_LARGE,
    SLICE_CHARACTERS,
    Form,
    MinChars,
    Normalize,
    NormalizedLength,
    NotEmpty,
    normalized_limit,
)
from tokenmill.app.milling.tokenizers import TOKENIZER_FAILED
from tokenmill.documents import Document
from tokenmill.errors import PanicError, RecordError


def test_nothing_but_white_space_is_empty_and_anything_else_is_kept_as_it_is() -> None:
    for text in ("", " ", "\n\t \r\n", "\u3000\u00a0\u2028"):
        assert NotEmpty()(Document(text, "id")) == Rejected("empty")
    for text in ("a", " a ", "\0", "\u200b", "\ufeff"):
        assert NotEmpty()(Document(text, "id")) == Document(text, "id")


@given(documents, st.integers(1, 20))
def test_exactly_the_shorter_documents_are_filtered(document: Document, characters: int) -> None:
    expected = Rejected("min_chars") if len(list(document.text)) < characters else document
    found = MinChars(characters)(document)
    assert found == expected
    assert isinstance(found, Document) or found.detail == f"{len(document.text)} chars, fewer than {characters}"
    assert MinChars(3).describe() == {"name": "min_chars", "characters": 3}


forms = st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"])


MARKS = "\u0301\u0316\u0f73\u0344\u0f71\uff9e\u3099\u0591"
"""Of several classes; some are made of two marks, some are marks in a compatibility form alone."""
pieces = st.sampled_from(["", "e", "\u00e9", "\uac00", "\u1161", "\ufb01", "\u0f71", MARKS])
runs = st.tuples(pieces, st.lists(st.sampled_from(MARKS), min_size=1, max_size=9), st.integers(1, 3 * LONG_RUN))


def with_runs(found: list[Any], end: str) -> Document:
    return Document("".join(piece + ("".join(marks) * count)[:count] for piece, marks, count in found) + end)


@given(forms, documents | st.builds(with_runs, st.lists(runs, max_size=4), pieces))
def test_only_the_text_is_normalised_with_marks_in_the_order_of_python(form: Form, document: Document) -> None:
    right = document._replace(text=unicodedata.normalize(form, document.text))
    answer = Normalize(form)(document)
    assert answer == right
    assert (answer is document) == (right == document)
    assert list(Normalize(form).many(DocumentColumns.of([document]))) == ([] if right == document else [(0, right)])
    # two Pythons that may disagree never work under one fingerprint
    assert Normalize(form).describe() == {"name": "normalize", "form": form, "unicode": unicodedata.unidata_version}


@pytest.mark.parametrize("form", FORMS)
def test_everything_that_a_mark_is_made_of_is_a_mark(form: Form) -> None:
    """So that sorting moves nothing past a letter; in the Unicode version of this Python."""
    every = (chr(number) for number in range(sys.maxunicode + 1) if not 0xD800 <= number < 0xE000)
    made = [unicodedata.normalize("NFKD" if "K" in form else "NFD", character) for character in every]
    assert not [one for one in made if unicodedata.combining(one[0]) and not all(map(unicodedata.combining, one))]


@pytest.mark.parametrize("form", FORMS)
def test_a_text_of_marks_takes_no_square_of_time(form: Form) -> None:
    """300,000 of them take Python alone a minute and more, while no other thread runs."""
    began = time.process_time()
    Normalize(form)(Document("\u0301\u0316" * 150_000))
    assert time.process_time() - began < 10


LONG = "a" * (SLICE_CHARACTERS + 1)


def test_the_limit_is_that_of_the_normalized_text() -> None:
    step = NormalizedLength(3 * len(LONG), lambda text: text.replace("a", "\ufdfa"))
    document = Document(LONG, 7)
    assert step(document) is document
    with pytest.raises(RecordError, match=f"^{NORMALIZED_TOO_LARGE}: .*{3 * len(LONG)}"):
        step(Document(LONG + "a"))

    # without a normalizer it is the text that counts
    step = NormalizedLength(len(LONG) + 1)
    assert step(Document(LONG + "a")).text == LONG + "a"
    with pytest.raises(RecordError, match=NORMALIZED_TOO_LARGE):
        step(Document(LONG + "\u00e4"))


def test_a_short_text_is_not_looked_at() -> None:
    """However long normalizing makes it: it takes little memory, and most texts are short."""
    step = NormalizedLength(1, lambda _: pytest.fail("it was normalized"))
    short = Document(LONG[1:])
    assert step(short) is short
    assert list(step.many(DocumentColumns.of([short, Document("")]))) == []


def test_texts_are_normalized_in_slices() -> None:
    """Of `SLICE_CHARACTERS`, and no further than needed: memory stays bounded while it is measured."""
    sizes = []

    def normalize(text: str) -> str:
        sizes.append(len(text))
        return text * 18

    step = NormalizedLength(18 * 2 * SLICE_CHARACTERS, normalize)
    text = Document("a" * (4 * SLICE_CHARACTERS))
    tracemalloc.start()
    with pytest.raises(RecordError):
        step(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sizes == [SLICE_CHARACTERS] * 3
    assert peak < 3 * 18 * SLICE_CHARACTERS
    sizes.clear()
    step(Document("a" * (2 * SLICE_CHARACTERS)))
    assert sizes == [SLICE_CHARACTERS] * 2


@pytest.mark.parametrize("error", [PanicError("tokenizers panicked"), ValueError("no")])
def test_a_normalizer_that_fails_is_a_tokenizer_that_fails(error: Exception) -> None:
    def normalize(_: str) -> str:
        raise error

    with pytest.raises(RecordError, match=f"^{TOKENIZER_FAILED}: "):
        NormalizedLength(1, normalize)(Document(LONG))
    error = MemoryError()
    with pytest.raises(MemoryError):
        NormalizedLength(1, normalize)(Document(LONG))


@pytest.mark.parametrize(("most", "limit"), [(1, 3 << 19), (3 << 19, 3 << 19), (3 << 20, 3 << 20)])
def test_limit_follows_the_longest_text(most: int, limit: int) -> None:
    """But a short one is no reason to refuse what normalizing makes long: that is about memory."""
    assert normalized_limit(most) == limit


def _kept(step: Step, count: int = 2000) -> set[int]:
    documents = (Document(f"text {n}", n) for n in range(count))
    return {n for n, document in enumerate(documents) if not isinstance(step(document), Rejected)}


def test_about_the_share_is_kept_and_a_larger_share_keeps_all_of_a_smaller_one() -> None:
    small, large = _kept(opened("sample", rate=0.1)), _kept(opened("sample", rate=0.3))
    assert 150 < len(small) < 250
    assert 520 < len(large) < 680
    assert small < large
    assert _kept(opened("sample", rate=0.1, seed=1)) != small
    assert _kept(opened("sample", rate=0)) == set()
    assert len(_kept(opened("sample", rate=1.0))) == 2000
    # the choice is a rule of the format: other documents would be other streams
    assert sorted(_kept(opened("sample", rate=0.01), 400)) == [14, 72, 91, 116, 193]


def test_the_id_decides_or_the_text() -> None:
    by_id, by_text = opened("sample"), opened("sample", by="content")
    same_id = {isinstance(by_id(Document(f"{n}", "name")), Rejected) for n in range(64)}
    assert len(same_id) == 1
    for n in range(64):
        without = isinstance(by_id(Document(f"{n}")), Rejected)
        assert isinstance(by_text(Document(f"{n}", "name")), Rejected) is without
