"""Copies are made in the loop's thread or beside it: the same batches either way, and each error where it belongs."""

import threading
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.consumers.beside import Beside


def made(copy: list[int]) -> Iterator[tuple[int, str]]:
    """Make batches of a copy, each with the thread that made it."""
    for number in copy:
        yield number, threading.current_thread().name


@given(
    copies=st.lists(st.lists(st.integers(), max_size=3), max_size=6),
    answers=st.lists(st.booleans(), min_size=6),
    in_thread=st.booleans(),
)
def test_the_batches_are_the_same_wherever_they_are_made(
    *, copies: list[list[int]], answers: list[bool], in_thread: bool
) -> None:
    """Whatever the loop's steps are, and however often that changes."""
    long = iter(answers + [False] * len(copies))
    found = list(Beside(in_thread=in_thread).batches(made, iter(copies), is_long=lambda: next(long)))
    assert [number for number, _ in found] == [number for copy in copies for number in copy]


def test_long_steps_have_the_next_copy_made_beside_them() -> None:
    """The first is made in the loop, for nothing is known then; batches are made there too, where the way needs it."""
    here = threading.current_thread().name
    names = [name for _, name in Beside(in_thread=True).batches(made, iter([[1], [2], [3]]), is_long=lambda: True)]
    assert names[0] == here
    assert here not in names[1:]
    names = [name for _, name in Beside(in_thread=False).batches(made, iter([[1], [2], [3]]), is_long=lambda: True)]
    assert set(names) == {here}


def test_only_one_copy_is_made_ahead() -> None:
    """So memory is bounded, and no copy is made of what changes before it is wanted."""
    numbers = count()
    batches = Beside(in_thread=True).batches(made, ([next(numbers)] for _ in range(9)), is_long=lambda: True)
    assert next(batches)[0] == 0
    assert next(batches)[0] == 1
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    assert next(numbers) <= 3


def test_what_a_copy_raises_is_raised_in_the_loop() -> None:
    """Behind the batches before it."""

    def copies() -> Iterator[list[int]]:
        yield [1]
        yield [2]
        raise ValueError("damaged")

    batches = Beside(in_thread=True).batches(made, copies(), is_long=lambda: True)
    assert [next(batches)[0], next(batches)[0]] == [1, 2]
    with pytest.raises(ValueError, match="damaged"):
        next(batches)
