"""What every decoder promises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.app.milling.decoding.opened import answer, opened
from tests.strategies import json_bytes, nasty_bytes
from tokenmill.app.milling.decoding import MODES
from tokenmill.documents import Document

TEXT, ID = st.text("a\U0001f600", max_size=3), st.text("a\1", max_size=2)
"""As long as the limits below let pass, and a little longer, in characters or in bytes only."""
NAMED = st.fixed_dictionaries({"text": TEXT}, optional={"id": ID | st.integers() | st.none(), "content": TEXT})
named = NAMED.map(json_bytes)
values = st.lists(named, max_size=8) | st.lists(named | st.binary(max_size=8), max_size=8) | st.lists(nasty_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("metadata_fields", [(), ("content",)])
@given(values=values)
def test_many_values_are_what_each_is_alone(mode: str, metadata_fields: tuple[str, ...], values: list[bytes]) -> None:
    """Documents and refusals, in their order, at any limit."""
    decoder = opened(mode, metadata_fields=metadata_fields, max_text_bytes=8, max_id_bytes=7, max_fields_bytes=24)
    documents, refused = decoder.many(values)
    found: list[Document | str] = [documents.at(index) for index in range(len(documents))]
    for index, error in refused:
        found.insert(index, error.reason)
    assert found == [answer(decoder, value) for value in values]
