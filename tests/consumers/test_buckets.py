"""Training from a bucket, and datasets by index: what the store has, each byte fetched once, in a bounded cache."""

import errno
import gc
import json
import math
import os
import pickle
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.app.buckets.scene import (
    CHAINS,
    ERAS,
    INFO,
    SEGMENT_BLOCKS,
    counted_reads,
    grow,
    small_segments,
    store_with,
    uploaded_to,
    whole_store,
)
from tests.store.chains import STREAM, make_store
from tokenmill.app.segments.retiring import retire
from tokenmill.bucket import cache as caching
from tokenmill.bucket.cache import open_folder
from tokenmill.bucket.objects import Data
from tokenmill.consumers import Batches, Documents, EraDataset, Mixture, StepDataset, Windows, transfer
from tokenmill.errors import BucketError, DamagedError, DifferenceError, DiskError, InputError, StoreError
from tokenmill.store import layout, open_eras, open_partition, partitions_in
from tokenmill.store import store as description

SEGMENT_BYTES = SEGMENT_BLOCKS * INFO.block_bytes


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let segments lie across the store's and looks be frequent; no thread or folder is left behind."""
    small_segments(monkeypatch)
    monkeypatch.setattr(caching, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(caching, "CLAIM_SECONDS", 0.005)
    yield
    settle()
    caching._folders.clear()


def settle() -> None:
    """Wait until nobody fetches for readers that are gone."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "fetch":
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return whole_store(tmp_path / "store")


@pytest.fixture
def address(store: Path, tmp_path: Path) -> str:
    return uploaded_to(store, tmp_path / "share").as_uri()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """Return which eras readers want now, and next, as they say it."""
    found, has = list[tuple[list[int], list[int]]](), caching.BucketCache.has

    def noting(self: Any, eras: Any, now: Any, following: Any, had: Any) -> bool:
        found.append((list(now), list(following)))
        return has(self, eras, now, following, had)

    monkeypatch.setattr(caching.BucketCache, "has", noting)
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    return counted_reads(monkeypatch)


def read_of(reads: Counter[str], *kinds: str) -> list[int]:
    """Return how many objects of each kind were read, all reads counted."""
    return [sum(count for name, count in reads.items() if name.endswith(f".{kind}")) for kind in kinds]


def opened(store: Any, **options: Any) -> Batches:
    return Batches(store, STREAM, sequence_length=4, timeout=90, poll_seconds=0.002, **{"batch_size": 2, **options})


def rows(batches: Any) -> list[list[list[int]]]:
    return [batch.x.tolist() for batch in batches]


def test_the_sequence_is_that_of_the_store(store: Path, address: str, cache: Path, reads: Counter[str]) -> None:
    reads.clear()
    wanted = opened(store, passes=2, seed=5)
    batches = opened(address, cache=cache, cache_bytes=12 * SEGMENT_BYTES, passes=2, seed=5)
    for mine, theirs in zip(batches, wanted, strict=True):
        assert torch.equal(mine.x, theirs.x)
        assert torch.equal(mine.documents().document_ids, theirs.documents().document_ids)
        assert len(list(cache.glob(f"{STREAM}/[0-9]/*.bin"))) <= 12
    assert batches.state_dict() == wanted.state_dict()
    data = [count for name, count in reads.items() if name.endswith(".bin")]
    assert (len(data), max(data)) == (18, 2)


def test_a_cache_never_has_more_than_two_eras(
    store: Path, address: str, cache: Path, claims: list[tuple[list[int], list[int]]]
) -> None:
    assert rows(opened(address, cache=cache, passes=2)) == rows(opened(store, passes=2))
    assert max(len(now) + len(following) for now, following in claims) == 2
    assert any(following for _, following in claims), "what comes next is fetched meanwhile"
    assert {era for _, following in claims for era in following} >= {*range(1, len(ERAS) - 1)}


@pytest.mark.needs("minutes")
def test_a_batch_that_is_kept_has_its_documents(store: Path, address: str, cache: Path) -> None:
    first, *others = opened(address, cache=cache, cache_bytes=8 * SEGMENT_BYTES)
    kept, *_ = opened(store)
    del others
    assert torch.equal(first.documents().document_ids, kept.documents().document_ids)


def test_what_a_disk_damaged_in_a_cache_is_to_be_deleted(address: str, cache: Path) -> None:
    """Not repaired: all of it is in the bucket."""
    assert rows(opened(address, cache=cache))
    settle()  # else what the reader left is removed meanwhile
    for tokens in cache.glob(f"{STREAM}/[0-9]/*.bin"):
        tokens.write_bytes(bytes(tokens.stat().st_size))
    with pytest.raises(DamagedError, match=rf"{cache} is the cache of a bucket: .* delete it"):
        rows(opened(address, cache=cache, eras=range(5, 7)))


def test_ranks_share_a_cache_and_any_world_size_goes_on(
    store: Path, address: str, tmp_path: Path, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks fetch each object once together; the one that does not fetch goes on when the other is gone."""
    # A rank that looks for its next batches by itself may be two of these small eras ahead of one that waits for a
    # processor: what that one has not asked for yet would be removed, and fetched again.
    monkeypatch.setattr(transfer, "LONG_SECONDS", math.inf)
    reads.clear()
    wanted = rows(opened(store, batch_size=4, drop_last=False))
    ranks = [opened(address, cache=tmp_path / "cache", rank=rank, world_size=2) for rank in range(2)]
    walks = [iter(rank) for rank in ranks]
    found = [[walk_batch for walk in walks for walk_batch in next(walk).x.tolist()] for _ in range(5)]
    assert found == wanted[:5]
    state = json.loads(json.dumps(ranks[1].state_dict()))
    del walks[0], ranks[0]
    gc.collect()
    assert next(walks[0]).x.tolist() == wanted[5][2:]
    rest = list(walks[0])
    assert len(rest) == len(wanted) - 6 - (len(wanted[-1]) < 4)
    assert max(count for name, count in reads.items() if name.endswith(".bin")) == 1
    alone = opened(address, cache=tmp_path / "another", batch_size=4, drop_last=False)
    alone.load_state_dict(state)
    assert rows(alone) == wanted[5:]


@pytest.mark.needs("minutes")
def test_what_a_rank_leaves_stays_for_the_one_behind_it(
    store: Path, address: str, cache: Path, reads: Counter[str], claims: list[tuple[list[int], list[int]]]
) -> None:
    """For a while: the one that is two eras ahead ends, and what it had fetched is not fetched again."""
    reads.clear()
    behind, ahead = (opened(address, cache=cache) for _ in range(2))
    found = [next(walk := iter(behind)).x.tolist()]
    for batch in ahead:  # noqa: B007 - it is let go below, and holds its reader
        if ([2], [3]) in claims:
            break
    assert ([2], [3]) in claims
    known = -1
    while known != reads.total():  # until what it claims is there
        known = reads.total()
        time.sleep(0.3)
    claims.clear()
    del ahead, batch
    gc.collect()
    time.sleep(0.5)  # until the other one fetches, and has looked what is wanted
    found += rows(walk)
    assert found == rows(opened(store))
    assert max(count for name, count in reads.items() if name.endswith(".bin")) == 1


def test_a_run_follows_a_bucket_that_grows(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", INFO)
    grow(store, 4)
    address = uploaded_to(store.path, tmp_path / "share").as_uri()
    batches = opened(address, cache=tmp_path / "cache")
    walk = iter(batches)
    found = [next(walk).x.tolist() for _ in range(8)]
    grow(store, len(ERAS))
    uploaded_to(store.path, tmp_path / "share")
    found += rows(walk)
    assert found == rows(opened(store.path))


def test_mixtures_and_loaders_take_an_address(store: Path, address: str, tmp_path: Path) -> None:
    dataset = StepDataset(address, STREAM, cache=tmp_path / "cache", batch_size=2, sequence_length=4)
    assert rows(dataset) == rows(opened(store))
    mixed = [
        Mixture.open({"a": {"stream": STREAM, **place}}, {"a": 1}, batch_size=2, sequence_length=4)
        for place in ({"store": store}, {"store": address, "cache": tmp_path / "other"})
    ]
    here, there = (next(iter(one)).x.tolist() for one in mixed)
    assert here == there


def test_forked_workers_are_refused(address: str, cache: Path) -> None:
    """They would wait for ever: obstore's threads are in this process alone."""
    dataset = StepDataset(address, STREAM, cache=cache, batch_size=2, sequence_length=4)
    with pytest.raises(InputError, match="multiprocessing_context='forkserver'"):
        next(iter(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")))


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_workers_read_from_a_bucket(store: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "MOST_BUCKET_BYTES", 1 << 20)  # as it is in them
    address = uploaded_to(store, tmp_path / "share").as_uri()
    dataset = StepDataset(address, STREAM, cache=cache, batch_size=2, sequence_length=4)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    assert rows(loader) == rows(opened(store))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    store, share = store_with(tmp_path / "store", 6), tmp_path / "share"
    address = uploaded_to(store, share).as_uri()
    with pytest.raises(InputError, match="a bucket, and cache is None: give cache"):
        opened(address)
    with pytest.raises(InputError, match="does nothing where store is no bucket"):
        opened(store, cache=tmp_path / "cache")
    with pytest.raises(BucketError, match="holds no stream 'other'"):
        Batches(address, "other", cache=tmp_path / "cache", batch_size=1)
    with pytest.raises(InputError, match=f"cache_bytes is {SEGMENT_BYTES}: give more"):
        rows(opened(address, cache=tmp_path / "cache", cache_bytes=SEGMENT_BYTES))
    file = share / STREAM / "0" / f"{SEGMENT_BLOCKS:012d}.bin"
    data = file.read_bytes()
    file.write_bytes(data[::-1])
    with pytest.raises(BucketError, match=rf"{file.name} is not what was uploaded"):
        rows(opened(address, cache=tmp_path / "cache"))
    file.write_bytes(data)
    assert len(rows(opened(address, cache=tmp_path / "cache", eras=range(4)))) == 13


def test_a_store_or_the_bucket_is_no_cache_and_a_bucket_no_store(store: Path, address: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for cache in (store, tmp_path / "share"):
        with pytest.raises(InputError, match="would lose it: give a folder of its own"):
            opened(address, cache=cache)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(StoreError, match=f"it is a bucket, so open it as {address}, with a cache"):
        next(iter(Batches(tmp_path / "share", STREAM, sequence_length=4, batch_size=2, timeout=0)))
    assert rows(opened(Path(address), cache=tmp_path / "cache")) == rows(opened(store))


def test_an_emptied_or_broken_cache_is_filled_again(store: Path, address: str, cache: Path, tmp_path: Path) -> None:
    wanted = rows(opened(store))
    assert rows(opened(address, cache=cache)) == wanted
    settle()
    for file in cache.glob(f"{STREAM}/[0-9]/*"):
        file.unlink()
    assert rows(opened(address, cache=cache)) == wanted
    other = uploaded_to(store_with(tmp_path / "shorter", 4), tmp_path / "other share").as_uri()
    with pytest.raises(Exception, match="it is the cache of another bucket"):
        rows(opened(other, cache=cache))


@pytest.mark.needs("minutes")
@pytest.mark.parametrize("gone", ["cache", "files", "tokens"])
def test_what_is_deleted_under_a_run_changes_no_batch(store: Path, address: str, cache: Path, gone: str) -> None:
    wanted, found, ends = rows(opened(store, passes=4)), list[tuple[Any, Any]](), list[str]()
    while len(found) < len(wanted):
        ends.append(_run_until_it_ends(address, cache, gone, found))
        settle()
    assert [x for x, _ in found] == wanted
    assert all("the cache of a bucket" in said for said in ends[:-1])
    assert len(ends) > 1 or gone != "cache"


def _run_until_it_ends(address: str, cache: Path, gone: str, found: list[tuple[Any, Any]]) -> str:
    batches = opened(address, cache=cache, passes=4)
    if found:
        batches.load_state_dict(found[-1][1])
    try:
        for batch in batches:
            found.append((batch.x.tolist(), batch.state))
            if len(found) % 20 == 3:
                _delete(cache, gone)
    except (StoreError, DamagedError) as error:
        return str(error)
    return ""


def _delete(cache: Path, gone: str) -> None:
    while gone == "cache" and cache.exists():  # who fetches may put something there meanwhile
        shutil.rmtree(cache, ignore_errors=True)
    for file in cache.glob(f"{STREAM}/[0-9]/*{'.bin' if gone == 'tokens' else ''}"):
        file.unlink(missing_ok=True)


@pytest.mark.needs("minutes")
def test_a_cache_on_a_full_disk_is_waited_for(
    store: Path, address: str, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put, refusals = layout.put_file, iter([*[True] * 3, *[False] * 4, True])

    def putting(path: Path, data: Data) -> None:
        if path.suffix == ".bin" and next(refusals, False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        put(path, data)

    monkeypatch.setattr(caching, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(layout, "put_file", putting)
    assert rows(opened(address, cache=cache)) == rows(opened(store))
    assert next(refusals, None) is None, "the disk was full, and again"
    assert "is tried again" in caplog.text
    assert os.strerror(errno.ENOSPC) in caplog.text


def test_a_folder_that_cannot_be_made_is_no_matter_of_segment_workers(address: str) -> None:
    with pytest.raises(DiskError, match=r"/proc/here cannot be used .*: what reads this cache of a bucket tries again"):
        open_folder(address, Path("/proc/here"), None)


def test_a_folder_is_the_store(store: Path, address: str, tmp_path: Path, reads: Counter[str]) -> None:
    path = open_folder(address, tmp_path / "folder", None)
    assert partitions_in(path, STREAM) == [0, 1]
    assert [open_eras(path, STREAM).era(n) for n in range(6)] == [open_eras(store, STREAM).era(n) for n in range(6)]
    mine, theirs = ([open_partition(at, STREAM, number) for number in (0, 1)] for at in (path, store))
    assert [one.blocks for one in mine] == [25, 25]
    assert read_of(reads, "bin", "docs") == [0, 0]
    mine[0].read(4)
    assert read_of(reads, "bin", "docs") == [1, 0]
    for one, other in zip(mine, theirs, strict=True):
        assert np.array_equal(one.gather(range(25)), other.gather(range(25)))
        assert [one.documents(number) for number in range(25)] == [other.documents(number) for number in range(25)]
        assert [one.chain_before(number) for number in range(26)] == [other.chain_before(n) for n in range(26)]
    assert read_of(reads, "bin", "docs") == [18, 18]


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


def test_datasets_by_index(store: Path, address: str, cache: Path, reads: Counter[str]) -> None:
    places: list[tuple[Any, dict[str, Any]]] = [(address, {"cache": cache}), (store, {})]
    mine, theirs = (EraDataset(at, STREAM, sequence_length=4, **more) for at, more in places)
    assert repr(mine) == repr(theirs)
    assert all(np.array_equal(mine[index][0], theirs[index][0]) for index in range(len(theirs)))
    one, other = (Windows(at, STREAM, 6, **more) for at, more in places)
    assert np.array_equal(one.rows(1, range(40)), other.rows(1, range(40)))
    first, second = (Documents(at, STREAM, **more) for at, more in places)
    assert [document.tokens.tolist() for document in first] == [document.tokens.tolist() for document in second]
    assert read_of(reads, "bin", "docs", "index") == [18, 18, 16]
    with pytest.raises(InputError, match="give cache a folder"):
        EraDataset(address, STREAM)
    with pytest.raises(InputError, match="does nothing where store is no bucket"):
        Windows(store, STREAM, cache=cache)


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
