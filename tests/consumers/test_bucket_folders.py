"""A bucket in any order: datasets by index and readers of a store have from its address what the store has."""

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.app.buckets.scene import (
    CHAINS,
    INFO,
    SEGMENT_BLOCKS,
    counted_reads,
    small_segments,
    store_with,
    uploaded_to,
    whole_store,
)
from tests.store.chains import STREAM
from tokenmill.app.segments.retiring import retire
from tokenmill.bucket import cache as folders
from tokenmill.bucket.cache import open_folder
from tokenmill.consumers import Documents, EraDataset, Windows
from tokenmill.errors import BucketError, DifferenceError, DiskError, InputError
from tokenmill.store import open_eras, open_partition, partitions_in


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let segments in a bucket lie across the store's; nothing is known of folders of other tests."""
    small_segments(monkeypatch)
    yield
    folders._folders.clear()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    return counted_reads(monkeypatch, lambda path: path.rpartition(".")[2])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return whole_store(tmp_path / "store")


@pytest.fixture
def address(store: Path, tmp_path: Path) -> str:
    return uploaded_to(store, tmp_path / "share").as_uri()


def test_a_folder_that_cannot_be_made_is_no_matter_of_segment_workers(address: str) -> None:
    with pytest.raises(DiskError, match=r"/proc/here cannot be used .*: what reads this cache of a bucket tries again"):
        open_folder(address, Path("/proc/here"), None)


def test_a_folder_is_the_store(store: Path, address: str, tmp_path: Path, reads: Counter[str]) -> None:
    path = open_folder(address, tmp_path / "folder", None)
    assert partitions_in(path, STREAM) == [0, 1]
    assert [open_eras(path, STREAM).era(n) for n in range(6)] == [open_eras(store, STREAM).era(n) for n in range(6)]
    mine, theirs = ([open_partition(at, STREAM, number) for number in (0, 1)] for at in (path, store))
    assert [one.blocks for one in mine] == [25, 25]
    assert (reads["bin"], reads["docs"]) == (0, 0)
    mine[0].read(4)
    assert (reads["bin"], reads["docs"]) == (1, 0)
    for one, other in zip(mine, theirs, strict=True):
        assert np.array_equal(one.gather(range(25)), other.gather(range(25)))
        assert [one.documents(number) for number in range(25)] == [other.documents(number) for number in range(25)]
        assert [one.chain_before(number) for number in range(26)] == [other.chain_before(n) for n in range(26)]
    assert (reads["bin"], reads["docs"]) == (18, 18)


def test_the_oldest_segments_make_room(address: str, store: Path, tmp_path: Path) -> None:
    most = 8 * SEGMENT_BLOCKS * (INFO.block_bytes + 200)
    path = open_folder(address, tmp_path / "folder", most)
    for _ in range(2):
        reader = open_partition(path, STREAM, 0)
        for number in [*range(25), *reversed(range(25))]:
            assert np.array_equal(reader.read(number), open_partition(store, STREAM, 0).read(number))
            kept = [one for one in path.glob(f"{STREAM}/0/*") if one.suffix in {".bin", ".docs", ".index"}]
            assert sum(one.stat().st_size for one in kept) <= most // 2


def test_a_bucket_of_a_store_that_began_late(store: Path, tmp_path: Path) -> None:
    retire(store, STREAM, 0, 16)
    path = open_folder(uploaded_to(store, tmp_path / "share").as_uri(), tmp_path / "folder", None)
    reader = open_partition(path, STREAM, 0)
    assert (reader.first_block, reader.blocks) == (18, 25)
    assert reader.chain_before(18) == CHAINS[0].chains[17]


def test_what_was_changed_in_the_bucket_is_refused(address: str, tmp_path: Path) -> None:
    path = open_folder(address, tmp_path / "folder", None)
    for end in ("bin", "docs", "index"):
        objects = tmp_path / "share" / STREAM / "0" / f"000000000003.{end}"
        objects.write_bytes(bytes(objects.stat().st_size))
    for read in ("read", "documents"):
        with pytest.raises(BucketError, match=r"0/000000000003\..* is not what was uploaded"):
            getattr(open_partition(path, STREAM, 0), read)(4)
    objects = tmp_path / "share" / STREAM / "1" / "000000000000.json"
    objects.unlink()
    with pytest.raises(BucketError, match="is missing, and a head names it"):
        open_partition(path, STREAM, 1).read(0)
    earlier = uploaded_to(store_with(tmp_path / "other", 3), tmp_path / "earlier").as_uri()
    with pytest.raises(DifferenceError, match="name another folder"):
        open_folder(earlier, path, None)


def test_datasets_by_index(store: Path, address: str, tmp_path: Path, reads: Counter[str]) -> None:
    options: dict[str, Any] = {"cache": tmp_path / "cache"}
    mine, theirs = (EraDataset(at, STREAM, sequence_length=4, **more) for at, more in both(store, address, options))
    assert repr(mine) == repr(theirs)
    assert all(np.array_equal(mine[index][0], theirs[index][0]) for index in range(len(theirs)))
    one, other = (Windows(at, STREAM, 6, **more) for at, more in both(store, address, options))
    assert np.array_equal(one.rows(1, range(40)), other.rows(1, range(40)))
    first, second = (Documents(at, STREAM, **more) for at, more in both(store, address, options))
    assert [document.tokens.tolist() for document in first] == [document.tokens.tolist() for document in second]
    assert (reads["bin"], reads["docs"], reads["index"]) == (18, 18, 16)
    with pytest.raises(InputError, match="give cache a folder"):
        EraDataset(address, STREAM)
    with pytest.raises(InputError, match="does nothing where store is no bucket"):
        Windows(store, STREAM, **options)


def both(store: Path, address: str, options: dict[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
    return [(address, options), (store, {})]


def begin_worker(_: int) -> None:
    small_segments(pytest.MonkeyPatch())


@pytest.mark.needs("minutes")
def test_workers_of_a_loader_share_the_folder(store: Path, address: str, tmp_path: Path) -> None:
    """Spawned, they have none of this process's memory; a small folder gives the same."""
    mine = EraDataset(address, STREAM, sequence_length=4, cache=tmp_path / "cache", cache_bytes=2000)
    theirs = EraDataset(store, STREAM, sequence_length=4)
    workers: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "spawn", "worker_init_fn": begin_worker}
    loader = DataLoader(mine, batch_size=4, **workers)
    found = np.concatenate([x.numpy() for x, _ in loader])
    assert np.array_equal(found, np.stack([theirs[index][0] for index in range(len(theirs))]))
    again = pickle.loads(pickle.dumps(mine))  # noqa: S301 - our own
    assert np.array_equal(again[7][0], theirs[7][0])
