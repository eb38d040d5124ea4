"""Train a byte-level BPE tokenizer on a user's own text, in bounded memory.

GPT-2's scheme (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2): words by its
pattern, all 256 bytes in the vocabulary, so that no text is unknown.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from tokenizers import Tokenizer

from tokenmill.errors import InputError, SettingsError

SAMPLE_BYTES: Final = 8 << 20
"""UTF-8 bytes of text that merges are counted on: a few seconds, and more text changes few merges of 16,000."""
_PIECE_CHARACTERS: Final = 1 << 14
"""Texts are sampled in pieces of this many characters, so that one huge text cannot be all of the sample."""
_ALPHABET: Final = 256


def train_tokenizer(texts: Iterable[str], *, vocabulary_size: int) -> Tokenizer:
    """Return a tokenizer with ``<|endoftext|>`` as its only special token, id 0; ``save(path)`` writes it.

    Equal texts give an equal tokenizer. It has fewer than ``vocabulary_size`` ids where the text is too small for as
    many merges. All texts are read; at most `SAMPLE_BYTES` of them, spread evenly over the whole, are learnt from.
    Raises SettingsError where the vocabulary has no room for the bytes and the special token, or the library trains
    none; and InputError where there is no text.
    """
    try:
        from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - version 1 has none
    except ImportError as error:
        raise SettingsError(
            "tokenizers 1 trains none: install tokenizers below 1, or name another tokenizer"
        ) from error
    if vocabulary_size <= _ALPHABET:
        raise SettingsError(f"a vocabulary of {vocabulary_size} cannot hold the 256 bytes: ask for 257 or more")
    sample = _sample(texts, SAMPLE_BYTES)
    if not sample:
        raise InputError("there is no text to train a tokenizer on: name files that have some")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def _sample(texts: Iterable[str], limit: int) -> list[str]:
    """Return every k-th piece of the texts, where k is the smallest power of two for which they fit into ``limit``.

    Never holds more than ``limit`` bytes and one piece: when they are over, every second one is dropped.
    """
    kept: list[tuple[int, str]] = []
    size = 0
    step = 1
    for index, piece in enumerate(_pieces(texts)):
        if index % step:
            continue
        kept.append((length := len(piece.encode(errors="replace")), piece))
        size += length
        while size > limit and len(kept) > 1:
            kept = kept[::2]
            step *= 2
            size = sum(length for length, _ in kept)
    return [piece for _, piece in kept]


def _pieces(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), _PIECE_CHARACTERS):
            yield text[start : start + _PIECE_CHARACTERS]
