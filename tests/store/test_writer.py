"""The writer of a partition."""

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.chains import (
    STREAM,
    contents,
    cut,
    directory_of,
    fill,
    filled_store,
    make_chain,
    make_info,
    make_store,
)
from tokenmill.errors import DiskError, GapError, InputError, LockedError, StoreError
from tokenmill.reading import Blocks
from tokenmill.store import PartitionWriter, Store, open_partition
from tokenmill.store.layout import SegmentPaths
from tokenmill.store.sealing import Manifest, scan
from tokenmill.store.sealing import seal as real_seal

INFO = make_info()
CHAIN = make_chain(INFO, 22)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    store = filled_store(tmp_path_factory.mktemp("store"), INFO, CHAIN, [22])
    return contents(store)


@given(st.lists(st.integers(1, 9), max_size=12), st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
@pytest.mark.slow
def test_stores_are_equal_however_messages_and_commits_were_cut(
    tmp_path_factory: pytest.TempPathFactory,
    whole: dict[str, bytes],
    sizes: list[int],
    commits: set[int],
    restarts: set[int],
) -> None:
    store = make_store(tmp_path_factory.mktemp("store"), INFO)
    writer = PartitionWriter.open(store, STREAM, 0)
    for n, end in enumerate([*itertools.accumulate(sizes), 22]):
        if writer.next_block < min(end, 22):
            writer.append(cut(CHAIN, INFO, writer.next_block, min(end, 22)), token_offset=n)
        if n in commits:
            writer.commit()
        if n in restarts:
            writer.close()
            writer = PartitionWriter.open(store, STREAM, 0)
    if writer.next_block < 22:
        writer.append(cut(CHAIN, INFO, writer.next_block, 22), token_offset=99)
    writer.commit()
    writer.close()
    assert contents(store) == whole


def test_blocks_count_only_after_their_commit(tmp_path: Path) -> None:
    store = make_store(tmp_path, INFO)
    reader = open_partition(store.path, STREAM, 0)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(CHAIN, INFO, 0, 2), token_offset=7)
        writer.commit()
        writer.append(cut(CHAIN, INFO, 2, 3), token_offset=8)
        assert (writer.next_block, reader.refresh()) == (3, 2)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        assert (writer.next_block, writer.chain, writer.source_hint) == (2, CHAIN.chains[1], 7)
        assert writer.truncated_bytes == INFO.block_bytes + len(CHAIN.entries[2])
        assert reader.refresh() == 2


def test_a_new_partition_begins_at_block_0(tmp_path: Path) -> None:
    store = make_store(tmp_path, INFO)
    chain = make_chain(INFO, 1, partition=3)
    with PartitionWriter.open(store, STREAM, 3) as writer:
        assert (writer.next_block, writer.source_hint, writer.truncated_bytes) == (0, -1, 0)
        assert writer.chain == writer.chain_before(0)
        writer.append(chain, token_offset=0)
        assert (writer.chain_before(1), writer.chain_before(2)) == (chain.chains[0], None)


def test_the_hash_before_any_block_is_known(tmp_path: Path) -> None:
    store = filled_store(tmp_path, INFO, CHAIN, [5, 9])
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(CHAIN, INFO, 9, 11), token_offset=0)
        assert [writer.chain_before(block) for block in range(1, 12)] == list(CHAIN.chains[:11])
        assert writer.chain_before(12) is None


def test_a_partition_has_one_writer(tmp_path: Path) -> None:
    store = make_store(tmp_path, INFO)
    with PartitionWriter.open(store, STREAM, 0):
        with pytest.raises(LockedError):
            PartitionWriter.open(store, STREAM, 0)
        PartitionWriter.open(store, STREAM, 1).close()


def test_a_stream_must_be_in_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no stream"):
        PartitionWriter.open(make_store(tmp_path, INFO), "other", 0)


@pytest.mark.parametrize("first", [0, 3])
def test_blocks_must_continue_the_chain(tmp_path: Path, first: int) -> None:
    store = make_store(tmp_path, INFO)
    with PartitionWriter.open(store, STREAM, 0) as writer:
        writer.append(cut(CHAIN, INFO, 0, 2), token_offset=0)
        with pytest.raises(GapError, match=f"wants block 2 and was given block {first}"):
            writer.append(cut(CHAIN, INFO, first, 5), token_offset=1)
        writer.append(cut(CHAIN, INFO, 2, 5), token_offset=1)
        assert writer.next_block == 5


def test_tokens_entries_and_hashes_must_belong_together(tmp_path: Path) -> None:
    good = cut(CHAIN, INFO, 0, 2)
    with PartitionWriter.open(make_store(tmp_path, INFO), STREAM, 0) as writer:
        for bad in (
            Blocks(0, good.tokens[:-1], good.entries, good.chains),
            Blocks(0, good.tokens, good.entries[:1], good.chains),
            Blocks(0, good.tokens, good.entries, good.chains[:1]),
        ):
            with pytest.raises(InputError):
                writer.append(bad, token_offset=0)
        assert writer.next_block == 0


class FailingDisk:
    """One of the system's calls that write, sync, rename and open fails: the nth, once."""

    def __init__(self, patch: pytest.MonkeyPatch, nth: int, code: int) -> None:
        self.left = nth
        self._code = code
        for name in ("pwrite", "fdatasync", "fsync", "open", "rename"):
            patch.setattr(os, name, self._failing(name, getattr(os, name)))

    @property
    def failed(self) -> bool:
        return self.left <= 0

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                if name == "pwrite" and self._code == errno.ENOSPC:  # a full disk takes a part
                    descriptor, data, offset = args
                    call(descriptor, bytes(data)[: len(data) // 2], offset)
                raise OSError(self._code, os.strerror(self._code))
            return call(*args, **named)

        return wrapper


def write_until_it_fails(store: Store) -> int:
    """Append and commit until the disk fails or all is written; return what was committed by then."""
    committed = 0
    writer = None
    try:
        writer = PartitionWriter.open(store, STREAM, 0)
        for end in (3, 4, 9, 11):
            writer.append(cut(CHAIN, INFO, writer.next_block, end), token_offset=end)
            writer.commit()
            committed = end
    except StoreError:
        if writer is not None:
            with pytest.raises(StoreError, match="is closed"):
                writer.commit()
    else:
        writer.close()
    return committed


@pytest.mark.cases(1)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.slow
def test_after_any_failed_call_the_writer_is_closed_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes], code: int
) -> None:
    """What had been committed stands; with the disk mended, the store becomes what it would have been."""
    for nth in itertools.count(1):
        store = make_store(tmp_path / str(nth), INFO)
        with monkeypatch.context() as patch:
            disk = FailingDisk(patch, nth, code)
            committed = write_until_it_fails(store)
        with PartitionWriter.open(store, STREAM, 0) as again:
            assert again.next_block >= committed
            again.append(cut(CHAIN, INFO, again.next_block, 22), token_offset=0)
            again.commit()
        assert contents(store) == whole
        if not disk.failed:
            break
        assert committed < 11


def test_nothing_is_committed_where_nobody_would_look_for_it(tmp_path: Path) -> None:
    """A directory that was moved away, or over which another one lies, takes no more; in its place again, it does."""
    store = make_store(tmp_path, INFO)
    directory = directory_of(store)
    for lies_over in (False, True):
        with PartitionWriter.open(store, STREAM, 0) as writer:
            writer.append(cut(CHAIN, INFO, 0, 1), token_offset=0)
            directory.rename(tmp_path / "away")
            if lies_over:
                directory.mkdir()
            with pytest.raises(DiskError, match="Stale file handle" if lies_over else "No such file or directory"):
                writer.commit()
        if lies_over:
            directory.rmdir()
        (tmp_path / "away").rename(directory)
    fill(store, INFO, CHAIN, [1])
    assert open_partition(store.path, STREAM, 0).blocks == 1


def test_a_failed_write_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PartitionWriter.open(make_store(tmp_path, INFO), STREAM, 0) as writer:
        FailingDisk(monkeypatch, 1, errno.ENOSPC)
        with pytest.raises(StoreError, match=r"No space left on device.*committed is kept"):
            writer.append(cut(CHAIN, INFO, 0, 1), token_offset=0)


def test_a_full_segment_is_committed_before_it_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest vouches for what is durable: all blocks stand in the commit log, behind their data."""
    committed: list[int] = []

    def seal(paths: SegmentPaths, *arguments: Any, **options: Any) -> Manifest:
        found = scan(paths.commits.read_bytes(), block_bytes=INFO.block_bytes, segment_blocks=INFO.segment_blocks)
        committed.append(len(found.rows))
        return real_seal(paths, *arguments, **options)

    monkeypatch.setattr("tokenmill.store.sealing.seal", seal)
    fill(make_store(tmp_path, INFO), INFO, CHAIN, [10])
    assert committed == [INFO.segment_blocks] * (10 // INFO.segment_blocks)
