"""From settings to the ids around each document."""

from typing import Any

import pytest

from tests.app.milling.tokenizers.conftest import AROUND, words
from tokenmill.app.milling.document_frame import DocumentFrame, document_frame
from tokenmill.app.milling.tokenizers import TokenizerFile, open_engine
from tokenmill.errors import SettingsError

PLAIN = TokenizerFile("plain", words())
BEGUN = TokenizerFile("begun", words(post_processor=AROUND))
BOTH = TokenizerFile("both", words(post_processor={"type": "BertProcessing", "cls": ["a", 1], "sep": ["b", 2]}))
BYTES = TokenizerFile("bytes", None)


def _frame(tokenizer: TokenizerFile, **said: Any) -> DocumentFrame:
    settings = {"begin": None, "end": None, "padding": None, "template": "none", "pads": True} | said
    return document_frame(tokenizer, open_engine(tokenizer), **settings)


@pytest.mark.parametrize(
    ("tokenizer", "said", "expected"),
    [
        (PLAIN, {}, ((), (3,), None)),
        (PLAIN, {"begin": "a", "end": "b"}, ((1,), (2,), None)),
        (PLAIN, {"begin": "none", "padding": 0}, ((), (3,), 0)),
        (PLAIN, {"padding": "<eos>"}, ((), (3,), None)),
        (PLAIN, {"end": "none", "padding": "a"}, ((), (), 1)),
        (PLAIN, {"end": "none", "pads": False}, ((), (), None)),
        (PLAIN, {"padding": "a", "pads": False}, ((), (3,), None)),
        (BEGUN, {}, ((), (3,), None)),
        (BEGUN, {"begin": "tokenizer"}, ((1,), (3,), None)),
        (BEGUN, {"template": "tokenizer", "padding": 0}, ((1,), (), 0)),
        (BEGUN, {"template": "tokenizer", "end": "<eos>"}, ((1,), (3,), None)),
        (BOTH, {"template": "tokenizer"}, ((1,), (2,), None)),
        (BOTH, {"template": "tokenizer", "begin": "tokenizer", "padding": "0"}, ((1,), (2,), 0)),
        (BOTH, {"begin": "tokenizer", "end": "tokenizer"}, ((1,), (2,), None)),
        (BYTES, {"begin": 2, "end": "3"}, ((2,), (3,), None)),
        (BYTES, {"end": "none"}, ((), (), 0)),
    ],
)
def test_a_frame_is_what_the_settings_say(tokenizer: TokenizerFile, said: dict[str, Any], expected: Any) -> None:
    """Padding is written only where it is not the last id of a document."""
    assert tuple(_frame(tokenizer, **said)) == expected


@pytest.mark.parametrize(
    ("tokenizer", "said", "named"),
    [
        (PLAIN, {"begin": "<bos>"}, r"^begin_of_document = '<bos>' is no token .*from 0 to 3"),
        (PLAIN, {"end": 4}, r"^end_of_document = 4 is no token"),
        (PLAIN, {"padding": "<pad>"}, r"^padding = '<pad>' is no token"),
        (PLAIN, {"end": "none"}, r"none to pad with: set padding .*allow_flush = false"),
        (PLAIN, {"template": "tokenizer"}, "the tokenizer has no template"),
        (PLAIN, {"begin": "tokenizer"}, "the tokenizer has no template"),
        (BEGUN, {"end": "tokenizer"}, r'^end_of_document = "tokenizer": .*puts nothing there'),
        (BEGUN, {"template": "tokenizer"}, "set padding"),
        (BEGUN, {"template": "tokenizer", "begin": "b"}, r"^begin_of_document = 'b' and template .*remove one"),
        (BOTH, {"template": "tokenizer", "end": "none"}, r"^end_of_document = 'none' and template"),
        (BYTES, {"template": "tokenizer"}, "raw bytes have no template"),
        (BYTES, {"begin": 256}, r"^begin_of_document = 256 is no token .*from 0 to 255"),
    ],
)
def test_what_cannot_be_is_refused(tokenizer: TokenizerFile, said: dict[str, Any], named: str) -> None:
    """With the setting, and what to do."""
    with pytest.raises(SettingsError, match=named):
        _frame(tokenizer, **said)


def test_ids_of_a_template_outside_the_vocabulary_are_refused() -> None:
    """A file may name any number."""
    wrong = AROUND | {"special_tokens": {"a": {"id": "a", "ids": [9], "tokens": ["a"]}}}
    with pytest.raises(SettingsError, match=r"^begin_of_document = 9 is no token"):
        _frame(TokenizerFile("wrong", words(post_processor=wrong)), template="tokenizer", padding=0)
