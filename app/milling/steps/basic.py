"""The steps that settings of their own ask for, ``length`` and ``sample``: normalization, bounds of a text, shares.

- `NotEmpty` is always there: a document without text has nothing to train on.
- `Normalize` is Unicode normalization (UAX #15). Python puts combining marks in order one by one, which takes a square
  of time: 1.5 MB of them, 1.5 kB when compressed, would hold the interpreter for minutes. So long runs of them are
  sorted first, which changes nothing of what comes out.
- `NormalizedLength` refuses a text that normalizing makes very long. One character of three bytes, U+FDFA, is 33 bytes
  in NFKC, so a text within ``max_text_bytes`` may need many times the memory of the longest one. The length is that of
  the text as the model gets it: after the recipe's ``normalize`` and the tokenizer's own normalizer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, get_args
from unicodedata import combining, is_normalized, normalize, unidata_version

import xxhash

from tokenmill.documents import MAX_TOKENIZED_BYTES, Document
from tokenmill.errors import RecordError

from ..document_columns import DocumentColumns
from ..foreign_code import UserFunction, shown_error
from ..tokenizers.protocol import TOKENIZER_FAILED
from .protocol import Answer, EachAlone, Rejected, each_alone

EMPTY: Final = "empty"
"""Filter reason: no text, or nothing but white space."""


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """Filters out text that is empty or nothing but white space (`str.isspace`)."""

    name: ClassVar[str] = "not_empty"

    def describe(self) -> dict[str, Any]:
        """Return the name; there is no parameter."""
        return {"name": self.name}

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document, or the reason `EMPTY`."""
        if not document.text or document.text.isspace():
            return Rejected(EMPTY)
        return document

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Rejected]]:
        """Return those that are filtered out."""
        return [(index, Rejected(EMPTY)) for index, text in enumerate(documents.texts) if not text or text.isspace()]


TOO_SHORT: Final = "min_chars"
"""Filter reason: the text has fewer characters than asked for."""


@dataclass(frozen=True, slots=True)
class MinChars:
    """Filters out text of fewer than ``characters`` characters (Unicode code points, white space included)."""

    name: ClassVar[str] = "min_chars"

    characters: int

    def describe(self) -> dict[str, Any]:
        """Return the name and the number."""
        return {"name": self.name, "characters": self.characters}

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document, or the reason `TOO_SHORT`."""
        return document if len(document.text) >= self.characters else self._rejected(document.text)

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Rejected]]:
        """Return those that are filtered out."""
        return [
            (index, self._rejected(text)) for index, text in enumerate(documents.texts) if len(text) < self.characters
        ]

    def _rejected(self, text: str) -> Rejected:
        return Rejected(TOO_SHORT, f"{len(text):,} chars, fewer than {self.characters:,}")


Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
FORMS: Final[tuple[str, ...]] = get_args(Form)
LONG_RUN: Final = 512
"""Marks in a row that are sorted: fewer take Python some 0.1 ms."""


@dataclass(frozen=True, slots=True)
class Normalize:
    """Brings the text into one normalisation form."""

    name: ClassVar[str] = "normalize"

    form: Form

    def describe(self) -> dict[str, Any]:
        """Return the form, and the Unicode version that this Python knows.

        Normalisation is stable for assigned characters only: those of a later Unicode version may change with a newer
        Python, which therefore is another stream.
        """
        return {"name": self.name, "form": self.form, "unicode": unidata_version}

    def __call__(self, document: Document) -> Document:
        """Return the document with its text normalised."""
        text = self._normalized(document.text)
        return document if text is document.text else document._replace(text=text)

    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Return those that change."""
        normalized = ((index, text, self._normalized(text)) for index, text in enumerate(documents.texts))
        return [(index, documents.at(index)._replace(text=new)) for index, text, new in normalized if new is not text]

    def _normalized(self, text: str) -> str:
        """Return the text in the form; the text itself where it has it already."""
        if text.isascii():
            return text
        ordered = with_sorted_marks(self.form, text)
        if ordered is text and is_normalized(self.form, text):
            return text
        new = normalize(self.form, ordered)
        return text if new == text else new


def with_sorted_marks(form: str, text: str) -> str:
    """Return a text with the same normal ``form``, in which long runs of combining marks are in canonical order.

    The text itself is returned where there are none. A run covers a multiple of its length: few places are looked at.
    """
    parts, done = list[str](), 0
    for at in range(LONG_RUN - 1, len(text), LONG_RUN):
        if at < done or not _is_mark(form, text[at]):
            continue
        low, high = at, at + 1
        while low > done and _is_mark(form, text[low - 1]):
            low -= 1
        while high < len(text) and _is_mark(form, text[high]):
            high += 1
        if high - low >= LONG_RUN:
            marks = "".join(_decomposed(form, character) for character in text[low:high])
            parts += [text[done:low], *sorted(marks, key=combining)]  # a stable sort, as Unicode wants it
            done = high
    return "".join([*parts, text[done:]]) if parts else text


def _is_mark(form: str, character: str) -> bool:
    """Return whether all that a character is made of takes part in canonical ordering."""
    return combining(_decomposed(form, character)[0]) != 0


def _decomposed(form: str, character: str) -> str:
    return normalize("NFKD" if form.startswith("NFK") else "NFD", character)


NORMALIZED_TOO_LARGE: Final = "normalized_too_large"
"""Dead-letter reason: normalizing makes the text longer than the limit."""
SLICE_CHARACTERS: Final = 1 << 16
"""Texts of at most this many characters are never refused (in NFKC they have 2.2 MB at most). Longer ones are
normalized in slices of this length: the library takes 17 bytes of memory for each byte of its result."""


@dataclass(frozen=True, slots=True)
class NormalizedLength:
    """Refuses texts that normalizing makes longer than a limit."""

    name: ClassVar[str] = "normalized_length"

    max_bytes: int
    """Of the normalized text in UTF-8."""
    normalize: Callable[[str], str] | None = None
    """What the tokenizer does to a text first (`milling.tokenizers.vocabulary`); None: nothing."""

    def describe(self) -> dict[str, Any]:
        """Return the limit."""
        return {"name": self.name, "max_bytes": self.max_bytes}

    def __call__(self, document: Document) -> Document:
        """Return the document itself. Raises RecordError: `NORMALIZED_TOO_LARGE`, or `TOKENIZER_FAILED`."""
        text, size = document.text, 0
        if len(text) <= SLICE_CHARACTERS:
            return document
        for begin in range(0, len(text), SLICE_CHARACTERS):
            size += len(self._normalized(text[begin : begin + SLICE_CHARACTERS]).encode())
            if size > self.max_bytes:
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
    """Return ``max_text_bytes``, or `MAX_TOKENIZED_BYTES` where that is more: it is about memory, and enough."""
    return max(max_text_bytes, MAX_TOKENIZED_BYTES)


@dataclass(frozen=True, slots=True)
class LengthStep(EachAlone):
    """Keeps texts whose numbers of characters, words and lines are within bounds."""

    name: ClassVar[str] = "length"

    min_chars: int = 0
    """Fewest characters (Unicode code points)."""
    max_chars: int | None = None
    """Most characters."""
    min_words: int = 0
    """Fewest words: parts between white space (`str.split`)."""
    max_words: int | None = None
    """Most words."""
    min_lines: int = 0
    """Fewest lines that are not empty or white space alone; lines end with a line feed."""
    max_lines: int | None = None
    """Most of these lines."""

    def __post_init__(self) -> None:
        for unit in ("chars", "words", "lines"):
            low, high = self._bounds(unit)
            if low < 0 or (high is not None and high < low):
                raise ValueError(f"no text has between {low} and {high} {unit}: correct min_{unit} or max_{unit}")

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document; or ``min_chars``, ``max_chars``, … of the first bound, in that order, that is passed."""
        for unit, count in COUNTS.items():
            low, high = self._bounds(unit)
            if not low and high is None:
                continue
            found = count(document.text)
            if found < low:
                return Rejected(f"min_{unit}", f"{found:,} {unit}, fewer than {low:,}")
            if high is not None and found > high:
                return Rejected(f"max_{unit}", f"{found:,} {unit}, more than {high:,}")
        return document

    def _bounds(self, unit: str) -> tuple[int, int | None]:
        return getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")


def _words(text: str) -> int:
    return len(text.split())


def _lines(text: str) -> int:
    return sum(1 for line in text.split("\n") if line and not line.isspace())


COUNTS: Final[dict[str, Callable[[str], int]]] = {"chars": len, "words": _words, "lines": _lines}
"""How each unit is counted, in the order in which bounds are looked at."""


@dataclass(frozen=True, slots=True)
class CustomStep(EachAlone):
    """Calls a user's function and lets only documents and known reasons out of it (`milling.foreign_code`)."""

    name: ClassVar[str] = "function"

    function: UserFunction

    def describe(self) -> dict[str, Any]:
        """Return the import path and the version that the function's author states."""
        return {"name": self.name, **self.function.describe()}

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the function's answer; raises RecordError as `UserFunction`."""
        answer = self.function(document)
        return Rejected(answer) if isinstance(answer, str) else answer


NOT_CHOSEN: Final = "not_chosen"
"""Filter reason: the document is outside the share."""
_HASHES: Final = 1 << 64
"""Number of values of the hash."""


@dataclass(frozen=True, slots=True)
class SampleStep(EachAlone):
    """Keeps a share of the documents: the same ones in every run, whatever their order."""

    name: ClassVar[str] = "sample"

    rate: float = 0.5
    """Share that is kept, from 0 to 1."""
    seed: int = 0
    """Another seed chooses other documents; a larger rate with the same seed keeps all that a smaller one keeps."""
    by: Literal["id", "content"] = "id"
    """What is hashed: the id, or the text where a document has none (id); or the text (content)."""

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate = {self.rate}: a share is from 0 to 1")
        if not 0 <= self.seed < _HASHES:
            raise ValueError(f"seed = {self.seed}: it must be from 0 to 2^64 - 1")

    def __call__(self, document: Document) -> Document | Rejected:
        """Keep where XXH3-64 of ``str(id)`` in UTF-8, with the seed, is below the rate times 2^64."""
        named = document.id is not None and self.by == "id"
        content = str(document.id) if named else document.text
        chosen = xxhash.xxh3_64_intdigest(content.encode(), self.seed) < int(self.rate * _HASHES)
        return document if chosen else Rejected(NOT_CHOSEN)
