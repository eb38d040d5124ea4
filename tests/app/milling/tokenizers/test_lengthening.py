"""What of a normalizer may make a text much longer, and what may not."""

import sys
from typing import Any

import pytest

from tests.app.milling.tokenizers.conftest import words
from tokenmill.app.milling.tokenizers.lengthening import HARMLESS, lengthening
from tokenmill.errors import PanicError

SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
PREPEND = {"type": "Prepend", "prepend": "\u2581"}
ACCENTS = {"type": "StripAccents"}
CASE = {"type": "Lowercase"}
STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
BYTES = {"type": "ByteLevel"}
NFKC = {"type": "NFKC"}


def parts(*several: dict[str, Any]) -> bytes:
    """Return a tokenizer with this normalizer."""
    return words(normalizer={"type": "Sequence", "normalizers": several})


@pytest.mark.parametrize(
    "content", [words(), parts(), words(normalizer=SPACES), parts(PREPEND, SPACES), parts(STRIP, CASE, ACCENTS, BYTES)]
)
def test_what_makes_no_text_much_longer_is_left_out(content: bytes) -> None:
    """As Llama 2 and Mistral have it: a text full of spaces is no longer in tokens."""
    assert lengthening(content) is None


@pytest.mark.parametrize(
    ("content", "text", "made"),
    [
        (words(normalizer={"type": "NFC"}), "\u0958", "\u0915\u093c"),
        (parts(PREPEND, NFKC, SPACES), "a \ufb03", "a ffi"),
        (parts({"type": "Replace", "pattern": {"String": "a"}, "content": "bb"}), "aa", "bbbb"),
        (parts({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}), "aa c", "b c"),
        (parts({"type": "Sequence", "normalizers": [NFKC]}), "\u2168", "IX"),
    ],
)  # fmt: skip
def test_the_others_are_applied_in_order(content: bytes, text: str, made: str) -> None:
    """Without those that are left out."""
    normalize = lengthening(content)
    assert normalize is not None
    assert normalize(text) == made


def test_a_panic_is_an_error() -> None:
    """A pattern that backtracks without end."""
    normalize = lengthening(words(normalizer={"type": "Replace", "pattern": {"Regex": r"Q(a+)+\$"}, "content": ""}))
    assert normalize is not None
    with pytest.raises(PanicError, match="tokenizers panicked"):
        normalize("Q" + "a" * 40)


@pytest.mark.slow
def test_no_character_becomes_longer_by_more_than_half_in_what_is_left_out() -> None:
    """Tried with each: so a text within `max_text_bytes` stays within the limit of normalized ones."""
    from tokenizers import normalizers  # noqa: PLC0415 - of this test alone

    tried = {
        "Lowercase": normalizers.Lowercase(),
        "Strip": normalizers.Strip(),
        "StripAccents": normalizers.StripAccents(),
    }
    assert tried.keys() | {"ByteLevel", "Prepend"} == HARMLESS
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    for name, normalizer in tried.items():
        worst = max(len(normalizer.normalize_str(one).encode()) / len(one.encode()) for one in every)
        assert worst <= 1.5, name
