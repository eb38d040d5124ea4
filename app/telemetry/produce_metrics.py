"""What ``tokenmill produce --metrics-port`` serves: how far the run is, for Prometheus."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from tokenmill.errors import InputError
from tokenmill.page_server import PageServer, metrics_of

from ..settings import Settings
from ..tools.produce.summary import Summary
from .server import Asked, tls_of

FIGURES: Final[dict[str, tuple[str, Callable[[Summary], float]]]] = {
    "documents": (
        "Documents that the brokers acknowledged to this call of `tokenmill produce` (produce only).",
        lambda summary: summary.documents,
    ),
    "bytes": ("Bytes of their records' values (produce only).", lambda summary: summary.bytes),
    "refused": ("What was no document, and passed over, in the whole run (produce only).", lambda run: run.refused),
    "read_bytes": ("Bytes of the sources that the whole run has read (produce only).", lambda run: run.bytes_read),
}
_PORTS: Final = range(1, 1 << 16)


class ProduceCollector(Collector):
    """Reads the figures of a run when it is scraped."""

    def __init__(self, latest: Callable[[], Summary | None]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, without samples before the run has begun."""
        summary = self._latest()
        for name, (meaning, figure) in FIGURES.items():
            family = CounterMetricFamily(f"tokenmill_produced_{name}", meaning, labels=["topic"])
            if summary is not None:
                family.add_metric([summary.topic], figure(summary))
            yield family


@contextmanager
def run_served(settings: Settings, port: int | None, latest: Callable[[], Summary | None]) -> Iterator[None]:
    """Serve the metrics of a run at a port of ``metrics_host`` while the block runs; without a port, nothing.

    Raises:
        InputError: the address cannot be had.
        SettingsError: a file of TLS cannot be used.

    """
    if port is None:
        yield
        return
    if port not in _PORTS:
        raise InputError(f"--metrics-port is {port}: give a number from 1 to 65535")
    registry = CollectorRegistry()
    registry.register(ProduceCollector(latest))
    pages = {"/metrics": Asked(settings.http_token).only(metrics_of(registry))}
    try:
        server = PageServer(settings.metrics_host, port, pages, tls_of(settings))
        server.start()
    except OSError as error:
        raise InputError(
            f"{settings.metrics_host}:{port} cannot be used ({error.strerror or error}): give another --metrics-port"
        ) from error
    try:
        yield
    finally:
        server.stop()
