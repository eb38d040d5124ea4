"""Mode ``text``."""

from hypothesis import given

from tests.app.milling.decoding.opened import answer, opened
from tests.strategies import texts
from tokenmill.documents import Document


@given(texts)
def test_any_utf8_is_its_text(text: str) -> None:
    """JSON stays JSON, NUL and line ends stay; only one leading byte order mark goes."""
    assert answer(opened("text"), text.encode()) == Document(text.removeprefix("\ufeff"))


def test_a_text_over_the_limit_is_refused() -> None:
    """The limit counts UTF-8 bytes, the byte order mark not included."""
    decoder = opened("text", max_text_bytes=4)
    assert answer(decoder, "\ufefféé".encode()) == Document("éé")
    assert answer(decoder, "ééa".encode()) == "too_large"
