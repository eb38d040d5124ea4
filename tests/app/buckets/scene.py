"""A bucket in memory whose requests may fail, come late, or kill who asked; and stores of one stream."""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Final

import pytest

from tests import commands, mills
from tests.store.chains import STREAM, fill, make_chain, make_store
from tests.store.eras import make_eras, write_eras
from tokenmill.app.buckets import Upload
from tokenmill.bucket.objects import Bucket, Data, StoredObjects
from tokenmill.errors import BucketError
from tokenmill.recipe import Genesis
from tokenmill.store import Store, StreamInfo
from tokenmill.store import store as description

RECIPE: Final = replace(mills.RECIPE, block_tokens=5, dtype="uint16", tokenizer_sha256=sha256(b"{}").hexdigest())
INFO: Final = StreamInfo.from_genesis(Genesis(STREAM, RECIPE, (0, 0), 8), 8)
CHAINS: Final = {partition: make_chain(INFO, 30, partition=partition, seed=partition) for partition in (0, 1)}
STOPS: Final = [{0: 2}, {0: 7, 1: 1}, {1: 9}, {0: 16, 1: 10}, {0: 17, 1: 21}, {0: 25, 1: 25}]
"""Where the partitions stand after each era."""
ERAS: Final = make_eras(INFO, CHAINS, STOPS, end=True)
SECONDS: Final = 60.0
SEGMENT_BLOCKS: Final = 3
"""In the bucket: they lie across the store's."""


def small_segments(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(description, "MOST_BUCKET_BYTES", SEGMENT_BLOCKS * INFO.block_bytes + 1)


def grow(store: Store, eras: int) -> None:
    reached = {partition: stop for step in STOPS[:eras] for partition, stop in step.items()}
    for partition, stop in reached.items():
        fill(store, INFO, CHAINS[partition], [stop], partition=partition)
    write_eras(store, ERAS[:eras])


def store_with(path: Path, eras: int) -> Path:
    store = make_store(path, INFO)
    grow(store, eras)
    return store.path


def whole_store(path: Path) -> Path:
    return store_with(path, len(ERAS))


class Killed(BaseException):
    """The process is gone."""


class Memory(StoredObjects):
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def create(self, path: str, data: Data) -> None:
        if path in self.objects:
            raise FileExistsError(path)
        self.objects[path] = bytes(data)

    def read(self, path: str) -> Data:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return memoryview(self.objects[path])

    def names(self, folder: str, after: str | None) -> list[str]:
        return sorted(name for name in self.objects if name.startswith(f"{folder}/") and name > (after or ""))

    def folders(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self.objects if "/" in name})


def bucket_of(objects: Memory) -> Bucket:
    return Bucket("s3://bucket", objects, pause=lambda _: None)


def uploaded(store: Path, bucket: Memory | Bucket) -> Upload:
    upload = Upload(store, STREAM, bucket_of(bucket) if isinstance(bucket, Memory) else bucket)
    upload.begin()
    while upload.step():
        pass
    return upload


def uploaded_to(store: Path, share: Path) -> Path:
    share.mkdir(exist_ok=True)
    uploaded(store, Bucket.open(share.as_uri()))
    return share


def until(true: Callable[[], bool], process: commands.Command) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert process.poll() is None, process.said
        assert time.monotonic() < end, process.said
        time.sleep(0.01)


def counted_reads(monkeypatch: pytest.MonkeyPatch, name_of: Callable[[str], str] = str) -> Counter[str]:
    """Return how often each object is read from now on, by what ``name_of`` makes of its name."""
    found: Counter[str] = Counter()
    read = StoredObjects.read

    def counting(self: StoredObjects, path: str) -> Data:
        found[name_of(path)] += 1
        return read(self, path)

    monkeypatch.setattr(StoredObjects, "read", counting)
    return found


class Way(Memory):
    """The way of one upload to the objects: each request waits until the scene says what becomes of it."""

    def __init__(self, scene: "Scene") -> None:
        self.objects = scene.memory.objects
        self.asked: Queue[str] = Queue()
        self.fates: Queue[str] = Queue()
        self._late = scene.late

    def _fate(self, request: str) -> str:
        self.asked.put(request)
        fate = self.fates.get()
        if fate == "kill":
            raise Killed
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
            raise Killed
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
    "read": ("reset", "kill"),
    "names": ("reset", "kill"),
}


class Uploader:
    def __init__(self, scene: "Scene") -> None:
        self.eras = 0
        """What its store has."""
        self._scene = scene
        self.errors: list[Exception] = []
        self.start()

    def start(self) -> None:
        """Begin as a new process does; stands at its first request when this returns."""
        self.way = Way(self._scene)
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
            upload = Upload(self._scene.stores[self.eras], STREAM, bucket_of(self.way), lanes=1)
            upload.begin()
            while upload.step():
                pass
        except Killed:
            pass
        except BucketError as error:  # what it raises after failures that lasted: a supervisor starts it again
            self.errors.append(error)
        except Exception as error:  # noqa: BLE001 - told by the scene
            self.errors.append(error)
        finally:
            self.way.asked.put("end")


class Scene:
    """Two uploaders of two stores over one bucket, and a history drawn from a seed."""

    def __init__(self, stores: Sequence[Path], seed: int) -> None:
        self.stores = stores
        """One for each number of eras."""
        self.memory = Memory()
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
                for eras in (uploader.eras, len(ERAS)):  # what it has begun, then all that there is
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
            if chance < 0.5 and uploader.eras < len(ERAS):
                uploader.eras += 1
            uploader.start()
        else:
            fails = self.random.random() < 0.15
            uploader.go_on(self.random.choice(FATES[uploader.request]) if fails else "done")
