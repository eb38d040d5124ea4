"""What anything may have written is read within bounds, and never waited for."""

import json
import os
import socket
import zlib
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.chains import STREAM, filled_store, make_chain, make_info
from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.recipe import canonical_json
from tokenmill.samples.trainable import read_state
from tokenmill.store import PartitionWriter, Store, open_partition, read_stream
from tokenmill.untrusted import MAX_JSON_DEPTH, open_regular, parse_json, read_regular, unzipped

BRACKETS = b"[" * 200_000

ours = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(ours)
def test_what_we_write_is_read_again(value: Any) -> None:
    try:
        data = canonical_json(value)
    except UnicodeEncodeError:  # half a surrogate pair, which no JSON of ours has
        return
    assert parse_json(data) == value


@pytest.mark.parametrize(
    "data", [b"", b"junk", BRACKETS, b'{"a":' * 200_000, b"NaN", b"\xff", b"\xfe\xff[", b"[1", b"1" * 30_000_000]
)
def test_anything_else_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON"):
        parse_json(data)


def test_nesting_has_a_bound_that_can_be_named() -> None:
    value: Any = 1
    for level in range(MAX_JSON_DEPTH):
        value = [value] if level % 2 else {"a": value}
    assert parse_json(json.dumps(value).encode()) == value
    with pytest.raises(ValueError, match="deeper"):
        parse_json(json.dumps([[value]]).encode())


@given(st.binary(max_size=300), st.integers(0, 9))
def test_what_is_whole_is_unzipped(content: bytes, level: int) -> None:
    packed, digest = zlib.compress(content, level), sha256(content).hexdigest()
    assert unzipped(packed, digest) == content
    assert unzipped(packed, digest, most=len(content)) == content
    assert unzipped(packed, "0" * 64) is None
    assert unzipped(packed[:-1], digest) is None
    if content:
        assert unzipped(packed, digest, most=len(content) - 1) is None


def test_a_fifo_in_place_of_a_file_is_refused_at_once(tmp_path: Path) -> None:
    """Its open would wait for ever; so is a socket, a directory, a device."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    for path in (tmp_path / "fifo", tmp_path / "directory", Path("/dev/zero")):
        with pytest.raises(DamagedError, match="is no file"):
            read_regular(path)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device"):
            open_regular(tmp_path / "socket")


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    assert read_regular(tmp_path / "file", most=100) == bytes(100)
    with pytest.raises(DamagedError, match="more than 99 bytes"):
        read_regular(tmp_path / "file", most=99)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    info = make_info(block_tokens=8, segment_blocks=4)
    return filled_store(tmp_path / "store", info, make_chain(info, 10), range(1, 11))


def replaced(path: Path, *, fifo: bool) -> None:
    path.unlink(missing_ok=True)
    if fifo:
        os.mkfifo(path)
    else:
        path.write_bytes(BRACKETS)


def read_all(store: Store) -> None:
    reader = open_partition(store.path, STREAM, 0, check=True)
    for block in range(reader.blocks):
        reader.read(block)
        reader.pieces(block)


@pytest.mark.parametrize(
    ("suffix", "fifo"), [*product(["json", "bin", "docs", "index"], [False, True]), ("commits", True)]
)
def test_files_of_a_partition_can_be_anything(store: Store, suffix: str, *, fifo: bool) -> None:
    for path in store.path.glob(f"{STREAM}/0/0*.{suffix}"):
        replaced(path, fifo=fifo)
    with pytest.raises(DamagedError, match=suffix):
        read_all(store)
    if fifo and suffix != "index":
        with pytest.raises(DamagedError, match=suffix):
            PartitionWriter.open(store, STREAM, 0)


def test_a_fifo_in_place_of_the_lock_file_keeps_nobody_waiting(store: Store) -> None:
    """It is for people alone; the lock is on the directory."""
    replaced(store.path / STREAM / "0" / "lock", fifo=True)
    with pytest.raises(StoreError, match="No such device"):
        PartitionWriter.open(store, STREAM, 0)


@pytest.mark.parametrize("fifo", [False, True])
def test_descriptions_and_states_can_be_anything(store: Store, tmp_path: Path, *, fifo: bool) -> None:
    for path in (store.path / STREAM / "stream.json", store.path / STREAM / "0" / "start.json"):
        replaced(path, fifo=fifo)
    replaced(tmp_path / "state", fifo=fifo)
    replaced(store.path / "store.json", fifo=fifo)
    with pytest.raises(DamagedError, match=r"stream\.json"):
        read_stream(store.path, STREAM)
    with pytest.raises(InputError, match="state"):
        read_state(tmp_path / "state")
    with pytest.raises(StoreError, match=r"store\.json"):
        Store.open(store.path)
