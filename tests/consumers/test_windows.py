"""Windows at any token."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.scenes import CHAINS, INFO, era_store
from tests.store.chains import STREAM, fill, tokens_of
from tokenmill.app.segments.retiring import retire
from tokenmill.consumers import Windows
from tokenmill.errors import InputError
from tokenmill.store import Store


@given(st.integers(1, 30), st.sampled_from([(0, 115), (1, 65), (2, 20)]), st.data())
def test_a_window_is_a_stretch_of_the_partition(
    store: Store, length: int, part: tuple[int, int], data: st.DataObject
) -> None:
    partition, tokens = part
    windows = Windows(store.path, STREAM, length)
    assert windows.partitions == [0, 1, 2]
    assert windows.indices(partition) == range(max(tokens - length, 0))
    flat = tokens_of(CHAINS[partition], INFO)[: tokens // 5].reshape(-1).tolist()
    if tokens > length:
        places = data.draw(st.lists(st.sampled_from(windows.indices(partition)), min_size=1, max_size=5))
        x, y = windows.at(partition, places)
        assert x.tolist() == [flat[place : place + length] for place in places]
        assert y.tolist() == [flat[place + 1 : place + 1 + length] for place in places]
        assert windows[partition, places[0]].y.tolist() == y[0].tolist()


def test_windows_that_are_not_there_are_refused(store: Store) -> None:
    windows = Windows(store.path, STREAM, 7)
    for wrong in (-1, 13, 100):
        with pytest.raises(InputError, match="tokens 0 to 12"):
            windows.at(2, [0, wrong])
    with pytest.raises(InputError, match=r"one of \[0, 1, 2\]"):
        windows.indices(3)
    with pytest.raises(InputError, match="1 or more"):
        Windows(store.path, STREAM, 0)


def test_windows_see_a_store_grow_and_retire(tmp_path: Path) -> None:
    store = era_store(tmp_path)
    windows = Windows(store.path, STREAM, 5)
    before = windows[0, 60]
    fill(store, INFO, CHAINS[0], [30])
    retire(store.path, STREAM, 0, 8)
    windows.refresh()
    assert windows.indices(0) == range(40, 145)
    assert windows[0, 60].x.tolist() == before.x.tolist()


def test_windows_have_numbers(store: Store) -> None:
    windows = Windows(store.path, STREAM, 9)
    places = [(partition, token) for partition in windows.partitions for token in windows.indices(partition)]
    assert len(windows) == len(places) == 115 + 65 + 20 - 27
    expected = [windows[place].x.tolist() for place in places]
    assert [x.tolist() for x, _ in windows] == expected
    numbers = [5, 170, -1, 106, 105, 0]
    assert [x.tolist() for x, _ in windows.__getitems__(numbers)] == [expected[number] for number in numbers]
    again = pickle.loads(pickle.dumps(windows))  # noqa: S301 - our own
    assert (len(again), again[-1].y.tolist()) == (173, windows[places[-1]].y.tolist())
    for wrong in (173, -174):
        with pytest.raises(IndexError, match="173 windows"):
            windows[wrong]
    assert Windows(store.path, STREAM, 10_000)
    assert len(Windows(store.path, STREAM, 10_000)) == 0
