"""The way to a server of objects, which is slow, is cut, and answers in the server's place: an HTTP proxy in a thread.

It gives each request on as it came, the header ``Host`` included, over which the login's signature goes.
"""

import asyncio
import random
import threading
from collections import Counter
from typing import Final, Self

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from yarl import URL

HOST: Final = "127.0.0.1"
_OF_CONNECTIONS: Final = {"connection", "transfer-encoding", "content-length", "keep-alive"}
"""Headers that are not of the message."""


class Way:
    """A proxy before ``server``, ``http://host:port``; of so many requests, one meets a fault."""

    def __init__(self, server: str, seed: int, chance: float, seconds: float = 0.0) -> None:
        self.fired: Counter[str] = Counter()
        """How often each fault was."""
        self.read = 0
        """Bytes of objects that were given to clients."""
        self.chance = chance
        self.answers = 0
        self.expires_after: int | None = None
        """Requests after which the login's token is over."""
        self._server, self._seconds, self._rng = server, seconds, random.Random(seed)
        self._ready, self._ends = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.address = ""

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with ClientSession(
            auto_decompress=False,
            cookie_jar=DummyCookieJar(),
            connector=TCPConnector(limit=0),
            timeout=ClientTimeout(total=None),
        ) as self._client:
            runner = web.ServerRunner(web.Server(self._answer))
            await runner.setup()
            site = web.TCPSite(runner, HOST, 0)
            await site.start()
            self.address = f"http://{HOST}:{runner.addresses[0][1]}"
            self._ready.set()
            await self._ends.wait()
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        await asyncio.sleep(self._seconds)
        self.answers += 1
        if self.expires_after is not None and self.answers > self.expires_after:
            self.fired["expired"] += 1
            told = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
            return web.Response(status=400, text=told, content_type="application/xml")
        fault = self._fault(request.method)
        if fault == "reset":
            return self._cut(request)
        if fault in {"throttled", "conflict"}:
            return web.Response(status=503 if fault == "throttled" else 409, text="<Error><Code>Fault</Code></Error>")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _OF_CONNECTIONS}
        url = URL(f"{self._server}{request.raw_path}", encoded=True)
        async with self._client.request(request.method, url, headers=headers, data=body) as found:
            content = await found.read()
        if fault == "lost":  # it took effect, and nobody hears of it
            return self._cut(request)
        answer = web.StreamResponse(status=found.status)
        for name, value in found.headers.items():
            if name.lower() not in _OF_CONNECTIONS:
                answer.headers.add(name, value)
        answer.content_length = len(content) if request.method != "HEAD" else int(found.headers["Content-Length"])
        await answer.prepare(request)
        if fault == "torn":
            await answer.write(content[: len(content) // 2])
            return self._cut(request)
        if request.method != "HEAD":
            self.read += len(content)
            await answer.write(content)
        return answer

    def _fault(self, method: str) -> str:
        if self._rng.random() >= self.chance:
            return ""
        fault = self._rng.choice(["reset", "throttled", "lost", "conflict" if method == "PUT" else "torn"])
        self.fired[fault] += 1
        return fault

    @staticmethod
    def _cut(request: web.BaseRequest) -> web.Response:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
