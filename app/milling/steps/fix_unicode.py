"""The step ``fix_unicode``: ftfy repairs text that was decoded in the wrong way, as "â€œ" for a quotation mark."""

import re
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from typing import Any, ClassVar, Final, Literal
from unicodedata import unidata_version

from tokenmill.documents import Document
from tokenmill.errors import RecordError
from tokenmill.parameters import describe_step

from ..foreign_code import shown_error
from .basic import with_sorted_marks
from .protocol import EachAlone

FIX_FAILED: Final = "fix_unicode_failed"
"""Dead-letter reason: ftfy raised over the text."""
SEGMENT: Final = 1 << 14
"""Characters of a line that ftfy looks at together: some of its rules take more than linear time, and a text may be one
line. A longer line is repaired piece by piece."""
_MAY_CHANGE: Final = re.compile(r"[^\t\n\x20-\x25\x27-\x7e]")
"""A character in which ftfy may see something to repair: not ASCII, a control character, or an ampersand."""


@dataclass(frozen=True, slots=True)
class FixUnicode(EachAlone):
    """Repairs text with ftfy, whose parameters have these names; the defaults are those of datatrove 0.10."""

    name: ClassVar[str] = "fix_unicode"

    fix_encoding: bool = True
    """Undo decoding in a wrong character set."""
    unescape_html: bool = True
    """Replace HTML's character references, as ``&amp;``, on lines without a ``<`` (ftfy's ``auto``)."""
    remove_terminal_escapes: bool = True
    """Remove colours and other escape sequences of terminals."""
    fix_latin_ligatures: bool = False
    """Replace ligatures, as U+FB01, by their letters."""
    fix_character_width: bool = False
    """Replace full-width and half-width characters by the usual ones; Chinese punctuation is full-width."""
    uncurl_quotes: bool = False
    """Replace curly quotation marks by straight ones."""
    fix_line_breaks: bool = False
    """Let lines end with a line feed alone."""
    remove_control_chars: bool = True
    """Remove control characters that are not displayed."""
    normalization: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = "none"
    """Unicode normal form of the result; ``none`` leaves it as it is."""
    _config: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        import ftfy  # noqa: PLC0415 - in an extra

        values = {one.name: getattr(self, one.name) for one in fields(self) if one.init}  # ftfy has the same names
        values["unescape_html"] = "auto" if self.unescape_html else False
        values["normalization"] = None if self.normalization == "none" else self.normalization
        config = ftfy.TextFixerConfig(**values, max_decode_length=SEGMENT, explain=False)
        object.__setattr__(self, "_config", config)

    def describe(self) -> dict[str, Any]:
        """Return name, version, parameters, and the versions of ftfy and of Unicode that decide the answers."""
        return describe_step(self, version=1, ftfy=version("ftfy"), unicode=unidata_version)

    def __call__(self, document: Document) -> Document:
        """Return the document with its text repaired. Raises RecordError: `FIX_FAILED`."""
        import ftfy  # noqa: PLC0415 - in an extra

        if _MAY_CHANGE.search(document.text) is None:
            return document
        text = document.text
        try:
            if self.normalization != "none":
                text = with_sorted_marks(self.normalization, text)
            text = ftfy.fix_text(text, self._config)
        except MemoryError:
            raise  # says nothing about the text: the worker ends, and another one tries again
        except Exception as error:
            raise RecordError(FIX_FAILED, shown_error(error)) from error
        return document if text == document.text else document._replace(text=text)
