"""Metrics as plain values, so that they can travel as JSON, and back."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

Sample = tuple[str, Mapping[str, str], float]
"""Name, labels, value."""
RISING: Final = frozenset({"counter", "histogram"})
"""Types of metrics whose samples may be added up over processes."""
SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
}
"""How a metric's samples are named, by its type. (A fourth kind says when it was made: nobody asks.)"""


def taken(*registries: CollectorRegistry) -> list[Sample]:
    """Return all samples of this moment."""
    return [
        (sample.name, sample.labels, sample.value)
        for registry in registries
        for metric in registry.collect()
        for sample in metric.samples
        if not sample.name.endswith("_created")
    ]


def received(said: Iterable[Any]) -> Iterator[Sample]:
    """Yield the samples of what `taken` became as JSON."""
    for name, labels, value in said:
        yield str(name), labels, float(value)


def by_sample_name(*registries: CollectorRegistry) -> dict[str, Metric]:
    """Return for every sample's name the metric, without samples, that it belongs to."""
    return {
        metric.name + suffix: Metric(metric.name, metric.documentation, metric.type)
        for registry in registries
        for metric in registry.collect()
        for suffix in SUFFIXES[metric.type]
    }
