"""Metrics as plain values that travel as JSON, and the sum of what all processes of all workers ever counted."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from .worker_metrics import BROKER, PROCESS, WORKER

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


LABEL: Final = "worker"

_Key = tuple[str, tuple[tuple[str, str], ...]]
_Values = dict[_Key, float]


class Fleet(Collector):
    """Hears samples in one thread, and is collected in any other."""

    def __init__(self) -> None:
        self._metrics: Mapping[str, Metric] = by_sample_name(WORKER, PROCESS, BROKER)
        self._lock = threading.Lock()
        self._living: dict[str, tuple[int, _Values]] = {}
        self._ended: dict[str, _Values] = {}
        """What the ended processes of each worker counted, all together."""

    def heard(self, worker: str, pid: int, samples: Iterable[Sample]) -> None:
        """Take the present samples of a worker's process; another process than before begins at 0."""
        values = {(name, tuple(sorted(labels.items()))): value for name, labels, value in samples}
        with self._lock:
            if worker in self._living and self._living[worker][0] != pid:
                self._bury(worker)
            self._living[worker] = (pid, values)

    def ended(self, worker: str) -> None:
        """Take note that the worker's process has ended: what it counted stays, what it measured is gone."""
        with self._lock:
            self._bury(worker)

    def _bury(self, worker: str) -> None:
        _, values = self._living.pop(worker, (0, {}))
        total = self._ended.setdefault(worker, {})
        for key, value in values.items():
            if self._rises(key):
                total[key] = total.get(key, 0.0) + value

    def _rises(self, key: _Key) -> bool:
        return key[0] in self._metrics and self._metrics[key[0]].type in RISING

    def collect(self) -> Iterator[Metric]:
        """Yield every metric once, with the samples of all workers."""
        metrics: dict[str, Metric] = {}
        for worker, values in sorted(self._sums().items()):
            for (name, labels), value in values.items():
                known = self._metrics.get(name)
                if known is not None:
                    metric = metrics.setdefault(known.name, Metric(known.name, known.documentation, known.type))
                    metric.add_sample(name, {LABEL: worker, **dict(labels)}, value)
        yield from metrics.values()

    def _sums(self) -> Mapping[str, _Values]:
        with self._lock:
            sums = {worker: dict(values) for worker, values in self._ended.items()}
            for worker, (_, values) in self._living.items():
                total = sums.setdefault(worker, {})
                for key, value in values.items():
                    total[key] = value + (total.get(key, 0.0) if self._rises(key) else 0.0)
            return sums
