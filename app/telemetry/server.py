"""Serves the page for people, what it asks, ``/metrics`` and the probes in a thread, for the event loop may hang.

The page is one file, which loads nothing and holds no data, so it is for all; the answers to its questions are for
those who have the token, where there is one.
"""

import hmac
import ipaddress
import json
import platform
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b, sha256
from http import HTTPStatus
from importlib import metadata, resources
from itertools import zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import structlog
from aiohttp.web import BaseRequest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import SecretStr

import tokenmill
from tokenmill.errors import InputError
from tokenmill.page_server import Page, Pages, PageServer, metrics_of
from tokenmill.redaction import redacted

from ..kafka.security import load_certificate
from ..settings import Settings
from ..settings.model import DEFAULT_ORIGIN
from ..settings.values import as_variable

if TYPE_CHECKING:  # it reads sources, which no worker does
    from ..tools.produce.sending import Summary

JSON: Final = "application/json"
HTML: Final = "text/html; charset=utf-8"
FILE: Final = "people_page.html"
PACKAGES: Final = ("tokenmill", "aiokafka", "faust-streaming", "tokenizers", "gigatoken", "numpy")
"""Whose versions people are asked for when something is wrong."""
A_SECOND: Final = 50.0
"""Requests that are answered for good ..."""
AT_ONCE: Final = 200.0
"""... and those that may come at once. A page asks once a second, Prometheus less often."""

MakePage = Callable[[BaseRequest], Page]


def _people_page() -> MakePage:
    text = resources.files(__package__).joinpath(FILE).read_text("utf-8")
    own = ""
    for kind in ("script", "style"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        own += f"; {kind}-src 'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
    others = "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    policy = {"Content-Security-Policy": f"default-src 'none'{own}; {others}"}
    page = Page(text.encode(), content_type=HTML, headers=policy)
    return lambda _: page


def told(document: Callable[[], Mapping[str, Any]]) -> MakePage:
    """Return what answers with a document as JSON, or with 304 to who has it, whatever its moment ``at``."""

    def page(request: BaseRequest) -> Page:
        known = document()
        tag = f'"{blake2b(_json({**known, "at": None}), digest_size=12).hexdigest()}"'
        if request.headers.get("If-None-Match") == tag:
            return Page(b"", HTTPStatus.NOT_MODIFIED, JSON, {"ETag": tag})
        return Page(_json(known) + b"\n", content_type=JSON, headers={"ETag": tag})

    return page


def _store_page(settings: Settings) -> MakePage:
    @cache
    def look() -> Any:
        from .store_look import StoreLook  # noqa: PLC0415 - it reads stores, which not every worker does

        return StoreLook(settings)

    def page(request: BaseRequest) -> Page:
        if not may_see_texts(settings, request):
            words = b"texts are shown on this machine alone, or to who has the token of the setting http_token\n"
            return Page(words, HTTPStatus.FORBIDDEN)
        return told(lambda: look().document(texts="texts" in request.query))(request)

    return page


def may_see_texts(settings: Settings, request: BaseRequest) -> bool:
    """Whether who asks may see what records say: with the token, or else on this machine alone."""
    if settings.http_token is not None:
        return True
    try:  # the name that a browser asked for must be local as well: another server's may stand for this address
        hosts = (settings.metrics_host, urlsplit(f"//{request.host}").hostname or "")
        return all(host == "localhost" or ipaddress.ip_address(host).is_loopback for host in hosts)
    except ValueError:  # no address
        return False


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def in_force(settings: Settings, origins: Mapping[str, str]) -> dict[str, Any]:
    """Return all settings, each with where it came from, and versions. Secrets are asterisks."""
    values = {name: (getattr(settings, name), field.default) for name, field in Settings.model_fields.items()}
    return {
        "settings": {
            name: {
                "value": redacted(as_variable(value)),
                "from": DEFAULT_ORIGIN if value == default else origins.get(name, "set where this was started"),
            }
            for name, (value, default) in values.items()
        },
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


class Asked:
    """Those who ask: they have the token, where there is one, and are answered at a bounded rate, all together."""

    def __init__(self, token: SecretStr | None, now: Callable[[], float] = time.monotonic) -> None:
        self._expected = None if token is None else f"Bearer {token.get_secret_value()}".encode()
        self._now = now
        self._left, self._at = AT_ONCE, now()

    def only(self, make: MakePage) -> MakePage:
        """Return what answers as ``make``, or with 401 or 429."""

        def page(request: BaseRequest) -> Page:
            # Who has no token takes nothing from the rate of those who have it.
            said = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if self._expected is not None and not hmac.compare_digest(said, self._expected):
                words = b"this asks for the token of the setting http_token, as Authorization: Bearer TOKEN\n"
                return Page(words, HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": "Bearer"})
            now = self._now()
            self._left, self._at = min(AT_ONCE, self._left + (now - self._at) * A_SECOND), now
            if self._left < 1:
                words = b"too many requests: ask again in a second\n"
                return Page(words, HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "1"})
            self._left -= 1
            return make(request)

        return page


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
        """Note that the event loop turns, why no work can be done, and what of it is ``stopped``; again and again."""
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

    An address that cannot be had is logged, and the block gets that in words: work is never stopped over its numbers.
    Raises SettingsError where a file of TLS cannot be used.
    """
    if not settings.metrics_port:
        yield None
        return
    registry = CollectorRegistry()
    build = Gauge(BUILD, BUILD_HELP, ["version", "python"], registry=registry)
    build.labels(tokenmill.__version__, platform.python_version()).set(1)
    for collector in collectors:
        registry.register(collector)
    asked = Asked(settings.http_token)
    pages = {
        "/": _people_page(),
        "/api/status": asked.only(told(status)),
        "/api/store": asked.only(_store_page(settings)),
        "/api/settings": asked.only(told(lambda: in_force(settings, origins))),
        "/metrics": asked.only(metrics_of(registry)),
        "/healthz": lambda _: _probed(probes.unhealthy()),
        "/readyz": lambda request: _probed(probes.not_ready(strict="strict" in request.query)),
    }
    try:
        server = _started(settings, settings.metrics_port, pages)
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


def _started(settings: Settings, port: int, pages: Pages) -> PageServer:
    tls = None
    if (certificate := settings.http_tls_certificate) is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        key = settings.http_tls_key or certificate
        load_certificate(tls, {"http_tls_certificate": certificate, "http_tls_key": key})
    server = PageServer(settings.metrics_host, port, pages, tls)
    server.start()
    return server


def _probed(wrong: str | None) -> Page:
    return Page(f"{wrong or 'ok'}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK)


FIGURES: Final = (
    ("documents", "Documents that the brokers acknowledged to this call of `tokenmill produce` (produce only)."),
    ("bytes", "Bytes of their records' values (produce only)."),
    ("refused", "What was no document, and passed over, in the whole run (produce only)."),
    ("read_bytes", "Bytes of the sources that the whole run has read (produce only)."),
)
_PORTS: Final = range(1, 1 << 16)


class ProduceCollector(Collector):
    """Reads the figures of a run when it is scraped."""

    def __init__(self, latest: Callable[[], "Summary | None"]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, without samples before the run has begun."""
        run = self._latest()
        figures = () if run is None else (run.documents, run.bytes, run.refused, run.bytes_read)
        for (name, meaning), figure in zip_longest(FIGURES, figures):
            family = CounterMetricFamily(f"tokenmill_produced_{name}", meaning, labels=["topic"])
            if run is not None:
                family.add_metric([run.topic], figure)
            yield family


@contextmanager
def run_served(settings: Settings, port: int | None, latest: Callable[[], "Summary | None"]) -> Iterator[None]:
    """Serve the metrics of a run at a port of ``metrics_host`` while the block runs; without a port, nothing.

    Raises InputError where the address cannot be had, SettingsError where a file of TLS cannot be used.
    """
    if port is None:
        yield
        return
    if port not in _PORTS:
        raise InputError(f"--metrics-port is {port}: give a number from 1 to 65535")
    registry = CollectorRegistry()
    registry.register(ProduceCollector(latest))
    try:
        server = _started(settings, port, {"/metrics": Asked(settings.http_token).only(metrics_of(registry))})
    except OSError as error:
        raise InputError(
            f"{settings.metrics_host}:{port} cannot be used ({error.strerror or error}): give another --metrics-port"
        ) from error
    try:
        yield
    finally:
        server.stop()
