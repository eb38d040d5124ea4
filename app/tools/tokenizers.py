"""Tokenizers on this machine: one trained on a user's own text, and all that can be said of one.

Training is byte-level BPE in bounded memory, by GPT-2's scheme (Radford et al. 2019, "Language Models are Unsupervised
Multitask Learners", section 2.2): words by its pattern, all 256 bytes in the vocabulary, so that no text is unknown. A
report names the parts of a tokenizer, the engine, speeds, and whether the engines agree.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any, Final

from tokenizers import Tokenizer

from tokenmill.errors import InputError, SettingsError

from ..milling.tokenizers import FAST, PROBE, REFERENCE, Engine, EngineName, TokenizerFile, choose_engine, open_fast
from ..milling.tokenizers.checked import Spelled, TextDifference, find_differences
from ..milling.tokenizers.hugging_face import HuggingFace
from ..milling.tokenizers.vocabulary import ChosenToken, Description, dtype_for, end_of, shown_token, token_for

LEARNT_BYTES: Final = 8 << 20
"""UTF-8 bytes of text that merges are counted on: a few seconds, and more text changes few merges of 16,000."""
_PIECE_CHARACTERS: Final = 1 << 14
"""Texts are sampled in pieces of this many characters, so that one huge text cannot be all of the sample."""
_ALPHABET: Final = 256


def train_tokenizer(texts: Iterable[str], *, vocabulary_size: int) -> Tokenizer:
    """Return a tokenizer with ``<|endoftext|>`` as its only special token, id 0; ``save(path)`` writes it.

    Equal texts give an equal tokenizer. It has fewer than ``vocabulary_size`` ids where the text is too small for as
    many merges. All texts are read; at most `LEARNT_BYTES` of them, spread evenly over the whole, are learnt from.
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
    if not (sample := _spread_sample(texts, LEARNT_BYTES)):
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


def _spread_sample(texts: Iterable[str], limit: int) -> list[str]:
    """Return every k-th piece of the texts, where k is the smallest power of two for which they fit into ``limit``.

    Never holds more than ``limit`` bytes and one piece: when they are over, every second one is dropped.
    """
    kept: list[tuple[int, str]] = []
    size, step = 0, 1
    pieces = (text[at : at + _PIECE_CHARACTERS] for text in texts for at in range(0, len(text), _PIECE_CHARACTERS))
    for index, piece in enumerate(pieces):
        if index % step:
            continue
        kept.append((length := len(piece.encode(errors="replace")), piece))
        size += length
        while size > limit and len(kept) > 1:
            kept = kept[::2]
            step *= 2
            size = sum(length for length, _ in kept)
    return [piece for _, piece in kept]


SAMPLE_BYTES: Final = 16 * 1024 * 1024
"""Text that is looked at: enough for a speed, and for a fast engine's cache to be as full as it gets."""
SPEED_SECONDS: Final = 1.0
"""How long an engine is timed, unless the text ends before."""
BATCH: Final = 512
"""Documents in a batch: enough for what an engine needs for each call not to count."""


def report_on(
    tokenizer: TokenizerFile, documents: Iterable[str], wanted: EngineName, seconds: float, tick: Callable[[int], None]
) -> dict[str, Any]:
    """Describe ``tokenizer``, time engines on ``documents``, and search ``seconds`` for a text on which they differ.

    Returns JSON types: ``refused`` says why the fast engine is not used, ``speeds`` are bytes of text a second on one
    thread, ``tried`` is 0 where there are no two engines. `tick` gets the number of texts tried. Engines use one thread
    each in this process from now on. Raises SettingsError where the tokenizer cannot be used, or ``wanted`` cannot do
    it.
    """
    os.environ["RAYON_NUM_THREADS"] = "1"
    engine, refused = choose_engine(tokenizer, wanted)
    sample = _sample(documents) or list(PROBE)
    speeds = {engine.kind: _speed(engine, sample)}
    tried, differences = 0, list[TextDifference]()
    if tokenizer.content is not None:
        reference = HuggingFace(tokenizer.content)
        speeds.setdefault(REFERENCE, _speed(reference, sample))
        try:
            fast = Spelled(open_fast(tokenizer.content), reference)
        except SettingsError:
            pass  # the report says why
        else:
            speeds.setdefault(FAST, _speed(fast, sample))
            tried, differences = _search(fast, reference, sample, seconds, tick)
    size = engine.vocabulary_size
    return {
        "name": tokenizer.name,
        "description": asdict(Description.of(tokenizer)),
        "vocabulary_size": size,
        "dtype": dtype_for(size).name,
        "engine": engine.kind,
        "refused": refused,
        "speeds": speeds,
        "tried": tried,
        "differences": list(map(asdict, differences)),
        # What ends a document, and so on, if no setting says so, and why; or why that has to be set.
        "end": _shown(end_of, tokenizer, engine),
        "padding": _shown(partial(token_for, "pad"), tokenizer, engine),
        "begin": _shown(partial(token_for, "bos"), tokenizer, engine),
        "unknown": _shown(partial(token_for, "unk"), tokenizer, engine),
    }


def _shown(find: Callable[[TokenizerFile, Engine], ChosenToken | None], file: TokenizerFile, engine: Engine) -> str:
    try:
        found = find(file, engine)
    except SettingsError as error:
        return str(error)
    return "none" if found is None else f"{shown_token(engine, found.id)}, {found.why}"


def _sample(documents: Iterable[str]) -> list[str]:
    sample, size = [], 0
    for text in documents:
        sample.append(text)
        size += len(text)
        if size >= SAMPLE_BYTES:
            break
    return sample


def _speed(engine: Engine | Spelled, sample: Sequence[str]) -> float:
    engine.encode(sample[:BATCH])
    started, size, at = time.perf_counter(), 0, 0
    while at < len(sample) and time.perf_counter() - started < SPEED_SECONDS:
        batch = list(islice(sample, at, at + BATCH))
        engine.encode(batch)
        size += sum(len(text.encode()) for text in batch)
        at += len(batch)
    return size / (time.perf_counter() - started)


def _search(
    fast: Spelled, reference: HuggingFace, sample: Sequence[str], seconds: float, tick: Callable[[int], None]
) -> tuple[int, list[TextDifference]]:
    ends = time.monotonic() + seconds
    tried = 0

    def until(count: int) -> bool:
        nonlocal tried
        tried = count
        tick(count)
        return time.monotonic() >= ends

    texts = [text[:100_000] for text in sample]  # `tokenizers` needs a second for a few megabytes
    differences = find_differences(fast, reference, texts, reference.added_tokens, until)
    found = list(islice(differences, 20))  # they have mostly one cause
    return tried, found
