"""Manifests."""

import dataclasses
import json

import pytest

from tokenmill.store.sealing import Manifest

MANIFEST = Manifest(
    stream="s",
    partition=1,
    first=8,
    blocks=4,
    block_tokens=5,
    dtype="uint16",
    fingerprint="00" * 16,
    chain_before="11" * 16,
    chain_after="22" * 16,
    bin_bytes=40,
    docs_bytes=99,
    bin_crc32=1,
    docs_crc32=2,
    index_crc32=3,
)


def test_a_manifest_is_canonical_json_and_a_newline() -> None:
    """Sorted keys, no spaces: equal manifests are equal bytes."""
    data = MANIFEST.encode()
    values = json.loads(data)
    assert data.decode() == json.dumps(values, sort_keys=True, separators=(",", ":")) + "\n"
    assert values == dataclasses.asdict(MANIFEST) | {"format": 1}
    assert Manifest.decode(data) == MANIFEST


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        MANIFEST.encode()[:-1],
        MANIFEST.encode().replace(b'"format":1', b'"format":2'),
        MANIFEST.encode().replace(b'"blocks":4,', b""),
        MANIFEST.encode().replace(b":", b": "),
        MANIFEST.encode().replace(b'"1111', b'"111q'),
        MANIFEST.encode().replace(b'"' + b"22" * 16 + b'"', b"5"),
    ],
)
def test_anything_else_is_no_manifest(data: bytes) -> None:
    """Cut off, of another format, without a field, or spelled differently."""
    with pytest.raises(ValueError, match=r"manifest|format|spelled|JSON|hex"):
        Manifest.decode(data)
