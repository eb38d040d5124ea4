"""A tokenizer.json, or a step's list, on a control topic: compressed, in parts that fit a topic's default message size.

The parts follow their genesis, perhaps more than once: a worker that misses a part writes all of them.
"""

import re
import zlib
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from tokenmill.untrusted import MAX_TOKENIZER_BYTES, unzipped

TOKENIZER_PREFIX: Final = b"tokenizer/"
LIST_PREFIX: Final = b"list/"
PART_BYTES: Final = 512 * 1024
"""Size of a part: half of what a topic takes by default (1 MiB)."""
KEPT_BYTES: Final = MAX_TOKENIZER_BYTES
"""Most bytes of parts that are kept until all are there: room for the largest tokenizer, uncompressed."""
_KEY: Final = re.compile(rb"(tokenizer/|list/)([0-9a-f]{64})/([0-9]{1,6})/([0-9]{1,6})")


def tokenizer_parts(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the control records (key, value) that hold a tokenizer.json."""
    return _parts(TOKENIZER_PREFIX, content)


def list_parts(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the control records (key, value) that hold a step's list."""
    return _parts(LIST_PREFIX, content)


def _parts(prefix: bytes, content: bytes) -> Iterator[tuple[bytes, bytes]]:
    packed = zlib.compress(content, 9)
    parts = [packed[i : i + PART_BYTES] for i in range(0, len(packed), PART_BYTES)]
    digest = sha256(content).hexdigest()
    for number, part in enumerate(parts):
        yield prefix + f"{digest}/{number}/{len(parts)}".encode(), part


class TokenizerParts:
    """The parts of one tokenizer or list, as they come; holds at most `KEPT_BYTES`."""

    def __init__(self, digest: str, prefix: bytes = TOKENIZER_PREFIX) -> None:
        """Wait for the parts of the file with this SHA-256, whose keys begin with ``prefix``."""
        self._digest = digest
        self._prefix = prefix
        self._parts: dict[int, dict[int, bytes]] = {}
        """Parts by their number, for each total count: a writer with another part size has another count."""
        self._bytes = 0
        self._packed: bytes | None = None
        """The joined parts once their hash was checked; later parts are ignored then."""

    def add(self, key: bytes, value: bytes) -> None:
        """Add a part; those of others are ignored.

        Raises:
            ValueError: the record is no part, or there are too many.

        """
        found = _KEY.fullmatch(key)
        if found is None or int(found[3]) >= int(found[4]):
            raise ValueError("its key names no part of a tokenizer or a list")
        if self._packed is not None or (found[1], found[2].decode()) != (self._prefix, self._digest):
            return
        number, count = int(found[3]), int(found[4])
        parts = self._parts.setdefault(count, {})
        grown = self._bytes + len(value) - len(parts.get(number, b""))
        if grown > KEPT_BYTES:
            raise ValueError(f"the file has more than {KEPT_BYTES} bytes of parts")
        parts[number], self._bytes = value, grown
        if len(parts) == count:
            self._prove(b"".join(parts[i] for i in range(count)))

    def content(self) -> bytes | None:
        """Return what the file holds; None while a part is missing or not what it should be."""
        return None if self._packed is None else unzipped(self._packed, self._digest)

    def _prove(self, packed: bytes) -> None:
        if unzipped(packed, self._digest) is not None:
            self._packed = packed
            self._parts.clear()
