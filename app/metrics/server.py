"""Serves ``/metrics``, ``/healthz`` and ``/readyz`` in a thread of its own, whatever the event loop does."""

import platform
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

import structlog
from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

import tokenmill

from ..settings import Settings
from .probes import Probes

POLL_SECONDS: Final = 0.1
"""How soon the server notices that it is to end."""
PLAIN: Final = ("Content-Type", "text/plain; charset=utf-8")
BUILD: Final = "tokenmill_build_info"
BUILD_HELP: Final = "1 for the version of TokenMill and of the Python under it."

log = structlog.get_logger(__name__)


@contextmanager
def serving(settings: Settings, collectors: Iterable[Collector], probes: Probes) -> Iterator[None]:
    """Serve while the block runs, where the settings want it.

    An address that cannot be had is told in the log and nothing is served: work is never stopped over its numbers.
    """
    if not settings.metrics_port:
        yield
        return
    try:
        server = _server(settings.metrics_host, settings.metrics_port, application(collectors, probes))
    except OSError as error:
        log.warning(
            "no metrics are served: set metrics_host and metrics_port to an address that is free",
            host=settings.metrics_host, port=settings.metrics_port, error=str(error),
        )  # fmt: skip
        yield
        return
    log.info("metrics are served", url=f"http://{settings.metrics_host}:{settings.metrics_port}/metrics")
    threading.Thread(target=server.serve_forever, args=[POLL_SECONDS], name="metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def application(collectors: Iterable[Collector], probes: Probes) -> Callable[[Any, Any], Iterable[bytes]]:
    """Return the three pages as a WSGI application; what a probe finds wrong is told with 503."""
    registry = CollectorRegistry()
    build = Gauge(BUILD, BUILD_HELP, ["version", "python"], registry=registry)
    build.labels(tokenmill.__version__, platform.python_version()).set(1)
    for collector in collectors:
        registry.register(collector)
    metrics = make_wsgi_app(registry)
    asked = {"/healthz": probes.unhealthy, "/readyz": probes.not_ready}

    def answer(environ: Any, start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            page: Iterable[bytes] = metrics(environ, start_response)
            return page
        if path not in asked:
            start_response("404 Not Found", [PLAIN])
            return [b"there are /metrics, /healthz and /readyz\n"]
        wrong = asked[path]()
        start_response("503 Service Unavailable" if wrong else "200 OK", [PLAIN])
        return [f"{wrong or 'ok'}\n".encode()]

    return answer


class _Quiet(WSGIRequestHandler):
    """Logs no request: there is one every few seconds, and logs are for events."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        """Say nothing."""


def _server(host: str, port: int, application: Callable[[Any, Any], Iterable[bytes]]) -> ThreadingWSGIServer:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]

    class Server(ThreadingWSGIServer):
        """Listens in the address's family: IPv4 or IPv6."""

        address_family = family

    return make_server(str(address[0]), port, application, Server, handler_class=_Quiet)
