"""Stores and their identity."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.store.chains import STREAM, fill, make_chain, make_info, make_store
from tokenmill.errors import DamagedError, DiskError, FingerprintError, LockedError, StoreError
from tokenmill.store import PartitionWriter, Store, StreamInfo, open_partition, partitions_in, read_stream, streams_in


def test_a_store_keeps_its_identity(tmp_path: Path) -> None:
    first = Store.open_or_create(tmp_path / "deep" / "store")
    assert Store.open_or_create(first.path).id == Store.open(first.path).id == first.id


def test_a_directory_without_identity_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no store"):
        Store.open(tmp_path)


def test_a_copied_store_is_refused_and_can_be_adopted(tmp_path: Path) -> None:
    """A copied identity would share a consumer group; adopted, the copy gets one of its own and goes on."""
    info = make_info()
    store = make_store(tmp_path / "a", info)
    chain = make_chain(info, 6)
    fill(store, info, chain, [6])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
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


def test_readers_read_copies(tmp_path: Path) -> None:
    """They share no consumer group, so they do not ask whose store it is."""
    info = make_info()
    fill(make_store(tmp_path / "a", info), info, make_chain(info, 6), [6])
    (tmp_path / "a").rename(tmp_path / "b")
    assert open_partition(tmp_path / "b", STREAM, 0).blocks == 6


def test_a_stream_is_brought_in_once(tmp_path: Path) -> None:
    info = make_info()
    store = make_store(tmp_path, info)
    assert store.add_stream(info, b"other").values == info.values
    assert (tmp_path / STREAM / "tokenizer.json").read_bytes() == b"{}"
    assert (streams_in(tmp_path), partitions_in(tmp_path, STREAM)) == ([STREAM], [])


def test_two_who_bring_a_stream_in_at_once_both_succeed(tmp_path: Path) -> None:
    """Two segment workers that start on a new store: neither takes away what the other is about to put in its place."""
    store, plain = Store.open_or_create(tmp_path), make_info()
    together = threading.Barrier(2)

    def bring(info: StreamInfo) -> StreamInfo:
        together.wait()
        return store.add_stream(info, b"{}")

    with ThreadPoolExecutor(2) as threads:
        for number in range(100):
            info = StreamInfo.from_values({**plain.values, "stream": f"stream-{number}"})
            assert [known.values for known in threads.map(bring, [info, info])] == [info.values] * 2
            assert read_stream(tmp_path, info.name).values == info.values
            assert not list((tmp_path / info.name).glob("*.tmp"))


@pytest.mark.parametrize("change", [{"fingerprint": "ff" * 16}, {"segment_blocks": 8}])
def test_other_settings_need_another_name(tmp_path: Path, change: dict[str, object]) -> None:
    """A fingerprint settles a stream; so does the size of its segments, or stores would differ."""
    info = make_info()
    store = make_store(tmp_path, info)
    with pytest.raises(FingerprintError, match="new stream name"):
        store.add_stream(StreamInfo.from_values({**info.values, **change}), None)


def test_a_missing_stream_is_named_with_those_that_exist(tmp_path: Path) -> None:
    make_store(tmp_path, make_info())
    with pytest.raises(StoreError, match=f"streams there: {STREAM}"):
        read_stream(tmp_path, "raw-text.trian")
    with pytest.raises(StoreError, match="streams there: none"):
        read_stream(tmp_path / "nowhere", STREAM)


def test_a_description_that_is_gone_is_damage(tmp_path: Path) -> None:
    """Nobody is asked for another name where the partitions are there."""
    store = make_store(tmp_path, make_info())
    PartitionWriter.open(store, STREAM, 0).close()
    (tmp_path / STREAM / "stream.json").unlink()
    with pytest.raises(DamagedError, match=r"stream\.json: it is missing, and partitions are there.*tokenmill repair"):
        read_stream(tmp_path, STREAM)


def test_a_renamed_stream_directory_is_refused(tmp_path: Path) -> None:
    """Its segments would be taken for another stream's."""
    make_store(tmp_path, make_info())
    (tmp_path / STREAM).rename(tmp_path / "other")
    with pytest.raises(StoreError, match=STREAM):
        read_stream(tmp_path, "other")
