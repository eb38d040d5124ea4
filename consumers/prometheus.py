"""A run's metrics for Prometheus, where prometheus-client and aiohttp are installed (the extra ``train`` has both).

``REGISTRY.register(BatchesCollector(batches, rank="0"))`` adds them to prometheus_client's registry, which
``serve_metrics(port)`` serves. Its own ``start_http_server`` does as well, but whoever reaches that can make it start
threads without end, in the training process.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tokenmill.errors import InputError
from tokenmill.page_server import PageServer, metrics_of

from . import arguments
from .metrics import Metrics
from .mixture import Mixture
from .mixture_state import StreamShare
from .step_loop import StepLoop


class _Counted(NamedTuple):
    name: str
    meaning: str
    value: Callable[[Metrics], float]


_COUNTED: Final = (
    _Counted("batches", "Batches delivered to the training loop.", lambda m: m.batches),
    _Counted("samples", "Samples in them.", lambda m: m.samples),
    _Counted("tokens", "Tokens of x in them.", lambda m: m.tokens),
    _Counted("bytes", "Bytes of their tokens, as they are stored and travel to a device.", lambda m: m.bytes),
    _Counted(
        "work_seconds",
        "Seconds from getting a batch to asking for the next one: the model's.",
        lambda m: m.work_seconds,
    ),
    _Counted(
        "wait_seconds",
        "Seconds from asking for a batch to getting it: the data's. Their part in the sum of both says which is the "
        "bottleneck.",
        lambda m: m.wait_seconds,
    ),
    _Counted(
        "store_wait_seconds",
        "The part of them in which no whole step was trainable yet: text comes more slowly than it is trained on.",
        lambda m: m.store_wait_seconds,
    ),
    _Counted(
        "device_wait_seconds",
        "Seconds that the work on a CUDA device waited because a batch was still on its way.",
        lambda m: m.device_wait_seconds,
    ),
)
_STEP: Final = ("step", "The number of the next step.")
_BLOCKS: Final = ("behind_blocks", "Blocks of the eras in the store that the run has not wholly read, in this pass.")
_ERAS: Final = ("behind_eras", "The eras that these are in.")
_PARTS: Final = (
    ("mixture_share", "Of a mixture's stream: its part of the next samples, as the weights say."),
    ("mixture_wanted", "Samples (steps, where batches are whole) that it was to give up to now."),
    ("mixture_delivered", "Those that it gave."),
    ("mixture_passes", "How often it was gone through as a whole."),
    ("mixture_newest_seconds", "When the era of its latest sample was closed, in seconds since 1970; 0: it gave none."),
)
_PREFIX: Final = "tokenmill_trainer_"
_PART: Final = "part"
"""The label with the name of a mixture's stream."""


def described(labels: Sequence[str] = ()) -> Iterator[Metric]:
    """Return all metrics, without samples."""
    yield from (CounterMetricFamily(_PREFIX + one.name, one.meaning, labels=labels) for one in _COUNTED)
    yield from (GaugeMetricFamily(_PREFIX + name, meaning, labels=labels) for name, meaning in (_STEP, _BLOCKS, _ERAS))
    parts = [*labels, _PART]
    yield from (GaugeMetricFamily(_PREFIX + name, meaning, labels=parts) for name, meaning in _PARTS)


def serve_metrics(port: int, host: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY) -> PageServer:
    """Serve a registry at ``/metrics`` from one thread that ends with the process; its ``stop()`` ends it sooner.

    Port 0 takes a free one; ``port`` of what is returned has its number.

    Raises:
        InputError: the address cannot be had.

    """
    pages = {"/metrics": metrics_of(arguments.instance_of("registry", registry, CollectorRegistry))}
    wanted = arguments.port_of(port)
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

        Raises:
            InputError: Prometheus has no such labels.

        """
        self._batches: StepLoop = arguments.instance_of("batches", batches, StepLoop, "Batches or Mixture")
        told = arguments.labels_of(labels, taken={"stream", _PART})
        self._names = ["stream", *told]
        self._values = [batches.stream, *told.values()]

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without samples: registering must not read the store."""
        return described(self._names)

    def collect(self) -> Iterator[Metric]:
        """Return them as they are now.

        Raises:
            DamagedError: the files of the eras are damaged.

        """
        metrics = self._batches.metrics
        for one in _COUNTED:
            counter = CounterMetricFamily(_PREFIX + one.name, one.meaning, labels=self._names)
            counter.add_metric(self._values, one.value(metrics))
            yield counter
        behind = self._batches.behind()
        for (name, meaning), value in (
            (_STEP, self._batches.step),
            (_BLOCKS, behind.blocks),
            (_ERAS, behind.eras),
        ):
            gauge = GaugeMetricFamily(_PREFIX + name, meaning, labels=self._names)
            gauge.add_metric(self._values, value)
            yield gauge
        if isinstance(self._batches, Mixture):
            yield from self._parts(self._batches)

    def _parts(self, mixture: Mixture) -> Iterator[Metric]:
        """Return what is known of each stream of a mixture."""
        shares = mixture.shares()
        for (name, meaning), value in zip(_PARTS, _VALUES, strict=True):
            gauge = GaugeMetricFamily(_PREFIX + name, meaning, labels=[*self._names, _PART])
            for part, share in shares.items():
                gauge.add_metric([*self._values, part], value(share))
            yield gauge


_VALUES: Final[tuple[Callable[[StreamShare], float], ...]] = (
    lambda share: float(share.share),
    lambda share: float(share.wanted),
    lambda share: share.delivered,
    lambda share: share.passes,
    lambda share: (share.newest or 0) / 1000,
)
