"""Serves the page for people, what it asks, ``/metrics`` and the probes in a thread, for the event loop may hang."""

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.registry import Collector

import tokenmill
from tokenmill.page_server import Page, Pages, PageServer, metrics_of

from ..settings import Settings
from .people_page import Asked, in_force, people_page, told

STALLED_SECONDS: Final = 20.0
"""An event loop that has not turned for as long is stuck: the supervisor gives a worker the same time."""


class Probes:
    """Answers from any thread; each answer is what is wrong, or None."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._not_ready: str | None = "the process has just started"
        self._stopped: str | None = None
        self._now = now
        self._turned = now()

    def turn(self, not_ready: str | None, stopped: str | None = None) -> None:
        """Take note that the event loop turns, and why no work can be done now; call this in it, again and again.

        ``stopped`` is what part of the work is halted or waits, and why.
        """
        self._not_ready = not_ready
        self._stopped = stopped
        self._turned = self._now()

    def unhealthy(self) -> str | None:
        """Return what is wrong with the process itself, if anything: only a new start repairs it."""
        still = self._now() - self._turned
        return f"the event loop has stood still for {still:.0f} s" if still > STALLED_SECONDS else None

    def not_ready(self, *, strict: bool = False) -> str | None:
        """Return why no work can be done now, if so; it may pass. If ``strict``, also which part of it stands still."""
        return self.unhealthy() or self._not_ready or (self._stopped if strict else None)


BUILD: Final = "tokenmill_build_info"
BUILD_HELP: Final = "1 for the version of TokenMill and of the Python under it."

log = structlog.get_logger(__name__)


@contextmanager
def serving(
    settings: Settings,
    collectors: Iterable[Collector],
    probes: Probes,
    status: Callable[[], Mapping[str, Any]],
    origins: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str | None]:
    """Serve while the block runs, where the settings want it; ``status`` is called in the server's thread.

    ``origins`` says where settings came from, in words.

    An address that cannot be had is told in the log and nothing is served: work is never stopped over its numbers.
    Then the block gets that in words.
    """
    if not settings.metrics_port:
        yield None
        return
    try:
        made = pages(settings, collectors, probes, status, origins)
        server = PageServer(settings.metrics_host, settings.metrics_port, made)
        server.start()
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0]  # behind it the address stands once more
        log.warning(
            "no metrics are served: set metrics_host and metrics_port to an address that is free",
            host=settings.metrics_host, port=settings.metrics_port, error=str(error),
        )  # fmt: skip
        yield (
            f"this service serves no status and no metrics, for {settings.metrics_host}:{settings.metrics_port} cannot "
            f"be used ({why}): give it another --metrics-port (TOKENMILL_METRICS_PORT)"
        )
        return
    log.info("metrics are served", url=f"{settings.page_url}metrics")
    try:
        yield None
    finally:
        server.stop()


def pages(
    settings: Settings,
    collectors: Iterable[Collector],
    probes: Probes,
    status: Callable[[], Mapping[str, Any]],
    origins: Mapping[str, str],
) -> Pages:
    """Return all pages; what a probe finds wrong is told with 503."""
    registry = CollectorRegistry()
    build = Gauge(BUILD, BUILD_HELP, ["version", "python"], registry=registry)
    build.labels(tokenmill.__version__, platform.python_version()).set(1)
    for collector in collectors:
        registry.register(collector)
    asked = Asked(settings.http_token)
    return {
        "/": people_page(),
        "/api/status": asked.only(told(status)),
        "/api/settings": asked.only(told(lambda: in_force(settings, origins))),
        "/metrics": asked.only(metrics_of(registry)),
        "/healthz": lambda _: _probed(probes.unhealthy()),
        "/readyz": lambda request: _probed(probes.not_ready(strict="strict" in request.query)),
    }


def _probed(wrong: str | None) -> Page:
    return Page(f"{wrong or 'ok'}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK)
