"""Servers of S3's kind, as processes, and how to log in."""

import socket
import subprocess
import time
from pathlib import Path
from typing import Final

PROGRAMS: Final = Path(__file__).parents[2] / ".venv" / "bucket"
"""Where `make test-bucket` builds them."""
KEY, SECRET = "access", "secret-of-tests"
SECONDS: Final = 60.0


class Server:
    """A server that runs, and its bucket ``corpus``."""

    def __init__(self, kind: str, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.kind, self.address = kind, f"http://127.0.0.1:{self._port}"
        (folder / "corpus").mkdir(parents=True)
        listen = f"127.0.0.1:{self._port}"
        words = {
            "gofakes3": ["-host", listen, "-backend", "bolt", "-bolt.db", f"{folder}.db", "-initialbucket", "corpus"],
            "versitygw": ["--access", KEY, "--secret", SECRET, "--port", listen, "posix", str(folder)],
        }
        command = [str(PROGRAMS / kind), *words[kind]]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        """Wait until it listens."""
        end = time.monotonic() + SECONDS
        while True:
            with socket.socket() as one:
                if not one.connect_ex(("127.0.0.1", self._port)):
                    return
            assert time.monotonic() < end
            assert self.process.poll() is None
            time.sleep(0.05)


def login(address: str, secret: str = SECRET) -> dict[str, str]:
    """Return what the environment says to reach a server."""
    names = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1"}
    return {**names, "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true"}
