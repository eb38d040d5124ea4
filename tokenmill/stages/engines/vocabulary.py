"""What a stream has to know of a vocabulary: tokens by name, those with a usual meaning, and the dtype of its ids."""

import json
from typing import Final

import numpy as np

from tokenmill.errors import SettingsError
from tokenmill.stages.engines.protocol import Engine
from tokenmill.stages.engines.raw_bytes import END_OF_DOCUMENT, RawBytes
from tokenmill.stages.engines.tokenizer_file import TokenizerFile

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
USUAL_PADDING: Final = (
    "<pad>",  # Gemma, T5, Mistral's later ones
    "[PAD]",  # BERT
    "<|padding|>",  # GPT-NeoX
    "<|finetune_right_pad_id|>",  # Llama 3.1 and later
    "<|pad|>",
    "<｜▁pad▁｜>",  # noqa: RUF001 - DeepSeek
)
"""Names under which tokenizers have the token that fills up rows, the usual first."""


def token_id_of(engine: Engine, name: str, setting: str | int) -> int:
    """Return the id of the token that the setting ``name`` gives, by its name or its id.

    Decimal digits are an id, unless a token has that name.

    Raises:
        SettingsError: there is no such token.

    """
    number = setting if isinstance(setting, int) else engine.token_id(setting)
    if number is None and isinstance(setting, str) and setting.isascii() and setting.isdecimal():
        number = int(setting)
    if number is None or isinstance(setting, bool) or not 0 <= number < engine.vocabulary_size:
        raise SettingsError(
            f"{name} = {setting!r} is no token of the tokenizer: give the name of one, "
            f"or an id from 0 to {engine.vocabulary_size - 1}"
        )
    return number


def usual_end(engine: Engine) -> int:
    """Return the id of the first of `USUAL_NAMES` that the vocabulary has, and 0 for raw bytes.

    Raises:
        SettingsError: it has none of them.

    """
    if isinstance(engine, RawBytes):
        return END_OF_DOCUMENT
    number = _first_of(engine, USUAL_NAMES)
    if number is None:
        raise SettingsError(
            "the tokenizer has no token that usually ends a text: set end_of_document to the name or id of the one to "
            'use, or to "none"'
        )
    return number


def usual_padding(tokenizer: TokenizerFile, engine: Engine) -> int | None:
    """Return the id that the ``tokenizer.json`` pads with, else the first of `USUAL_PADDING`; 0 for raw bytes.

    None where there is neither.
    """
    if tokenizer.content is None:
        return END_OF_DOCUMENT
    own = (json.loads(tokenizer.content).get("padding") or {}).get("pad_id")
    return own if isinstance(own, int) and own < engine.vocabulary_size else _first_of(engine, USUAL_PADDING)


def _first_of(engine: Engine, names: tuple[str, ...]) -> int | None:
    found = (engine.token_id(name) for name in names)
    return next((number for number in found if number is not None), None)


def dtype_for(vocabulary_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest of uint8, uint16 and uint32, little-endian, that holds every id below ``vocabulary_size``."""
    if vocabulary_size <= 1 << 8:
        return np.dtype("<u1")
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
