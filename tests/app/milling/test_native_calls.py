"""A panic of native code is an error like others; what is no error stays what it is."""

import asyncio

import pytest
from tokenizers import Tokenizer

from tests.app.milling.tokenizers.panicking import HARMFUL, panicking
from tokenmill.app.milling.foreign_code import NativeCode, is_panic, shown_error
from tokenmill.errors import PanicError

CODE = NativeCode("the library")


def test_panic_becomes_an_error() -> None:
    """With the library's own words; `except Exception` sees it, which passes by what the library raises."""
    tokenizer = Tokenizer.from_str(panicking().decode())
    with pytest.raises(BaseException, match="retry-limit-in-match") as raw:
        tokenizer.encode(HARMFUL)
    assert is_panic(raw.value)
    assert not isinstance(raw.value, Exception)
    with pytest.raises(PanicError, match=r"^the library panicked \(.*retry-limit-in-match") as caught, CODE:
        tokenizer.encode(HARMFUL)
    assert is_panic(caught.value.__cause__ or ValueError())


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError(), GeneratorExit(), ValueError("own words")]
)
def test_everything_else_passes_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, CODE:
        raise error
    assert caught.value is error


def test_what_an_error_says_is_short_and_ascii() -> None:
    assert shown_error(ValueError("é\x1b" + "x" * 10_000)).startswith(r"ValueError: \xe9")
    assert len(shown_error(ValueError("é" * 10_000))) == 500
