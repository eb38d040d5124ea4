"""A tokenizer.json on a control topic: compressed, in parts that fit the default message size of a topic.

The parts of a tokenizer follow its genesis, perhaps more than once: a worker that misses a part writes all of them.
"""

import re
import zlib
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from tokenmill.untrusted import MAX_TOKENIZER_BYTES, unzipped

TOKENIZER_PREFIX: Final = b"tokenizer/"
PART_BYTES: Final = 512 * 1024
"""Size of a part: half of what a topic takes by default (1 MiB)."""
KEPT_BYTES: Final = MAX_TOKENIZER_BYTES
"""Most bytes of parts that are kept until all are there: room for the largest tokenizer, uncompressed."""
_KEY: Final = re.compile(rb"tokenizer/([0-9a-f]{64})/([0-9]{1,6})/([0-9]{1,6})")


def tokenizer_parts(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the control records (key, value) that hold a tokenizer.json."""
    packed = zlib.compress(content, 9)
    parts = [packed[i : i + PART_BYTES] for i in range(0, len(packed), PART_BYTES)]
    digest = sha256(content).hexdigest()
    for number, part in enumerate(parts):
        yield f"tokenizer/{digest}/{number}/{len(parts)}".encode(), part


class TokenizerParts:
    """The parts of one tokenizer, as they come; holds at most `KEPT_BYTES`."""

    def __init__(self, digest: str) -> None:
        """Wait for the parts of the tokenizer with this SHA-256."""
        self._digest = digest
        self._parts: dict[int, dict[int, bytes]] = {}
        """Parts by their number, for each total count: a writer with another part size has another count."""
        self._bytes = 0
        self._packed: bytes | None = None
        """The joined parts once their hash was checked; later parts are ignored then."""

    def add(self, key: bytes, value: bytes) -> None:
        """Add a part; parts of other tokenizers are ignored.

        Raises:
            ValueError: the record is no part, or there are too many.

        """
        found = _KEY.fullmatch(key)
        if found is None or int(found[2]) >= int(found[3]):
            raise ValueError("its key names no part of a tokenizer")
        if self._packed is not None or found[1].decode() != self._digest:
            return
        number, count = int(found[2]), int(found[3])
        parts = self._parts.setdefault(count, {})
        grown = self._bytes + len(value) - len(parts.get(number, b""))
        if grown > KEPT_BYTES:
            raise ValueError(f"the tokenizer has more than {KEPT_BYTES} bytes of parts")
        parts[number], self._bytes = value, grown
        if len(parts) == count:
            self._prove(b"".join(parts[i] for i in range(count)))

    def content(self) -> bytes | None:
        """Return the tokenizer.json; None while a part is missing or not what it should be."""
        return None if self._packed is None else unzipped(self._packed, self._digest)

    def _prove(self, packed: bytes) -> None:
        if unzipped(packed, self._digest) is not None:
            self._packed = packed
            self._parts.clear()
