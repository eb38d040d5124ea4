"""Copying samples out of a store."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.scenes import CHAINS, INFO, era_store
from tests.samples.test_trainable import open_samples
from tests.segments.chains import tokens_of
from tokenmill.consumers.rows import RowReader
from tokenmill.samples import Ranks, Samples
from tokenmill.segments import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store that tests only read."""
    return era_store(tmp_path_factory.mktemp("store"))


@given(st.sampled_from([1, 2, 4]), st.data())
def test_rows_are_the_tokens_of_their_samples(store: Store, length: int, data: st.DataObject) -> None:
    """Of any partitions, blocks and views, in any order, also again and again."""
    blocks = st.sampled_from([(0, 23), (1, 13), (2, 4)]).flatmap(
        lambda part: st.tuples(st.just(part[0]), st.integers(0, part[1] - 1), st.integers(0, 4 // length - 1))
    )
    wanted = data.draw(st.lists(blocks, min_size=1, max_size=30))
    reader = RowReader(open_samples(store, sequence_length=length), Ranks(1), length, skip=False)
    for partition in range(3):
        reader.trainable.reader(partition)
    samples = Samples(*(np.array(column) for column in zip(*wanted, strict=True)))
    chunk = reader.find(samples)
    assert chunk.kept is None
    rows = chunk.rows(0, len(wanted))
    assert rows.dtype == INFO.dtype
    assert rows.tolist() == [
        tokens_of(CHAINS[partition], INFO)[block, view * length : view * length + length + 1].tolist()
        for partition, block, view in wanted
    ]


def test_steps_are_read_as_far_as_they_are_there(tmp_path: Path) -> None:
    """Whole ones alone."""
    reader = RowReader(open_samples(era_store(tmp_path)), Ranks(3, 1, 2), 4, skip=False)
    for first, steps, found in [(0, 3, 3), (0, 10, 6), (30, 10, 1), (36, 1, 0)]:
        chunk = reader.read(first, steps)
        assert (chunk.steps if chunk else 0) == found
        if chunk:
            assert len(chunk.samples.blocks) == 3 * found
            assert [chunk.rows(start, 3).shape for start in (0, 1, 3)] == [(3, 5), (2, 5), (0, 5)]
