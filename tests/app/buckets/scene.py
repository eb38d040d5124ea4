"""A bucket in memory, and stores of one stream."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from tests import commands, marked, mills
from tests.store.chains import STREAM, fill, make_chain, make_eras, make_store, write_eras
from tokenmill.app.buckets import StreamCopy, Upload
from tokenmill.bucket.objects import Bucket, Data, StoredObjects
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
SEGMENT_BLOCKS: Final = 3  # in the bucket: they lie across the store's


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


def other_history(path: Path, stop: int, *, end: bool = False) -> Path:
    store = make_store(path, INFO)
    for partition, chain in CHAINS.items():
        fill(store, INFO, chain, [stop], partition=partition)
    write_eras(store, make_eras(INFO, CHAINS, [{0: stop, 1: stop}], end=end))
    return path


class Memory(StoredObjects):
    """Objects in memory: a bucket that never fails, with all that a store has if one is given."""

    def __init__(self, store: Path | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        if store is not None:
            uploaded(store, self)

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


def uploaded(store: Path, bucket: Memory | Bucket, stream: str = STREAM, **options: int) -> Upload:
    upload = Upload(store, stream, bucket_of(bucket) if isinstance(bucket, Memory) else bucket, **options)
    upload.begin()
    while upload.step():
        pass
    return upload


def uploaded_to(store: Path, share: Path) -> Path:
    share.mkdir(exist_ok=True)
    uploaded(store, Bucket.open(share.as_uri()))
    return share


def copied(path: Path, bucket: Memory | Bucket, stream: str = STREAM) -> Path:
    copy = StreamCopy(Store.open_or_create(path), stream, bucket_of(bucket) if isinstance(bucket, Memory) else bucket)
    try:
        copy.copy(lambda: None)
    finally:
        copy.close()
    return path


def until(true: Callable[[], bool], process: commands.Command) -> None:
    assert marked.until(lambda: process.poll() is not None or true(), SECONDS), process.said
    assert process.poll() is None, process.said


def counted_reads(monkeypatch: pytest.MonkeyPatch, name_of: Callable[[str], str] = str) -> Counter[str]:
    """Return how often each object is read from now on, by what ``name_of`` makes of its name."""
    found: Counter[str] = Counter()
    read = StoredObjects.read

    def counting(self: StoredObjects, path: str) -> Data:
        found[name_of(path)] += 1
        return read(self, path)

    monkeypatch.setattr(StoredObjects, "read", counting)
    return found
