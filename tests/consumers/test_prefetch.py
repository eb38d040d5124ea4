"""Copying samples out of a store, and reading ahead of that.

Reading ahead changes nothing but where a loop waits: the same batches, no disk in its thread, no thread left.
"""

import gc
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.scenes import CHAINS, ERAS, INFO, era_store, expected, open_batches, open_halves, rows_of
from tests.samples.test_trainable import open_samples
from tests.store.chains import STREAM, fill, make_chain, make_eras, make_info, make_store, tokens_of, write_eras
from tokenmill.consumers import Batches, Mixture, prefetch, sample_lookup
from tokenmill.consumers.prefetch import EraReadAhead
from tokenmill.consumers.sample_lookup import Gathering, RowReader, addresses_of
from tokenmill.samples.sequence import Ranks, Samples, SequenceId
from tokenmill.samples.tracing import places_of
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import MapWatch, Store, read_stream
from tokenmill.store.maps import FileRange


def test_steps_are_read_as_far_as_they_are_there(tmp_path: Path) -> None:
    reader = RowReader(open_samples(era_store(tmp_path)), Ranks(3, 1, 2), 4, skip=False)
    for first, steps, found in [(0, 3, 3), (0, 10, 6), (30, 10, 1), (36, 1, 0)]:
        chunk = reader.read(first, steps)
        assert (chunk.steps if chunk else 0) == found
        if chunk:
            assert len(chunk.samples.blocks) == 3 * found
            assert [rows.shape for stretch in chunk.stretches() for rows in stretch] == [(3, 5)] * found


@given(st.sampled_from([1, 2, 4]), st.sampled_from([4, 1 << 20]), st.data())
def test_rows_of_steps_are_tokens_of_samples(store: Store, length: int, table_blocks: int, data: st.DataObject) -> None:
    first, steps = data.draw(st.integers(0, 39)), data.draw(st.integers(1, 14))
    samples = open_samples(store, sequence_length=length, shuffle=data.draw(st.booleans()))
    reader = RowReader(samples, Ranks(3), length, skip=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_lookup, "_TABLE_BLOCKS", table_blocks)
        chunks = [chunk for begin in (first, first + 3 * steps) if (chunk := reader.read(begin, steps)) is not None]
    for chunk in chunks:
        assert np.concatenate(list(chunk.stretches())).reshape(-1, length + 1).tolist() == [
            tokens_of(CHAINS[partition], INFO)[block, view * length : view * length + length + 1].tolist()
            for partition, block, view in places_of(chunk.samples)
        ]


@pytest.mark.parametrize("table_blocks", [1, 1 << 20])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.slow
@pytest.mark.cases(1)
def test_a_chunk_keeps_every_map_that_its_rows_lie_in(
    store: Store, monkeypatch: pytest.MonkeyPatch, table_blocks: int, *, skip: bool
) -> None:
    """Whatever the reader lets go meanwhile, for it keeps few; both ways of looking rows up."""
    monkeypatch.setattr(sample_lookup, "_TABLE_BLOCKS", table_blocks)
    reader = RowReader(open_samples(store), Ranks(2), 4, skip=skip)
    chunk = reader.read(0, 20)
    assert chunk is not None
    gathering = chunk._gathering
    width = 5 * INFO.dtype.itemsize
    first = int(gathering._memory.__array_interface__["data"][0])
    spans = [(start := int(kept.__array_interface__["data"][0]), start + kept.nbytes) for kept in gathering._maps]
    for address in (gathering._items.ravel() + first).tolist():
        assert any(start <= address and address + width <= stop for start, stop in spans), address
    expected = chunk.rows().tolist()
    keeping = [weakref.ref(kept) for kept in gathering._maps]
    trainable = reader.trainable
    del reader, gathering
    trainable.readers.clear()
    gc.collect()
    assert all(kept() is not None for kept in keeping)
    assert chunk.rows().tolist() == expected


DTYPES = ["uint8", "<u2", "<u4"]


@given(st.sampled_from(DTYPES), st.integers(1, 9), st.data())
def test_rows_come_from_wherever_they_are(dtype: str, columns: int, data: st.DataObject) -> None:
    arrays = [
        np.random.default_rng(number).integers(0, 256, (blocks, columns + number)).astype(dtype)
        for number, blocks in enumerate(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)))
    ]
    place = st.integers(0, len(arrays) - 1).flatmap(
        lambda number: st.tuples(st.just(number), st.integers(0, arrays[number].size - columns))
    )
    wanted = data.draw(st.lists(place, max_size=30))
    addresses = np.array([addresses_of(arrays[number], np.array([start]))[0] for number, start in wanted], np.int64)
    gathering = Gathering(addresses, columns, np.dtype(dtype), arrays, MapWatch())
    cut = data.draw(st.integers(0, len(wanted)))
    rows = np.concatenate([gathering.rows(0, cut), gathering.rows(cut)])
    assert rows.dtype == np.dtype(dtype)
    assert rows.tolist() == [arrays[number].reshape(-1)[start : start + columns].tolist() for number, start in wanted]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_gathered_is_a_copy(dtype: str) -> None:
    tokens = np.arange(12).reshape(3, 4).astype(dtype)
    rows = Gathering(addresses_of(tokens, np.array([8, 0])), 4, tokens.dtype, [tokens], MapWatch()).rows()
    tokens[:] = 0
    rows[0, 0] += 1
    assert rows.tolist() == [[9, 9, 10, 11], [0, 1, 2, 3]]
    assert not np.shares_memory(rows, tokens)


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


@pytest.mark.parametrize(("open_loop", "count"), [(open_batches, 2), (open_halves, 4)])
def test_threads_end_with_the_loop(store: Store, open_loop: Callable[[Store], Batches | Mixture], count: int) -> None:
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
