"""Which split a record belongs to: a rule that every worker, restart and verification answers alike.

A record's shard is ``int(md5(key).hexdigest(), 16) % shards``; the splits own consecutive ranges of shards, in order.
MD5 because any language has it and its remainders are even; nothing here is a secret.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import md5
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final

from tokenmill.documents import Document
from tokenmill.errors import SettingsError

DEFAULT_SPLITS: Final[Mapping[str, int]] = MappingProxyType({"train": 980, "validation": 20})
DEFAULT_SHARDS: Final = 1000
"""A split can be had in steps of 0.1 %."""
KEYS: Final = ("id", "content")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""A split's name becomes the last part of a stream's, and so of topics and folders: no dots, no slashes, short."""


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How the shards are divided, and what decides a record's shard."""

    shards: int = DEFAULT_SHARDS
    splits: Mapping[str, int] = field(default_factory=lambda: DEFAULT_SPLITS)
    """Shards of each split, in order. What is left over belongs to no split and is counted as such."""
    by: str = "id"
    """``id``: a document's id, or its text where it has none. ``content``: its text, so equal texts stay together."""

    _names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _ends: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _only: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a rule that cannot be kept.

        Raises:
            SettingsError: it names the setting.

        """
        self._check()
        names = tuple(self.splits)
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "_ends", tuple(accumulate(self.splits.values())))
        object.__setattr__(self, "_only", names[0] if self._ends == (self.shards,) else None)

    def _check(self) -> None:
        if self.by not in KEYS:
            raise SettingsError(f'split_by = "{self.by}" is unknown: set it to one of {", ".join(KEYS)}')
        if self.shards < 1:
            raise SettingsError(f"shards = {self.shards}: set it to 1 or more")
        if not self.splits:
            raise SettingsError("splits is empty: name at least one split with its number of shards")
        for name, size in self.splits.items():
            if not _NAME.fullmatch(name):
                raise SettingsError(f"splits: {name!r} is no name: use letters, digits, _ and - (not first)")
            if size < 1:
                raise SettingsError(f"splits: {name} = {size}: give it 1 shard or more, or leave it out")
        owned = sum(self.splits.values())
        if owned > self.shards:
            raise SettingsError(f"splits: {owned} shards are given away, but there are {self.shards} (shards)")

    def split_of_document(self, document: Document) -> str | None:
        """Return the split of a document as it was decoded, before any step; None where no split owns its shard."""
        if self._only is not None:
            return self._only
        key = document.text if self.by == "content" or document.id is None else str(document.id)
        return self._split(key.encode())

    def split_of_bytes(self, value: bytes) -> str | None:
        """Return the split of a record that is no document, by its bytes; None where no split owns its shard."""
        return self._only if self._only is not None else self._split(value)

    def describe(self) -> dict[str, Any]:
        """Return, as JSON types, all that decides the answers; the order of the splits does."""
        return {"shards": self.shards, "splits": [[name, size] for name, size in self.splits.items()], "by": self.by}

    def _split(self, key: bytes) -> str | None:
        shard = int.from_bytes(md5(key, usedforsecurity=False).digest(), "big") % self.shards
        owner = bisect_right(self._ends, shard)
        return self._names[owner] if owner < len(self._names) else None
