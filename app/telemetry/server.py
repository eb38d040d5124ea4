"""Serves the page for people, what it asks, ``/metrics`` and the probes in a thread, for the event loop may hang.

The page is one file, which loads nothing: its policy allows its own style and script, by their hashes, and questions to
the server that it came from. It holds no data, so it is for all; the answers to its questions are for those who have
the token, where there is one.
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
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b, sha256
from http import HTTPStatus
from importlib import metadata, resources
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from aiohttp.web import BaseRequest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.registry import Collector
from pydantic import SecretStr

import tokenmill
from tokenmill.page_server import Page, Pages, PageServer, metrics_of
from tokenmill.redaction import redacted

from ..kafka.security import load_certificate
from ..settings import Settings
from ..settings.explain import DEFAULT_ORIGIN
from ..settings.values import as_variable

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


def people_page() -> MakePage:
    """Return what gives the page."""
    text = resources.files(__package__).joinpath(FILE).read_text("utf-8")
    policy = [
        "default-src 'none'",
        *(f"{kind}-src {_hashed(text, kind)}" for kind in ("script", "style")),
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    page = Page(text.encode(), content_type=HTML, headers={"Content-Security-Policy": "; ".join(policy)})
    return lambda _: page


def _hashed(text: str, element: str) -> str:
    """Return what a policy calls the content of the only element of this name."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


def told(document: Callable[[], Mapping[str, Any]]) -> MakePage:
    """Return what answers with a document as JSON, or with 304 to who has it.

    A document that differs in nothing but ``at``, the moment of its making, is the same.
    """

    def page(request: BaseRequest) -> Page:
        known = document()
        tag = f'"{blake2b(_json({**known, "at": None}), digest_size=12).hexdigest()}"'
        if request.headers.get("If-None-Match") == tag:
            return Page(b"", HTTPStatus.NOT_MODIFIED, JSON, {"ETag": tag})
        return Page(_json(known) + b"\n", content_type=JSON, headers={"ETag": tag})

    return page


def store_page(settings: Settings) -> MakePage:
    """Return what answers with what is in the store, or with 403 to who may not see it."""

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
    """Whether who asks may see what records say: with the token, or else on this machine alone.

    The name that a browser asked for must be this machine's as well: another server's page may have its own name
    stand for this address.
    """
    return settings.http_token is not None or (_here(settings.metrics_host) and _here(_host(request)))


def _host(request: BaseRequest) -> str:
    try:
        return urlsplit(f"//{request.host}").hostname or ""
    except ValueError:
        return ""


def _here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
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
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
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
            if not self._paced():
                words = b"too many requests: ask again in a second\n"
                return Page(words, HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "1"})
            return make(request)

        return page

    def _paced(self) -> bool:
        now = self._now()
        self._left, self._at = min(AT_ONCE, self._left + (now - self._at) * A_SECOND), now
        if self._left < 1:
            return False
        self._left -= 1
        return True


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
    Then the block gets that in words. Raises SettingsError where a file of TLS cannot be used.
    """
    if not settings.metrics_port:
        yield None
        return
    tls = tls_of(settings)
    try:
        made = pages(settings, collectors, probes, status, origins)
        server = PageServer(settings.metrics_host, settings.metrics_port, made, tls)
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


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """Return what TLS is served with; None without. Raises SettingsError where a file of it cannot be used."""
    if (certificate := settings.http_tls_certificate) is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(
        context, {"http_tls_certificate": certificate, "http_tls_key": settings.http_tls_key or certificate}
    )
    return context


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
        "/api/store": asked.only(store_page(settings)),
        "/api/settings": asked.only(told(lambda: in_force(settings, origins))),
        "/metrics": asked.only(metrics_of(registry)),
        "/healthz": lambda _: _probed(probes.unhealthy()),
        "/readyz": lambda request: _probed(probes.not_ready(strict="strict" in request.query)),
    }


def _probed(wrong: str | None) -> Page:
    return Page(f"{wrong or 'ok'}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK)
