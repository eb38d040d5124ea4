"""All that can be said of a tokenizer on this machine: its parts, the engine, speeds, and whether the engines agree."""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from tokenmill.errors import SettingsError

from ..milling.tokenizers import FAST, PROBE, REFERENCE, Engine, EngineName, TokenizerFile, choose_engine, open_fast
from ..milling.tokenizers.checked import Spelled, TextDifference, find_differences
from ..milling.tokenizers.hugging_face import HuggingFace
from ..milling.tokenizers.vocabulary import ChosenToken, Description, dtype_for, end_of, shown_token, token_for

SAMPLE_BYTES: Final = 16 * 1024 * 1024
"""Text that is looked at: enough for a speed, and for a fast engine's cache to be as full as it gets."""
SPEED_SECONDS: Final = 1.0
"""How long an engine is timed, unless the text ends before."""
BATCH: Final = 512
"""Documents in a batch: enough for what an engine needs for each call not to count."""
SEARCHED_CHARACTERS: Final = 100_000
"""Of each document, in the search: `tokenizers` needs a second for a few megabytes."""
SHOWN_DIFFERENCES: Final = 20
"""The search ends there: they have mostly one cause."""


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """What `report_on` found."""

    name: str
    description: Description
    vocabulary_size: int
    dtype: str
    engine: str
    refused: str
    """Why the fast engine is not used; empty if it is, or was not asked for."""
    speeds: dict[str, float]
    """Bytes of text a second on one thread, by engine."""
    tried: int
    """Texts on which both engines were tried; 0 where there are no two."""
    differences: Sequence[TextDifference]
    end: str
    """What ends a document if no setting says so, and why; or why that has to be set."""
    padding: str
    begin: str
    """The tokenizer's own; only a setting puts it there."""
    unknown: str


def report_on(
    tokenizer: TokenizerFile, documents: Iterable[str], wanted: EngineName, seconds: float, tick: Callable[[int], None]
) -> TokenizerReport:
    """Describe ``tokenizer``, time engines on ``documents``, and search ``seconds`` for a text on which they differ.

    `tick` gets the number of texts tried. Engines use one thread each in this process from now on. Raises SettingsError
    where the tokenizer cannot be used, or ``wanted`` cannot do it.
    """
    os.environ["RAYON_NUM_THREADS"] = "1"
    choice = choose_engine(tokenizer, wanted)
    sample = _sample(documents) or list(PROBE)
    speeds = {choice.engine.kind: _speed(choice.engine, sample)}
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
    size = choice.engine.vocabulary_size
    return TokenizerReport(
        name=tokenizer.name,
        description=Description.of(tokenizer),
        vocabulary_size=size,
        dtype=dtype_for(size).name,
        engine=choice.engine.kind,
        refused=choice.refused,
        speeds=speeds,
        tried=tried,
        differences=differences,
        end=_shown(end_of, tokenizer, choice.engine),
        padding=_shown(partial(token_for, "pad"), tokenizer, choice.engine),
        begin=_shown(partial(token_for, "bos"), tokenizer, choice.engine),
        unknown=_shown(partial(token_for, "unk"), tokenizer, choice.engine),
    )


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

    texts = [text[:SEARCHED_CHARACTERS] for text in sample]
    found = list(islice(find_differences(fast, reference, texts, reference.added_tokens, until), SHOWN_DIFFERENCES))
    return tried, found
