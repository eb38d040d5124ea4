"""Sealing full segments."""

import dataclasses
import json
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from tests.store.chains import STREAM, contents, cut, fill, filled_store, make_chain, make_info, make_store, segment_of
from tokenmill.errors import DamagedError
from tokenmill.store import PartitionWriter, sealing
from tokenmill.store.sealing import Manifest
from tokenmill.wire.chain import genesis_hash

INFO = make_info()
CHAIN = make_chain(INFO, 6)


@pytest.mark.parametrize("chunk", [1, 15, 1 << 20])
def test_a_full_segment_gets_a_manifest_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(sealing, "_CHUNK", chunk)
    store = filled_store(tmp_path, INFO, CHAIN, [6])
    paths = segment_of(store)
    manifest = json.loads(paths.manifest.read_bytes())
    tokens, documents, index = (path.read_bytes() for path in (paths.tokens, paths.documents, paths.index))
    assert tokens == bytes(CHAIN.tokens[: 4 * INFO.block_bytes])
    assert documents == b"".join(CHAIN.entries[:4])
    assert manifest == {
        "format": 1,
        "stream": STREAM,
        "partition": 0,
        "first": 0,
        "blocks": 4,
        "block_tokens": 5,
        "dtype": "uint16",
        "fingerprint": INFO.fingerprint.hex(),
        "chain_before": genesis_hash(INFO.fingerprint, 0).hex(),
        "chain_after": CHAIN.chains[3].hex(),
        "bin_bytes": len(tokens),
        "docs_bytes": len(documents),
        "bin_crc32": crc32(tokens),
        "docs_crc32": crc32(documents),
        "index_crc32": crc32(index),
    }


def test_a_segment_that_is_not_full_is_never_sealed(tmp_path: Path) -> None:
    """Neither by closing nor by opening again; nothing but its blocks decides its end."""
    store = filled_store(tmp_path, INFO, CHAIN, [3])
    fill(store, INFO, CHAIN, [])
    assert not segment_of(store).manifest.exists()


@pytest.mark.parametrize("name", ["tokens", "documents"])
def test_a_file_that_was_removed_under_its_writer_is_damage_and_no_full_disk(tmp_path: Path, name: str) -> None:
    """The writer's descriptors hide it until the segment is sealed; then the file and its repair are named."""
    store = make_store(tmp_path, INFO)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(CHAIN, INFO, 0, 3), token_offset=0)
        writer.commit()
        path: Path = getattr(segment_of(store), name)
        path.unlink()
        with pytest.raises(DamagedError, match=rf"{path.name}: it is missing\. .*tokenmill repair") as refused:
            writer.append(cut(CHAIN, INFO, 3, 4), token_offset=1)
    assert "Make room" not in str(refused.value)


@pytest.mark.parametrize("lost", [["json"], ["json", "idx"], ["json", "idx", "index"]])
def test_a_crash_while_sealing_is_finished_by_the_next_writer(tmp_path: Path, lost: list[str]) -> None:
    store = filled_store(tmp_path, INFO, CHAIN, [4])
    sealed = contents(store)
    for suffix in lost:
        (segment_of(store).directory / f"{0:012d}.{suffix}").unlink()
    (segment_of(store).directory / f"{0:012d}.json.tmp").write_bytes(b"{")
    fill(store, INFO, CHAIN, [])
    assert contents(store) == sealed
    assert not list(segment_of(store).directory.glob("*.tmp"))


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("suffix", ["bin", "docs"])
def test_a_manifest_never_vouches_for_changed_bytes(tmp_path: Path, suffix: str, before: int) -> None:
    """What was committed is read back before it is sealed; a difference closes the writer, new or not."""
    store = make_store(tmp_path, INFO)
    fill(store, INFO, CHAIN, [before] if before else [])
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(CHAIN, INFO, before, 3), token_offset=0)
        writer.commit()
        file = segment_of(store).directory / f"{0:012d}.{suffix}"
        data = np.fromfile(file, np.uint8)
        data[INFO.block_bytes + 1] ^= 1
        data.tofile(file)
        with pytest.raises(DamagedError, match=f"{file.name}: .*(block|entry)"):
            writer.append(cut(CHAIN, INFO, 3, 4), token_offset=1)
    assert not segment_of(store).manifest.exists()


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
    with pytest.raises(ValueError, match=r"manifest|format|spelled|JSON|hex"):
        Manifest.decode(data)
