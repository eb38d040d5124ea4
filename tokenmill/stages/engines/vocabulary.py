"""What a stream has to know of a vocabulary: the id between documents, and the dtype of its tokens."""

from typing import Final

import numpy as np

from tokenmill.errors import SettingsError
from tokenmill.stages.engines.protocol import Engine
from tokenmill.stages.engines.raw_bytes import END_OF_DOCUMENT, RawBytes

USUAL_NAMES: Final = (
    "<|endoftext|>",  # GPT-2 and its descendants, Qwen, OLMo, Whisper
    "<|end_of_text|>",  # Llama 3
    "</s>",  # Llama 2, Mistral, T5
    "<eos>",  # Gemma
    "<|eos|>",
    "<|end_of_sentence|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 - DeepSeek writes it with these characters
    "<EOT>",  # Claude
    "[EOS]",
    "[SEP]",  # BERT
)
"""Names under which tokenizers have the token that ends a text, the usual first; where a vocabulary has several, the
earliest here is taken. (Not ``<|im_end|>`` and the like, which end a turn.)"""


def end_of_document_id(engine: Engine, setting: str | int | None) -> int:
    """Return the id that follows every document.

    ``setting`` is a token's name or its id (also as decimal digits, unless a token has that name); None takes the first
    of `USUAL_NAMES` that the vocabulary has, and 0 for raw bytes.

    Raises:
        SettingsError: there is no such token, or none of the usual ones.

    """
    if setting is None:
        return _usual(engine)
    number = setting if isinstance(setting, int) else engine.token_id(setting)
    if number is None and isinstance(setting, str) and setting.isascii() and setting.isdecimal():
        number = int(setting)
    if number is None or isinstance(setting, bool) or not 0 <= number < engine.vocabulary_size:
        raise SettingsError(
            f"end_of_document = {setting!r} is no token of the tokenizer: give the name of one, "
            f"or an id from 0 to {engine.vocabulary_size - 1}"
        )
    return number


def _usual(engine: Engine) -> int:
    if isinstance(engine, RawBytes):
        return END_OF_DOCUMENT
    for name in USUAL_NAMES:
        number = engine.token_id(name)
        if number is not None:
            return number
    raise SettingsError(
        "the tokenizer has no token that usually ends a text: set end_of_document to the name or id of the one to use"
    )


def dtype_for(vocabulary_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest of uint8, uint16 and uint32, little-endian, that holds every id below ``vocabulary_size``."""
    if vocabulary_size <= 1 << 8:
        return np.dtype("<u1")
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
