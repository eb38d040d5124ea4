"""Reading ahead changes nothing but where a loop waits: the same batches, no disk in its thread, no thread left."""

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.scenes import ERAS, INFO, expected, open_batches, rows_of
from tests.store.chains import STREAM, fill, make_chain, make_eras, make_info, make_store, write_eras
from tokenmill.consumers import Batches, Mixture, prefetch
from tokenmill.consumers.prefetch import EraReadAhead
from tokenmill.samples.sequence import Samples, SequenceId
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import Store, read_stream
from tokenmill.store.maps import FileRange


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[FileRange]:
    found: list[FileRange] = []

    def pieces(part: FileRange) -> Iterator[int]:
        found.append(part)
        yield part.stop - part.first

    def small(parts: Iterator[FileRange]) -> None:
        found.extend(parts)

    monkeypatch.setattr(prefetch, "read_pieces", pieces)
    monkeypatch.setattr(prefetch, "read_small", small)
    monkeypatch.setattr(prefetch, "is_in_memory", lambda _: False)
    return found


def _ahead(store: Store, views: int) -> EraReadAhead:
    sequence = SequenceId(STREAM, INFO.fingerprint.hex(), 4 // views, 1, shuffle=True, eras=(0, None), passes=1)
    info = read_stream(store.path, STREAM)
    return EraReadAhead(TrainableSamples(store.path, info, sequence, views, check=True, on_damage="refuse"))


@given(st.data())
def test_the_parts_of_samples_are_their_bytes(store: Store, data: st.DataObject) -> None:
    views = data.draw(st.sampled_from([1, 2, 4]))
    blocks = st.sampled_from([(p, b) for p, part in enumerate(ERAS[-1].ranges) for b in range(part.stop)])
    drawn = data.draw(st.lists(st.tuples(blocks, st.integers(0, views - 1)), min_size=1, max_size=20))
    samples = Samples(*(np.array(column) for column in zip(*((p, b, v) for (p, b), v in drawn), strict=True)))
    ahead = _ahead(store, views)
    item, length = INFO.dtype.itemsize, (INFO.block_tokens - 1) // views
    found = [(part.path, byte) for part in ahead._rows(samples) for byte in range(part.first, part.stop)]
    wanted = set()
    for (partition, block), view in drawn:
        first = block - block % INFO.segment_blocks
        path = store.path / STREAM / str(partition) / f"{first:012d}.bin"
        start = ((block - first) * INFO.block_tokens + view * length) * item
        wanted |= {(path, byte) for byte in range(start, start + (length + 1) * item)}
    assert wanted <= set(found)
    assert found == sorted(found)
    assert len(found) == len(set(found)) or views > 1  # views share the token between them


@pytest.mark.parametrize("in_memory", [False, True])
def test_an_era_is_read_whole_and_the_next_one_behind_it(
    store: Store, read: list[FileRange], monkeypatch: pytest.MonkeyPatch, *, in_memory: bool
) -> None:
    monkeypatch.setattr(prefetch, "is_in_memory", lambda _: in_memory)
    ahead = _ahead(store, 1)
    assert ahead.reach(0, 3)
    del ahead
    tokens = {(part.path.parent.name, part.path.name): 0 for part in read}
    for part in read:
        if part.path.suffix == ".bin":
            tokens[part.path.parent.name, part.path.name] += (part.stop - part.first) // INFO.block_bytes
    stops = {str(number): 0 if in_memory else part.stop for number, part in enumerate(ERAS[-1].ranges)}
    assert {name: sum(n for (p, _), n in tokens.items() if p == name) for name in stops} == stops
    assert {part.path.suffix for part in read} - {".bin"} == {".json", ".index", ".commits"}


def test_large_eras_are_read_by_sample_one_chunk_ahead(
    store: Store, read: list[FileRange], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "_GAP_BYTES", -1)
    batches = open_batches(store, batch_size=1, read_ahead=1)
    batches._most_samples = 2
    next(iter(batches))
    deadline = time.monotonic() + 20
    while len([part for part in read if part.path.suffix == ".bin"]) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [part.stop - part.first for part in read if part.path.suffix == ".bin"] == [INFO.block_bytes] * 4


def open_mixture(store: Store) -> Mixture:
    streams = {"early": {"eras": range(3)}, "late": {"eras": range(3, 5)}}
    return Mixture.open(streams, dict.fromkeys(streams, 1), store=store.path, stream=STREAM, batch_size=2)


@pytest.mark.parametrize(("open_loop", "count"), [(open_batches, 2), (open_mixture, 4)])
def test_the_threads_end_with_the_loop(
    store: Store, open_loop: Callable[[Store], Batches | Mixture], count: int
) -> None:
    others = set(threading.enumerate())  # of loops that other tests have left open

    def threads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "read-ahead" and one not in others]

    gc.disable()
    try:
        batches = open_loop(store)
        assert threads() == []
        iterator = iter(batches)
        next(iterator)
        assert len(threads()) == count
        del batches, iterator
        deadline = time.monotonic() + 20
        while threads() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threads() == []
    finally:
        gc.enable()


def test_a_forked_process_has_a_thread_of_its_own(store: Store) -> None:
    """The parent's does not exist there, and would be waited for without end."""
    batches = open_batches(store)
    iterator = iter(batches)
    next(iterator)
    child = os.fork()
    if not child:
        os._exit(0 if rows_of(batches.rewind()) == expected() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_the_thread_cannot_read_is_refused_in_the_loop(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, and the loop meets the fault where it reads: nothing waits for the thread."""

    def fails(_: FileRange) -> Iterator[int]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(prefetch, "read_pieces", fails)
    assert rows_of(open_batches(store)) == expected()
    monkeypatch.setattr(prefetch, "read_small", fails)
    assert rows_of(open_batches(store, read_ahead=1)) == expected()


COLD: Final = """
import gc, json, os, resource, sys
from pathlib import Path
from tokenmill.consumers import Batches

store, stream = Path(sys.argv[1]), sys.argv[2]
for ahead in map(int, sys.argv[3:]):
    options = {"batch_size": 16, "sequence_length": 256, "read_ahead": ahead}
    sum(int(batch.x.sum()) for batch in Batches(store, stream, **options))  # so that all code is loaded, torch's, too
    gc.collect()  # what is mapped cannot be dropped
    for path in store.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    tokens = sum(int(batch.x.sum()) for batch in Batches(store, stream, **options))
    print(json.dumps([tokens, resource.getrusage(resource.RUSAGE_THREAD).ru_majflt - before]))
"""
"""Reads a store, its files dropped from the page cache before each time; prints the loop's major page faults."""


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_the_loop_never_waits_for_a_page(tmp_path: Path) -> None:
    """The thread that trains has no major page fault on a cold store of 4 MB: eras read whole, and by sample."""
    info = make_info(block_tokens=257, segment_blocks=2048)
    chains = {partition: make_chain(info, 4096, partition=partition, seed=partition) for partition in range(2)}
    store = make_store(tmp_path / "store", info)
    for partition, chain in chains.items():
        fill(store, info, chain, [4096], partition=partition)
    write_eras(store, make_eras(info, chains, ({0: 2000, 1: 2000}, {0: 4096, 1: 4096}), end=True))
    command = [sys.executable, "-c", COLD, str(store.path), STREAM, str(1 << 30), "1", "0"]
    *ahead, (plain, faults) = map(json.loads, subprocess.check_output(command).splitlines())
    if not faults:
        pytest.skip("this file system keeps its files in memory, so nothing is read from a disk")
    assert ahead == [[plain, 0], [plain, 0]]
