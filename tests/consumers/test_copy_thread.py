"""Copies are made in the loop's thread or beside it: the same batches either way, and each error where it belongs."""

import threading
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.consumers.transfer import CopyThread

Made = tuple[int, str]
"""A number, and the thread that made something of it."""


def made(copy: list[int]) -> Iterator[Made]:
    """Make batches of a copy, each with the thread that made it."""
    for number in copy:
        yield number, threading.current_thread().name


def always() -> float:
    """Say that steps are long: a second."""
    return 1.0


def batches_of(copies: Iterator[list[int]], step_seconds: Callable[[], float] = always) -> Iterator[Made]:
    """Yield the batches of copies that all are there."""
    for batch in CopyThread[list[int], Made]().batches(made, copies, step_seconds=step_seconds):
        assert batch is not None
        yield batch


@given(
    copies=st.lists(st.lists(st.integers(), max_size=3), max_size=6),
    answers=st.lists(st.booleans(), min_size=6),
)
def test_the_batches_are_the_same_wherever_they_are_made(copies: list[list[int]], answers: list[bool]) -> None:
    """Whatever the loop's steps are, and however often that changes."""
    long = iter(answers + [False] * len(copies))
    found = list(batches_of(iter(copies), lambda: float(next(long))))
    assert [number for number, _ in found] == [number for copy in copies for number in copy]


def test_long_steps_have_the_next_copy_made_beside_them() -> None:
    """The first is made in the loop, for nothing is known then."""
    here = threading.current_thread().name
    names = [name for _, name in batches_of(iter([[1], [2], [3]]))]
    assert names[0] == here
    assert here not in names[1:]


def test_what_was_made_before_an_error_comes_before_it() -> None:
    """Also where the thread made it all at once."""

    def fails(copy: list[int]) -> Iterator[Made]:
        for number in copy:
            if number == 4:
                raise ValueError("damaged")
            yield number, ""

    batches = CopyThread[list[int], Made]().batches(fails, iter([[1], [2, 3, 4, 5]]), step_seconds=always)
    found: list[Made | None] = []
    with pytest.raises(ValueError, match="damaged"):
        found.extend(batches)
    assert [batch and batch[0] for batch in found] == [1, 2, 3]


def test_what_comes_next_is_looked_for_beside_long_steps() -> None:
    """All that copies need is done by the thread, not copying alone."""
    here, names = threading.current_thread().name, []

    def copies() -> Iterator[list[int]]:
        for number in range(3):
            names.append(threading.current_thread().name)
            yield [number]

    assert [number for number, _ in batches_of(copies())] == [0, 1, 2]
    assert names[0] == here
    assert here not in names[1:]


def test_only_one_copy_is_made_ahead() -> None:
    """So memory is bounded, and no copy is made of what changes before it is wanted."""
    numbers = count()
    batches = batches_of([next(numbers)] for _ in range(9))
    assert next(batches)[0] == 0
    assert next(batches)[0] == 1
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert next(numbers) <= 3


def test_what_is_not_there_yet_is_looked_for_again_when_it_is_wanted() -> None:
    """The thread looked a copy earlier: only what the loop sees missing is waited for."""
    looks: list[int] = []
    asked = threading.Event()

    def copies() -> Iterator[list[int] | None]:
        yield [1]
        asked.set()
        yield None  # by the thread
        yield [2]  # by the loop
        yield None
        yield None
        yield [3]

    for batch in CopyThread[list[int], Made]().batches(made, copies(), step_seconds=always):
        assert asked.wait(10)
        looks.append(0 if batch is None else batch[0])
    assert looks == [1, 2, 0, 3]


def test_a_loop_that_was_left_is_waited_for() -> None:
    """Whoever settles may use what copies are made of: the thread does so no more, and the next loop has its own."""
    begun, may_end = threading.Event(), threading.Event()
    ended: list[bool] = []

    def copies() -> Iterator[list[int]]:
        yield [1]
        begun.set()
        may_end.wait(10)
        ended.append(True)
        yield [2]

    ours = CopyThread[list[int], Made]()
    left = ours.batches(made, copies(), step_seconds=always)
    next(left)
    del left
    assert begun.wait(10)
    threading.Timer(0.05, may_end.set).start()
    ours.settle()
    assert ended
    assert [batch and batch[0] for batch in ours.batches(made, iter([[5], [6]]), step_seconds=always)] == [5, 6]


def test_what_a_copy_raises_is_raised_in_the_loop() -> None:
    """Behind the batches before it."""

    def copies() -> Iterator[list[int]]:
        yield [1]
        yield [2]
        raise ValueError("damaged")

    batches = batches_of(copies())
    assert [next(batches)[0], next(batches)[0]] == [1, 2]
    with pytest.raises(ValueError, match="damaged"):
        next(batches)
