"""End-of-document ids and dtypes."""

import numpy as np
import pytest

from tests.stages.engines.conftest import words
from tokenmill.errors import SettingsError
from tokenmill.stages.engines import Engine, TokenizerFile, dtype_for, end_of_document_id, open_engine

BYTES = open_engine(TokenizerFile("bytes", None))
WORDS = open_engine(TokenizerFile("words", words()))


def _word_engine(*vocabulary: str) -> Engine:
    model = {"type": "WordLevel", "vocab": {name: i for i, name in enumerate(vocabulary)}, "unk_token": vocabulary[0]}
    return open_engine(TokenizerFile("words", words(model=model, added_tokens=[])))


@pytest.mark.parametrize(
    ("engine", "setting", "expected"),
    [
        (WORDS, None, 3),
        (WORDS, "b", 2),
        (WORDS, 1, 1),
        (WORDS, "0", 0),
        (BYTES, None, 0),
        (BYTES, 10, 10),
        (BYTES, "255", 255),
        (_word_engine("u", "</s>", "<|endoftext|>"), None, 2),
        (_word_engine("u", "[SEP]", "[CLS]"), None, 1),
        (_word_engine("u", "x", "1"), "1", 2),
    ],
)
def test_the_token_is_found(engine: Engine, setting: str | int | None, expected: int) -> None:
    """By name, by id, by the usual names, the most telling one first; a token's name goes before digits."""
    assert end_of_document_id(engine, setting) == expected


@pytest.mark.parametrize(
    ("engine", "setting"),
    [(WORDS, "<pad>"), (WORDS, 4), (WORDS, -1), (WORDS, "4"), (WORDS, True), (BYTES, 256), (BYTES, "a")],
)
def test_what_is_no_token_is_refused(engine: Engine, setting: str | int) -> None:
    """The message names the setting."""
    with pytest.raises(SettingsError, match=r"^end_of_document = "):
        end_of_document_id(engine, setting)


def test_a_vocabulary_without_a_usual_name_needs_the_setting() -> None:
    """Nothing is guessed that may be a word."""
    with pytest.raises(SettingsError, match="set end_of_document"):
        end_of_document_id(_word_engine("[UNK]", "eos", "end"), None)


@pytest.mark.parametrize(
    ("size", "dtype"), [(1, "<u1"), (256, "<u1"), (257, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (2**32, "<u4")]
)
def test_the_dtype_is_the_smallest_that_holds_every_id(size: int, dtype: str) -> None:
    """The largest id is the size less one."""
    assert dtype_for(size) == np.dtype(dtype)
    assert size - 1 <= np.iinfo(dtype_for(size)).max
