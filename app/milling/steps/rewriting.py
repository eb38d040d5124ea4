"""Steps that rewrite texts: ``fix_unicode``, ``fold_capitals`` and ``replace_pii``.

- `FixUnicode`: ftfy repairs text that was decoded in the wrong way, as "â€œ" for a quotation mark.
- `FoldCapitals` writes texts in capitals in small letters; by the same rule (`folded`) ``language`` looks at them.
  Filters and language models know words as running text has them: "THE" is no stop word, and a model that has hardly
  seen capitals takes English ones for Japanese.
- `ReplacePii`: what an address is, two patterns of datatrove 0.10 (``PIIFormatter``) say, except that an IP address is
  not part of a longer number. Its replacements take turns by a counter that runs across documents; here each address
  gets the same one, so that a document depends on nothing else. Its patterns take quadratic time where a text has long
  runs without an ``@``; here each character is looked at a few times.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib.metadata import version
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from typing import Any, ClassVar, Final, Literal, Self
from unicodedata import unidata_version

from tokenmill.documents import Document
from tokenmill.errors import RecordError
from tokenmill.parameters import describe_step

from ..native_calls import shown_error
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


_CASED: Final = (*range(0x590), *range(0x1E00, 0x2000))
"""Latin, Greek, Cyrillic and Armenian: no release of Unicode adds letters there, so the rule stays what it is."""
_SMALL: Final = {code: chr(code).lower()[0] for code in _CASED if chr(code).isupper() or chr(code).istitle()}
_CAPITALS: Final = re.compile(f"[{''.join(map(chr, _SMALL))}]")
_NO_LETTERS: Final = bytes(code for code in range(0x80) if not chr(code).isalpha())


def folded(text: str) -> str:
    """Return a text in small letters if over half of its letters are capitals, all but ASCII counting as letters."""
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


RULES: Final = 2
"""Version of the rules of ``replace_pii``; since 2, an address is a whole number of four parts."""
_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_OCTET: Final = r"(?:25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
_LOCAL_BACKWARDS: Final = re.compile(rf"{_ATOM}++(?:\.{_ATOM}++)*+")
_LOCAL_BEGIN: Final = re.compile(rf"\b{_ATOM}")
_AT_DOMAIN: Final = re.compile(
    rf"@(?:(?:{_LABEL}\.)+{_LABEL}|\[(?:{_OCTET}\.){{3}}(?:{_OCTET}|[A-Za-z0-9-]*[A-Za-z0-9]:)\])"
)
_DIGITS_AND_DOTS: Final = re.compile(r"[0-9][0-9.]{6,}")
"""A run in which an address may stand: the shortest, ``1.1.1.1``, has 7 characters."""
_INSIDE_NUMBERS: Final = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}")
"""What datatrove finds, and what the rules of version 1 do: ``56.1.1.1`` in ``256.1.1.1``, too."""
_ADDRESS: Final = re.compile(rf"(?<![0-9])(?<![0-9]\.){_INSIDE_NUMBERS.pattern}(?!\.?[0-9])")
_NOT_PUBLIC: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
            "240.0.0.0/4",
        ),
    )
)  # fmt: skip
"""Networks that are not globally reachable (IANA's registry of special-purpose addresses). `ipaddress` has such a list
as well, but it differs between releases of Python."""
_PUBLIC_AFTER_ALL: Final = frozenset(map(IPv4Address, ("192.0.0.9", "192.0.0.10")))


@dataclass(frozen=True, slots=True)
class ReplacePii(EachAlone):
    """Replaces e-mail addresses and IPv4 addresses; a function of the document alone."""

    name: ClassVar[str] = "replace_pii"

    remove_emails: bool = True
    """Replace e-mail addresses."""
    remove_ips: bool = True
    """Replace IPv4 addresses."""
    only_remove_public_ips: bool = True
    """Leave addresses alone that are not globally reachable, as 192.168.0.1."""
    email_replacement: str = "email@example.com"
    """What stands in place of each e-mail address."""
    ip_replacement: str = "22.214.171.124"
    """What stands in place of each IP address; the default was unused when datatrove chose it."""
    _rules: int = field(default=RULES, repr=False, compare=False)

    def describe(self) -> dict[str, Any]:
        """Return name, version and all parameters."""
        return describe_step(self, version=self._rules)

    def by_rules(self, version: int) -> Self:
        """Return the step with earlier rules: those of version 1 find addresses inside longer numbers, too."""
        return replace(self, _rules=min(version, RULES))

    def __call__(self, document: Document) -> Document:
        """Return the document with its addresses replaced."""
        text = document.text
        if self.remove_emails and "@" in text:
            text = _replaced(text, _emails(text), self.email_replacement)
        if self.remove_ips:
            address = _INSIDE_NUMBERS if self._rules == 1 else _ADDRESS
            found = _addresses(text, address, public=self.only_remove_public_ips)
            text = _replaced(text, found, self.ip_replacement)
        return document if text == document.text else document._replace(text=text)


def _emails(text: str) -> Iterator[tuple[int, int]]:
    """Yield where datatrove's pattern finds addresses: no part of one has another ``@``, so each is looked at once."""
    low = 0
    for found in _AT_DOMAIN.finditer(text):
        at, end = found.span()
        begin = _local_begin(text, low, at)
        if begin is not None:
            yield begin, end
        low = at + 1 if begin is None else end


def _local_begin(text: str, low: int, at: int) -> int | None:
    """Return the first place from ``low`` on where what stands before the ``@`` may begin; None where there is none."""
    found = _LOCAL_BACKWARDS.match(text[low:at][::-1])
    if found is None:
        return None
    begin = _LOCAL_BEGIN.search(text, at - found.end(), at)
    return None if begin is None else begin.start()


def _addresses(text: str, address: re.Pattern[str], *, public: bool) -> Iterator[tuple[int, int]]:
    for run in _DIGITS_AND_DOTS.finditer(text):
        for found in address.finditer(text, run.start(), run.end()):
            if _is_meant(found.group(), public=public):
                yield found.span()


@lru_cache(maxsize=4096)
def _is_meant(written: str, *, public: bool) -> bool:
    try:
        address = IPv4Address(written)
    except AddressValueError:  # a leading zero
        return False
    return not public or address in _PUBLIC_AFTER_ALL or not any(address in network for network in _NOT_PUBLIC)


def _replaced(text: str, places: Iterable[tuple[int, int]], replacement: str) -> str:
    parts, end = [], 0
    for begin, until in places:
        parts += [text[end:begin], replacement]
        end = until
    return "".join([*parts, text[end:]]) if parts else text
