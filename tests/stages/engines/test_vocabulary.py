"""Tokens by name, those with a usual meaning, and dtypes."""

from typing import Any

import numpy as np
import pytest

from tests.stages.engines.conftest import words
from tokenmill.errors import SettingsError
from tokenmill.stages.engines import Engine, TokenizerFile, dtype_for, open_engine
from tokenmill.stages.engines.vocabulary import token_id_of, usual_end, usual_padding

BYTES = open_engine(TokenizerFile("bytes", None))
WORDS = open_engine(TokenizerFile("words", words()))


def _word_engine(*vocabulary: str) -> Engine:
    model = {"type": "WordLevel", "vocab": {name: i for i, name in enumerate(vocabulary)}, "unk_token": vocabulary[0]}
    return open_engine(TokenizerFile("words", words(model=model, added_tokens=[])))


@pytest.mark.parametrize(
    ("engine", "setting", "expected"),
    [
        (WORDS, "b", 2),
        (WORDS, 1, 1),
        (WORDS, "0", 0),
        (BYTES, 10, 10),
        (BYTES, "255", 255),
        (_word_engine("u", "x", "1"), "1", 2),
    ],
)
def test_the_token_is_found(engine: Engine, setting: str | int, expected: int) -> None:
    """By name or by id; a token's name goes before digits."""
    assert token_id_of(engine, "padding", setting) == expected


@pytest.mark.parametrize(
    ("engine", "setting"),
    [(WORDS, "<pad>"), (WORDS, 4), (WORDS, -1), (WORDS, "4"), (WORDS, True), (BYTES, 256), (BYTES, "a")],
)
def test_what_is_no_token_is_refused(engine: Engine, setting: str | int) -> None:
    """The message names the setting."""
    with pytest.raises(SettingsError, match=rf"^padding = {setting!r} is no token .* an id from 0 to \d+$"):
        token_id_of(engine, "padding", setting)


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (WORDS, 3),
        (BYTES, 0),
        (_word_engine("u", "</s>", "<|endoftext|>"), 2),
        (_word_engine("u", "[SEP]", "[CLS]"), 1),
    ],
)
def test_the_usual_end_is_found(engine: Engine, expected: int) -> None:
    """The most telling name first."""
    assert usual_end(engine) == expected


def test_a_vocabulary_without_a_usual_name_needs_the_setting() -> None:
    """Nothing is guessed that may be a word."""
    with pytest.raises(SettingsError, match="set end_of_document"):
        usual_end(_word_engine("[UNK]", "eos", "end"))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {
                "padding": {
                    "strategy": "BatchLongest",
                    "direction": "Right",
                    "pad_to_multiple_of": None,
                    "pad_id": 2,
                    "pad_type_id": 0,
                    "pad_token": "b",
                }
            },
            2,
        ),
        (
            {
                "model": {"type": "WordLevel", "vocab": {"u": 0, "[PAD]": 1, "<pad>": 2}, "unk_token": "u"},
                "added_tokens": [],
            },
            2,
        ),
    ],
)
def test_the_usual_padding_is_found(changed: dict[str, Any], expected: int) -> None:
    """What the file itself pads with; else a usual name, the most telling first."""
    file = TokenizerFile("words", words(**changed))
    assert usual_padding(file, open_engine(file)) == expected
    assert usual_padding(TokenizerFile("bytes", None), BYTES) == 0


def test_a_vocabulary_may_have_no_padding() -> None:
    """Then whoever needs some says so."""
    assert usual_padding(TokenizerFile("words", words()), WORDS) is None


@pytest.mark.parametrize(
    ("size", "dtype"), [(1, "<u1"), (256, "<u1"), (257, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (2**32, "<u4")]
)
def test_the_dtype_is_the_smallest_that_holds_every_id(size: int, dtype: str) -> None:
    """The largest id is the size less one."""
    assert dtype_for(size) == np.dtype(dtype)
    assert size - 1 <= np.iinfo(dtype_for(size)).max
