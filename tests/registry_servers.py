"""Schema registries for tests: a small one that can be broken, and a real one, Apicurio's.

Both speak Confluent's HTTP interface. The small one is what tests of faults need: it can refuse, fail, be slow, lose
schemas, want a login, and be away.
"""

import hashlib
import http.server
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import unquote, urlsplit

import pytest

from tokenmill.app.local.broker import cache_directory, find_java

APICURIO: Final = ("io/apicurio/apicurio-registry-app/3.0.9", "apicurio-registry-app-3.0.9-all.tar.gz")
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
    """Where every request is sent instead."""
    login: tuple[str, str] | None = None
    requests: list[str] = field(default_factory=list)
    """The paths that were asked for."""
    slow: threading.Event = field(default_factory=threading.Event)
    """Requests wait until it is set."""
    port: int = 0
    tls: ssl.SSLContext | None = None
    _server: http.server.ThreadingHTTPServer | None = None

    def __post_init__(self) -> None:
        """Be quick."""
        self.slow.set()

    @property
    def url(self) -> str:
        """Its address."""
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
        """Listen, on the port that it had before if it had one."""
        registry = self

        class Handler(_Handler):
            small = registry

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        """Be away: connections are refused."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, method: str, path: str, body: bytes, authorization: str) -> tuple[int, object]:
        """Return the status and the answer to a request."""
        self.requests.append(path)
        self.slow.wait()
        if self.status:
            return self.status, {"error_code": self.status, "message": "broken"}
        if self.login is not None and authorization != f"Basic {b64encode(':'.join(self.login).encode()).decode()}":
            return 401, {"error_code": 401, "message": "Unauthorized"}
        return self._post(path, json.loads(body)) if method == "POST" else self._get(path)

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
            number = self.subjects[subject][version - 1]
            return 200, {"subject": subject, "version": version, "id": number, **self.schemas[number]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, object]:
        """Register, or look up, as serializers do."""
        found = re.fullmatch(r"/subjects/([^/]+)(/versions)?", path)
        if found is None:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        subject = unquote(found[1])
        number = self.register(subject, body["schema"], body.get("schemaType", "AVRO"), body.get("references") or [])
        version = self.subjects[subject].index(number) + 1
        return 200, {"id": number, "subject": subject, "version": version, **self.schemas[number]}


class _Handler(http.server.BaseHTTPRequestHandler):
    small: SmallRegistry

    def do_GET(self) -> None:
        """Answer."""
        self._answer(b"")

    def do_POST(self) -> None:
        """Answer."""
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        path = urlsplit(self.path).path
        status, answer = self.small.answer(self.command, path, body, self.headers.get("Authorization", ""))
        payload = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(307 if self.small.elsewhere else status)
        if self.small.elsewhere:
            self.send_header("Location", self.small.elsewhere)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # who asked may be gone, which some tests are about
            self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@contextmanager
def small_registry(tls: ssl.SSLContext | None = None, login: tuple[str, str] | None = None) -> Iterator[SmallRegistry]:
    """Run a small registry on a port of its own."""
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
    folder = _unpacked(directory)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    jar = next(folder.glob("*-runner.jar"))
    environment = {
        **os.environ,
        "QUARKUS_HTTP_HOST": "127.0.0.1",
        "QUARKUS_HTTP_PORT": str(port),
        "APICURIO_STORAGE_KIND": "sql",
        "APICURIO_STORAGE_SQL_KIND": "h2",
    }
    with (directory / "apicurio.log").open("wb") as log:
        process = subprocess.Popen(
            [find_java(), "-XX:TieredStopAtLevel=1", "-Xmx256m", "-jar", jar],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        address = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        _wait_for(f"{address}/subjects", process, directory / "apicurio.log")
        yield address
    finally:
        process.kill()
        process.wait()


def _wait_for(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    while True:  # it takes six seconds on a machine with nothing else to do, two minutes on one core of a busy one
        try:
            with urllib.request.urlopen(address, timeout=5):  # noqa: S310 - loopback
                return
        except (URLError, OSError):
            if process.poll() is not None:
                raise AssertionError(log.read_text(errors="replace")[-4000:]) from None
            time.sleep(0.2)


def _unpacked(directory: Path) -> Path:
    archive = cache_directory() / APICURIO[1]
    if not archive.exists() or _sha256(archive) != APICURIO_SHA256:
        _download(archive)
    folder = directory / "apicurio"
    with tarfile.open(archive) as found:
        found.extractall(folder, filter="data")
    return folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(archive: Path) -> None:
    """Put the archive into the cache, whole and checked; from a mirror where jgo's settings name one."""
    import requests  # noqa: PLC0415 - jgo's, as the next two
    from jgo.config import GlobalSettings  # noqa: PLC0415
    from jgo.constants import MAVEN_CENTRAL_URL  # noqa: PLC0415

    base = {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}["central"].rstrip("/")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=archive.parent, prefix=".incoming-") as incoming:
        try:
            with requests.get(f"{base}/{'/'.join(APICURIO)}", stream=True, timeout=60) as response:
                response.raise_for_status()
                for chunk in response.iter_content(1 << 20):
                    incoming.write(chunk)
        except OSError as error:  # requests' errors are OSErrors
            pytest.skip(f"Apicurio Registry cannot be downloaded: {error}")
        incoming.flush()
        assert _sha256(Path(incoming.name)) == APICURIO_SHA256, "Apicurio's archive is another than it was"
        shutil.copyfile(incoming.name, f"{incoming.name}-whole")
        Path(f"{incoming.name}-whole").replace(archive)
