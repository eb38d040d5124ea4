"""Stores and their identity, and the description of a stream in one."""

import json
import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.mills import RECIPE
from tests.store.chains import STREAM, filled_store, flipped, make_chain, make_info, make_store
from tokenmill.errors import DamagedError, DiskError, FingerprintError, LockedError, StoreError
from tokenmill.recipe import Genesis
from tokenmill.store import PartitionWriter, Store, StreamInfo, open_partition, partitions_in, read_stream, streams_in

INFO = make_info()
CHAIN = make_chain(INFO, 6)


def test_a_store_keeps_its_identity(tmp_path: Path) -> None:
    first = Store.open_or_create(tmp_path / "deep" / "store")
    assert Store.open_or_create(first.path).id == Store.open(first.path).id == first.id
    with pytest.raises(StoreError, match="is no store"):
        Store.open(tmp_path)


def test_a_copied_store_is_refused_and_can_be_adopted(tmp_path: Path) -> None:
    """A copied identity would share a consumer group; adopted, the copy gets one of its own and goes on."""
    store = filled_store(tmp_path / "a", INFO, CHAIN, [6])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert open_partition(tmp_path / "b", STREAM, 0).blocks == 6  # readers share no group, so whose it is matters not
    with pytest.raises(StoreError, match=r"run `tokenmill adopt --store .*/b`"):
        Store.open_or_create(tmp_path / "b")
    adopted = Store.adopt(tmp_path / "b")
    assert adopted.id != store.id
    assert adopted == Store.open_or_create(tmp_path / "b")
    with PartitionWriter.open(adopted, STREAM, 0) as writer:
        assert writer.next_block == 6
        with pytest.raises(LockedError):
            Store.adopt(tmp_path / "b")
    with pytest.raises(StoreError, match="is no store"):
        Store.adopt(tmp_path)
    assert open_partition(adopted.path, STREAM, 0).blocks == 6


def test_a_store_of_another_host_is_refused(tmp_path: Path) -> None:
    store = Store.open_or_create(tmp_path)
    identity = json.loads((store.path / "store.json").read_bytes())
    (store.path / "store.json").write_text(json.dumps(identity | {"host": "elsewhere"}))
    with pytest.raises(StoreError, match="elsewhere"):
        Store.open(tmp_path)


def test_a_store_knows_when_it_is_gone(tmp_path: Path) -> None:
    store = Store.open_or_create(tmp_path / "store")
    store.require()
    store.path.rename(tmp_path / "away")
    with pytest.raises(DiskError, match="no longer holds the store"):
        store.require()
    Store.open_or_create(store.path)
    with pytest.raises(DiskError, match="no longer holds the store"):
        store.require()
    store.path.rename(tmp_path / "other")
    (tmp_path / "away").rename(store.path)
    store.require()


def test_a_disk_that_takes_nothing_has_an_error_of_its_own(tmp_path: Path) -> None:
    """Whatever the system says: one type, with the directory and the exit code that asks for another start."""
    with pytest.raises(DiskError, match=r"/proc/store cannot be used \(No such file or directory\)") as caught:
        Store.open_or_create(Path("/proc/store"))
    assert caught.value.exit_code == 75


@pytest.mark.parametrize("below", ["", "store", "deep/store"])
def test_a_file_in_the_way_is_not_waited_for(tmp_path: Path, below: str) -> None:
    """No repair of a disk puts a directory there."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="/file is a file: give a directory") as caught:
        Store.open_or_create(tmp_path / "file" / below)
    assert caught.value.exit_code == StoreError.exit_code


@pytest.mark.parametrize("data", ["", "[]", '{"format":2}', '{"format":1}'])
def test_a_torn_identity_is_refused(tmp_path: Path, data: str) -> None:
    (tmp_path / "store.json").write_text(data)
    with pytest.raises(StoreError, match=r"store\.json"):
        Store.open(tmp_path)


def test_a_stream_is_brought_in_once(tmp_path: Path) -> None:
    store = make_store(tmp_path, INFO)
    assert store.add_stream(INFO, b"other").values == INFO.values
    assert (tmp_path / STREAM / "tokenizer.json").read_bytes() == b"{}"
    assert (streams_in(tmp_path), partitions_in(tmp_path, STREAM)) == ([STREAM], [])


def test_two_who_bring_a_stream_in_at_once_both_succeed(tmp_path: Path) -> None:
    """Two segment workers that start on a new store: neither takes away what the other is about to put in its place."""
    store = Store.open_or_create(tmp_path)
    together = threading.Barrier(2)

    def bring(info: StreamInfo) -> StreamInfo:
        together.wait()
        return store.add_stream(info, b"{}")

    with ThreadPoolExecutor(2) as threads:
        for number in range(100):
            info = StreamInfo.from_values({**INFO.values, "stream": f"stream-{number}"})
            assert [known.values for known in threads.map(bring, [info, info])] == [info.values] * 2
            assert read_stream(tmp_path, info.name).values == info.values
            assert not list((tmp_path / info.name).glob("*.tmp"))


@pytest.mark.parametrize("change", [{"fingerprint": "ff" * 16}, {"segment_blocks": 8}])
def test_other_settings_need_another_name(tmp_path: Path, change: dict[str, object]) -> None:
    """A fingerprint settles a stream; so does the size of its segments, or stores would differ."""
    store = make_store(tmp_path, INFO)
    with pytest.raises(FingerprintError, match="new stream name"):
        store.add_stream(StreamInfo.from_values({**INFO.values, **change}), None)


def test_a_missing_stream_is_named_with_those_that_exist(tmp_path: Path) -> None:
    make_store(tmp_path, INFO)
    with pytest.raises(StoreError, match=f"streams there: {STREAM}"):
        read_stream(tmp_path, "raw-text.trian")
    with pytest.raises(StoreError, match="streams there: none"):
        read_stream(tmp_path / "nowhere", STREAM)


def test_a_description_that_is_gone_is_damage(tmp_path: Path) -> None:
    """Nobody is asked for another name where the partitions are there."""
    store = make_store(tmp_path, INFO)
    PartitionWriter.open(store, STREAM, 0).close()
    (tmp_path / STREAM / "stream.json").unlink()
    with pytest.raises(DamagedError, match=r"stream\.json: it is missing, and partitions are there.*tokenmill repair"):
        read_stream(tmp_path, STREAM)


def test_a_renamed_stream_directory_is_refused(tmp_path: Path) -> None:
    """Its segments would be taken for another stream's."""
    make_store(tmp_path, INFO)
    (tmp_path / STREAM).rename(tmp_path / "other")
    with pytest.raises(StoreError, match=STREAM):
        read_stream(tmp_path, "other")


def test_a_description_survives_its_file() -> None:
    info = StreamInfo.from_values({**make_info(dtype="uint32").values, "later": 1})
    again = StreamInfo.decode(info.encode())
    assert again == info
    assert (again.block_bytes, again.dtype.str, json.loads(info.encode())["later"]) == (20, "<u4", 1)


@pytest.mark.parametrize(
    "change",
    [
        *({"format": 2}, {"dtype": "float32"}, {"fingerprint": "xyz"}, {"fingerprint": 5}),
        *({"block_tokens": 0}, {"segment_blocks": None}),
    ],
)
def test_an_impossible_description_is_refused(change: Mapping[str, Any]) -> None:
    with pytest.raises(StoreError if "format" in change else DamagedError):
        StreamInfo.from_values({**INFO.values, **change})


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff"])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedError, match="it is no"):
        StreamInfo.decode(data)


def test_a_flipped_bit_of_a_description_is_noticed_or_no_matter() -> None:
    """The genesis in it hashes to the fingerprint, and says again all that stands beside it."""
    genesis = Genesis("raw-text.train", RECIPE, (0, 7), 16, {"numpy": "2"})
    right = StreamInfo.from_genesis(genesis, 16)
    data, unnoticed = right.encode(), 0
    for bit in range(8 * len(data)):
        try:
            found = StreamInfo.decode(flipped(data, bit // 8, bit % 8))
        except (DamagedError, StoreError):
            continue
        unnoticed += 1
        assert replace(found, values={}) == replace(right, values={})
        assert found.values["raw_topic"] == right.values["raw_topic"]
    assert unnoticed < len(data)  # in library versions, start offsets and the like, which readers do not use
