"""A network between service and broker that can be broken: a proxy that understands just enough of Kafka's protocol.

Each side of a connection sends frames, a length and a payload; a request begins with its API, version and number, and
the answer with the same number (the Kafka protocol guide, "Protocol Primitives").
"""

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, Self

HOST: Final = "127.0.0.1"
RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER with no time at all: closing sends RST
HEADER: Final = struct.Struct(">hhi")


class Request(NamedTuple):
    connection: int
    api: int
    version: int
    payload: bytes  # all but the length


def unchanged(_request: Request, payload: bytes) -> bytes | None:
    """Let a request or an answer pass; None instead would swallow it."""
    return payload


class _Link:
    def __init__(self, proxy: "Proxy", number: int, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self.dead = False
        self._proxy = proxy
        self._number = number
        self._client = client
        self._broker = broker
        self._asked: dict[int, Request] = {}

    async def requests(self, reader: asyncio.StreamReader) -> None:
        async for payload in _frames(reader):
            api, version, correlation = HEADER.unpack_from(payload)
            request = Request(self._number, api, version, payload)
            self._asked[correlation] = request
            await self._pass(self._broker, self._proxy.on_request(request, payload))

    async def answers(self, reader: asyncio.StreamReader) -> None:
        async for payload in _frames(reader):
            (correlation,) = struct.unpack_from(">i", payload)
            request = self._asked.pop(correlation)
            await asyncio.sleep(self._proxy.answer_delays.get(request.api, 0.0))
            await self._pass(self._client, self._proxy.on_answer(request, payload))

    async def _pass(self, writer: asyncio.StreamWriter, payload: bytes | None) -> None:
        if self._proxy.delay:
            self._proxy.happened["frames delayed"] += 1
            await asyncio.sleep(self._proxy.delay)
        if self._proxy.swallowing and not self.dead:
            self._proxy.happened["connections left half open"] += 1
            self.dead = True  # for good: to its peer, a half-open connection never says anything again
        if payload is not None and not self.dead:
            writer.write(struct.pack(">i", len(payload)) + payload)
            await writer.drain()

    def close(self, *, reset: bool) -> None:
        for writer in (self._client, self._broker):
            if reset and not writer.is_closing():  # the socket of one that its peer closed is gone
                link: socket.socket = writer.get_extra_info("socket")
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.close()


class Proxy:
    """Listens from entry to exit, in a thread of its own, and passes on what its fields say, set at any time."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.target = ""  # the broker's address, ``host:port``; to be set before anyone connects
        self.delay = 0.0  # in seconds, of every frame
        self.answer_delays: Mapping[int, float] = {}  # by API, one answer after the other, as a broker works
        self.swallowing = False  # connections stand and say nothing, for ever where anything was swallowed
        # What changes what passes is called in the thread.
        self.on_request: Callable[[Request, bytes], bytes | None] = unchanged
        self.on_answer: Callable[[Request, bytes], bytes | None] = unchanged
        self.happened: Counter[str] = Counter()  # how often each kind of fault was seen to take effect
        self._links: set[_Link] = set()
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def reset(self) -> None:
        """End every connection as a broken network does, with RST."""
        asyncio.run_coroutine_threadsafe(self._reset(), self._loop).result()

    async def _reset(self) -> None:
        self.happened["connections reset"] += len(self._links)
        for link in tuple(self._links):
            link.close(reset=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, sock=self._listener), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._listener.close()
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            answers, broker = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._connections += 1
        link = _Link(self, self._connections, writer, broker)
        self._links.add(link)
        try:
            ways = [asyncio.ensure_future(link.requests(reader)), asyncio.ensure_future(link.answers(answers))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._links.discard(link)
            link.close(reset=False)


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            yield await reader.readexactly(size)
