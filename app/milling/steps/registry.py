"""The steps that ``[[steps]]`` may name."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tokenmill.parameters import canonical_lines

from .c4_paragraph import C4Paragraph
from .c4_quality import C4Quality
from .decontaminate import Decontaminate, runs_of_texts
from .fineweb_quality import FinewebQuality
from .fix_unicode import FixUnicode
from .fold_capitals import FoldCapitals
from .gopher_quality import GopherQuality
from .gopher_repetition import GopherRepetition
from .language import LanguageStep
from .length import LengthStep
from .regex import RegexStep
from .replace_pii import ReplacePii
from .sample import SampleStep
from .url import UrlStep
from .words import WordsStep, list_of_words


def _lines(content: bytes, _values: Mapping[str, Any]) -> bytes:
    return canonical_lines(content)


class RegisteredStep(NamedTuple):
    """A step that settings may name."""

    step: type[Any]
    """Its class, a dataclass whose fields are the parameters."""
    list_form: Callable[[bytes, Mapping[str, Any]], bytes] = _lines
    """What becomes of a list file's content, given the step's parameters as they are written; a ValueError says why the
    content cannot be used."""


STEPS: Final[Mapping[str, RegisteredStep]] = {
    "url": RegisteredStep(UrlStep),
    "language": RegisteredStep(LanguageStep),
    "gopher_repetition": RegisteredStep(GopherRepetition),
    "gopher_quality": RegisteredStep(GopherQuality),
    "c4_quality": RegisteredStep(C4Quality),
    "c4_paragraph": RegisteredStep(C4Paragraph),
    "fineweb_quality": RegisteredStep(FinewebQuality),
    "words": RegisteredStep(WordsStep, list_of_words),
    "regex": RegisteredStep(RegexStep),
    "length": RegisteredStep(LengthStep),
    "decontaminate": RegisteredStep(Decontaminate, runs_of_texts),
    "sample": RegisteredStep(SampleStep),
    "replace_pii": RegisteredStep(ReplacePii),
    "fix_unicode": RegisteredStep(FixUnicode),
    "fold_capitals": RegisteredStep(FoldCapitals),
}
"""By name, in the order in which pages list them."""
