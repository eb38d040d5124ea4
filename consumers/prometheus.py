"""A run's metrics for Prometheus, where prometheus-client and aiohttp are installed (the extra ``train`` has both).

``REGISTRY.register(BatchesCollector(batches, rank="0"))`` adds them to prometheus_client's registry, which
``serve_metrics(port)`` serves. Its own ``start_http_server`` does as well, but a client of that can make it start
threads without end, in the training process.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tokenmill.errors import InputError
from tokenmill.page_server import PageServer, metrics_of

from . import arguments
from .mixture import Mixture
from .mixture_state import StreamShare
from .step_loop import StepLoop

_COUNTED: Final = {
    "batches": "Batches delivered to the training loop.",
    "samples": "Samples in them.",
    "tokens": "Tokens of x in them.",
    "bytes": "Bytes of their tokens, as they are stored and travel to a device.",
    "work_seconds": "Seconds from getting a batch to asking for the next one: the model's.",
    "wait_seconds": "Seconds from asking for a batch to getting it: the data's. Their part in the sum of both says "
    "which is the bottleneck.",
    "store_wait_seconds": "The part of them in which no whole step was trainable yet: text comes more slowly than it "
    "is trained on.",
    "device_wait_seconds": "Seconds that the work on a CUDA device waited because a batch was still on its way.",
}
_STEP: Final = ("step", "The number of the next step.")
_BLOCKS: Final = ("behind_blocks", "Blocks of the eras in the store that the run has not wholly read, in this pass.")
_ERAS: Final = ("behind_eras", "The eras that these are in.")
_PARTS: Final[dict[str, tuple[str, Callable[[StreamShare], float]]]] = {
    "share": ("Of a mixture's stream: its part of the next samples, as the weights say.", lambda one: float(one.share)),
    "wanted": (
        "Samples (steps, where batches are whole) that it was to give up to now.",
        lambda one: float(one.wanted),
    ),
    "delivered": ("Those that it gave.", lambda one: one.delivered),
    "passes": ("How often it was gone through as a whole.", lambda one: one.passes),
    "newest_seconds": (
        "When the era of its latest sample was closed, in seconds since 1970; 0: it gave none.",
        lambda one: (one.newest or 0) / 1000,
    ),
}
_PREFIX: Final = "tokenmill_trainer_"
_MIXTURE: Final = "mixture_"
_PART: Final = "part"
"""The label with the name of a mixture's stream."""


def described(labels: Sequence[str] = ()) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    """Return all metrics, without samples."""
    yield from (CounterMetricFamily(_PREFIX + name, meaning, labels=labels) for name, meaning in _COUNTED.items())
    yield from (GaugeMetricFamily(_PREFIX + name, meaning, labels=labels) for name, meaning in (_STEP, _BLOCKS, _ERAS))
    parts = [*labels, _PART]
    yield from (
        GaugeMetricFamily(_PREFIX + _MIXTURE + name, meaning, labels=parts) for name, (meaning, _) in _PARTS.items()
    )


def serve_metrics(port: int, host: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY) -> PageServer:
    """Serve a registry at ``/metrics`` from one thread that ends with the process; its ``stop()`` ends it sooner.

    Port 0 takes a free one; ``port`` of what is returned has its number.

    Raises:
        InputError: the address cannot be had.
    """
    pages = {"/metrics": metrics_of(arguments.instance_of("registry", registry, CollectorRegistry))}
    wanted = arguments.port_of("port", port)
    try:
        server = PageServer(arguments.instance_of("host", host, str), wanted, pages)
    except (OSError, UnicodeError) as error:  # the latter of names that cannot be asked for
        raise InputError(
            f"host is {arguments.shown(host)} and port {wanted}, where nothing can be served ({error}): give an "
            "address of this machine, and a port that is free"
        ) from error
    server.start()
    return server


class BatchesCollector(Collector):
    """Gives a registry the metrics of one `Batches` or `Mixture`, as they are when it is scraped."""

    def __init__(self, batches: StepLoop, **labels: str | int) -> None:
        """Collect for a run, with labels that tell it from others, such as ``rank``.

        Raises InputError where Prometheus has no such labels.
        """
        self._batches: StepLoop = arguments.instance_of("batches", batches, StepLoop, "Batches or Mixture")
        told = arguments.labels_of(labels, taken={"stream", _PART})
        self._names = ["stream", *told]
        self._values = [batches.stream, *told.values()]

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples: registering must not read the store."""
        return described(self._names)

    def collect(self) -> Iterator[Metric]:
        """Return them as they are now; raises DamagedError where the files of the eras are damaged."""
        batches = self._batches
        metrics, behind = batches.metrics, batches.behind()
        values = {name: getattr(metrics, name) for name in _COUNTED}
        values |= {_STEP[0]: batches.step, _BLOCKS[0]: behind.blocks, _ERAS[0]: behind.eras}
        shares = batches.shares() if isinstance(batches, Mixture) else {}
        for family in described(self._names):
            name = family.name.removeprefix(_PREFIX)
            if name in values:
                family.add_metric(self._values, values[name])
            else:
                value = _PARTS[name.removeprefix(_MIXTURE)][1]
                for part, share in shares.items():
                    family.add_metric([*self._values, part], value(share))
            if family.samples:
                yield family
