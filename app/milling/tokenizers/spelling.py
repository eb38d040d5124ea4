"""Texts that a fast encoder is known to get wrong, now and then; the reference encodes these."""

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tokenmill.errors import RecordError

from ..native_calls import shown_error
from .hugging_face import HuggingFace
from .protocol import Encoder, TokenBatch, joined

_NEW_RANGES: Final = (
    *((0x88F, 0x88F), (0xC5C, 0xC5C), (0xCDC, 0xCDC), (0x1ACF, 0x1ADD), (0x1AE0, 0x1AEB)),
    *((0xA7CE, 0xA7CF), (0xA7D2, 0xA7D2), (0xA7D4, 0xA7D4), (0xA7F1, 0xA7F1)),
)
"""Letters, digits and marks below U+10000 since Unicode 17 (September 2025; DerivedAge.txt): libraries with older
tables divide words differently there."""
_NEW: Final = tuple(chr(code) for first, last in _NEW_RANGES for code in range(first, last + 1))
_NEW_ABOVE: Final = (
    *((0x10940, 0x10959), (0x10EC5, 0x10EC7), (0x10EFA, 0x10EFB), (0x11B60, 0x11B67), (0x11DB0, 0x11DDB)),
    *((0x11DE0, 0x11DE9), (0x16EA0, 0x16EB8), (0x16EBB, 0x16ED3), (0x16FF2, 0x16FF6), (0x187F8, 0x187FF)),
    *((0x18D09, 0x18D1E), (0x18D80, 0x18DF2), (0x1E6C0, 0x1E6DE), (0x1E6E0, 0x1E6F5), (0x1E6FE, 0x1E6FF)),
    *((0x2B73A, 0x2B73F), (0x2CEA2, 0x2CEAD), (0x323B0, 0x33479)),
)
"""The same, above."""
_BEGINNINGS: Final = sorted(
    {chr(code).encode()[:2] for first, last in (*_NEW_RANGES, *_NEW_ABOVE) for code in (*range(first, last, 64), last)}
)
"""How all of them begin in UTF-8, where 64 code points differ in the last byte only, and few others do."""
_FIRST_BYTES: Final = sorted({beginning[0] for beginning in _BEGINNINGS})
"""Bytes are found many times faster than anything else, and most texts have none of these."""
_BEGINNING: Final = re.compile(b"|".join(map(re.escape, _BEGINNINGS)))

LONG_RUN: Final = 2 << 20
"""Characters without a change between white space and others. Within longer runs the reference may fail where a fast
encoder does not: its library gives up a match after 10,000,000 steps back, and the patterns that fast encoders know
take up to two for each character (``\\s*[\\r\\n]+`` over spaces), and two runs at most."""
_RUNS: Final = re.compile(r"\s+|\S+")

log = logging.getLogger(__name__)


class Spelled:
    """A fast encoder; where it may be wrong, or fails, ``reference`` encodes the text.

    It may be wrong about letters that are new in Unicode; about texts so uniform that the reference fails on them;
    about the names of added tokens beside characters that a normalizer changes; and about special tokens, whose names
    are text: a model that has them in its own vocabulary, like other words, may find them by itself, and the reference
    spells them out.
    """

    def __init__(self, fast: Encoder, reference: HuggingFace) -> None:
        """Find out what can go wrong with this tokenizer."""
        self._fast = fast
        self._reference = reference
        self._may_find_special = reference.may_find_special
        self._names = reference.found_tokens if reference.normalizes else []
        self.failures = 0
        """On how many texts the fast encoder failed so far."""

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Return the ids of ``texts``; see `milling.tokenizers.Engine`."""
        batch, doubtful = self._tried(texts)
        doubtful += [number for number, text in enumerate(texts) if self._is_doubtful(text)]
        if self._may_find_special and self._reference.is_special(batch.ids):
            doubtful += [number for number, ids in enumerate(batch) if self._reference.is_special(ids)]
        return self._replaced(batch, texts, doubtful) if doubtful else batch

    def _tried(self, texts: Sequence[str]) -> tuple[TokenBatch, list[int]]:
        """Return the fast encoder's ids, and the texts on which it fails by themselves; these have none."""
        try:
            return self._fast.encode(texts), []
        except MemoryError:
            raise  # says nothing about the text: the worker ends, and another one tries again
        except Exception as error:  # noqa: BLE001 - whatever it raises, the reference has the right answer
            if len(texts) == 1:
                self.failures += 1
                log.warning("a fast engine fails on a text, which tokenizers encodes instead: %s", shown_error(error))
                return TokenBatch(np.empty(0, np.uint32), np.zeros(2, np.int64)), [0]
        answers = [self._tried([text]) for text in texts]
        return joined([batch for batch, _ in answers]), [number for number, (_, failed) in enumerate(answers) if failed]

    def _is_doubtful(self, text: str) -> bool:
        if len(text) > LONG_RUN and any(run.end() - run.start() > LONG_RUN for run in _RUNS.finditer(text)):
            return True
        if text.isascii():
            return False
        return has_new_characters(text) or any(name in text for name in self._names)

    def _replaced(self, batch: TokenBatch, texts: Sequence[str], numbers: Sequence[int]) -> TokenBatch:
        parts = list(batch)
        failed: dict[int, RecordError] = {}
        for number in numbers:
            answer = self._reference.encode([texts[number]])
            parts[number] = answer[0]
            if answer.failed:
                failed[number] = answer.failed[0]
        return TokenBatch(np.concatenate(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64), failed)


def has_new_characters(text: str) -> bool:
    """Whether libraries of different age may see other kinds of characters in the text: since Unicode 17."""
    data = text.encode()
    if not any(first in data for first in _FIRST_BYTES) or not _BEGINNING.search(data):
        return False
    return any(character in text for character in _NEW) or any(
        first <= code <= last for code in _codes_above(text) for first, last in _NEW_ABOVE
    )


def _codes_above(text: str) -> Iterator[int]:
    """Yield the distinct code points above U+FFFF."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    yield from np.unique(codes[codes > 0xFFFF]).tolist()  # noqa: PLR2004 - the end of what two bytes number
