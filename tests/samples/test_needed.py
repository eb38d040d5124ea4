"""What a checkpoint still needs of a store, and what may go."""

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.scenes import BLOCKS, ERAS, INFO, OPEN_ERAS, STOPS, era_store, expected, open_batches, rows_of
from tests.store.chains import STREAM
from tokenmill.app.segments.retiring import retire
from tokenmill.errors import InputError
from tokenmill.samples.sequence import Position
from tokenmill.samples.trainable import first_needed, read_state

VIEWS = (INFO.block_tokens - 1) // 4
PARTITIONS = len(ERAS[-1].ranges)


def state(store: Path, samples: int, **options: Any) -> Position:
    sequence = {
        "stream": STREAM, "fingerprint": INFO.fingerprint.hex(), "sequence_length": 4, "seed": 1, "shuffle": True,
        "eras": [0, None], "passes": 1,
    }  # fmt: skip
    return Position.read({"format": 1, **sequence, "sample": samples, "ranges": [[0, 0, 1]], **options})


def firsts(era: int) -> list[int]:
    return [part.first for part in ERAS[era].ranges]


def before(era: int) -> int:
    return sum(ERAS[number].blocks for number in range(era)) * VIEWS


@pytest.mark.parametrize("era", range(len(STOPS)))
def test_everything_from_the_era_of_the_next_sample_on_is_needed(tmp_path: Path, era: int) -> None:
    store = era_store(tmp_path, ERAS).path
    for samples in (before(era), before(era + 1) - 1):
        assert first_needed(store, INFO, [state(store, samples)]) == firsts(era)


def test_what_comes_later_is_needed_where_nothing_is_left(tmp_path: Path) -> None:
    store = era_store(tmp_path / "open", OPEN_ERAS).path
    ends = [part.stop for part in OPEN_ERAS[-1].ranges]
    for samples in (BLOCKS * VIEWS, BLOCKS * VIEWS + 100):
        assert first_needed(store, INFO, [state(store, samples)]) == ends
    ended = era_store(tmp_path / "ended", ERAS).path
    assert first_needed(ended, INFO, [state(ended, BLOCKS * VIEWS)]) == ends
    assert first_needed(ended, INFO, [state(ended, before(2), eras=[0, 2])]) == firsts(2)
    assert first_needed(ended, INFO, [state(ended, 0, eras=[3, None])]) == firsts(3)


def test_passes_that_are_left_need_the_first_era(tmp_path: Path) -> None:
    store = era_store(tmp_path, ERAS).path
    one = BLOCKS * VIEWS
    for samples, era in ((before(3), 0), (one, 0), (one + before(3), 0), (2 * one, 0), (2 * one + before(3), 3)):
        assert first_needed(store, INFO, [state(store, samples, passes=3)]) == firsts(era)
    still_open = era_store(tmp_path / "open", OPEN_ERAS).path
    assert first_needed(still_open, INFO, [state(still_open, before(3), passes=2)]) == firsts(0)


def test_the_least_that_any_state_needs_counts(tmp_path: Path) -> None:
    """A partition that one of them has not met is needed whole; without states, everything is."""
    store = era_store(tmp_path, ERAS).path
    late, early = state(store, before(4)), state(store, before(1))
    assert first_needed(store, INFO, [late, early]) == [min(pair) for pair in zip(firsts(4), firsts(1), strict=False)]
    assert len(firsts(1)) < PARTITIONS
    assert first_needed(store, INFO, []) == []


def test_a_run_goes_on_over_what_is_left(tmp_path: Path) -> None:
    steps = BLOCKS * VIEWS // 2
    for made in range(0, steps, 9):
        store = era_store(tmp_path / str(made), ERAS)
        batches = open_batches(store)
        list(islice(batches, made))
        saved = batches.state_dict()
        needed = first_needed(store.path, INFO, [Position.read(saved)])
        for partition, block in enumerate(needed):
            retire(store.path, STREAM, partition, block)
        going_on = open_batches(store)
        going_on.load_state_dict(saved)
        assert rows_of(going_on) == expected()[2 * made : 2 * steps]


def read(file: Path, content: str | Mapping[str, Any]) -> Position:
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_state(file)


def test_only_states_of_the_stream_are_taken(tmp_path: Path) -> None:
    store = era_store(tmp_path / "store", ERAS).path
    file = tmp_path / "state.json"
    good = state(store, 3).to_dict()
    assert read(file, good) == state(store, 3)
    for bad in ("", "[", "[]", "{}", {**good, "sample": -1}, {**good, "format": 7}):
        with pytest.raises(InputError, match=r"state\.json"):
            read(file, bad)
    with pytest.raises(InputError, match=r"absent\.json cannot be read"):
        read_state(tmp_path / "absent.json")
    for other in ({"stream": "other"}, {"fingerprint": "00" * 16}):
        with pytest.raises(InputError, match="name a state of a run over this stream"):
            first_needed(store, INFO, [state(store, 3, **other)])
    with pytest.raises(InputError, match="sequence_length is 3"):
        first_needed(store, INFO, [state(store, 3, sequence_length=3)])
