"""A small HTTP server in a thread of its own, which no client can block or exhaust.

A connection carries one request and is closed after seconds, whatever the client does. The number of connections is
limited; one more closes the oldest of those that have not sent a request yet. So a client that sends one is answered,
and threads, memory and descriptors stay bounded.

aiohttp reads the requests. It comes with the extras ``app`` and ``train``, and so does prometheus-client.
"""

import asyncio
import logging
import resource
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from aiohttp import web
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

CONNECTIONS: Final = 64
"""Most connections at a time. Prometheus, a container engine and a person together have a handful."""
LIFE_SECONDS: Final = 10.0
"""Longest life of a connection; Prometheus gives up after as long (``scrape_timeout``)."""
ACCEPTED_AT_ONCE: Final = 16
"""Connections accepted in one turn, before requests of earlier ones are read: well below `CONNECTIONS`."""
WAITING_CONNECTIONS: Final = 128
LINGER_SECONDS: Final = 1.0
"""Time to read the unused rest of a request, so that the client sees the answer instead of a reset."""
HANDSHAKE_SECONDS: Final = 2.0
"""Longest handshake of TLS: connections are counted after it."""
END_SECONDS: Final = 5.0
"""Longest wait for the thread to end; it takes milliseconds."""
LOG_SECONDS: Final = 60.0
"""Time between two log lines about one kind of error."""
TEXT: Final = "text/plain; charset=utf-8"
METHODS: Final = ("GET", "HEAD")
HEADERS: Final = {
    "Server": "TokenMill",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every answer. Without the first, aiohttp would send its version and Python's. Browsers are told to load
nothing from elsewhere, and to give nothing of an answer to the pages of another server."""

log = logging.getLogger(__name__)
OPTIONS: Final[Mapping[str, Any]] = {"access_log": None, "logger": log, "lingering_time": LINGER_SECONDS}
"""aiohttp's options for each connection. Requests are not logged: there is one every few seconds."""


class Page(NamedTuple):
    """An answer."""

    body: bytes
    status: int = HTTPStatus.OK
    content_type: str = TEXT
    headers: Mapping[str, str] = MappingProxyType({})
    """Besides `HEADERS`, or in place of one of them."""


Pages = Mapping[str, Callable[[web.BaseRequest], Page]]
"""The function that makes each page, by the page's path. It runs in the server's thread and must not block."""


def metrics_of(registry: CollectorRegistry) -> Callable[[web.BaseRequest], Page]:
    """Return the function that makes the page for Prometheus; ``name[]`` in the query chooses among the samples."""

    def page(request: web.BaseRequest) -> Page:
        names = request.query.getall("name[]", [])
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Page(encode(registry.restricted_registry(names) if names else registry), content_type=content_type)

    return page


class PageServer:
    """Serves from `start` to `stop`."""

    def __init__(self, host: str, port: int, pages: Pages, tls: ssl.SSLContext | None = None) -> None:
        """Bind an address, answered after `start`, by ``tls`` alone if given; raises OSError where it cannot."""
        self._pages = pages
        self._tls = tls
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._socket = socket.create_server(address[:2], family=family, backlog=WAITING_CONNECTIONS)
        try:
            self._loop = asyncio.new_event_loop()
        except OSError:
            self._socket.close()
            raise
        self._bounded: BoundedServer | None = None
        self._told: dict[str, float] = {}
        self._ends = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="pages", daemon=True)

    @property
    def port(self) -> int:
        """The port; the one that the kernel chose where 0 was asked for."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._bounded.deadlines) if self._bounded is not None else 0

    def start(self) -> None:
        """Answer from now on; raises OSError, holding nothing, where the system cannot start a thread."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            self._socket.close()
            raise OSError(str(error)) from error

    def stop(self) -> None:
        """Stop answering; when this returns all connections are closed, and the address is free."""
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(self._trouble)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._socket.close()
            self._loop.close()

    async def _serve(self) -> None:
        bounded = self._bounded = BoundedServer(self._answer)
        server = await self._loop.create_server(
            bounded,
            sock=self._socket,
            backlog=ACCEPTED_AT_ONCE,
            ssl=self._tls,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if self._tls else None,
            ssl_shutdown_timeout=LINGER_SECONDS if self._tls else None,
        )
        self._socket.listen(WAITING_CONNECTIONS)  # asyncio takes one number for both
        await self._ends.wait()
        server.close()
        bounded.end_all()
        await asyncio.sleep(0)  # aborted transports close at the loop's next turn

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        make = self._pages.get(request.path)
        if make is None:
            page = Page(f"there are {', '.join(self._pages)}\n".encode(), HTTPStatus.NOT_FOUND)
        elif request.method not in METHODS:
            page = Page(b"this can only be read\n", HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            page = make(request)
        response = _response(page)
        if page.status == HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = ", ".join(METHODS)
        if page.body and "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    def _trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what went wrong, once a minute: while no descriptor is left, asyncio accepts again after a second."""
        what = f"{context.get('message')}: {context.get('exception')!r}"
        if loop.time() - self._told.get(what, -LOG_SECONDS) >= LOG_SECONDS and len(self._told) < CONNECTIONS:
            self._told[what] = loop.time()
            log.warning("the server of the metrics page has a problem: %s", what)


def _response(page: Page) -> web.Response:
    # Compressed at once, in this thread: a page is small, and a pool of threads would outlive the server.
    response = web.Response(body=page.body, status=page.status, headers=HEADERS, zlib_executor_size=len(page.body) + 1)
    response.headers["Content-Type"] = page.content_type
    response.headers.update(page.headers)
    response.force_close()
    return response


class BoundedServer(web.Server):
    """An aiohttp server with few connections at a time, each closed after `LIFE_SECONDS`."""

    def __init__(self, answer: Callable[[web.BaseRequest], Any]) -> None:
        """Answer each request with ``answer``, and close its connection afterwards."""
        super().__init__(self._note, handler_cancellation=True)
        self._make_answer = answer
        self._silent: dict[web.RequestHandler, asyncio.Transport] = {}
        """Connections that have not sent a whole request, the oldest first."""
        self._asked: dict[web.RequestHandler, asyncio.Transport] = {}
        """Connections that have, until the answer is sent."""
        self.deadlines: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        return QuietHandler(self, loop=asyncio.get_running_loop(), **OPTIONS)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Start its timer. Where there are too many, close the oldest, if possible one without a request."""
        super().connection_made(handler, transport)
        self._silent[handler] = transport
        self.deadlines[handler] = asyncio.get_running_loop().call_later(LIFE_SECONDS, transport.abort)
        if len(self._silent) + len(self._asked) > most_connections():
            oldest_first = self._silent if len(self._silent) > 1 else self._asked
            oldest_first.pop(next(iter(oldest_first))).abort()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Forget it."""
        super().connection_lost(handler, exc)
        self._silent.pop(handler, None)
        self._asked.pop(handler, None)
        if (deadline := self.deadlines.pop(handler, None)) is not None:
            deadline.cancel()

    def end_all(self) -> None:
        """End every connection."""
        for transport in [*self._silent.values(), *self._asked.values()]:
            transport.abort()

    async def _note(self, request: web.BaseRequest) -> web.StreamResponse:
        if (transport := self._silent.pop(request.protocol, None)) is not None:
            self._asked[request.protocol] = transport
        response: web.StreamResponse = await self._make_answer(request)
        return response


class QuietHandler(web.RequestHandler):
    """One connection. Its answers quote neither a bad request nor an exception of ours."""

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the answer to a bad request, or to one whose page raised; only the latter is logged."""
        del request, message  # it may repeat the request's bytes
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("a page cannot be made", exc_info=exc)
        return _response(Page(f"{HTTPStatus(status).phrase.lower()}\n".encode(), status))


def most_connections() -> int:
    """Return how many connections there may be at a time: a quarter of what may be open, the rest is for the work."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return CONNECTIONS
    return max(ACCEPTED_AT_ONCE // 2, min(CONNECTIONS, allowed // 4))
