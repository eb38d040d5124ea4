"""Where a run stands, and what its state says."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenmill.errors import InputError
from tokenmill.samples.sequence import Position, SequenceId

SEQUENCE = SequenceId("raw-text.train", "00" * 16, 4, 1, shuffle=True, eras=(0, None), passes=1)

runs = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=5)
"""Global batch and number of steps of runs that went on from each other."""


def after(made: list[tuple[int, int]]) -> Position:
    """Return where these runs ended, each through a state in JSON."""
    position = Position.beginning(SEQUENCE, made[0][0])
    for size, count in made:
        position = Position.from_dict(json.loads(json.dumps(position.to_dict())), SEQUENCE)
        position = position.with_batches_of(size).after(count)
    return position


@given(runs)
def test_a_position_counts_samples_and_steps(made: list[tuple[int, int]]) -> None:
    """Through any number of runs with batches of any size; which samples each step took is told."""
    position = after(made)
    taken = [range(0)]
    for size, count in made:
        taken += [range(last, last + size) for last in range(taken[-1].stop, taken[-1].stop + count * size, size)]
    assert (position.step, position.sample) == (len(taken) - 1, taken[-1].stop)
    assert [position.samples_of(step) for step in range(position.step)] == taken[1:]
    for wrong in (-1, position.step):
        with pytest.raises(InputError, match="not made"):
            position.samples_of(wrong)


@given(runs)
@example([(2, 1), (1, 0), (2, 1), (1, 0)])
def test_a_state_is_small_and_of_json(made: list[tuple[int, int]]) -> None:
    """A range for each change of the size, and none for runs that made no step."""
    state = after(made).to_dict()
    assert json.loads(json.dumps(state)) == state
    sizes = [size for size, count in made if count] or [made[-1][0]]
    changes = 1 + sum(first != second for first, second in pairwise(sizes))
    assert len(state["ranges"]) in {changes, changes + 1}


@pytest.mark.parametrize(
    "changed",
    [
        {"stream": "raw-text.validation"},
        {"fingerprint": "11" * 16},
        {"sequence_length": 2},
        {"seed": 2},
        {"shuffle": False},
        {"eras": (1, None)},
        {"eras": (0, 5), "passes": 2},
    ],
)
def test_a_state_of_another_sequence_is_refused(changed: dict[str, object]) -> None:
    """Naming what differs."""
    other = replace(SEQUENCE, **changed)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"another sequence of samples: .*{next(iter(changed))}"):
        Position.from_dict(Position.beginning(other, 2).to_dict(), SEQUENCE)


@given(runs)
def test_a_state_says_which_sequence_it_is_of(made: list[tuple[int, int]]) -> None:
    """So that it can be read by those who do not train."""
    position = after(made)
    assert Position.read(json.loads(json.dumps(position.to_dict()))) == position


def test_a_position_knows_where_the_run_stood_before_any_step() -> None:
    """One that was made in steps of any size, or one that comes."""
    early = Position.beginning(SEQUENCE, 32).after(625)
    late = early.with_batches_of(16).after(10)
    assert late.before(635) == late
    assert late.before(700) == late.after(65)
    assert late.before(625) == early.with_batches_of(16)
    assert late.before(624) == Position.beginning(SEQUENCE, 32).after(624)
    assert late.before(0) == Position.beginning(SEQUENCE, 32)


@pytest.mark.parametrize("changed", [{"passes": 2}, {"eras": (0, 5)}])
def test_a_sequence_may_become_longer_or_shorter(changed: dict[str, object]) -> None:
    """More passes, or other last eras in a single one: what was delivered stays what it was."""
    other = replace(SEQUENCE, **changed)  # type: ignore[arg-type]
    state = Position.beginning(other, 2).after(3).to_dict()
    assert Position.from_dict(state, SEQUENCE).sample == 6


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"sample": -2},
        {"sample": 5},
        {"sample": "4"},
        {"sample": True},
        {"ranges": []},
        {"ranges": [[0, 0, 0]]},
        {"ranges": [[1, 0, 2]]},
        {"ranges": [[0, 0, 2], [1, 4, 2]]},
        {"ranges": [[0, 0, 2], [4, 8, 2]]},
        {"ranges": [[0, 0]]},
        {"eras": 3},
        {"eras": [0, 0]},
        {"eras": [-1, 4]},
        {"passes": 0},
        {"sequence_length": "4"},
        {"seed": None},
        {"shuffle": 1},
        {"stream": 3},
    ],
)
def test_what_is_no_state_is_refused(changed: dict[str, object]) -> None:
    """Each with what to give; so is a state without one of its keys."""
    state = Position.beginning(SEQUENCE, 2).after(2).to_dict()
    with pytest.raises(InputError, match=r"state_dict\(\)|version"):
        Position.from_dict(state | changed, SEQUENCE)
    with pytest.raises(InputError, match=r"state_dict\(\)"):
        Position.from_dict({key: value for key, value in state.items() if key not in changed}, SEQUENCE)
