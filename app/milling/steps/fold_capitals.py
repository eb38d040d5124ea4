"""The step ``fold_capitals``: texts in capitals in small letters; the rule by which ``language`` looks at them as well.

Filters and language models know words as running text has them: "THE" is no stop word, and a model that has hardly seen
capitals takes English ones for Japanese.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from tokenmill.documents import Document

from .protocol import EachAlone

_CASED: Final = (*range(0x590), *range(0x1E00, 0x2000))
"""Latin, Greek, Cyrillic and Armenian: no release of Unicode adds letters there, so the rule stays what it is."""
_SMALL: Final = {code: chr(code).lower()[0] for code in _CASED if chr(code).isupper() or chr(code).istitle()}
_CAPITALS: Final = re.compile(f"[{''.join(map(chr, _SMALL))}]")
_NO_LETTERS: Final = bytes(code for code in range(0x80) if not chr(code).isalpha())


def folded(text: str) -> str:
    """Return a text in small letters if more than half of its letters are capitals; else the text itself.

    All characters that are not ASCII count as letters.
    """
    encoded = text.encode()
    letters = len(text) - (len(encoded) - len(encoded.translate(None, _NO_LETTERS)))
    return text.translate(_SMALL) if 2 * len(_CAPITALS.findall(text)) > letters else text


@dataclass(frozen=True, slots=True)
class FoldCapitals(EachAlone):
    """Writes a text in small letters where more than half of its letters are capitals."""

    name: ClassVar[str] = "fold_capitals"

    def __call__(self, document: Document) -> Document:
        """Return the document with its text folded."""
        text = folded(document.text)
        return document if text is document.text else document._replace(text=text)
