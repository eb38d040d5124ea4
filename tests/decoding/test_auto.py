"""Mode ``auto``: documents and plain text on one topic."""

from typing import Any

import pytest
from hypothesis import given

from tests.decoding.opened import answer, opened
from tests.strategies import json_bytes, json_objects, nasty_bytes, texts
from tokenmill.documents import Document


@given(json_objects)
def test_an_object_with_a_text_is_what_mode_json_makes_of_it(value: dict[str, Any]) -> None:
    """And one without a text is plain text, braces and all."""
    data = json_bytes(value)
    strict = answer(opened("json"), data)
    plain = strict in {"missing_text", "wrong_type"}
    assert answer(opened("auto"), data) == (Document(data.decode()) if plain else strict)


@given(texts.filter(lambda text: not text.lstrip("\ufeff \t\r\n").startswith("{")))
def test_text_that_does_not_begin_with_a_brace_is_plain_text(text: str) -> None:
    """JSON arrays and scalars, too: only objects are documents."""
    assert answer(opened("auto"), text.encode()) == Document(text.removeprefix("\ufeff"))


@given(nasty_bytes)
def test_all_that_is_utf8_is_taken_except_half_surrogate_pairs(value: bytes) -> None:
    """Whatever mode ``text`` takes, ``auto`` takes as it is, as the document that mode ``json`` sees, or not at all."""
    result = answer(opened("auto"), value)
    text, strict = answer(opened("text"), value), answer(opened("json"), value)
    if text == "invalid_utf8":
        assert result == "invalid_utf8"
    elif result == "invalid_unicode":
        assert strict == "invalid_unicode"
    else:
        assert result == (strict if isinstance(strict, Document) else text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", Document("")),
        (b"{", Document("{")),
        (b"\xef\xbb\xbf\xef\xbb\xbf{}", Document("\ufeff{}")),
        (b"{ int x; }", Document("{ int x; }")),
        (b'\xef\xbb\xbf{"text": 5}', Document('{"text": 5}')),
        (b'{"text": 5, "content": "a"}', Document("a")),
        (b' \n{"text": "a", "id": "b"}', Document("a", "b")),
        (b'\x0b{"text": "a"}', Document('\x0b{"text": "a"}')),
        (b'[{"text": "a"}]', Document('[{"text": "a"}]')),
        (b'{"text": "a"} and more', Document('{"text": "a"} and more')),
        (b'{"text": "a\\ud83d"}', "invalid_unicode"),
        (b'{"a": "\\ud83d"}', Document('{"a": "\\ud83d"}')),
        (b'{"text": "a\\ud83d"', Document('{"text": "a\\ud83d"')),
        (b'{"a":' * 5000, Document('{"a":' * 5000)),
        (b'{"text": "\xff"}', "invalid_utf8"),
    ],
)
def test_each_value_is_what_people_would_expect(value: bytes, expected: Document | str) -> None:
    """A document whose text JavaScript cut in the middle of an emoji is refused, not trained on as JSON."""
    assert answer(opened("auto"), value) == expected


def test_limits_hold_for_documents_and_for_plain_text() -> None:
    """A document over a limit is refused; it does not become plain text."""
    decoder = opened("auto", max_text_bytes=20, max_id_bytes=3)
    assert answer(decoder, b'{"text": "a", "id": "long"}') == "id_too_long"
    assert answer(decoder, b'{"text": "aaaaaaaaaaaaaaaaaaaaa"}') == "too_large"
    assert answer(decoder, b"a" * 21) == "too_large"
