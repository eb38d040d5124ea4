"""The filter of short documents."""

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import documents
from tokenmill.app.milling.steps.min_chars import MinChars
from tokenmill.app.milling.steps.protocol import Rejected
from tokenmill.documents import Document


@given(documents, st.integers(1, 20))
def test_exactly_the_shorter_documents_are_filtered(document: Document, characters: int) -> None:
    """Characters are counted, not bytes."""
    expected = Rejected("min_chars") if len(list(document.text)) < characters else document
    found = MinChars(characters)(document)
    assert found == expected
    assert isinstance(found, Document) or found.detail == f"{len(document.text)} chars, fewer than {characters}"


def test_the_number_is_part_of_what_it_says_of_itself() -> None:
    """Another number is another stream."""
    assert MinChars(3).describe() == {"name": "min_chars", "characters": 3}
