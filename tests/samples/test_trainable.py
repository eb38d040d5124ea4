"""Which samples are in a store."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.consumers.scenes import CHAINS, ERAS, INFO, OPEN_ERAS, era_store, grow
from tests.store.chains import STREAM, directory_of, fill, make_chain, make_store
from tests.store.eras import make_eras, write_eras
from tokenmill.app.segments.retiring import retire
from tokenmill.errors import DamagedError, DifferenceError, InputError
from tokenmill.samples.sequence import SequenceId
from tokenmill.samples.trainable import TrainableSamples
from tokenmill.store import Store


def open_samples(store: Store, **options: Any) -> TrainableSamples:
    """Open the samples of a store: all eras, in one pass, one view of each block, unless the options say otherwise."""
    values: dict[str, Any] = {
        "sequence_length": 4,
        "seed": 1,
        "shuffle": True,
        "eras": (0, None),
        "passes": 1,
    } | options
    sequence = SequenceId(STREAM, INFO.fingerprint.hex(), **values)
    views = 4 // sequence.sequence_length
    return TrainableSamples(store.path, INFO, sequence, views, check=False, on_damage="refuse")


def test_the_whole_is_known_when_its_last_era_is(tmp_path: Path) -> None:
    """The named one, or the end marker."""
    store = era_store(tmp_path, OPEN_ERAS[:3])
    assert open_samples(store).places.total() is None
    assert open_samples(store, eras=(0, 4)).places.total() is None
    assert open_samples(store, eras=(1, 3), passes=3).places.total() == 3 * 11
    assert open_samples(store, eras=(0, 3), sequence_length=2).places.total() == 2 * 16
    grow(store, ERAS)
    assert open_samples(store).places.total() == 40
    assert open_samples(store, eras=(2, 99)).places.total() == 31
    assert open_samples(store, eras=(8, 99)).places.total() == 0


def test_samples_can_be_found_anywhere(tmp_path: Path) -> None:
    """In any order of asking, over eras and passes, as when asked for all at once."""
    store = era_store(tmp_path)
    whole = open_samples(store, passes=2)
    assert whole.ready(0, 1000) == 80
    located = np.stack(whole.locate(np.arange(80)))
    for first in [*range(0, 80, 7), 41, 3, 79]:
        assert whole.ready(first, 5) == min(5, 80 - first)
        found = np.stack(whole.locate(np.arange(first, min(first + 5, 80))))
        assert found.tolist() == located[:, first : first + 5].tolist()
    assert whole.ready(80, 1) == 0


def test_an_era_is_trainable_when_its_blocks_are_there(tmp_path: Path) -> None:
    """All of them, of all partitions; eras may come first."""
    store = make_store(tmp_path, INFO)
    samples = open_samples(store)
    assert (samples.ready(0, 99), samples.next_era(0)) == (0, 0)
    write_eras(store, ERAS[:3])
    for partition, stop, ready in [(0, 4, 0), (0, 5, 5), (0, 9, 5), (1, 2, 5), (1, 3, 9), (2, 1, 9), (1, 9, 16)]:
        fill(store, INFO, CHAINS[partition], [stop], partition=partition)
        assert samples.ready(0, 99) == ready
        assert open_samples(store).ready(0, 99) == ready
    assert samples.next_era(16) == 3


def test_blocks_of_another_history_are_refused(tmp_path: Path) -> None:
    """By the chain hash, whatever else fits."""
    store = make_store(tmp_path, INFO)
    fill(store, INFO, make_chain(INFO, 40, seed=9), [40])
    write_eras(store, ERAS)
    with pytest.raises(DifferenceError, match=r"era 0 of .* partition 0 before block 5: .*make the store again"):
        open_samples(store).ready(0, 1)


def test_retired_blocks_are_refused(tmp_path: Path) -> None:
    """Later eras can be named."""
    eras = make_eras(INFO, CHAINS, [{0: 4}, {0: 12}])
    store = make_store(tmp_path, INFO)
    fill(store, INFO, CHAINS[0], [12])
    write_eras(store, eras)
    retire(store.path, STREAM, 0, 4)
    with pytest.raises(InputError, match=r"begins at block 4: .* Ask for later eras or steps"):
        open_samples(store).ready(0, 1)
    assert open_samples(store, eras=(1, 2)).ready(0, 99) == 8


def test_damage_is_an_error(tmp_path: Path) -> None:
    """Of what says which blocks are there."""
    store = era_store(tmp_path)
    (directory_of(store) / f"{4:012d}.index").write_bytes(b"")
    with pytest.raises(DamagedError):
        open_samples(store).ready(0, 99)
