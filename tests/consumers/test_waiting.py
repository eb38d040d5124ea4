"""Files that a trainer may not read, and stores that go away under it: named, with what helps, by every reader."""

import os
import pickle
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.consumers.scenes import INFO, OPEN_ERAS, era_store, open_batches, rows_of
from tests.store.chains import STREAM, make_store
from tokenmill.consumers import Batches, EraDataset, Windows
from tokenmill.errors import DiskError, StoreError
from tokenmill.store import Store

NOBODY: Final = 65534
GONE: Final = r"no longer holds the stream 'raw-text\.train': it was deleted.*Bring it back, or open another copy"


@contextmanager
def without_privileges() -> Iterator[None]:
    """Be a user for whom rights count: root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture(scope="module")
def public() -> Iterator[Store]:
    """Return a store in a directory that all may enter, which pytest's own is not; each test restores its rights."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        store = era_store(path / "store")
        for found in [store.path, *store.path.rglob("*")]:
            found.chmod(0o755 if found.is_dir() else 0o644)
        read_all(store)  # what is imported at first use is there
        yield store


def read_all(store: Store) -> None:
    for batch in open_batches(store, check=True):
        batch.documents()


def read_by_index(store: Store) -> None:
    samples = EraDataset(store.path, STREAM, sequence_length=4)
    samples.__getitems__(range(len(samples)))


def read_windows(store: Store) -> None:
    windows = Windows(store.path, STREAM, 4)
    for partition in windows.partitions:
        indices = windows.indices(partition)
        windows.rows(partition, indices[:: INFO.block_tokens])


@pytest.mark.parametrize("read", [read_all, read_by_index, read_windows])
@pytest.mark.parametrize(
    "name", ["stream.json", ".", "0", "0/000000000000.bin", "0/000000000000.json", "0/000000000020.commits"]
)
def test_a_file_that_may_not_be_read_is_named(public: Store, read: Callable[[Store], None], name: str) -> None:
    forbidden = public.path / STREAM / name
    forbidden.chmod(0)
    named = re.escape(str(forbidden.resolve()))
    told = rf"{named}.* cannot be read \(Permission denied\): let"
    try:
        with without_privileges(), pytest.raises(DiskError, match=told):
            read(public)
    finally:
        forbidden.chmod(0o755)
    with without_privileges():
        read(public)


@pytest.mark.parametrize("name", ["eras.jsonl", "eras.index", "0/000000000000.docs", "0/000000000000.index"])
def test_a_file_that_batches_alone_need_is_named(public: Store, name: str) -> None:
    test_a_file_that_may_not_be_read_is_named(public, read_all, name)


@pytest.mark.parametrize("eras", [0, 2])
def test_a_store_that_is_deleted_while_it_is_waited_for_is_named(tmp_path: Path, eras: int) -> None:
    store = era_store(tmp_path, OPEN_ERAS[:eras]) if eras else make_store(tmp_path, INFO)
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        if looks == 20:
            shutil.rmtree(store.path / STREAM)
        return looks > 100

    with pytest.raises(StoreError, match=GONE):
        rows_of(open_batches(store, stop=look, poll_seconds=0.0001, timeout=60))
    assert looks < 100


def later(reader: Any) -> list[Callable[[], object]]:
    if isinstance(reader, Batches):
        batch = next(iter(reader))
        return [batch.documents, batch.sources, reader.behind]
    if isinstance(reader, EraDataset):
        return [lambda: pickle.loads(pickle.dumps(reader))[0]]  # noqa: S301 - our own, as a loader's worker has it
    return [reader.refresh, lambda: reader.rows(0, [0])]


@pytest.mark.parametrize("kind", [Batches, EraDataset, Windows])
def test_every_reader_names_a_store_that_is_gone(tmp_path: Path, kind: type[Any]) -> None:
    store = era_store(tmp_path / "store")
    options: dict[str, Any] = {"length": 4} if kind is Windows else {"sequence_length": 4}
    options |= {"batch_size": 2} if kind is Batches else {}
    asks = later(kind(store.path, STREAM, **options))
    store.path.rename(tmp_path / "away")
    for ask in asks:
        with pytest.raises(StoreError, match=GONE):
            ask()
    (tmp_path / "away").rename(store.path)
    for ask in asks:
        ask()
