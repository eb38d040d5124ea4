"""The filter of empty documents."""

import pytest

from tokenmill.app.milling.steps.not_empty import NotEmpty
from tokenmill.app.milling.steps.protocol import Rejected
from tokenmill.documents import Document


@pytest.mark.parametrize("text", ["", " ", "\n\t \r\n", "\u3000\u00a0\u2028"])
def test_nothing_but_white_space_is_empty(text: str) -> None:
    """The reason is ``empty``."""
    assert NotEmpty()(Document(text, "id")) == Rejected("empty")


@pytest.mark.parametrize("text", ["a", " a ", "\0", "\u200b", "\ufeff"])
def test_anything_else_is_kept_as_it_is(text: str) -> None:
    """Invisible characters are text, and white space around text stays."""
    assert NotEmpty()(Document(text, "id")) == Document(text, "id")
