"""The step ``regex``: documents in which a pattern is found are filtered out, or the others are."""

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, ClassVar, Final

from tokenmill.documents import Document
from tokenmill.parameters import describe_step

from .protocol import EachAlone, Rejected

MATCHED: Final = "matched"
"""Filter reason: the pattern was found."""
NOT_MATCHED: Final = "not_matched"
"""Filter reason: the pattern was not found, where it must be."""
PATTERN_MEMORY: Final = 8 << 20
"""Bytes that RE2 may use for a compiled pattern and its automata, RE2's own default; a larger pattern is refused."""


@dataclass(frozen=True, slots=True)
class RegexStep(EachAlone):
    """Filters by a regular expression in RE2's syntax, which is matched in time linear in the text.

    RE2 never backtracks, so no pattern explodes. It has no back references and no look-around.
    """

    name: ClassVar[str] = "regex"

    regex_exp: str
    """The pattern, found anywhere in the text; ``(?i)`` at its beginning ignores case, ``(?m)`` lets ^ and $ mean
    lines, ``(?s)`` lets the dot match line feeds."""
    keep_matched: bool = False
    """Keep the documents in which it is found, instead of the others."""
    _pattern: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pattern", _compiled(self.regex_exp))

    def describe(self) -> dict[str, Any]:
        """Return name, version, parameters and the version of RE2."""
        return describe_step(self, version=1, re2=version("google-re2"))

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document, or the reason `MATCHED` or `NOT_MATCHED`."""
        found = self._pattern.search(document.text.encode())
        if (found is not None) == self.keep_matched:
            return document
        if found is None:
            return Rejected(NOT_MATCHED)
        return Rejected(MATCHED, f"at byte {found.start():,}: {found.group()[:100].decode(errors='replace')!r}")


def _compiled(pattern: str) -> Any:
    import re2  # noqa: PLC0415 - in an extra

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY
    options.log_errors = False
    try:
        return re2.compile(pattern.encode(), options=options)
    except re2.error as error:
        said = error.args[0]
        words = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise ValueError(
            f"regex_exp = {pattern[:100]!r} is no pattern of RE2: {words} (RE2 has no back references and no "
            "look-around: https://github.com/google/re2/wiki/Syntax)"
        ) from error
