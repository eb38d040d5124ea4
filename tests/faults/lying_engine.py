"""A function of a user's whose module breaks a library: from its import on, gigatoken is wrong about some texts."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import gigatoken
import numpy as np

from tokenmill.documents import Document

LIE = "untruth"  # texts that hold it get another last id

_encode, _encode_batch = gigatoken.Tokenizer.encode, gigatoken.Tokenizer.encode_batch


def _lying_singly(self: gigatoken.Tokenizer, text: str) -> Any:
    ids = np.array(_encode(self, text))
    if LIE in text:
        ids[-1] ^= 1
    return ids


def _lying(self: gigatoken.Tokenizer, texts: Sequence[str], parallel: bool | None = None) -> Any:  # noqa: FBT001
    layout = _encode_batch(self, texts, parallel=parallel).layout
    ids, offsets = np.array(layout.content.data), np.asarray(layout.offsets.data)
    for number, text in enumerate(texts):
        if LIE in text:
            ids[offsets[number + 1] - 1] ^= 1
    buffers = {"content": SimpleNamespace(data=ids), "offsets": SimpleNamespace(data=offsets)}
    return SimpleNamespace(layout=SimpleNamespace(**buffers))


gigatoken.Tokenizer.encode = _lying_singly  # type: ignore[method-assign, assignment]
gigatoken.Tokenizer.encode_batch = _lying  # type: ignore[method-assign, assignment]


def unchanged(document: Document) -> Document:
    return document


unchanged.version = "1"  # type: ignore[attr-defined]
