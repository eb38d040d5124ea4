"""What a crash or a failed sync may have left in the page cache alone is made durable before anything hangs on it."""

import errno
from pathlib import Path

import pytest

from tests.faults.crashes import NOBODY, Op, Recording, real_tree
from tests.store.chains import STREAM, cut, directory_of, filled_store, make_chain, make_info, segment_of
from tokenmill.app.segments.retiring import retire
from tokenmill.errors import DiskError, StoreError
from tokenmill.store import PartitionWriter, Start, Store, open_partition
from tokenmill.store.sealing import scan
from tokenmill.store.store import write_start

INFO = make_info()
CHAIN = make_chain(INFO, 30)
OTHER = make_chain(INFO, 2, partition=1)
DIRECTORY = f"{STREAM}/0"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with two sealed segments of four blocks, and three blocks in an open one, in two commits."""
    return filled_store(tmp_path, INFO, CHAIN, [10, 11])


def recorded(store: Store) -> Recording:
    """Return a record that takes what is there for durable."""
    record = Recording(store.path)
    record.start_from(real_tree(store.path))
    record.ops.clear()
    return record


def last_record(store: Store) -> tuple[int, bytes]:
    log = segment_of(store, 8).commits.read_bytes()
    record = scan(log, block_bytes=INFO.block_bytes, segment_blocks=INFO.segment_blocks).commits[-1].encode()
    assert log.endswith(record)
    return len(log) - len(record), record


def index_of(ops: list[Op], **wanted: object) -> int:
    return next(n for n, op in enumerate(ops) if all(getattr(op, name) == value for name, value in wanted.items()))


def test_the_last_commit_record_is_written_again_and_synced(store: Store) -> None:
    """Whoever wrote it may have died before its sync: a sync without the write would sync nothing that is clean."""
    offset, data = last_record(store)
    before = segment_of(store, 8).commits.read_bytes()
    record = recorded(store)
    with record.running(), PartitionWriter.open(store, STREAM, 0) as writer:
        assert writer.next_block == 11
    path = f"{DIRECTORY}/{8:012d}.commits"
    written = index_of(record.ops, kind="write", path=path, offset=offset, data=data)
    synced = [n for n, op in enumerate(record.ops) if (op.kind, op.path, op.failed) == ("sync", path, False)]
    assert max(synced) > written
    assert segment_of(store, 8).commits.read_bytes() == before


def test_a_commit_whose_sync_failed_is_written_again_by_the_next_writer(store: Store) -> None:
    """The page cache shows it, clean: a sync alone would not bring it to the disk. The writer that failed is closed."""
    syncs = {"fdatasync": 0}

    def third(call: str, _number: int) -> int | None:
        syncs[call] = syncs.get(call, 0) + 1
        return errno.EIO if call == "fdatasync" and syncs[call] == 3 else None  # tokens, documents, and then the log

    record = Recording(store.path, third)
    record.start_from(real_tree(store.path))
    with record.running(), PartitionWriter.open(store, STREAM, 1) as writer:
        writer.append(cut(OTHER, INFO, 0, 2), token_offset=1)
        with pytest.raises(DiskError):
            writer.commit()
        with pytest.raises(StoreError, match="is closed"):
            writer.commit()
    log = directory_of(store, 1) / f"{0:012d}.commits"
    left = log.read_bytes()
    again = recorded(store)
    with again.running(), PartitionWriter.open(store, STREAM, 1) as writer:
        assert writer.next_block == 2
    path = f"{STREAM}/1/{0:012d}.commits"
    written = index_of(again.ops, kind="write", path=path, offset=0, data=left)
    assert written < index_of(again.ops, kind="sync", path=path, failed=False)


def test_a_refused_sync_at_recovery_gives_no_writer(store: Store) -> None:
    """Of the log that is written again, or of the directory of a start that was raised."""
    write_start(directory_of(store), Start(4, CHAIN.chains[3]))
    for number in range(1, 4):
        asked = [0]

        def fails(call: str, _number: int, asked: list[int] = asked, number: int = number) -> int | None:
            asked[0] += call == "fsync"
            return errno.EIO if call == "fsync" and asked[0] == number else None

        record = Recording(store.path, fails)
        record.start_from(real_tree(store.path))
        with record.running(), pytest.raises(DiskError):
            PartitionWriter.open(store, STREAM, 0)
        assert record.failed == ["fsync"]
        if number < 3:  # of the directories: nothing was unlinked that hangs on the start
            assert segment_of(store, 0).tokens.exists()


def test_a_raised_start_is_synced_before_a_writer_unlinks_what_is_below(store: Store) -> None:
    """Who raised it may have died between the rename and its sync: a start that goes back would miss its segments."""
    write_start(directory_of(store), Start(4, CHAIN.chains[3]))
    record = recorded(store)
    with record.running():
        PartitionWriter.open(store, STREAM, 0).close()
    synced = index_of(record.ops, kind="sync", node=NOBODY, path=DIRECTORY, failed=False)
    unlinked = index_of(record.ops, kind="unlink", path=f"{DIRECTORY}/{0:012d}.bin")
    assert synced < unlinked
    assert open_partition(store.path, STREAM, 0).first_block == 4


@pytest.mark.parametrize("below", [4, 0])
def test_a_raised_start_is_synced_before_retiring_goes_on(store: Store, below: int) -> None:
    """By the same command again, also where it wants less than the one that was cut off."""
    write_start(directory_of(store), Start(4, CHAIN.chains[3]))
    record = recorded(store)
    with record.running():
        assert retire(store.path, STREAM, 0, below).segments == 1
    synced = index_of(record.ops, kind="sync", node=NOBODY, path=DIRECTORY, failed=False)
    assert synced < index_of(record.ops, kind="unlink", path=f"{DIRECTORY}/{0:012d}.bin")


def test_a_start_is_durable_before_segments_below_it_go(store: Store) -> None:
    record = recorded(store)
    with record.running():
        assert retire(store.path, STREAM, 0, 4).segments == 1
    renamed = index_of(record.ops, kind="rename", path=f"{DIRECTORY}/start.json")
    content = index_of(record.ops, kind="sync", path=f"{DIRECTORY}/start.json.tmp", failed=False)
    name = index_of(record.ops[renamed:], kind="sync", node=NOBODY, path=DIRECTORY, failed=False) + renamed
    assert content < renamed < name < index_of(record.ops, kind="unlink", path=f"{DIRECTORY}/{0:012d}.bin")
