"""Which samples are in a store, what a state pins of its content, and what a checkpoint still needs of it."""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.scenes import (
    BLOCKS,
    CHAINS,
    ERAS,
    INFO,
    OPEN_ERAS,
    STOPS,
    era_store,
    expected,
    grow,
    open_batches,
    other_eras,
    rows_of,
)
from tests.store.chains import STREAM, directory_of, fill, filled_store, make_chain, make_eras, make_store, write_eras
from tokenmill.app.segments.retiring import retire
from tokenmill.eras import Era
from tokenmill.errors import DamagedError, DifferenceError, InputError
from tokenmill.samples import trainable
from tokenmill.samples.sequence import Content, Position, SequenceId
from tokenmill.samples.trainable import TrainableSamples, UsedContent, first_needed, read_state
from tokenmill.store import EraReader, Store


def sequence_of(
    eras: tuple[int, int | None] = (0, None), passes: int = 1, sequence_length: int = 4, *, shuffle: bool = True
) -> SequenceId:
    return SequenceId(STREAM, INFO.fingerprint.hex(), sequence_length, 1, shuffle=shuffle, eras=eras, passes=passes)


def open_samples(store: Store, **options: Any) -> TrainableSamples:
    sequence = sequence_of(**options)
    views = 4 // sequence.sequence_length
    return TrainableSamples(store.path, INFO, sequence, views, check=False, on_damage="refuse")


def test_the_whole_is_known_when_its_last_era_is(tmp_path: Path) -> None:
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
    store = make_store(tmp_path, INFO)
    samples = open_samples(store)
    assert (samples.ready(0, 99), samples.next_era(0)) == (0, 0)
    write_eras(store, ERAS[:3])
    for partition, stop, ready in [(0, 4, 0), (0, 5, 5), (0, 9, 5), (1, 2, 5), (1, 3, 9), (2, 1, 9), (1, 9, 16)]:
        fill(store, INFO, CHAINS[partition], [stop], partition=partition)
        assert samples.ready(0, 99) == ready
        assert open_samples(store).ready(0, 99) == ready
    assert samples.next_era(16) == 3


def test_blocks_of_another_history_and_damage_are_refused(tmp_path: Path) -> None:
    other = filled_store(tmp_path / "other", INFO, make_chain(INFO, 40, seed=9), [40])
    write_eras(other, ERAS)
    with pytest.raises(DifferenceError, match=r"era 0 of .* partition 0 before block 5: .*make the store again"):
        open_samples(other).ready(0, 1)
    damaged = era_store(tmp_path / "damaged")
    (directory_of(damaged) / f"{4:012d}.index").write_bytes(b"")
    with pytest.raises(DamagedError):
        open_samples(damaged).ready(0, 99)


def test_retired_blocks_are_refused(tmp_path: Path) -> None:
    store = store_of(tmp_path, make_eras(INFO, CHAINS, [{0: 4}, {0: 12}]))
    fill(store, INFO, CHAINS[0], [12])
    retire(store.path, STREAM, 0, 4)
    with pytest.raises(InputError, match=r"begins at block 4: .* Ask for later eras or steps"):
        open_samples(store).ready(0, 1)
    assert open_samples(store, eras=(1, 2)).ready(0, 99) == 8


MARKER = len(OPEN_ERAS)
"""The number of the end marker."""
KNOWN = (1, 3, len(ERAS))
"""How many eras the other stores have."""
NAMED = [(0, None), (0, 3), (1, 4), (2, 99), (4, 5)]


ONCE, TWICE = sequence_of(), sequence_of(passes=2)


def at(sample: int, sequence: SequenceId = ONCE, pinned: Content | None = None) -> Position:
    """Return the position before a sample of a run with batches of one."""
    return Position(sequence, sample, Position.beginning(sequence, 1).ranges, pinned)


def saved(position: Position) -> Position:
    return Position.from_dict(json.loads(json.dumps(position.to_dict())), position.sequence)


def store_of(path: Path, eras: Sequence[Era]) -> Store:
    store = make_store(path, INFO)
    write_eras(store, eras)
    return store


def open_content(store: Store, sequence: SequenceId = ONCE) -> UsedContent:
    return UsedContent(store.path, INFO, sequence, 4 // sequence.sequence_length)


def saved_at(home: Store, sample: int, sequence: SequenceId = ONCE) -> Position:
    return saved(open_content(home, sequence).pin(at(sample, sequence)))


def remember(found: UsedContent, sample: int) -> None:
    """Let content remember the era of a sample, as if it was just read."""
    place = found._places.place(sample)
    assert place is not None
    found.remember(place, ERAS[place.era].blocks)


def pinned_era(found: UsedContent, sample: int, sequence: SequenceId = ONCE) -> int:
    pinned = found.pin(at(sample, sequence)).content
    assert pinned is not None
    assert pinned.hash == ERAS[pinned.era].hash.hex()
    return pinned.era


def last_used(sample: int, sequence: SequenceId = ONCE) -> int | None:
    """Return the last era that a position has used, by going through all samples."""
    stop = min(sequence.eras[1] or len(ERAS), len(ERAS))
    views = 4 // sequence.sequence_length
    held = [era.number for era in ERAS[sequence.eras[0] : stop] for _ in range(era.blocks * views)]
    if not sample:
        return None
    return held[sample - 1] if sample <= len(held) else stop - 1


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], Store]:
    """Return stores by how many first eras they share with `ERAS`, and how many they have; tests only read them."""
    directory = tmp_path_factory.mktemp("stores")
    return {
        (kept, known): store_of(directory / f"{kept}-{known}", other_eras(kept)[:known])
        for kept in range(len(ERAS))
        for known in KNOWN
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return store_of(tmp_path_factory.mktemp("home"), ERAS)


runs = st.builds(sequence_of, st.sampled_from(NAMED), st.integers(1, 3), st.sampled_from([1, 2, 4]))


others = st.tuples(st.integers(0, MARKER), st.sampled_from(KNOWN))
"""How many first eras a store shares, and how many it has; who shares all with blocks shares the end marker."""


@given(runs, st.data(), others)
def test_a_state_is_taken_where_all_that_it_used_is_the_same(
    home: Store, stores: dict[tuple[int, int], Store], sequence: SequenceId, data: Any, other: tuple[int, int]
) -> None:
    """And nowhere else: at any sample of any pass, in stores that share some eras and have not all of them yet."""
    here = open_content(home, sequence)
    total = here._places.total()
    assert total is not None
    sample = data.draw(st.integers(0, total))
    used = last_used(sample, sequence)
    position = here.pin(at(sample, sequence))
    assert position.content == (None if used is None else Content(used, ERAS[used].hash.hex()))
    assert here.compare(saved(position))

    there = open_content(stores[other], sequence)
    kept, known = other
    if used is None or (used < known and (used < kept or kept == MARKER)):
        assert there.compare(saved(position))
        assert there.pin(saved(position)) == position
    elif used < known:
        found = other_eras(kept)[used].hash.hex()
        with pytest.raises(InputError, match=f"state: {position.content}; store: era {used} hash {found}"):
            there.compare(saved(position))
    else:
        assert not there.compare(saved(position))
        assert there.pin(saved(position)) == position  # nothing here can say more of it


@given(
    samples=st.lists(st.integers(1, 3 * BLOCKS), max_size=12), passes=st.sampled_from([1, 3]), remembers=st.booleans()
)
def test_what_pins_a_position_does_not_depend_on_what_was_read(
    home: Store, samples: list[int], passes: int, *, remembers: bool
) -> None:
    sequence = sequence_of(passes=passes)
    found = open_content(home, sequence)
    for sample in samples:
        place = found._places.place(sample - 1)
        if place is None:
            continue
        if remembers:
            found.remember(place, ERAS[place.era].blocks)
        assert pinned_era(found, sample, sequence) == last_used(sample, sequence)


def test_states_of_what_was_just_read_cost_no_read(home: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_content(home, TWICE)
    for sample in range(2 * BLOCKS):
        remember(found, sample)
    before = [found.pin(at(sample, TWICE)) for sample in range(2 * BLOCKS + 1)]
    for name in ("row", "hash_of", "refresh"):
        monkeypatch.setattr(EraReader, name, None)
    for order in (range(2 * BLOCKS + 1), range(2 * BLOCKS, -1, -1)):
        assert [found.pin(at(sample, TWICE)) for sample in order] == [before[sample] for sample in order]


def test_a_run_that_goes_back_is_remembered_from_there(home: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_content(home)
    for sample in (20, 35, 0, 5):
        remember(found, sample)
    monkeypatch.setattr(EraReader, "row", None)
    for sample in range(1, ERAS[0].blocks + ERAS[1].blocks + 1):
        assert pinned_era(found, sample) == last_used(sample)


@pytest.mark.parametrize("sample", [12, 30, BLOCKS + 1])
def test_what_came_since_it_was_opened_is_remembered(
    tmp_path: Path, home: Store, sample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another reader of the store may see it first; a later pass knows the end marker then."""
    store = store_of(tmp_path, ERAS[:MARKER])
    found = open_content(store, TWICE)
    write_eras(store, ERAS)
    place = open_content(home, TWICE)._places.place(sample - 1)
    assert place is not None
    found.remember(place, ERAS[place.era].blocks)
    wanted = open_content(home, TWICE).pin(at(sample, TWICE))
    monkeypatch.setattr(EraReader, "row", None)
    assert found.pin(at(sample, TWICE)) == wanted


def test_what_is_remembered_is_bounded(home: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainable, "_REMEMBERED", 2)
    found = open_content(home)
    for sample in range(BLOCKS):
        remember(found, sample)
        assert len(found._remembered) <= 2
    for sample in range(1, BLOCKS + 1):
        assert pinned_era(found, sample) == last_used(sample)


@pytest.mark.parametrize("kept", [0, 2, 3])
def test_a_state_that_is_ahead_is_compared_as_soon_as_its_era_comes(tmp_path: Path, home: Store, kept: int) -> None:
    """Of the right content it is taken then, of other content refused, also when it is asked again."""
    position, store = saved_at(home, 12), store_of(tmp_path, other_eras(kept)[:2])
    found = open_content(store)
    assert not found.compare(position)
    assert found.pin(position) == position
    write_eras(store, other_eras(kept)[:3])
    if kept == 3:
        assert found.compare(position)
        return
    for _ in range(2):
        with pytest.raises(InputError, match="state: era 2"):
            found.compare(position)
        assert found.pin(position) == position


@pytest.mark.parametrize(
    ("stops", "end", "sample", "told"),
    [
        ([{0: 9, 1: 4}, {0: 20, 1: 9}], False, 14, r"state: era 2 hash \w+; store: has its samples up to 14 in era 1"),
        ([{0: 5}, {0: 6, 1: 3}], True, 40, r"state: era 4 hash \w+; store: ends with era 2"),
    ],
    ids=["eras of other sizes", "an earlier end"],
)
def test_a_state_whose_era_can_never_come_is_refused_at_once(
    tmp_path: Path, home: Store, *, stops: list[dict[int, int]], end: bool, sample: int, told: str
) -> None:
    eras = make_eras(INFO, CHAINS, stops, end=end)
    with pytest.raises(InputError, match=rf"{told} hash {eras[-1].hash.hex()}"):
        open_content(store_of(tmp_path, eras)).compare(saved_at(home, sample))


def test_later_passes_know_that_nothing_came_after_the_last_era(tmp_path: Path, home: Store) -> None:
    """The end marker is what gives samples of a second pass their numbers."""
    position = saved_at(home, BLOCKS + 1, TWICE)
    assert position.content == Content(MARKER, ERAS[MARKER].hash.hex())
    longer = make_eras(INFO, CHAINS, [*STOPS, {0: 30}])
    assert [era.hash for era in longer[:MARKER]] == [era.hash for era in OPEN_ERAS]
    with pytest.raises(InputError, match=f"state: era {MARKER} .* store: era {MARKER} "):
        open_content(store_of(tmp_path, longer), TWICE).compare(position)


def test_a_position_beyond_the_store_is_pinned_by_what_is_known(tmp_path: Path) -> None:
    assert open_content(store_of(tmp_path / "some", ERAS[:2])).pin(at(1000)).content == Content(1, ERAS[1].hash.hex())
    assert open_content(make_store(tmp_path / "none", INFO)).pin(at(1000)).content is None


def test_growth_changes_nothing_that_was_used(tmp_path: Path) -> None:
    store = make_store(tmp_path, INFO)
    found = open_content(store)
    pins: dict[int, Content | None] = {}
    for known in range(1, len(ERAS) + 1):
        write_eras(store, ERAS[:known])
        reached = sum(era.blocks for era in ERAS[:known])
        pins |= {n: found.pin(at(n)).content for n in range(reached + 1) if n not in pins}
        assert all(found.pin(at(n)).content == pin for n, pin in pins.items())
    assert [pin and pin.era for pin in pins.values()] == [last_used(n) for n in range(BLOCKS + 1)]


def test_old_states_are_taken_with_a_warning(home: Store, caplog: pytest.LogCaptureFixture) -> None:
    """They name no content; at the beginning there is none, and nothing to warn of."""
    old = {name: value for name, value in at(12).to_dict().items() if name != "content"}
    position = Position.read(old)
    found = open_content(home)
    with caplog.at_level(logging.WARNING):
        assert found.accept(position) == found.accept(at(12)) == position
    assert [record.getMessage().startswith("a state does not say") for record in caplog.records] == [True, True]
    caplog.clear()
    pinned = found.pin(position)
    assert pinned.content == Content(2, ERAS[2].hash.hex())
    for known in (pinned, Position.read({**old, "sample": 0})):
        assert found.accept(known) == known
    assert not caplog.records


@pytest.mark.parametrize(
    "wrong", [[], [1], [1, 2], ["1", "00" * 16], [True, "00" * 16], [-1, "00" * 16], [1, "00"], [1, "xy" * 16], 7, {}]
)
def test_content_that_cannot_be_is_refused(wrong: Any) -> None:
    good = at(12, pinned=Content(1, "0a" * 16)).to_dict()
    assert Position.read(good).content == Position.read({**good, "content": [1, "0A" * 16]}).content
    with pytest.raises(InputError, match="no state of Batches"):
        Position.read({**good, "content": wrong})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return era_store(tmp_path_factory.mktemp("store"))


def firsts(era: int) -> list[int]:
    return [part.first for part in ERAS[era].ranges]


def before(era: int) -> int:
    """Return how many samples come before an era."""
    return sum(ERAS[number].blocks for number in range(era))


@pytest.mark.parametrize("era", range(len(STOPS)))
def test_everything_from_the_era_of_the_next_sample_on_is_needed(store: Store, era: int) -> None:
    for samples in (before(era), before(era + 1) - 1):
        assert first_needed(store.path, INFO, [at(samples)]) == firsts(era)


def test_what_comes_later_is_needed_where_nothing_is_left(tmp_path: Path, store: Store) -> None:
    still_open = era_store(tmp_path, OPEN_ERAS).path
    ends = [part.stop for part in OPEN_ERAS[-1].ranges]
    for samples in (BLOCKS, BLOCKS + 100):
        assert first_needed(still_open, INFO, [at(samples)]) == ends
    assert first_needed(still_open, INFO, [at(before(3), TWICE)]) == firsts(0)
    assert first_needed(store.path, INFO, [at(BLOCKS)]) == ends
    assert first_needed(store.path, INFO, [at(before(2), sequence_of((0, 2)))]) == firsts(2)
    assert first_needed(store.path, INFO, [at(0, sequence_of((3, None)))]) == firsts(3)


def test_passes_that_are_left_need_the_first_era(store: Store) -> None:
    one = BLOCKS
    for samples, era in ((before(3), 0), (one, 0), (one + before(3), 0), (2 * one, 0), (2 * one + before(3), 3)):
        assert first_needed(store.path, INFO, [at(samples, sequence_of(passes=3))]) == firsts(era)


def test_the_least_that_any_state_needs_counts(store: Store) -> None:
    """A partition that one of them has not met is needed whole; without states, everything is."""
    found = first_needed(store.path, INFO, [at(before(4)), at(before(1))])
    assert found == [min(pair) for pair in zip(firsts(4), firsts(1), strict=False)]
    assert len(firsts(1)) < len(ERAS[-1].ranges)
    assert first_needed(store.path, INFO, []) == []


def test_a_run_goes_on_over_what_is_left(tmp_path: Path) -> None:
    for made in range(0, BLOCKS // 2, 9):
        store = era_store(tmp_path / str(made))
        batches = open_batches(store)
        list(islice(batches, made))
        saved_state = batches.state_dict()
        for partition, block in enumerate(first_needed(store.path, INFO, [Position.read(saved_state)])):
            retire(store.path, STREAM, partition, block)
        assert rows_of(open_batches(store, state=saved_state)) == expected()[2 * made :]


def test_only_states_of_the_stream_are_taken(tmp_path: Path, store: Store) -> None:
    file, good = tmp_path / "state.json", at(3).to_dict()
    file.write_text(json.dumps(good))
    assert read_state(file) == at(3)
    for bad in ("", "[", "[]", "{}", json.dumps(good | {"sample": -1}), json.dumps(good | {"format": 7})):
        file.write_text(bad)
        with pytest.raises(InputError, match=r"state\.json"):
            read_state(file)
    with pytest.raises(InputError, match=r"absent\.json cannot be read"):
        read_state(tmp_path / "absent.json")
    for other in (replace(ONCE, stream="other"), replace(ONCE, fingerprint="00" * 16)):
        with pytest.raises(InputError, match="name a state of a run over this stream"):
            first_needed(store.path, INFO, [at(3, other)])
    with pytest.raises(InputError, match="sequence_length is 3"):
        first_needed(store.path, INFO, [at(3, sequence_of(sequence_length=3))])
