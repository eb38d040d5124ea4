"""Copying samples out of a store, from many arrays at once."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.scenes import CHAINS, INFO, era_store
from tests.samples.test_trainable import open_samples
from tests.store.chains import tokens_of
from tokenmill.consumers import sample_lookup
from tokenmill.consumers.sample_lookup import Gathering, RowReader, addresses_of
from tokenmill.samples.sequence import Ranks
from tokenmill.samples.tracing import places_of
from tokenmill.store import MapWatch, Store


def test_steps_are_read_as_far_as_they_are_there(tmp_path: Path) -> None:
    reader = RowReader(open_samples(era_store(tmp_path)), Ranks(3, 1, 2), 4, skip=False)
    for first, steps, found in [(0, 3, 3), (0, 10, 6), (30, 10, 1), (36, 1, 0)]:
        chunk = reader.read(first, steps)
        assert (chunk.steps if chunk else 0) == found
        if chunk:
            assert len(chunk.samples.blocks) == 3 * found
            assert [rows.shape for stretch in chunk.stretches() for rows in stretch] == [(3, 5)] * found


@given(st.sampled_from([1, 2, 4]), st.sampled_from([4, 1 << 20]), st.data())
def test_rows_of_steps_are_the_tokens_of_their_samples(
    store: Store, length: int, table_blocks: int, data: st.DataObject
) -> None:
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
