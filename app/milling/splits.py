"""Which split a record belongs to: a rule with the same answer in every worker, restart and verification.

A record's shard is ``int(md5(key).hexdigest(), 16) % shards``; the splits own consecutive ranges of shards, in order.
MD5 because any language has it and its remainders are even; nothing here is a secret.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import md5
from importlib import import_module
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from tokenmill.documents import Document
from tokenmill.errors import SettingsError

from .document_columns import DocumentColumns

if TYPE_CHECKING:
    from hashlib import _Hash

DEFAULT_SPLITS: Final[Mapping[str, int]] = MappingProxyType({"train": 980, "validation": 20})
DEFAULT_SHARDS: Final = 1000
"""Sizes of splits are in steps of 0.1 %."""
MOST_SHARDS: Final = 2**31
"""Enough for any share, and the square of it fits 64 bits."""
KEYS: Final = ("id", "content")
UNUSED: Final = "_unused"
"""The name, among splits, of a share that none takes on purpose; no split can have this name."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""A split's name becomes the last part of a stream's, and so of topics and folders: no dots, no slashes, short."""


def _fastest_md5() -> "Callable[[bytes], _Hash]":
    """Return Python's own MD5 where this Python has it: OpenSSL's takes longer to begin than this one to hash.

    Passing ``usedforsecurity=False`` takes as long as half a hash, so it is passed only where it is required.
    """
    with suppress(ImportError):
        own: Callable[[bytes], _Hash] = import_module("_md5").md5
        return own
    try:
        md5(b"")  # noqa: S324 - refused in FIPS mode
    except ValueError:
        return partial(md5, usedforsecurity=False)
    return md5


_MD5: Final = _fastest_md5()


def division(shards: int | None, splits: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """Return the number of shards, and how many each split owns, `UNUSED` left out.

    Without a number of shards the sizes are shares: their sum is the number. Raises SettingsError where the sizes do
    not add up to the number of shards, or `UNUSED` is not the last of them.
    """
    given = sum(splits.values())
    if shards is not None and given < shards:
        raise SettingsError(
            f"splits: {given} of {shards} shards (shards) are given away, and {1 - given / shards:.1%} of all "
            "documents would be in no split: leave shards out, then the sizes are shares of their sum; or name a split "
            f"for the rest; or leave the rest out on purpose, {UNUSED}={shards - given}"
        )
    if UNUSED in splits and list(splits)[-1] != UNUSED:
        raise SettingsError(f"splits: {UNUSED} comes before other splits: name it last")
    if splits.get(UNUSED, 1) < 1:
        raise SettingsError(f"splits: {UNUSED} = {splits[UNUSED]}: give it 1 shard or more, or leave it out")
    return max(1, given) if shards is None else shards, {name: size for name, size in splits.items() if name != UNUSED}


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How the shards are divided, and what decides a record's shard.

    Raises SettingsError, which names the setting, for a rule that cannot be kept.
    """

    shards: int = DEFAULT_SHARDS
    splits: Mapping[str, int] = field(default_factory=lambda: DEFAULT_SPLITS)
    """Shards of each split, in order. What is left over belongs to no split and is counted as such."""
    by: str = "id"
    """``id``: a document's id, or its text where it has none. ``content``: its text, so equal texts stay together."""

    _names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _ends: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _only: str | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.by not in KEYS:
            raise SettingsError(f'split_by = "{self.by}" is unknown: set it to one of {", ".join(KEYS)}')
        if not 1 <= self.shards <= MOST_SHARDS:
            raise SettingsError(f"shards = {self.shards}: set it to 1 or more, {MOST_SHARDS} at most")
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
        names = tuple(self.splits)
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "_ends", tuple(accumulate(self.splits.values())))
        object.__setattr__(self, "_only", names[0] if self._ends == (self.shards,) else None)

    def split_of_document(self, document: Document) -> str | None:
        """Return the split of a document as it was decoded, before any step; None where no split owns its shard."""
        if self._only is not None:
            return self._only
        (key,) = self._keys(DocumentColumns.of([document]))
        return self._split(key.encode())

    def owners(self, documents: DocumentColumns) -> npt.NDArray[np.intp]:
        """Return the number of each document's split in the order of ``splits``; ``len(splits)`` where none owns it."""
        if self._only is not None:
            return np.zeros(len(documents), np.intp)
        digests = b"".join([_MD5(key.encode()).digest() for key in self._keys(documents)])
        words = np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(-1, 2)
        # (high * 2**64 + low) % shards, each factor reduced first: no product reaches 2**64
        shards = np.uint64(self.shards)
        high = (words[:, 0] % shards) * np.uint64(2**64 % self.shards)
        return np.searchsorted(self._ends, (high + words[:, 1] % shards) % shards, side="right")

    def split_of_bytes(self, value: bytes) -> str | None:
        """Return the split of a record that is no document, by its bytes; None where no split owns its shard."""
        return self._only if self._only is not None else self._split(value)

    def _keys(self, documents: DocumentColumns) -> list[str]:
        if self.by == "content":
            return documents.texts
        named = zip(documents.texts, documents.ids, strict=True)
        return [name if type(name) is str else text if name is None else str(name) for text, name in named]

    def _split(self, key: bytes) -> str | None:
        shard = int.from_bytes(_MD5(key).digest(), "big") % self.shards
        owner = bisect_right(self._ends, shard)
        return self._names[owner] if owner < len(self._names) else None
