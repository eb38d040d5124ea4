"""The step ``url``: documents whose address is on a list, or has words of a list, are filtered out.

The rules are those of datatrove's ``URLFilter``, without the lists that it brings. It finds registered domains
by the public suffix list; here an entry stands for itself and all that ends with it.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, Self
from urllib.parse import urlsplit

from tokenmill.documents import Document, Limits
from tokenmill.parameters import ListFile, list_entries

from .protocol import EachAlone, Rejected

_BETWEEN: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class UrlStep(EachAlone):
    """Filters by a field that holds the document's address; each list stands in the settings, or in a file."""

    name: ClassVar[str] = "url"

    extra_domains: tuple[str, ...] | ListFile = ()
    """Domains: ``example.com`` stands for ``www.example.com``, too. Reason ``domain``."""
    extra_urls: tuple[str, ...] | ListFile = ()
    """Whole addresses, as they stand in the field. Reason ``url``."""
    banned_words: tuple[str, ...] | ListFile = ()
    """Words, of which one is enough: letters and digits between other characters. Reason ``hard_blacklisted``."""
    soft_banned_words: tuple[str, ...] | ListFile = ()
    """Words of which ``soft_word_threshold`` different ones are enough. Reason ``soft_blacklisted``."""
    banned_subwords: tuple[str, ...] | ListFile = ()
    """Parts of words, found in the letters and digits of the whole address. Reason ``blacklisted_subword``."""
    soft_word_threshold: int = 2
    """How many of the soft words are enough."""
    field_name: str = "url"
    """Name of the field, which must be one of ``metadata_fields``."""
    missing: Literal["keep", "filter"] = "keep"
    """What becomes of a document without an address. Reason ``no_url``."""
    _domains: frozenset[str] = field(init=False, repr=False, compare=False)
    _most_labels: int = field(init=False, repr=False, compare=False)
    """Of a listed domain: of a longer host, only the end is looked up."""
    _urls: frozenset[str] = field(init=False, repr=False, compare=False)
    _hard: frozenset[str] = field(init=False, repr=False, compare=False)
    _soft: frozenset[str] = field(init=False, repr=False, compare=False)
    _parts: frozenset[str] = field(init=False, repr=False, compare=False)
    _part_sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.soft_word_threshold < 1:
            raise ValueError(f"soft_word_threshold = {self.soft_word_threshold}: it must be 1 or more")
        found = {
            "_domains": frozenset(entry.lower().strip(".") for entry in list_entries(self.extra_domains)),
            "_urls": frozenset(list_entries(self.extra_urls)),
            "_hard": _joined(self.banned_words),
            "_soft": _joined(self.soft_banned_words),
            "_parts": _joined(self.banned_subwords),
        }
        for name, entries in found.items():
            object.__setattr__(self, name, entries - {""})
        most_labels = max((domain.count(".") + 1 for domain in found["_domains"]), default=0)
        object.__setattr__(self, "_most_labels", most_labels)
        object.__setattr__(self, "_part_sizes", tuple(sorted({len(part) for part in self._parts})))

    def within(self, metadata_fields: Sequence[str], limits: Limits) -> Self:  # noqa: ARG002 - the protocol
        """Return the step itself. Raises ValueError where the stream does not carry the field."""
        if self.field_name not in metadata_fields:
            raise ValueError(f'the field "{self.field_name}" is not read: add it to metadata_fields')
        return self

    def __call__(self, document: Document) -> Document | Rejected:
        """Return the document, or the reason of the first list that has something of its address."""
        url = document.fields.get(self.field_name)
        if not isinstance(url, str) or not url.strip():
            return document if self.missing == "keep" else Rejected("no_url")
        lowered = url.lower()
        words = set(_BETWEEN.split(lowered))
        if (domain := self._domain_of(lowered)) is not None:
            return Rejected("domain", domain)
        if url.strip() in self._urls:
            return Rejected("url", url)
        if hard := words & self._hard:
            return Rejected("hard_blacklisted", min(hard))
        if len(soft := words & self._soft) >= self.soft_word_threshold:
            return Rejected("soft_blacklisted", ", ".join(sorted(soft)))
        letters = _BETWEEN.sub("", lowered)
        # the time that this takes is that of the address, not of the list
        places = ((at, size) for size in self._part_sizes for at in range(len(letters) - size + 1))
        part = next((letters[at : at + size] for at, size in places if letters[at : at + size] in self._parts), None)
        return document if part is None else Rejected("blacklisted_subword", part)

    def _domain_of(self, url: str) -> str | None:
        host = ""
        with suppress(ValueError):  # a bracket that is not closed, for example
            host = (urlsplit(url if "//" in url else f"//{url}").hostname or "").strip(".")
        labels = host.split(".")
        ends = (".".join(labels[first:]) for first in range(max(0, len(labels) - self._most_labels), len(labels)))
        return next((end for end in ends if end in self._domains), None) if self._domains else None


def _joined(entries: tuple[str, ...] | ListFile) -> frozenset[str]:
    return frozenset(_BETWEEN.sub("", entry.lower()) for entry in list_entries(entries))
