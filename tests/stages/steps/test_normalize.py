"""Unicode normalisation."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import documents
from tokenmill.documents import Document
from tokenmill.stages.steps.normalize import FORMS, Form, Normalize

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
