"""The order of a mixture as docs/training.md has it, held against `Mixture`."""

import doctest
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.mixtures import alone, open_mixture, rows_of, stores_of
from tokenmill.samples import Course, Point, Schedule

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()

Mixed = Callable[[Any, int], list[str]]


@pytest.fixture(scope="module")
def mixed() -> Mixed:
    """Return the page's own function."""
    _, _, section = PAGE.partition("## Mixtures\n")
    test = doctest.DocTestParser().get_doctest(section.partition("\n## ")[0], {}, "training.md", None, 0)
    lines: list[str] = []
    failed, tried = doctest.DocTestRunner(verbose=False).run(test, out=lines.append, clear_globs=False)
    assert not failed, "".join(lines)
    assert tried > 3
    found: Mixed = test.globs["mixed"]
    return found


def test_a_mixture_gives_what_the_page_says(mixed: Mixed, tmp_path: Path) -> None:
    """Each stream in its own order, in a schedule with a change that has been known from the beginning."""
    stores = stores_of(tmp_path, {"books": 3, "code": 6, "web": 12})
    pieces = [(0, {"web": "7/10", "code": "2/10", "books": "1/10"}), (50, {"web": 1, "code": 2})]
    rows = rows_of(open_mixture(stores, pieces))
    names = mixed(pieces, len(rows))
    left = {name: iter(own) for name, own in alone(stores).items()}
    assert rows == [(name, next(left[name])) for name in names]
    assert len(rows) > 80


schedules = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.dictionaries(st.sampled_from("abcde"), st.fractions(Fraction(1, 12), 9, max_denominator=12), min_size=1),
    ),
    min_size=1,
    max_size=4,
)


@given(schedules, st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_the_rule_on_the_page_is_ours(mixed: Mixed, parts: Any, strides: list[int]) -> None:
    """For any weights, however many samples are asked for at a time; no stream is off by a whole sample."""
    starts = np.cumsum([0, *(length for length, _ in parts)])[:-1].tolist()
    pieces = [(start, weights) for start, (_, weights) in zip(starts, parts, strict=True)]
    schedule = Schedule(tuple(Point(start, weights) for start, weights in pieces))
    course = Course(schedule, 0, [0] * len(schedule.names))
    found: list[str] = []
    for stride in strides:
        streams, numbers = course.draw(np.arange(course.place, course.place + stride), course.place + stride)
        for stream, number in zip(streams.tolist(), numbers.tolist(), strict=True):
            assert number == found.count(schedule.names[stream])
            found.append(schedule.names[stream])
        wanted = schedule.plan.wanted(course.place)
        assert all(abs(taken - part) < 1 for taken, part in zip(course.taken, wanted, strict=True))
    assert found == mixed(pieces, len(found))
    assert Course(schedule, 0, [0] * len(schedule.names)).go_to(course.place).taken == course.taken
