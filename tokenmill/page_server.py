"""Pages over HTTP from a thread of its own, which no client can hold up or fill.

A connection carries one request, and lives for seconds, whatever its other end does or leaves: sends half a request, a
byte now and then, or does not read the answer. There are few connections at a time; one more ends the oldest of those
that have not asked yet. So who does ask is answered, and threads, memory and descriptors stay bounded.

aiohttp reads the requests. It comes with the extras ``app`` and ``train``, and so does prometheus-client.
"""

import asyncio
import logging
import resource
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from aiohttp import web
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

CONNECTIONS: Final = 64
"""At a time. Prometheus, a container engine and a person together have a handful."""
SHARE_OF_DESCRIPTORS: Final = 4
"""Where few descriptors are allowed, connections get one of so many; the others are for the work."""
LIFE_SECONDS: Final = 10.0
"""Of a connection, from its beginning to its end; Prometheus gives up after as long (``scrape_timeout``)."""
ACCEPTED_AT_ONCE: Final = 16
"""Connections that are taken before it is looked again whether the ones before have asked: well below `CONNECTIONS`."""
WAITING_CONNECTIONS: Final = 128
"""That the kernel keeps until they are taken."""
LINGER_SECONDS: Final = 1.0
"""For the rest of a request that nobody wants, so that its sender sees the answer instead of a reset."""
END_SECONDS: Final = 5.0
"""For the thread to end; it takes milliseconds."""
TELL_SECONDS: Final = 60.0
"""Between two lines in the log about one kind of trouble."""
TEXT: Final = "text/plain; charset=utf-8"
METHODS: Final = ("GET", "HEAD")
HEADERS: Final = {"Server": "TokenMill", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Of every answer. Without the first, aiohttp would tell its version and Python's."""

log = logging.getLogger(__name__)
OPTIONS: Final[Mapping[str, Any]] = {"access_log": None, "logger": log, "lingering_time": LINGER_SECONDS}
"""Of each connection. No request is logged: there is one every few seconds, and logs are for events."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a page may know of the request."""

    query: Mapping[str, list[str]]
    accept: str
    """The header ``Accept``; empty where there is none."""


class Page(NamedTuple):
    """An answer."""

    body: bytes
    status: int = HTTPStatus.OK
    content_type: str = TEXT


Pages = Mapping[str, Callable[[Asked], Page]]
"""What makes each page, by its path. It runs in the server's thread, and must not wait for anything."""


def metrics_of(registry: CollectorRegistry) -> Callable[[Asked], Page]:
    """Return what makes the page that Prometheus reads; ``name[]`` in the query chooses among the samples."""

    def page(asked: Asked) -> Page:
        names = asked.query.get("name[]")
        encode, content_type = choose_encoder(asked.accept)
        return Page(encode(registry.restricted_registry(names) if names else registry), content_type=content_type)

    return page


class PageServer:
    """Serves from `start` to `stop`."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        """Take the address, IPv4 or IPv6; nothing is answered yet.

        Raises:
            OSError: the address cannot be had, or no descriptor is left.

        """
        self._pages = pages
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._socket = socket.create_server(address[:2], family=family, backlog=WAITING_CONNECTIONS)
        try:
            self._loop = asyncio.new_event_loop()
        except OSError:
            self._socket.close()
            raise
        self._crowd: Crowd | None = None
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
        return len(self._crowd.deadlines) if self._crowd is not None else 0

    def start(self) -> None:
        """Answer from now on.

        Raises:
            OSError: the system has no thread left; nothing is held then.

        """
        try:
            self._thread.start()
        except RuntimeError as error:
            self._loop.close()
            self._socket.close()
            raise OSError(str(error)) from error

    def stop(self) -> None:
        """Answer no more; on return all connections are closed, and the address is free."""
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
        crowd = self._crowd = Crowd(self._answer)
        server = await self._loop.create_server(crowd, sock=self._socket, backlog=ACCEPTED_AT_ONCE)
        self._socket.listen(WAITING_CONNECTIONS)  # asyncio takes one number for both
        await self._ends.wait()
        server.close()
        crowd.end_all()
        await asyncio.sleep(0)  # aborted transports close at the loop's next turn

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        make = self._pages.get(request.path)
        if make is None:
            page = Page(f"there are {', '.join(self._pages)}\n".encode(), HTTPStatus.NOT_FOUND)
        elif request.method not in METHODS:
            page = Page(b"this can only be read\n", HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            query = {name: request.query.getall(name) for name in request.query}
            page = make(Asked(query, request.headers.get("Accept", "")))
        response = _response(page)
        if page.status == HTTPStatus.METHOD_NOT_ALLOWED:
            response.headers["Allow"] = ", ".join(METHODS)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    def _trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Say what went wrong, once a minute: while no descriptor is left, asyncio accepts again after a second."""
        what = f"{context.get('message')}: {context.get('exception')!r}"
        if loop.time() - self._told.get(what, -TELL_SECONDS) >= TELL_SECONDS and len(self._told) < CONNECTIONS:
            self._told[what] = loop.time()
            log.warning("the server of metrics has trouble: %s", what)


def _response(page: Page) -> web.Response:
    # Compressed at once, in this thread: a page is small, and a pool of threads would outlive the server.
    response = web.Response(body=page.body, status=page.status, headers=HEADERS, zlib_executor_size=len(page.body) + 1)
    response.headers["Content-Type"] = page.content_type
    response.force_close()
    return response


class Crowd(web.Server):
    """All connections that there are: few, and none for long."""

    def __init__(self, answer: Callable[[web.BaseRequest], Any]) -> None:
        """Have none yet; each request is answered by ``answer``, and ends its connection."""
        super().__init__(self._note, handler_cancellation=True)
        self._make_answer = answer
        self._silent: dict[web.RequestHandler, asyncio.Transport] = {}
        """Connections that have not sent a whole request, the oldest first."""
        self._asked: dict[web.RequestHandler, asyncio.Transport] = {}
        """Those that have, until the answer is sent."""
        self.deadlines: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        """What ends each of them, until they are closed."""

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        return Conversation(self, loop=asyncio.get_running_loop(), **OPTIONS)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Give it its time. Of too many the oldest is ended: of those that have not asked, if there are others."""
        super().connection_made(handler, transport)
        self._silent[handler] = transport
        self.deadlines[handler] = asyncio.get_running_loop().call_later(LIFE_SECONDS, transport.abort)
        if len(self._silent) + len(self._asked) > most_connections():
            crowd = self._silent if len(self._silent) > 1 else self._asked
            crowd.pop(next(iter(crowd))).abort()

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


class Conversation(web.RequestHandler):
    """One connection, which tells nobody what a bad request said, nor what raised here."""

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the answer to what is no request, or whose page raised; the log tells of the latter."""
        del request, message  # it may repeat the request's bytes
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("a page cannot be made", exc_info=exc)
        return _response(Page(f"{HTTPStatus(status).phrase.lower()}\n".encode(), status))


def most_connections() -> int:
    """Return how many connections there may be at a time: a share of what the process may have open."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return CONNECTIONS
    return max(ACCEPTED_AT_ONCE // 2, min(CONNECTIONS, allowed // SHARE_OF_DESCRIPTORS))
