"""Which records of a control topic are the eras, told once more: by the protocol's words and none of the project's."""

import json
from collections.abc import Iterable
from typing import Any, Final

import xxhash

from tokenmill.wire.chain import genesis_hash

FIRST: Final = b"tokenmill eras 1"
"""What is hashed, with the fingerprint behind it, into the hash before era 0."""


def chain_of(values: Iterable[bytes | None], fingerprint: bytes) -> list[bytes]:
    """Return the records that are eras, in order; every other is ignored, wherever it stands."""
    chain: list[bytes] = []
    head = xxhash.xxh3_128_hexdigest(FIRST + fingerprint)
    ends: list[list[Any]] = []
    for value in values:
        era = read_era(value)
        if era is None or (era["era"], era["before"]) != (len(chain), head) or (chain and read_ended(chain[-1])):
            continue
        new = range(len(ends), len(era["ranges"]))
        starts = ends + [[0, genesis_hash(fingerprint, partition).hex()] for partition in new]
        if [[first, before] for first, _, before, _ in era["ranges"]] != starts:
            continue
        ends = [[stop, after] for _, stop, _, after in era["ranges"]]
        head = xxhash.xxh3_128_hexdigest(value or b"")
        chain.append(value or b"")
    return chain


def read_era(value: bytes | None) -> dict[str, Any] | None:
    try:
        era = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return era if isinstance(era, dict) and era.keys() == {"era", "before", "ranges", "closed", "end"} else None


def read_ended(value: bytes) -> bool:
    return bool(json.loads(value)["end"])


def stops_of(chain: list[bytes]) -> list[int]:
    return [stop for _, stop, _, _ in json.loads(chain[-1])["ranges"]] if chain else []
