"""The step ``replace_pii``: e-mail addresses and public IP addresses are replaced.

What an address is, two patterns of datatrove 0.10 (``PIIFormatter``) say, except that an IP address is not part of a
longer number. Its replacements take turns by a counter that runs across documents; here each address gets the same one,
so that a document depends on nothing else. Its patterns take quadratic time where a text has long runs without an
``@``; here each character is looked at a few times.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from typing import Any, ClassVar, Final, Self

from tokenmill.documents import Document
from tokenmill.parameters import describe_step

from .protocol import EachAlone

RULES: Final = 2
"""Version of the rules; since 2, an address is a whole number of four parts (`ReplacePii.by_rules`)."""
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
            runs = _DIGITS_AND_DOTS.finditer(text)
            found = (one for run in runs for one in address.finditer(text, run.start(), run.end()))
            meant = (one.span() for one in found if _is_meant(one.group(), public=self.only_remove_public_ips))
            text = _replaced(text, meant, self.ip_replacement)
        return document if text == document.text else document._replace(text=text)


def _emails(text: str) -> Iterator[tuple[int, int]]:
    """Yield where datatrove's pattern finds addresses: no part of one has another ``@``, so each is looked at once."""
    low = 0
    for found in _AT_DOMAIN.finditer(text):
        at, end = found.span()
        local = _LOCAL_BACKWARDS.match(text[low:at][::-1])
        begin = None if local is None else _LOCAL_BEGIN.search(text, at - local.end(), at)
        if begin is not None:
            yield begin.start(), end
        low = at + 1 if begin is None else end


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
