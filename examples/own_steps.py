"""Preprocessing of one's own in the service: a step that gets each document, and a decoder that gets each record.

    tokenmill try pages/ --function own_steps:tidy
    tokenmill up --function own_steps:tidy

docs/own_functions.md says what such a function may do. The service finds this module in its working directory.
"""

# ruff: noqa: INP001 - a module beside scripts, no part of a package

import html
import re

from tokenmill.documents import Document

_TAG = re.compile(r"<[^<>]{1,1000}>")
_ADDRESS = re.compile(r"https?://\S+")
_SPACES = re.compile(r"[^\S\n]+")
_FEWEST_WORDS = 5


def tidy(document: Document) -> Document | str:
    """Return the document without tags, addresses and doubled spaces, or the reason why it is left out."""
    text = html.unescape(_TAG.sub(" ", document.text))
    text = _SPACES.sub(" ", _ADDRESS.sub("", text)).strip()
    if len(text.split()) < _FEWEST_WORDS:
        return "few_words"
    return Document(text, document.id, document.fields)


tidy.version = "1"  # type: ignore[attr-defined]  # raise it whenever an answer changes
tidy.reasons = ("few_words",)  # type: ignore[attr-defined]  # all that it may give


def latin_1(value: bytes) -> Document | str:
    """Return the document of a record that an older system wrote, or the reason why there is none."""
    text = value.decode("latin-1")
    return Document(text) if text.strip() else "nothing_there"


latin_1.version = "1"  # type: ignore[attr-defined]
latin_1.reasons = ("nothing_there",)  # type: ignore[attr-defined]
