"""The records of a control topic: what defines a stream, and what people add to it.

The key names the kind, as docs/format.md lists them. A record with a known key and an invalid value is junk: readers
report it and go on. Eras (`tokenmill.eras`) are not read here.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from typing import Any, Final

import xxhash

from tokenmill.documents import SourceRecord
from tokenmill.errors import DamagedError
from tokenmill.recipe import GENESIS_KEY, MAX_PARTITIONS, Genesis, canonical_json
from tokenmill.untrusted import MAX_TOKENIZER_BYTES, parse_json, unzipped
from tokenmill.wire.chain import HASH_BYTES

from ..milling.steps.pipeline import list_digests

IGNORE_KEY: Final = b"ignore"
_LENGTH: Final = Struct("<q")
_COUNT: Final = Struct("<I")


def record_hash(record: SourceRecord) -> bytes:
    """Return the hash (16 bytes) of a record's key, value and headers: a copy of it elsewhere has the same hash."""
    hashed = xxhash.xxh3_128(b"tokenmill ignore 1")
    for part in (record.key, record.value):
        _add(hashed, part)
    hashed.update(_COUNT.pack(len(record.headers)))
    for name, value in record.headers:
        _add(hashed, name.encode())
        _add(hashed, value)
    return hashed.digest()


def _add(hashed: "xxhash.xxh3_128", part: bytes | memoryview | None) -> None:
    hashed.update(_LENGTH.pack(-1 if part is None else len(part)))
    if part is not None:
        hashed.update(part)


def ignore_record(partition: int, offset: int, found: bytes) -> tuple[bytes, bytes]:
    """Return the control record (key, value) that puts the message with this `record_hash` on the list."""
    return IGNORE_KEY, canonical_json({"partition": partition, "offset": offset, "hash": found.hex()})


@dataclass(slots=True)
class IgnoreList:
    """The messages of a stream's token topic that readers pass over because a person said so (`tokenmill ignore`).

    Each is named by its offset and a hash of the whole record. The list never changes which blocks a chain has: a
    reader asks it only where the chain would halt, or wait for blocks before the message. So readers with different
    lists, even a forged one, take the same blocks. Code that only looks for a place to begin leaves listed messages out
    at once.
    """

    _places: dict[int, dict[int, set[bytes]]] = field(default_factory=dict)
    """Hashes by partition and offset: several at one offset where a topic was recreated."""

    def add(self, partition: int, offset: int, found: bytes) -> None:
        """Put a message on the list."""
        self._places.setdefault(partition, {}).setdefault(offset, set()).add(found)

    def names(self, partition: int, record: SourceRecord) -> bool:
        """Return whether exactly this record of the token topic's ``partition`` is on the list."""
        hashes = self._places.get(partition, {}).get(record.offset)
        return hashes is not None and record_hash(record) in hashes

    def size(self, partition: int) -> int:
        """Return how many messages of a partition are on the list; it only grows."""
        return sum(map(len, self._places.get(partition, {}).values()))

    def offsets(self) -> dict[int, list[int]]:
        """Return the offsets on the list, by partition, for people."""
        return {partition: sorted(places) for partition, places in sorted(self._places.items())}


SKIP_KEY: Final = b"skip"
SKIP_REQUEST_KEY: Final = b"skip-request"
TOKENIZER_PREFIX: Final = b"tokenizer/"
LIST_PREFIX: Final = b"list/"
PART_BYTES: Final = 512 * 1024
"""Size of a part: half of what a topic takes by default (1 MiB). Parts follow their genesis, perhaps more than once: a
worker that misses a part writes all of them."""
KEPT_BYTES: Final = MAX_TOKENIZER_BYTES
"""Most bytes of parts that are kept until all are there: room for the largest tokenizer, uncompressed."""
_KEY: Final = re.compile(rb"(tokenizer/|list/)([0-9a-f]{64})/([0-9]{1,6})/([0-9]{1,6})")
_NO_RECORD: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError, DamagedError)


class TokenizerParts:
    """The parts of one tokenizer or list, as they come; holds at most `KEPT_BYTES`."""

    def __init__(self, digest: str, prefix: bytes = TOKENIZER_PREFIX) -> None:
        """Wait for the parts of the file with this SHA-256, whose keys begin with ``prefix``."""
        self._digest, self._prefix = digest, prefix
        self._parts: dict[int, dict[int, bytes]] = {}
        """Parts by their number, for each total count: a writer with another part size has another count."""
        self._bytes = 0
        self._packed: bytes | None = None
        """The joined parts once their hash was checked; later parts are ignored then."""

    def add(self, key: bytes, value: bytes) -> None:
        """Add a part; those of others are ignored. Raises ValueError where it is no part, or there are too many."""
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
            packed = b"".join(parts[i] for i in range(count))
            if unzipped(packed, self._digest) is not None:
                self._packed = packed
                self._parts.clear()

    def content(self) -> bytes | None:
        """Return what the file holds; None while a part is missing or not what it should be."""
        return None if self._packed is None else unzipped(self._packed, self._digest)


@dataclass(slots=True)
class ControlLog:
    """The content of a control topic, read from its start."""

    stream: str | None = None
    """The stream's name, known from the topic's name: the genesis of another stream is junk. None: any stream."""
    genesis: Genesis | None = None
    skips: dict[int, set[int]] = field(default_factory=dict)
    skip_requests: dict[int, set[int]] = field(default_factory=dict)
    """Offsets that people asked to skip: without effect until a mill has taken them over into `skips`."""
    ignored: IgnoreList = field(default_factory=IgnoreList)
    junk: int = 0
    read_to: int = 0
    _tokenizer: TokenizerParts | None = None
    _lists: dict[str, TokenizerParts] = field(default_factory=dict)
    """By SHA-256."""

    def add(self, key: bytes | None, value: bytes | None) -> str | None:
        """Add the next record; return why it is junk, which changes nothing. FingerprintError: of another format."""
        try:
            self._add(key, value or b"")
        except _NO_RECORD as error:
            self.junk += 1
            return str(error) if isinstance(error, ValueError | DamagedError) else repr(error)
        return None

    def _add(self, key: bytes | None, value: bytes) -> None:
        if key == GENESIS_KEY:
            if self.genesis is None:
                self._settle(parse_json(value))
        elif key in {SKIP_KEY, SKIP_REQUEST_KEY}:
            partition, offset, _ = _place(value)
            (self.skips if key == SKIP_KEY else self.skip_requests).setdefault(partition, set()).add(offset)
        elif key == IGNORE_KEY:
            partition, offset, values = _place(value)
            found = bytes.fromhex(values["hash"])
            if len(found) != HASH_BYTES:
                raise ValueError("the hash has another length")
            self.ignored.add(partition, offset, found)
        elif key is not None and key.startswith(TOKENIZER_PREFIX) and self._tokenizer is not None:
            self._tokenizer.add(key, value)
        elif key is not None and key.startswith(LIST_PREFIX):
            for parts in self._lists.values():
                parts.add(key, value)

    def _settle(self, values: dict[str, Any]) -> None:
        # A genesis with a format number is one of some version, even if not of ours: no later record may replace it.
        if type(values["recipe"]["format"]) is not int:
            raise TypeError("its recipe has no format")
        genesis = Genesis.from_dict(values)
        if self.stream not in {None, genesis.stream}:
            raise ValueError(f"it is the genesis of {genesis.stream!r}, not of {self.stream!r}")
        digests = list_digests(genesis.recipe.pipeline)
        self.genesis = genesis
        self._tokenizer = TokenizerParts(genesis.recipe.tokenizer_sha256)
        self._lists = {digest: TokenizerParts(digest, LIST_PREFIX) for digest in digests}

    def tokenizer(self, digest: str) -> bytes | None:
        """Return the stream's tokenizer.json, if it has this SHA-256; None while a part is missing or damaged."""
        if self._tokenizer is None or self.genesis is None or self.genesis.recipe.tokenizer_sha256 != digest:
            return None
        return self._tokenizer.content()

    def lists(self) -> dict[str, bytes]:
        """Return the lists of the stream's steps by SHA-256, without those of which a part is missing or damaged."""
        found = ((digest, parts.content()) for digest, parts in self._lists.items())
        return {digest: content for digest, content in found if content is not None}


def _place(value: bytes) -> tuple[int, int, dict[str, Any]]:
    values = parse_json(value)
    partition, offset = values["partition"], values["offset"]
    if type(partition) is not int or type(offset) is not int:
        raise TypeError("its partition or offset is no number")
    if not 0 <= partition < MAX_PARTITIONS or not 0 <= offset < 1 << 63:
        raise ValueError("there can be no such partition or offset")
    return partition, offset, values


def skip_record(partition: int, offset: int) -> tuple[bytes, bytes]:
    """Return the control record (key, value) that puts an offset on the skip list."""
    return SKIP_KEY, canonical_json({"partition": partition, "offset": offset})


def skip_request_record(partition: int, offset: int) -> tuple[bytes, bytes]:
    """Return the control record (key, value) by which a person asks to skip an offset."""
    return SKIP_REQUEST_KEY, canonical_json({"partition": partition, "offset": offset})


def file_parts(content: bytes, prefix: bytes = TOKENIZER_PREFIX) -> Iterator[tuple[bytes, bytes]]:
    """Yield the control records (key, value) that hold a tokenizer.json, or by its prefix a step's list."""
    packed = zlib.compress(content, 9)
    parts = [packed[i : i + PART_BYTES] for i in range(0, len(packed), PART_BYTES)]
    digest = sha256(content).hexdigest()
    for number, part in enumerate(parts):
        yield prefix + f"{digest}/{number}/{len(parts)}".encode(), part
