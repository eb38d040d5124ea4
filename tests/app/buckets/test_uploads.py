"""Uploads that compete, fail and are killed anywhere: what any reader believes is there, and is what it must be."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.app.buckets.scene import (
    CHAINS,
    ERAS,
    INFO,
    SEGMENT_BLOCKS,
    Memory,
    Scene,
    bucket_of,
    grow,
    small_segments,
    store_with,
    uploaded,
    uploaded_to,
    whole_store,
)
from tests.store.chains import STREAM, fill, make_store
from tests.store.eras import make_eras, write_eras
from tokenmill.app.buckets import Upload
from tokenmill.bucket.objects import Bucket, Data, Head, HeadLog, StoredObjects
from tokenmill.errors import BucketError, DifferenceError
from tokenmill.store import open_partition


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return what a bucket holds of the whole stream, without heads, which may be cut in any way."""
    with pytest.MonkeyPatch.context() as patch:
        small_segments(patch)
        memory = Memory()
        uploaded(whole_store(tmp_path_factory.mktemp("truth")), memory)
    return {name: data for name, data in memory.objects.items() if "/heads/" not in name}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("stores")
    return [store_with(folder / str(eras), eras) for eras in range(len(ERAS) + 1)]


class Follower:
    """A reader of the bucket: whatever its heads name must be there, as it must be, and never less than before."""

    def __init__(self, memory: Memory, truth: dict[str, bytes]) -> None:
        self.heads = HeadLog(INFO.in_bucket())
        self._memory = memory
        self._truth = truth

    def __call__(self) -> None:
        known = set(self.heads.segments)
        self.heads.look(bucket_of(self._memory))
        for partition, first in set(self.heads.segments) - known:
            base = f"{STREAM}/{partition}/{first:012d}."
            for name in (name for name in self._truth if name.startswith(base)):
                assert self._memory.objects[name] == self._truth[name]
        assert self.heads.eras == ERAS[: len(self.heads.eras)]


@pytest.mark.parametrize("seeds", [range(n, n + 10) for n in range(0, 40, 10)], ids=lambda seeds: f"from{seeds[0]}")
@pytest.mark.cases(2)
def test_whatever_happens_a_bucket_has_one_history(seeds: range, stores: list[Path], truth: dict[str, bytes]) -> None:
    """Answers that are lost, 409, late puts, kills, two at once: nothing stops but what a new start gets over."""
    for seed in seeds:
        scene = Scene(stores, seed)
        follower = Follower(scene.memory, truth)
        scene.run(300, follower)
        assert follower.heads.eras[-1].end
        assert {name: data for name, data in scene.memory.objects.items() if "/heads/" not in name} == truth
        errors = [error for uploader in scene.uploaders for error in uploader.errors]
        assert [error for error in errors if not isinstance(error, BucketError)] == []
        assert [error for error in errors if "another" in str(error) or "restore" in str(error)] == []


def test_a_bucket_is_a_store(tmp_path: Path) -> None:
    memory = Memory()
    uploaded(whole_store(tmp_path / "store"), memory)
    for name, data in memory.objects.items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(data)
    for partition, chain in CHAINS.items():
        reader = open_partition(tmp_path / "copy", STREAM, partition)
        assert (reader.info.segment_blocks, reader.blocks) == (SEGMENT_BLOCKS, 25)
        tokens = bytes(memoryview(chain.tokens)[: 25 * INFO.block_bytes])
        assert reader.gather(range(25)).tobytes() == tokens
        assert [reader.chain_before(block + 1) for block in range(25)] == chain.chains[:25]
        assert reader.documents(24)


def test_a_server_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    """It says "created" to both of two creations of one name."""

    class Ignoring(Memory):
        def create(self, path: str, data: Data) -> None:
            self.objects[path] = bytes(data)

    memory = Ignoring()
    with pytest.raises(BucketError, match="creates one name twice"):
        uploaded(whole_store(tmp_path), memory)
    assert set(memory.objects) == {"bucket.json"}


def test_on_a_share_all_is_durable_before_a_head_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was created, what another upload had created, and the names of both: a crash takes nothing of it."""
    synced: set[int] = set()
    sync, create, heads = os.fsync, StoredObjects.create, []

    def noting(descriptor: int) -> None:
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def looking(self: StoredObjects, path: str, data: Data) -> None:
        if "/heads/" in path:
            heads.append(path)
            named = [share / STREAM / str(one.partition) for one in Head.decode(bytes(data)).segments]
            files = [share, share / STREAM, share / STREAM / "stream.json", *named]
            for folder, one in zip(named, Head.decode(bytes(data)).segments, strict=True):
                files += folder.glob(f"{one.first:012d}.*")
            assert {str(file) for file in files if file.stat().st_ino not in synced} == set()
        create(self, path, data)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(StoredObjects, "create", looking)
    store, share = whole_store(tmp_path / "store"), tmp_path / "share"
    uploaded_to(store, share)
    shutil.rmtree(share / STREAM / "heads")
    for seal in [*share.glob(f"{STREAM}/*/*.json"), *share.glob(f"{STREAM}/*/*.commits")]:
        seal.unlink()  # the data are there, as of an upload that was killed
    synced.clear()
    uploaded_to(store, share)
    assert len(heads) == 4
    assert (share / heads[0]).stat().st_ino in synced
    monkeypatch.setattr(os, "fsync", lambda _: fail())
    with pytest.raises(BucketError, match=r"does not keep .*No space left"):
        uploaded_to(store, tmp_path / "other")


def fail() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["0/000000000003.bin", "1/000000000000.json", "stream.json"])
def test_another_object_under_our_name_stops_the_upload(name: str, tmp_path: Path) -> None:
    memory = Memory()
    memory.objects[f"{STREAM}/{name}"] = b"foreign"
    with pytest.raises(BucketError, match=r"another (object|stream)"):
        uploaded(whole_store(tmp_path), memory)
    assert memory.objects[f"{STREAM}/{name}"] == b"foreign"
    assert not [path for path in memory.objects if "/heads/" in path]


@pytest.mark.parametrize(
    ("said", "todo"),
    [
        ("PUT http://169.254.169.254/latest/api/token: 403", "no login is in the environment: set AWS_ACCESS_KEY_ID"),
        ("HTTP error: builder error", "a server without TLS needs AWS_ALLOW_HTTP=true"),
        ("reset", "check the address"),
    ],
)
def test_what_lacks_in_the_environment_is_said(said: str, todo: str) -> None:
    class Refusing(Memory):
        def read(self, path: str) -> Data:
            raise OSError(f"{path}: {said}")

    with pytest.raises(BucketError, match=f": {todo}"):
        bucket_of(Refusing()).read("a")


def test_an_older_state_of_the_bucket_is_noticed(tmp_path: Path) -> None:
    """By who knew a later head: it is gone, or another upload has made another one since."""
    memory = Memory()
    store = make_store(tmp_path / "store", INFO)
    grow(store, 4)
    uploaded(store.path, memory)
    older = dict(memory.objects)
    grow(store, 5)
    follower = uploaded(store.path, memory)
    assert follower.heads.next_number == 2
    memory.objects = older
    grow(store, 6)
    with pytest.raises(BucketError, match="was there, and is not any more"):
        follower.step()
    uploaded(whole_store(tmp_path / "other"), memory)  # makes another head 1
    last = memory.objects.pop(f"{STREAM}/heads/00000001")
    memory.objects |= {f"{STREAM}/heads/00000001": last, f"{STREAM}/heads/00000002": last}
    with pytest.raises(BucketError, match="no head of this stream: it does not continue head 1"):
        follower.step()


def test_a_store_with_another_history_uploads_nothing(tmp_path: Path) -> None:
    memory = Memory()
    uploaded(whole_store(tmp_path / "store"), memory)
    before = dict(memory.objects)
    other = make_store(tmp_path / "other", INFO)
    for partition in CHAINS:
        fill(other, INFO, CHAINS[partition], [30], partition=partition)
    write_eras(other, make_eras(INFO, CHAINS, [{0: 30, 1: 30}]))
    with pytest.raises(DifferenceError, match="different eras"):
        uploaded(other.path, memory)
    assert memory.objects == before


@pytest.mark.parametrize(
    "forged",
    [
        b"nothing",
        b'{"before":"00","eras":[],"format":1,"head":0,"segments":[]}\n',
        b'{"before":"BEFORE","eras":["{}"],"format":1,"head":0,"segments":[]}\n',
        b'{"before":"BEFORE","eras":[],"format":1,"head":0,"segments":[[0,3,6,"00"],[0,9,12,"00"]]}\n',
        b'{"before":"BEFORE","eras":[],"format":1,"head":0,"segments":[[0,1,4,"00"]]}\n',
        b'{"before":"BEFORE","eras":[],"format":1,"head":0,"segments":[],"more":1}\n',
    ],
)
def test_what_is_no_head_is_refused(forged: bytes) -> None:
    heads = HeadLog(INFO.in_bucket())
    memory = Memory()
    memory.objects[heads.path(0)] = forged.replace(b"BEFORE", heads.before.encode())
    with pytest.raises(BucketError, match="is no head of this stream"):
        heads.look(bucket_of(memory))
    assert (heads.next_number, heads.segments, heads.eras) == (0, {}, [])


def test_a_directory_is_a_bucket_and_none_is_made(tmp_path: Path) -> None:
    store = whole_store(tmp_path / "store")
    share = tmp_path / "a share #1"
    with pytest.raises(BucketError, match="cannot be opened"):
        Bucket.open(share.as_uri())
    share.mkdir()
    for _ in range(2):
        upload = Upload(store, STREAM, Bucket.open(share.as_uri() + "/"))
        upload.begin()
        while upload.step():
            pass
    memory = Memory()
    uploaded(store, memory)
    assert {str(path.relative_to(share)) for path in share.rglob("*") if path.is_file()} == set(memory.objects)
    assert all((share / name).read_bytes() == data for name, data in memory.objects.items())


@pytest.mark.parametrize(
    "address",
    ["bucket", "s3://", "ftp://host/x", "file://", "s3:/bucket", "/mnt/x", "s3://host/x?y=1", "file:///tmp#x"],
)
def test_what_is_no_bucket_is_said(address: str) -> None:
    with pytest.raises(BucketError, match="write it as s3://bucket/prefix"):
        Bucket.open(address)
