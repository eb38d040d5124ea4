"""The records of a control topic: what settles a stream, and what people add to it.

The key tells the kind; values are canonical JSON, but for the tokenizer's parts::

    genesis                       the first one counts
    tokenizer/<sha256>/<i>/<n>    part i of n of the zlib-compressed tokenizer.json: any host can read the stream
    skip-request                  {"partition": p, "offset": o}: a person wants this record not to be tried again
    skip                          the same, written by the mill that obeys: this record is not tried, by anyone
    ignore                        {"partition": p, "offset": o, "hash": h}: readers pass this message over
    era                           the next era (`tokenmill.eras`), not looked at here

Anything may stand there. A record of a known kind that is none is junk: whoever reads the topic tells so, and goes on.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from tokenmill.canonical import canonical_json
from tokenmill.errors import DamagedError
from tokenmill.untrusted import parse_json
from tokenmill.wire.chain import HASH_BYTES
from tokenmill.wire.genesis import GENESIS_KEY, MAX_PARTITIONS, Genesis
from tokenmill.wire.ignoring import IGNORE_KEY, IgnoreList
from tokenmill.wire.tokenizer_parts import TOKENIZER_PREFIX, TokenizerParts

SKIP_KEY: Final = b"skip"
SKIP_REQUEST_KEY: Final = b"skip-request"
_NO_RECORD: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError, DamagedError)
"""What taking a record that is none can raise."""


@dataclass(slots=True)
class ControlLog:
    """What a control topic says, read from its start."""

    stream: str | None = None
    """The stream's name, as the topic's says it: the genesis of another one is none here. None: any stream's."""
    genesis: Genesis | None = None
    skips: dict[int, set[int]] = field(default_factory=dict)
    """Offsets on the skip list, by partition: what mills, the reference and verification obey."""
    skip_requests: dict[int, set[int]] = field(default_factory=dict)
    """Offsets that people asked for, by partition: in force only where a mill took them over into `skips`."""
    ignored: IgnoreList = field(default_factory=IgnoreList)
    """Messages on the token topic that readers pass over."""
    junk: int = 0
    """Records that came as one of the known kinds and are none."""
    read_to: int = 0
    """The offset up to which the topic has been read, for whoever reads on."""
    _tokenizer: TokenizerParts | None = None

    def add(self, key: bytes | None, value: bytes | None) -> str | None:
        """Take the next record; return why it is junk, which changes nothing, or None.

        Kinds that this version does not know are for others and left alone.

        Raises:
            FingerprintError: another format version wrote the first genesis.

        """
        try:
            self._add(key, value or b"")
        except _NO_RECORD as error:
            self.junk += 1
            return str(error) or repr(error)
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

    def _settle(self, values: dict[str, Any]) -> None:
        # One with a format is some version's, if not ours, and must not be overruled by another.
        if type(values["recipe"]["format"]) is not int:
            raise TypeError("its recipe has no format")
        genesis = Genesis.from_dict(values)
        if self.stream not in {None, genesis.stream}:
            raise ValueError(f"it is the genesis of {genesis.stream!r}, not of {self.stream!r}")
        self.genesis = genesis
        self._tokenizer = TokenizerParts(genesis.recipe.tokenizer_sha256)

    def tokenizer(self, digest: str) -> bytes | None:
        """Return the stream's tokenizer.json, if it has this SHA-256; None while a part is missing or damaged."""
        if self._tokenizer is None or self.genesis is None or self.genesis.recipe.tokenizer_sha256 != digest:
            return None
        return self._tokenizer.content()


def _place(value: bytes) -> tuple[int, int, dict[str, Any]]:
    """Return the partition and offset that a record names, and all that it says."""
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
    """Return the control record (key, value) by which a person asks for that."""
    return SKIP_REQUEST_KEY, canonical_json({"partition": partition, "offset": offset})
