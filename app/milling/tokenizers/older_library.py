"""What the library ``tokenizers`` before version 1 has another way; to be deleted with the support of it."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from ..foreign_code import NativeCode

INSTALLED: Final = hasattr(Tokenizer, "from_str")
SAMPLE_ONE_IN: Final = 8192
"""It needs up to a hundred times a fast engine's time, which is a third of a worker's: comparing costs some 0.5 %."""
_NO_MODEL: Final = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}


def load(content: str, *, special_is_text: bool) -> Tokenizer:
    """Return the tokenizer of a ``tokenizer.json``, without padding and truncation."""
    tokenizer = Tokenizer.from_str(content)
    tokenizer.encode_special_tokens = special_is_text
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str], *, around: bool) -> list[npt.NDArray[np.uint32]]:
    """Return the ids of each text."""
    return [np.array(one.ids, np.uint32) for one in tokenizer.encode_batch_fast(texts, add_special_tokens=around)]


def normalizer_of(normalizer: Mapping[str, Any], library: NativeCode) -> Callable[[str], str]:
    """Return the function of a normalizer, which is faster than to encode bytes; it is called within ``library``."""
    file = {"version": "1.0", "model": _NO_MODEL, "normalizer": normalizer}
    loaded = Tokenizer.from_str(json.dumps(file)).normalizer

    def normalize(text: str) -> str:
        with library:
            normalized: str = loaded.normalize_str(text)
        return normalized

    return normalize
