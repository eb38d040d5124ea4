"""Uploads that compete, fail and are killed anywhere, and the command: what readers believe is there must be there."""

import errno
import os
import random
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Final
from unittest.mock import Mock

import pytest

from tests import commands
from tests.app.buckets import scene
from tests.app.commands import invoke
from tests.store.chains import STREAM, make_store
from tokenmill.bucket.objects import Bucket, Data, Head, HeadLog, StoredObjects
from tokenmill.errors import BucketError, DifferenceError
from tokenmill.store import open_partition


class Way(scene.Memory):
    """The way of one upload to the objects: each request waits until the scene says what becomes of it."""

    def __init__(self, history: "History") -> None:
        self.objects = history.memory.objects
        self.asked: Queue[str] = Queue()
        self.fates: Queue[str] = Queue()
        self._late = history.late

    def _fate(self, request: str) -> str:
        self.asked.put(request)
        fate = self.fates.get()
        if fate == "kill":
            raise SystemExit
        return fate

    def create(self, path: str, data: Data) -> None:
        fate = self._fate("create")
        if fate == "conflict":
            raise FileExistsError("409")
        if fate in {"late", "late kill"}:
            self._late.append((path, bytes(data)))
        if fate in {"done", "lost", "done kill"}:
            super().create(path, data)
        if fate.endswith("kill"):
            raise SystemExit
        if fate != "done":
            raise OSError(fate)

    def read(self, path: str) -> Data:
        if self._fate("read") != "done":
            raise OSError("reset")
        return super().read(path)

    def names(self, folder: str, after: str | None) -> list[str]:
        if self._fate("names") != "done":
            raise OSError("reset")
        return super().names(folder, after)


FATES: Final = {
    "create": ("lost", "conflict", "late", "reset", "kill", "done kill", "late kill"),
    **dict.fromkeys(("read", "names"), ("reset", "kill")),
}


class Uploader:
    def __init__(self, history: "History") -> None:
        self.eras = 0  # that its store has
        self._history = history
        self.errors: list[Exception] = []
        self.start()

    def start(self) -> None:
        """Begin as a new process does; stands at its first request when this returns."""
        self.way = Way(self._history)
        self._thread = Thread(target=self._run)
        self._thread.start()
        self.request = self.way.asked.get()

    def go_on(self, fate: str) -> None:
        """Let the request that it stands at have this fate; stands at the next one when this returns."""
        self.way.fates.put(fate)
        self.request = self.way.asked.get()
        if self.request == "end":
            self._thread.join()

    def _run(self) -> None:
        try:
            scene.uploaded(self._history.stores[self.eras], self.way, lanes=1)
        except SystemExit:  # the process was killed
            pass
        except Exception as error:  # noqa: BLE001 - a `BucketError` after failures that lasted: it is started again
            self.errors.append(error)
        finally:
            self.way.asked.put("end")


class History:
    """Two uploaders of two stores over one bucket, and a history drawn from a seed."""

    def __init__(self, stores: Sequence[Path], seed: int) -> None:
        self.stores = stores  # one for each number of eras
        self.memory = scene.Memory()
        self.late: list[tuple[str, bytes]] = []
        self.random = random.Random(seed)
        self.uploaders = [Uploader(self) for _ in range(2)]

    def run(self, actions: int, look: Callable[[], None]) -> None:
        """Let so many things happen; after each, ``look`` is called. All failures have ended at the end."""
        try:
            for _ in range(actions):
                self._act()
                look()
            for uploader in self.uploaders:
                for eras in (uploader.eras, len(scene.ERAS)):  # what it has begun, then all that there is
                    while uploader.request != "end":
                        uploader.go_on("done")
                        look()
                    uploader.eras = eras
                    uploader.start()
                while uploader.request != "end":
                    uploader.go_on("done")
        finally:
            for uploader in self.uploaders:  # where ``look`` failed
                while uploader.request != "end":
                    uploader.go_on("kill")

    def _act(self) -> None:
        chance, uploader = self.random.random(), self.random.choice(self.uploaders)
        if chance < 0.05 and self.late:
            path, data = self.late.pop(self.random.randrange(len(self.late)))
            self.memory.objects.setdefault(path, data)
        elif uploader.request == "end":
            if chance < 0.5 and uploader.eras < len(scene.ERAS):
                uploader.eras += 1
            uploader.start()
        else:
            fails = self.random.random() < 0.15
            uploader.go_on(self.random.choice(FATES[uploader.request]) if fails else "done")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    scene.small_segments(monkeypatch)


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return what a bucket holds of the whole stream, without heads, which may be cut in any way."""
    with pytest.MonkeyPatch.context() as patch:
        scene.small_segments(patch)
        return without_heads(scene.Memory(scene.whole_store(tmp_path_factory.mktemp("truth"))).objects)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("stores")
    return [scene.store_with(folder / str(eras), eras) for eras in range(len(scene.ERAS) + 1)]


class Follower:
    """A reader of the bucket: whatever its heads name must be there, as it must be, and never less than before."""

    def __init__(self, memory: scene.Memory, truth: dict[str, bytes]) -> None:
        self.heads = HeadLog(scene.INFO.in_bucket())
        self._memory = memory
        self._truth = truth

    def __call__(self) -> None:
        known = set(self.heads.segments)
        self.heads.look(scene.bucket_of(self._memory))
        for partition, first in set(self.heads.segments) - known:
            base = f"{STREAM}/{partition}/{first:012d}."
            for name in (name for name in self._truth if name.startswith(base)):
                assert self._memory.objects[name] == self._truth[name]
        assert self.heads.eras == scene.ERAS[: len(self.heads.eras)]


@pytest.mark.parametrize("seeds", [range(n, n + 10) for n in range(0, 40, 10)], ids=lambda seeds: f"from{seeds[0]}")
@pytest.mark.cases(2)
def test_whatever_happens_a_bucket_has_one_history(seeds: range, stores: list[Path], truth: dict[str, bytes]) -> None:
    """Answers that are lost, 409, late puts, kills, two at once: nothing stops but what a new start gets over."""
    for seed in seeds:
        history = History(stores, seed)
        follower = Follower(history.memory, truth)
        history.run(300, follower)
        assert follower.heads.eras[-1].end
        assert without_heads(history.memory.objects) == truth
        errors = [error for uploader in history.uploaders for error in uploader.errors]
        assert [error for error in errors if not isinstance(error, BucketError)] == []
        assert [error for error in errors if "another" in str(error) or "restore" in str(error)] == []


def test_a_bucket_is_a_store(tmp_path: Path) -> None:
    for name, data in scene.Memory(scene.whole_store(tmp_path / "store")).objects.items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(data)
    for partition, chain in scene.CHAINS.items():
        reader = open_partition(tmp_path / "copy", STREAM, partition)
        assert (reader.info.segment_blocks, reader.blocks) == (scene.SEGMENT_BLOCKS, 25)
        tokens = bytes(memoryview(chain.tokens)[: 25 * scene.INFO.block_bytes])
        assert reader.gather(range(25)).tobytes() == tokens
        assert [reader.chain_before(block + 1) for block in range(25)] == chain.chains[:25]
        assert reader.documents(24)


def test_a_server_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    """It says "created" to both of two creations of one name."""

    class Ignoring(scene.Memory):
        def create(self, path: str, data: Data) -> None:
            self.objects[path] = bytes(data)

    memory = Ignoring()
    with pytest.raises(BucketError, match="creates one name twice"):
        scene.uploaded(scene.whole_store(tmp_path), memory)
    assert set(memory.objects) == {"bucket.json"}


def test_on_a_share_all_is_durable_before_a_head_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, share = scene.whole_store(tmp_path / "store"), tmp_path / "share"
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
    scene.uploaded_to(store, share)
    shutil.rmtree(share / STREAM / "heads")
    for seal in [*share.glob(f"{STREAM}/*/*.json"), *share.glob(f"{STREAM}/*/*.commits")]:
        seal.unlink()  # the data are there, as of an upload that was killed
    synced.clear()
    scene.uploaded_to(store, share)
    assert len(heads) == 4
    assert (share / heads[0]).stat().st_ino in synced
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(BucketError, match=r"does not keep .*No space left"):
        scene.uploaded_to(store, tmp_path / "other")


@pytest.mark.parametrize("name", ["0/000000000003.bin", "1/000000000000.json", "stream.json"])
def test_another_object_under_our_name_stops_the_upload(name: str, tmp_path: Path) -> None:
    memory = scene.Memory()
    memory.objects[f"{STREAM}/{name}"] = b"foreign"
    with pytest.raises(BucketError, match=r"another (object|stream)"):
        scene.uploaded(scene.whole_store(tmp_path), memory)
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
    class Refusing(scene.Memory):
        def read(self, path: str) -> Data:
            raise OSError(f"{path}: {said}")

    with pytest.raises(BucketError, match=f": {todo}"):
        scene.bucket_of(Refusing()).read("a")


def test_an_older_state_of_the_bucket_is_noticed(tmp_path: Path) -> None:
    memory = scene.Memory()
    store = make_store(tmp_path / "store", scene.INFO)
    scene.grow(store, 4)
    scene.uploaded(store.path, memory)
    older = dict(memory.objects)
    scene.grow(store, 5)
    follower = scene.uploaded(store.path, memory)
    assert follower.heads.next_number == 2
    memory.objects = older
    scene.grow(store, 6)
    with pytest.raises(BucketError, match="was there, and is not any more"):
        follower.step()
    scene.uploaded(scene.whole_store(tmp_path / "other"), memory)  # makes another head 1
    last = memory.objects.pop(f"{STREAM}/heads/00000001")
    memory.objects |= {f"{STREAM}/heads/00000001": last, f"{STREAM}/heads/00000002": last}
    with pytest.raises(BucketError, match="no head of this stream: it does not continue head 1"):
        follower.step()


def test_a_store_with_another_history_uploads_nothing(tmp_path: Path) -> None:
    memory = scene.Memory(scene.whole_store(tmp_path / "store"))
    before = dict(memory.objects)
    with pytest.raises(DifferenceError, match="different eras"):
        scene.uploaded(scene.other_history(tmp_path / "other", 30), memory)
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
    heads = HeadLog(scene.INFO.in_bucket())
    memory = scene.Memory()
    memory.objects[heads.path(0)] = forged.replace(b"BEFORE", heads.before.encode())
    with pytest.raises(BucketError, match="is no head of this stream"):
        heads.look(scene.bucket_of(memory))
    assert (heads.next_number, heads.segments, heads.eras) == (0, {}, [])


def test_a_directory_is_a_bucket_and_none_is_made(tmp_path: Path) -> None:
    store = scene.whole_store(tmp_path / "store")
    share = tmp_path / "a share #1"
    with pytest.raises(BucketError, match="cannot be opened"):
        Bucket.open(share.as_uri())
    share.mkdir()
    for _ in range(2):
        scene.uploaded(store, Bucket.open(share.as_uri() + "/"))
    memory = scene.Memory(store)
    assert {str(path.relative_to(share)) for path in share.rglob("*") if path.is_file()} == set(memory.objects)
    assert all((share / name).read_bytes() == data for name, data in memory.objects.items())


@pytest.mark.parametrize(
    "address",
    ["bucket", "s3://", "ftp://host/x", "file://", "s3:/bucket", "/mnt/x", "s3://host/x?y=1", "file:///tmp#x"],
)
def test_what_is_no_bucket_is_said(address: str) -> None:
    with pytest.raises(BucketError, match="write it as s3://bucket/prefix"):
        Bucket.open(address)


def words(store: Path, share: Path, *more: str) -> Sequence[str]:
    return ["upload", "--store", str(store), "--to", share.as_uri(), *more]


def objects(share: Path) -> dict[str, bytes]:
    """Return what readers see of a bucket; what was being written has a # in its name."""
    files = [path for path in share.rglob("*") if path.is_file() and "#" not in path.name]
    return {str(path.relative_to(share)): path.read_bytes() for path in files}


def without_heads(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in found.items() if "/heads/" not in name}


@pytest.fixture
def share(tmp_path: Path) -> Path:
    path = tmp_path / "share"
    path.mkdir()
    return path


def test_once_and_again(share: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # segments are as large as a bucket really has them
    store = scene.store_with(tmp_path / "store", 5)
    told = invoke(*words(store, share, "--dry-run"), code=0)
    assert objects(share) == {}
    assert f"{STREAM}: would upload 4 segments (320 B of tokens); 5 eras not in the bucket" in told.out
    said = "4 segments uploaded (320 B); the bucket has 32 blocks, 4 eras; 1 more era when segments are full"
    assert said in invoke(*words(store, share), code=0).err
    before = objects(share)
    assert f"{STREAM}/heads/00000000" in before
    assert "0 segments uploaded" in invoke(*words(store, share), code=0).err
    assert objects(share) == before


def test_what_stops_it_says_what_to_do(share: Path, tmp_path: Path) -> None:
    store = scene.store_with(tmp_path / "store", 5)
    assert "check the address" in invoke(*words(store, tmp_path / "not mounted"), code=16).err
    (share / STREAM).mkdir()
    (share / STREAM / "stream.json").write_bytes(b"{}")
    for more in ((), ("--dry-run",), ("--follow",)):
        assert "holds another stream" in invoke(*words(store, share, *more), code=16).err
    invoke(*words(tmp_path / "empty", share), code=6)


@pytest.mark.slow
def test_it_follows_a_store_that_grows(share: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    process = commands.command(words(path, share, "--follow"), tmp_path / "log", {})
    try:
        store = make_store(path, scene.INFO)
        scene.until(lambda: "bucket.json" in objects(share), process)
        for eras in range(1, len(scene.STOPS) + 2):
            scene.grow(store, eras)
            full = eras == 4  # two segments of partition 0, one of partition 1
            scene.until(lambda full=full: not full or f"{STREAM}/heads/00000000" in objects(share), process)  # type: ignore[misc]
        last = scene.ERAS[-1].pack().decode().replace('"', '\\"').encode()
        scene.until(lambda: any(last in data for name, data in objects(share).items() if "/heads/" in name), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(scene.SECONDS) == 0
    finally:
        process.kill()
