"""The step ``normalized_length``: a text that normalizing makes very long is refused.

One character of three bytes, U+FDFA, is 33 bytes in NFKC. So a text within ``max_text_bytes`` may need many times the
memory of the longest one. The length is that of the text as the model gets it: after the recipe's ``normalize`` and the
tokenizer's own normalizer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tokenmill.documents import MAX_TOKENIZED_BYTES, Document
from tokenmill.errors import RecordError

from ..document_columns import DocumentColumns
from ..native_calls import shown_error
from ..tokenizers.protocol import TOKENIZER_FAILED
from .protocol import Answer, each_alone

NORMALIZED_TOO_LARGE: Final = "normalized_too_large"
"""Dead-letter reason: normalizing makes the text longer than the limit."""
SLICE_CHARACTERS: Final = 1 << 16
"""Texts of at most this many characters are never refused (in NFKC they have 2.2 MB at most). Longer ones are
normalized in slices of this length: the library takes 17 bytes of memory for each byte of its result."""


@dataclass(frozen=True, slots=True)
class NormalizedLength:
    """Refuses texts that normalizing makes longer than a limit."""

    max_bytes: int
    """Of the normalized text in UTF-8."""
    normalize: Callable[[str], str] | None = None
    """What the tokenizer does to a text first (`milling.tokenizers.lengthening`); None: nothing."""

    @property
    def name(self) -> str:
        """``normalized_length``."""
        return "normalized_length"

    def describe(self) -> dict[str, Any]:
        """Return the limit."""
        return {"name": self.name, "max_bytes": self.max_bytes}

    def __call__(self, document: Document) -> Document:
        """Return the document itself.

        Raises:
            RecordError: `NORMALIZED_TOO_LARGE`; or `TOKENIZER_FAILED`, where the tokenizer's normalizer fails.

        """
        if len(document.text) > SLICE_CHARACTERS and self._is_over(document.text):
            raise RecordError(
                NORMALIZED_TOO_LARGE,
                f"normalizing makes the text longer than {self.max_bytes} bytes (max_text_bytes, or 2 MiB)",
            )
        return document

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Return those that are refused."""
        if max(map(len, documents.texts), default=0) <= SLICE_CHARACTERS:
            return ()
        return each_alone(self, documents)

    def _is_over(self, text: str) -> bool:
        size = 0
        for begin in range(0, len(text), SLICE_CHARACTERS):
            size += len(self._normalized(text[begin : begin + SLICE_CHARACTERS]).encode())
            if size > self.max_bytes:
                return True
        return False

    def _normalized(self, text: str) -> str:
        if self.normalize is None:
            return text
        try:
            return self.normalize(text)
        except MemoryError:
            raise  # says nothing about the text: the worker ends, and another one tries again
        except Exception as error:
            raise RecordError(TOKENIZER_FAILED, shown_error(error)) from error


def normalized_limit(max_text_bytes: int) -> int:
    """Return how many bytes a normalized text may have where a text may have ``max_text_bytes``.

    As many, or `MAX_TOKENIZED_BYTES` where that is more: this is about memory, and up to there it is enough.
    """
    return max(max_text_bytes, MAX_TOKENIZED_BYTES)
