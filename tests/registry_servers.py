"""Schema registries for tests: a small one that can be broken, and a real one, Apicurio's.

Both speak Confluent's HTTP interface. The small one is what tests of faults need: it can refuse, fail, be slow, lose
schemas, want a login, and be away.
"""

import json
import os
import re
import ssl
import subprocess
import tarfile
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest

from tests.scraping import ask, free_port
from tokenmill.app.local.broker import cache_directory, find_java, sha256_of

APICURIO_SHA256: Final = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"


@dataclass
class SmallRegistry:
    """A registry in memory. Its fields may be changed at any time."""

    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    """The ids of each subject's versions, which count from 1."""
    status: int = 0
    """What every request is answered with; 0: as it deserves."""
    elsewhere: str = ""
    login: tuple[str, str] | None = None
    requests: list[str] = field(default_factory=list)
    slow: threading.Event = field(default_factory=threading.Event)
    """Requests wait until it is set."""
    port: int = 0
    tls: ssl.SSLContext | None = None
    _server: ThreadingHTTPServer | None = None

    def __post_init__(self) -> None:
        self.slow.set()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://localhost:{self.port}"

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: object = ()) -> int:
        """Add a version to a subject; return the schema's id."""
        entry = {"schema": schema, "schemaType": kind, "references": references}
        if kind == "AVRO":
            del entry["schemaType"]  # Confluent's leaves it out
        number = next((known for known, one in self.schemas.items() if one == entry), len(self.schemas) + 1)
        self.schemas[number] = entry
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), type("Handler", (_Handler,), {"small": self}))
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, path: str, body: bytes, authorization: str) -> tuple[int, object]:
        self.requests.append(path)
        self.slow.wait()
        if self.status:
            return self.status, {"error_code": self.status, "message": "broken"}
        if self.login is not None and authorization != f"Basic {b64encode(':'.join(self.login).encode()).decode()}":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        return self._post(path, json.loads(body)) if body else self._get(path)

    def _get(self, path: str) -> tuple[int, object]:
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            number = int(found[1])
            if number not in self.schemas:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self.schemas[number]
        if found := re.fullmatch(r"/schemas/ids/(\d+)/subjects", path):
            return 200, [name for name, numbers in self.subjects.items() if int(found[1]) in numbers]
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", path):
            subject, version = unquote(found[1]), int(found[2])
            if len(self.subjects.get(subject, [])) < version:
                return 404, {"error_code": 40402, "message": "Version not found"}
            return 200, self._version(subject, self.subjects[subject][version - 1])
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, object]:
        found = re.fullmatch(r"/subjects/([^/]+)(/versions)?", path)
        if found is None:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        subject, references = unquote(found[1]), body.get("references") or []
        return 200, self._version(
            subject, self.register(subject, body["schema"], body.get("schemaType", "AVRO"), references)
        )

    def _version(self, subject: str, number: int) -> dict[str, Any]:
        version = self.subjects[subject].index(number) + 1
        return {"subject": subject, "version": version, "id": number, **self.schemas[number]}


class _Handler(BaseHTTPRequestHandler):
    small: SmallRegistry

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, answer = self.small.answer(urlsplit(self.path).path, body, self.headers.get("Authorization", ""))
        payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(307 if self.small.elsewhere else status)
        if self.small.elsewhere:
            self.send_header("Location", self.small.elsewhere)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # who asked may be gone, which some tests are about
            self.wfile.write(payload)

    do_POST = do_GET  # noqa: N815 - the base class's name

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def small_registry(tls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None) -> Iterator[SmallRegistry]:
    registry = SmallRegistry(tls=tls, login=login)
    registry.start()
    try:
        yield registry
    finally:
        registry.slow.set()
        registry.stop()


@contextmanager
def apicurio(directory: Path) -> Iterator[str]:
    """Run Apicurio Registry, its data in memory; yield the address of its Confluent-like interface.

    It is fetched from Maven Central once (110 MB), beside Kafka's jars. Tests are skipped where it cannot be had.
    """
    with tarfile.open(_archive()) as found:
        found.extractall(directory / "apicurio", filter="data")
    (jar,) = (directory / "apicurio").glob("*-runner.jar")
    port, log = free_port(), directory / "apicurio.log"
    environment = {**os.environ, "QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
    environment |= {"APICURIO_STORAGE_KIND": "sql", "APICURIO_STORAGE_SQL_KIND": "h2"}
    command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-Xmx256m", "-jar", str(jar)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=jar.parent, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        while not _answers(port):  # it takes six seconds alone, two minutes on one core of a busy machine
            assert process.poll() is None, log.read_text(errors="replace")[-4000:]
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/apis/ccompat/v7"
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with suppress(OSError):  # it may be too slow
        return ask(port, "/apis/ccompat/v7/subjects").code == HTTPStatus.OK
    return False


def _archive() -> Path:
    """Return the archive in the cache, into which it comes whole; from a mirror where jgo's settings name one."""
    from jgo.config import GlobalSettings  # noqa: PLC0415 - as the next two: they take long
    from jgo.constants import MAVEN_CENTRAL_URL  # noqa: PLC0415
    from jgo.maven import MavenContext  # noqa: PLC0415

    cache, repositories = cache_directory(), {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".incoming-", dir=cache) as incoming:
        context = MavenContext(repo_cache=Path(incoming), remote_repos=repositories)
        version = context.project("io.apicurio", "apicurio-registry-app").at_version("3.0.9")
        artifact = version.artifact(classifier="all", packaging="tar.gz")
        archive: Path = cache / artifact.filename
        if not archive.exists():
            try:
                found = artifact.resolve()
            except (OSError, RuntimeError) as error:  # as in `tokenmill.app.local.broker`
                pytest.skip(f"Apicurio Registry cannot be downloaded: {error}")
            assert sha256_of(found) == APICURIO_SHA256, "Apicurio's archive is another than it was"
            found.replace(archive)
    return archive
