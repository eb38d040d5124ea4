"""The order of a mixture as docs/training.md has it, held against `Mixture`."""

import doctest
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumers.mixtures import alone, open_mixture, rows_of, stores_of
from tokenmill.samples.mixing import Course, Point, Schedule

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


class Page(NamedTuple):
    mixed: Callable[..., list[str]]
    steadily: Callable[[Any], Any]


@pytest.fixture(scope="module")
def page() -> Page:
    """Run the section's session; each of its lines must print what stands there. Return its functions."""
    _, _, section = PAGE.partition("## Mixtures\n")
    test = doctest.DocTestParser().get_doctest(section.partition("\n## ")[0], {}, "training.md", None, 0)
    lines: list[str] = []
    failed, tried = doctest.DocTestRunner(verbose=False).run(test, out=lines.append, clear_globs=False)
    assert not failed, "".join(lines)
    assert tried > 8
    return Page(test.globs["mixed"], test.globs["steadily"])


def test_a_mixture_gives_what_the_page_says(page: Page, tmp_path: Path) -> None:
    stores = stores_of(tmp_path, {"books": 3, "code": 6, "web": 12})
    pieces = [(0, {"web": "7/10", "code": "2/10", "books": "1/10"}), (50, {"web": 1, "code": 2})]
    rows = rows_of(open_mixture(stores, pieces))
    names = page.mixed(pieces, len(rows))
    left = {name: iter(own) for name, own in alone(stores).items()}
    assert rows == [(name, next(left[name])) for name in names]
    assert len(rows) > 80


def test_weights_that_change_steadily_are_those_of_the_page(page: Page, tmp_path: Path) -> None:
    stores = stores_of(tmp_path, {"books": 3, "code": 6, "web": 12})
    left = {name: [*own] for name, own in alone(stores).items()}
    points: list[Any] = [(0, {"web": 3}), (20, {"web": 1, "code": "1/2"}), (62, {"books": 1, "code": 1, "web": 0.5})]
    rows = rows_of(open_mixture(stores, points, {"linear": True}))
    names = page.mixed(page.steadily(points), len(rows))
    assert rows == [(name, left[name][names[:at].count(name)]) for at, name in enumerate(names)]
    assert len(rows) > 70
    by_step = [(start // 2, weights) for start, weights in points]
    rows = rows_of(open_mixture(stores, by_step, {"linear": True, "unit": "step"}))
    assert [name for name, _ in rows] == page.mixed(page.steadily(points), len(rows))


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_the_parts_of_a_steady_change_are_those_of_the_page(page: Page, first: int, second: int) -> None:
    points = [
        (0, {"a": Fraction(3)}),
        (first, {"a": Fraction(1), "b": Fraction(2, 3)}),
        (first + second, {"b": Fraction(1)}),
    ]
    pieces = Schedule(tuple(Point(*point) for point in points), linear=True).plan.pieces
    assert [(start, dict(zip("ab", weights, strict=True))) for start, weights in pieces] == [
        (start, {name: weights.get(name, 0) / sum(weights.values()) for name in "ab"})
        for start, weights in page.steadily(points)
    ]


@pytest.mark.parametrize("linear", [False, True])
def test_streams_leave_as_the_page_says(page: Page, tmp_path: Path, *, linear: bool) -> None:
    stores = stores_of(tmp_path, {"books": 2, "code": 3, "web": 9})
    left = {name: [*own] for name, own in alone(stores).items()}
    points: list[Any] = [
        (0, {"web": "7/10", "code": "2/10", "books": "3/10"}),
        (40, {"web": 1, "code": 2, "books": "1/9"}),
    ]
    rows = rows_of(open_mixture(stores, points, {"linear": linear, "at_end": "leave"}, batch_size=1))
    total = sum(map(len, left.values()))
    has = {name: len(own) for name, own in left.items()}
    names = page.mixed(page.steadily(points) if linear else points, total, has)
    assert rows == [(name, left[name][names[:at].count(name)]) for at, name in enumerate(names)]
    assert len(rows) == total


schedules = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.dictionaries(st.sampled_from("abcde"), st.fractions(Fraction(1, 12), 9, max_denominator=12), min_size=1),
    ),
    min_size=1,
    max_size=4,
)


@given(
    schedules,
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.sampled_from(["linear", "at once"]),
    st.dictionaries(st.sampled_from("abcde"), st.integers(0, 30)),
)
def test_the_rule_on_the_page_is_ours(
    page: Page, parts: Any, strides: list[int], change: str, has: dict[str, int]
) -> None:
    """For any weights, however many samples are asked for at a time; no stream is off by a whole sample."""
    starts = np.cumsum([0, *(length for length, _ in parts)])[:-1].tolist()
    points = [(start, weights) for start, (_, weights) in zip(starts, parts, strict=True)]
    schedule = Schedule(tuple(Point(start, weights) for start, weights in points), linear=change == "linear")
    course = Course(schedule, 0, [0] * len(schedule.names), lambda name, _: has.get(name))
    found: list[str] = []
    for stride in strides:
        streams, numbers = course.draw(np.arange(course.place, course.place + stride), course.place + stride)
        for stream, number in zip(streams.tolist(), numbers.tolist(), strict=True):
            assert number == found.count(schedule.names[stream])
            found.append(schedule.names[stream])
        if not has:
            wanted = schedule.plan.wanted(course.place)
            assert all(abs(taken - part) < 1 for taken, part in zip(course.taken, wanted, strict=True))
    assert found == page.mixed(page.steadily(points) if change == "linear" else points, sum(strides), has)
    if not has:
        assert Course(schedule, 0, [0] * len(schedule.names)).go_to(course.place).taken == course.taken
