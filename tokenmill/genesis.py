"""The records of a control topic: what settles a stream for good, and what people add to it.

The key tells the kind; values are canonical JSON, but for the tokenizer's parts::

    genesis                       the first record; a later one is ignored
    tokenizer/<sha256>/<i>/<n>    part i of n of the zlib-compressed tokenizer.json: any host can read the stream
    skip-request                  {"partition": p, "offset": o}: a person wants this record not to be tried again
    skip                          the same, written by the mill that obeys: this record is not tried, by anyone
"""

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from operator import index
from typing import Any, Final, Self

from tokenmill.canonical import canonical_json
from tokenmill.errors import DamagedError
from tokenmill.recipe import Recipe

GENESIS_KEY: Final = b"genesis"
SKIP_KEY: Final = b"skip"
SKIP_REQUEST_KEY: Final = b"skip-request"
_TOKENIZER_KEY: Final = re.compile(rb"tokenizer/([0-9a-f]{64})/([0-9]{1,6})/([0-9]{1,6})")
PART_BYTES: Final = 512 * 1024
"""Size of a tokenizer part: half of what a topic takes by default (1 MiB)."""


@dataclass(frozen=True, slots=True)
class Genesis:
    """What settles a stream: its recipe, and where each partition's chain starts."""

    stream: str
    recipe: Recipe
    starts: tuple[int, ...]
    """The start offset of each raw partition; one added later starts at 0."""
    segment_blocks: int
    """Blocks in a segment, the same in every store, so that stores can be compared file by file."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library versions at genesis, for people; not part of the fingerprint."""

    def start(self, partition: int) -> int:
        """Return the offset at which the chain of ``partition`` starts."""
        return self.starts[partition] if partition < len(self.starts) else 0

    def to_dict(self) -> dict[str, Any]:
        """Return the genesis as JSON types."""
        return {
            "stream": self.stream,
            "fingerprint": self.recipe.fingerprint.hex(),
            "recipe": self.recipe.to_dict(),
            "starts": list(self.starts),
            "segment_blocks": self.segment_blocks,
            "versions": dict(self.versions),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the genesis that `to_dict` made this mapping of.

        Raises:
            DamagedError: the recipe does not hash to the fingerprint that stands beside it.
            FingerprintError: another format version wrote it.

        """
        recipe = Recipe.from_dict(values["recipe"])
        if recipe.fingerprint.hex() != values["fingerprint"]:
            raise DamagedError(
                f"the genesis of {values['stream']!r} says fingerprint {values['fingerprint']}, its recipe hashes to "
                f"{recipe.fingerprint.hex()}: the control topic was changed by hand; use a new stream name"
            )
        return cls(values["stream"], recipe, tuple(values["starts"]), values["segment_blocks"], values["versions"])

    def pack(self) -> bytes:
        """Return the control record's value."""
        return canonical_json(self.to_dict())


@dataclass(slots=True)
class ControlLog:
    """What a control topic says, read from its start."""

    genesis: Genesis | None = None
    skips: dict[int, set[int]] = field(default_factory=dict)
    """Offsets on the skip list, by partition: what mills, the reference and verification obey."""
    skip_requests: dict[int, set[int]] = field(default_factory=dict)
    """Offsets that people asked for, by partition: in force only where a mill took them over into `skips`."""
    _parts: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=dict)

    def add(self, key: bytes | None, value: bytes | None) -> None:
        """Take the next record; kinds that this version does not know are for others and left alone.

        Raises:
            DamagedError: the first genesis, or a skip, is none.
            FingerprintError: another format version wrote the genesis.

        """
        try:
            self._add(key, value or b"null")
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise DamagedError(
                f"the control topic holds a record with key {key!r} that is none ({error!r}): something else wrote "
                "to it; use a new stream name"
            ) from error

    def _add(self, key: bytes | None, value: bytes) -> None:
        if key == GENESIS_KEY and self.genesis is None:
            self.genesis = Genesis.from_dict(json.loads(value))
        elif key in {SKIP_KEY, SKIP_REQUEST_KEY}:
            skip, found = json.loads(value), self.skips if key == SKIP_KEY else self.skip_requests
            found.setdefault(index(skip["partition"]), set()).add(index(skip["offset"]))
        elif key is not None and (part := _TOKENIZER_KEY.fullmatch(key)):
            number, count = int(part[2]), int(part[3])
            if number < count:
                self._parts.setdefault((part[1].decode(), count), {})[number] = value

    def tokenizer(self, digest: str) -> bytes | None:
        """Return the tokenizer.json with this SHA-256; None while a part is missing or not what it should be."""
        for (found, count), parts in self._parts.items():
            if found == digest and len(parts) == count:
                content = _unpacked(b"".join(parts[i] for i in range(count)))
                if content is not None and sha256(content).hexdigest() == digest:
                    return content
        return None


def tokenizer_parts(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the control records (key, value) that hold a tokenizer.json."""
    packed = zlib.compress(content, 9)
    parts = [packed[i : i + PART_BYTES] for i in range(0, len(packed), PART_BYTES)]
    digest = sha256(content).hexdigest()
    for number, part in enumerate(parts):
        yield f"tokenizer/{digest}/{number}/{len(parts)}".encode(), part


def _unpacked(packed: bytes) -> bytes | None:
    try:
        return zlib.decompress(packed)
    except zlib.error:
        return None


def skip_record(partition: int, offset: int) -> tuple[bytes, bytes]:
    """Return the control record (key, value) that puts an offset on the skip list."""
    return SKIP_KEY, canonical_json({"partition": partition, "offset": offset})


def skip_request_record(partition: int, offset: int) -> tuple[bytes, bytes]:
    """Return the control record (key, value) by which a person asks for that."""
    return SKIP_REQUEST_KEY, canonical_json({"partition": partition, "offset": offset})
