"""Mode ``text``."""

from hypothesis import example, given

from tests.app.milling.decoding.opened import answer, opened
from tests.strategies import nasty_bytes, texts
from tokenmill.documents import Document


@given(texts)
def test_any_utf8_is_its_text(text: str) -> None:
    """JSON stays JSON, NUL and line ends stay; only one leading byte order mark goes."""
    assert answer(opened("text"), text.encode()) == Document(text.removeprefix("\ufeff"))


@given(nasty_bytes)
@example(b"\xef\xbb\xbf\xef\xbb\xbf{}")
@example(b"\xed\xa0\x80")
def test_what_is_no_utf8_is_refused(value: bytes) -> None:
    """The answer is a text or ``invalid_utf8``, as Python's strict decoder has it."""
    result = answer(opened("text"), value)
    try:
        expected = value.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "strict")
    except UnicodeDecodeError:
        assert result == "invalid_utf8"
    else:
        assert result == Document(expected)


def test_a_text_over_the_limit_is_refused() -> None:
    """The limit counts UTF-8 bytes, the byte order mark not included."""
    decoder = opened("text", max_text_bytes=4)
    assert answer(decoder, "\ufefféé".encode()) == Document("éé")
    assert answer(decoder, "ééa".encode()) == "too_large"
