"""Unicode normalisation."""

import sys
import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import documents
from tokenmill.app.milling.document_columns import DocumentColumns
from tokenmill.app.milling.steps.normalize import FORMS, LONG_RUN, Form, Normalize
from tokenmill.documents import Document

forms = st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"])


@given(forms, documents)
def test_only_the_text_is_normalised(form: Form, document: Document) -> None:
    """As Python's own `unicodedata` has it; id and fields stay."""
    result = Normalize(form)(document)
    assert result == Document(unicodedata.normalize(form, document.text), document.id, document.fields)


def test_each_form_does_what_its_name_says() -> None:
    """Composed, decomposed, and both with ligatures taken apart."""
    results = {form: Normalize(form)(Document("e\u0301\ufb01\u00e9")).text for form in ("NFC", "NFD", "NFKC", "NFKD")}
    assert set(results) == set(FORMS)
    assert results == {
        "NFC": "\u00e9\ufb01\u00e9",
        "NFD": "e\u0301\ufb01e\u0301",
        "NFKC": "\u00e9fi\u00e9",
        "NFKD": "e\u0301fie\u0301",
    }


def test_the_unicode_version_is_part_of_what_it_says_of_itself() -> None:
    """Two Pythons that may disagree never work under one fingerprint."""
    assert Normalize("NFC").describe() == {"name": "normalize", "form": "NFC", "unicode": unicodedata.unidata_version}


MARKS = "\u0301\u0316\u0f73\u0344\u0f71\uff9e\u3099\u0591"
"""Of several classes; some are made of two marks, some are marks in a compatibility form alone."""
pieces = st.sampled_from(["", "e", "\u00e9", "\uac00", "\u1161", "\ufb01", "\u0f71", MARKS])
runs = st.tuples(pieces, st.lists(st.sampled_from(MARKS), min_size=1, max_size=9), st.integers(1, 3 * LONG_RUN))


@given(forms, st.lists(runs, max_size=4), pieces)
@pytest.mark.slow
def test_marks_in_a_row_are_put_in_order_as_python_does_it(form: Form, found: list[Any], end: str) -> None:
    """However many there are, and whatever is before and after them."""
    text = "".join(piece + ("".join(marks) * count)[:count] for piece, marks, count in found) + end
    document = Document(text)
    right = unicodedata.normalize(form, text)
    answer = Normalize(form)(document)
    assert answer.text == right
    assert (answer is document) == (right == text)
    changed = [(0, Document(right))] if right != text else []
    assert list(Normalize(form).many(DocumentColumns.of([document]))) == changed


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
