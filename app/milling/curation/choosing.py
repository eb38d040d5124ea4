"""Whether steps get kernels: where numba is installed, and kernels and references agree on the texts of a probe."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tokenmill.documents import Document
from tokenmill.errors import SettingsError

from ..document_columns import DocumentColumns
from ..steps.pipeline import STEPS
from ..steps.protocol import Answer, Rejected, Step
from ..tokenizers.protocol import PROBE

WITH_KERNELS: Final = frozenset({"c4_quality", "fineweb_quality", "gopher_quality", "gopher_repetition", "language"})
"""Steps that have a kernel, with most parameters."""


class KernelStep(ABC):
    """A step that is its reference for one document, and a kernel for many."""

    __slots__ = ()

    reference: Step

    @property
    def name(self) -> str:
        """The reference's name."""
        return self.reference.name

    def describe(self) -> dict[str, Any]:
        """Return what the reference says of itself: the answers are the same."""
        return self.reference.describe()

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the reference's answer."""
        return self.reference(document)

    @abstractmethod
    def many(self, documents: DocumentColumns) -> Iterable[tuple[int, Answer]]:
        """Answer as `Step.many`. Raises EngineError where the reference answers otherwise for one of a sample."""

    @abstractmethod
    def check(self, texts: Sequence[str]) -> None:
        """Compare kernel and reference on each of the texts. Raises EngineError where they differ."""


def faster_steps(steps: Sequence[Step]) -> tuple[tuple[Step, ...], str]:
    """Return the steps, with kernels where these can be used; and why not, or nothing where they are."""
    if not any(step.name in WITH_KERNELS for step in steps):
        return tuple(steps), ""
    try:
        from .fast_steps import with_kernels  # noqa: PLC0415 - optional, and slow to load
    except ImportError as error:
        return tuple(steps), f"numba cannot be loaded ({error}): steps take ten to a hundred times as long"
    try:
        return with_kernels(steps), ""
    except SettingsError as error:
        return tuple(steps), f"{error}: steps take ten to a hundred times as long"


def compile_kernels() -> None:
    """Compile all kernels; their machine code is kept on return (`compiled.py` says where), for an image to bring.

    It is code for this processor, and for any other of its kind with ``NUMBA_CPU_NAME=generic``. Raises ImportError
    where numba, or a library of a step, is not installed; SettingsError where kernels and references do not agree here.
    """
    from ..duplicates.window import compile_window  # noqa: PLC0415 - optional, and slow to load
    from .fast_steps import with_kernels  # noqa: PLC0415 - the same

    texts = DocumentColumns.without_fields(["A text."], [None])
    for step in with_kernels([STEPS[name]() for name in sorted(WITH_KERNELS)]):
        list(step.many(texts))  # which compiles what compares a sample, too
    compile_window()


_PROSE: Final = (
    "The history of printing begins with the duplication of images by means of stamps in very early times. "
    "It wasn't until the 15th century that Mr. Gutenberg's press (c. 1440) made books cheap; they'd cost £20 or more. "
    'What have we learned from that? To be honest, we don\'t know... "Perhaps," she said, "it\'s the ink!" '
)
_LINES: Final = "\n".join(
    f"{number}. This is line number {number} of a text that has to be long enough, with words and a stop."
    for number in range(30)
)
_PIECES: Final = (
    "See https://example.org/a?b=c#e, www.a-b.co.uk:8080/x, me@example.com, ftp://10.0.0.1/ and 1.2.3.4 or 3.14.",
    "foo:) ) bar:-( (I'm, don't) ('a') - ('b')",
    "e.g. i.e. U.S.A. a.m. 10km 5m/s 30°C. $5 US$10 -- --- … .. ... word.Word",
    " 5+3=8 x-y well-known a/b c:d <tag> #hash @user [1] [edit] {x}",
    "Über naïve Straße; ¿qué? «oui» „nein“ 「日本」。中文,English",
)

CURATION_PROBE: Final = (
    *PROBE,
    *_PIECES,
    " ".join(_PIECES),
    _PROSE,
    _PROSE * 2,
    _PROSE * 5,
    _LINES,
    _LINES.replace(" ", "\u3000"),
    _PROSE + "\n\n" + _LINES,
    _PROSE + "\n\n" + _LINES + "\n\n" + _PROSE,
    "\n".join(_PROSE.split()) * 2,
    "\n\n".join([_PROSE] * 4),
    "\r\n".join(f"- item {number} of the list…" for number in range(60)),
    "\n".join(f"* the point {number} to be and with that..." for number in range(60)),
    _PROSE + "#" * 40,
    _PROSE + "... " * 40,
    "1 2 3 4 5 6 7 8 9 " * 12,
    "incomprehensibilities counterrevolutionaries " * 40,
    "a b c d e f g h i j " * 12,
    _LINES + "\nLorem IPSUM dolor sit amet.",
    _LINES + "\nint main() { return 0; }\nThis needs JavaScript to run, sorry.\nOur Privacy Policy is here, read it.",
    _LINES + "\nWe use coo\u212aies, and more of these words.\n[1] [2] [citation needed] Three words here. [\u0663]  ",
    "x" * 3000 + " " + _PROSE + "é" * 1500 + ".\n" + "(" * 1100 + ")" * 1100,
    "\n".join(_PROSE for _ in range(3)).replace(".", "") + "\x0b\x0c\x1c\u2028" + _LINES + "\x85\u2029",
)
"""Prose, lists, repetitions, addresses, spaCy's special cases, all scripts of `PROBE`, long chunks, line breaks of all
kinds, and a text for most reasons."""
