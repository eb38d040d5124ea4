"""As much of PromQL as the alerts of `deploy/` need, on samples that lie in memory; parsed by a parser of PromQL.

Where Prometheus' own `promtool` is there, the same scenarios are given to it as well (tests/test_alerts.py). Rates are
not extrapolated to the borders of their range: a few percent, which no threshold may hang on.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import promql_parser as parser

STEP_SECONDS: Final = 15
"""Between two samples of a series."""
STALE_SECONDS: Final = 300
"""How old a sample may be that is taken for the present one."""

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Points = Sequence[tuple[float, float]]


def expand(values: str) -> list[float | None]:
    """Return the samples of a series in promtool's notation: ``1x4 0+2x3 _x2``."""
    found: list[float | None] = []
    for part in values.split():
        match = re.fullmatch(r"(_|-?[\d.e]+?)([+-][\d.]+)?(?:x(\d+))?", part)
        assert match, part
        first, by, times = match[1], float(match[2] or 0), int(match[3] or 0)
        if first == "_":
            found += [None] * max(times, 1)
        else:
            found += [float(first) + by * n for n in range(times + 1)]
    return found


def labels_of(series: str) -> tuple[str, Labels]:
    """Return name and labels of ``name{label="value"}``."""
    name, _, rest = series.partition("{")
    return name, frozenset(re.findall(r'(\w+)="([^"]*)"', rest))


@dataclass(frozen=True)
class Samples:
    """Series by name, one sample every `STEP_SECONDS`; None where there is none."""

    series: Mapping[str, Mapping[Labels, Sequence[float | None]]]

    @classmethod
    def of(cls, written: Mapping[str, str]) -> "Samples":
        """Take series as promtool's tests have them."""
        found: dict[str, dict[Labels, Sequence[float | None]]] = {}
        for series, values in written.items():
            name, labels = labels_of(series)
            found.setdefault(name, {})[labels] = expand(values)
        return cls(found)

    def points(self, selector: parser.VectorSelector, start: float, end: float) -> dict[Labels, Points]:
        """Return the samples of the selected series with ``start < time <= end``."""
        found: dict[Labels, Points] = {}
        within = slice(*(max(0, math.floor(moment / STEP_SECONDS) + 1) for moment in (start, end)))
        for labels, values in self.series.get(selector.name or "", {}).items():
            if not all(_fits(matcher, dict(labels)) for matcher in selector.matchers.matchers):
                continue
            points = [
                (n * STEP_SECONDS, value) for n, value in enumerate(values[within], within.start) if value is not None
            ]
            if points:
                found[labels] = points
        return found

    def evaluate(self, expression: str, at: float) -> Vector:
        """Return what an expression gives at a moment, in seconds after the first sample."""
        result = self._value(_parsed(expression), at)
        assert isinstance(result, dict)
        return result

    def _value(self, node: Any, at: float) -> Vector | float:
        if isinstance(node, parser.ParenExpr):
            return self._value(node.expr, at)
        if isinstance(node, parser.NumberLiteral):
            return float(node.val)
        if isinstance(node, parser.VectorSelector):
            return {labels: points[-1][1] for labels, points in self.points(node, at - STALE_SECONDS, at).items()}
        if isinstance(node, parser.Call):
            return self._call(node, at)
        if isinstance(node, parser.AggregateExpr):
            return _aggregate(node, self._vector(node.expr, at))
        assert isinstance(node, parser.BinaryExpr), node
        return _binary(node, self._value(node.lhs, at), self._value(node.rhs, at))

    def _vector(self, node: Any, at: float) -> Vector:
        found = self._value(node, at)
        assert isinstance(found, dict)
        return found

    def _call(self, node: parser.Call, at: float) -> Vector:
        name, arguments = node.func.name, node.args
        if name == "absent":
            return {} if self._vector(arguments[0], at) else {frozenset(): 1.0}
        if name == "histogram_quantile":
            return _quantiles(float(arguments[0].val), self._vector(arguments[1], at))
        matrix = arguments[0]
        found = self.points(matrix.vector_selector, at - matrix.range.total_seconds(), at)
        more = [
            float(argument.val) if hasattr(argument, "val") else self._number(argument) for argument in arguments[1:]
        ]
        return {labels: OVER_TIME[name](points, *more) for labels, points in found.items() if len(points) > 1}

    def _number(self, node: Any) -> float:
        found = self._value(node, 0.0)
        assert isinstance(found, float)
        return found


@cache
def _parsed(expression: str) -> Any:
    return parser.parse(expression)


def _fits(matcher: parser.Matcher, labels: Mapping[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    is_pattern = matcher.op == parser.MatchOp.Re or matcher.op == parser.MatchOp.NotRe  # noqa: PLR1714 - no hash
    negated = matcher.op == parser.MatchOp.NotEqual or matcher.op == parser.MatchOp.NotRe  # noqa: PLR1714
    fits = bool(re.fullmatch(matcher.value, value)) if is_pattern else value == matcher.value
    return fits != bool(negated)


def _grown(points: Points) -> float:
    values = [value for _, value in points]
    return sum(now if now < before else now - before for before, now in itertools.pairwise(values))


def _line(points: Points) -> tuple[float, float]:
    slope, level = np.polyfit([at - points[-1][0] for at, _ in points], [value for _, value in points], 1)
    return float(slope), float(level)


OVER_TIME: Final[Mapping[str, Callable[..., float]]] = {
    "increase": _grown,
    "rate": lambda points: _grown(points) / (points[-1][0] - points[0][0]),
    "changes": lambda points: float(sum(a[1] != b[1] for a, b in itertools.pairwise(points))),
    "deriv": lambda points: _line(points)[0],
    "predict_linear": lambda points, seconds: _line(points)[1] + seconds * _line(points)[0],
}


def _kept(labels: Labels, names: Iterable[str]) -> Labels:
    wanted = set(names)
    return frozenset((name, value) for name, value in labels if name in wanted)


def _aggregate(node: parser.AggregateExpr, vector: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        names = node.modifier.labels if node.modifier is not None else []
        groups.setdefault(_kept(labels, names), []).append(value)
    how: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min, "count": len}
    return {labels: float(how[str(node.op)](values)) for labels, values in groups.items()}


COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "==": lambda a, b: a == b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}
COMPUTED: Final[Mapping[str, Callable[[float, float], float]]] = {
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else math.nan,
    "-": lambda a, b: a - b,
}


def _binary(node: parser.BinaryExpr, left: Vector | float, right: Vector | float) -> Vector | float:
    op = str(node.op)
    if isinstance(left, float) and isinstance(right, float):
        return COMPUTED[op](left, right)
    if isinstance(left, float):
        assert isinstance(right, dict)
        return {labels: COMPUTED[op](left, value) for labels, value in right.items()}
    if isinstance(right, float):
        return {labels: value for labels, value in left.items() if COMPARED[op](value, right)}
    matching = node.modifier.matching if node.modifier is not None else None

    def key(labels: Labels) -> Labels:
        return labels if matching is None else _kept(labels, matching.labels)

    others = {key(labels): value for labels, value in right.items()}
    if op == "or":
        own = {key(labels) for labels in left}
        return {**left, **{labels: value for labels, value in right.items() if key(labels) not in own}}
    if op in {"and", "unless"}:
        return {labels: value for labels, value in left.items() if (key(labels) in others) == (op == "and")}
    return _paired(
        op, {labels: (value, others[key(labels)]) for labels, value in left.items() if key(labels) in others}
    )


def _paired(op: str, pairs: Mapping[Labels, tuple[float, float]]) -> Vector:
    if op in COMPUTED:
        return {labels: COMPUTED[op](*pair) for labels, pair in pairs.items()}
    return {labels: pair[0] for labels, pair in pairs.items() if COMPARED[op](*pair)}


def _quantiles(share: float, vector: Vector) -> Vector:
    """Return the upper bound of the bucket in which the quantile lies: no less than Prometheus would say."""
    buckets: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in vector.items():
        rest = frozenset(label for label in labels if label[0] != "le")
        buckets.setdefault(rest, []).append((float(dict(labels)["le"].replace("+Inf", "inf")), value))
    found = {}
    for labels, bounds in buckets.items():
        total = max(count for _, count in bounds)
        found[labels] = min((bound for bound, count in bounds if count >= share * total and total), default=math.nan)
    return found
