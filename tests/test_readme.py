"""Every command and snippet of the README, in its order, in a directory of its own, as a reader would run them."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tokenmill.errors import StoreError
from tokenmill.store import open_eras, open_partition, partitions_in

ROOT: Final = Path(__file__).parents[1]
README: Final = (ROOT / "README.md").read_text()
BY_CI: Final = {"make demo", "make test", "make env"}
"""Commands that continuous integration runs, and the tests of the demo and of compose."""
UP_SECONDS: Final = 120


class Snippet(NamedTuple):
    """A fenced block of the README."""

    language: str
    code: str


def fenced() -> list[Snippet]:
    """Return all of the README's fenced blocks, in order; those that no reader types have no language."""
    parts = re.split(r"^```(\w*)\n", README, flags=re.MULTILINE)
    return [Snippet(language, code) for language, code in zip(parts[1::4], parts[2::4], strict=True)]


def snippets() -> list[Snippet]:
    """Return the blocks that a reader may run."""
    return [snippet for snippet in fenced() if snippet.language]


def free_port() -> int:
    """Return a port that nobody listens on, below those that the system gives to clients."""
    for port in range(21000, 32000, 7):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    pytest.fail("no port is free")


class Reader:
    """Somebody who types what the README says."""

    def __init__(self, directory: Path) -> None:
        """Stand in a directory with the README's files."""
        self.directory = directory
        self.port = str(free_port())
        self.up: subprocess.Popen[bytes] | None = None
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TOKENMILL_BOOTSTRAP_SERVERS": f"127.0.0.1:{self.port}",
        }
        for name in ("docs", "examples"):
            shutil.copytree(ROOT / name, directory / name)
        shutil.copy(ROOT / "README.md", directory)

    def run(self, snippet: Snippet) -> str:
        """Run a block; `tokenmill up` is left running. Return what the others print."""
        code = snippet.code.replace("9092", self.port)
        if snippet.language == "python":
            return self.call([sys.executable, "-c", code])
        return "".join(self.type(line) for line in code.splitlines())

    def type(self, line: str) -> str:
        """Run one line in a shell."""
        if not line.startswith("tokenmill up"):
            return self.call(["bash", "-euo", "pipefail", "-c", line])
        with (self.directory / "up.log").open("wb") as log:
            self.up = subprocess.Popen(
                line.split(), cwd=self.directory, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.wait_for("2 of 2 mills")
        return ""

    def call(self, command: list[str]) -> str:
        """Run a command that must succeed."""
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}\n{self.log[-3000:]}"
        return done.stdout

    @property
    def log(self) -> str:
        """What `tokenmill up` has said."""
        file = self.directory / "up.log"
        return file.read_text() if file.exists() else ""

    def wait_for(self, words: str) -> None:
        """Wait until `tokenmill up` says something."""
        deadline = time.monotonic() + UP_SECONDS
        while words not in self.log:
            assert time.monotonic() < deadline, self.log
            assert self.up is not None
            assert self.up.poll() is None, self.log
            time.sleep(0.1)

    def wait_until_trainable(self) -> None:
        """Wait until all that was sent is in the store, and in eras."""
        deadline = time.monotonic() + UP_SECONDS
        while not (self.store_is_level() and self.is_trainable()):
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)

    def store_is_level(self) -> bool:
        """Tell whether the store's blocks are all in eras: before that there is no need for a verification."""
        store = self.directory / "store"
        try:
            streams = {file.parent.name: partitions_in(store, file.parent.name) for file in store.glob("*/stream.json")}
            stored = [sum(open_partition(store, name, n).blocks for n in found) for name, found in streams.items()]
            return sum(stored) > 0 and stored == [open_eras(store, name).blocks for name in streams]
        except StoreError:
            return False

    def is_trainable(self) -> bool:
        """Tell whether each block of all that was sent is in the store and in an era."""
        verified = json.loads(self.call(["tokenmill", "verify", "--json", "--processes", "1"]))
        if not verified["complete"]:
            return False
        streams = {chain["stream"] for chain in verified["chains"]}
        eras = [json.loads(self.call(["tokenmill", "eras", stream, "--json"]))["eras"] for stream in streams]
        blocks = int(verified["blocks"])
        return blocks > 0 and sum(int(era["blocks"]) for found in eras for era in found) == blocks

    def leave(self) -> None:
        """Press Ctrl-C."""
        if self.up is not None and self.up.poll() is None:
            self.up.send_signal(signal.SIGINT)
            self.up.wait(60)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Yield a reader; what they started ends with the test."""
    somebody = Reader(tmp_path)
    yield somebody
    somebody.leave()


@pytest.mark.slow
def test_every_snippet_of_the_readme_does_what_it_says(reader: Reader) -> None:
    """From the tokenizer to a training step and a verified store."""
    printed = []
    for number, snippet in enumerate(snippets()):
        printed.append(reader.run(snippet))
        if number == 2:  # all text is sent: what follows reads it
            reader.run(Snippet("bash", "tokenmill flush raw-text"))
            reader.wait_until_trainable()
    everything = "\n".join(printed)
    assert "torch.Size([4, 64]) torch.Size([4, 64])" in everything
    assert "store/raw-text.train/0/000000000000.bin" in everything
    assert "loss" in everything
    assert "docs/" in printed[-1]
    assert "equal to the reference" in printed[-1]


def test_no_other_command_stands_in_the_readme() -> None:
    """A block without a language is run by continuous integration, or is what a command prints."""
    lines = {line for snippet in fenced() if not snippet.language for line in snippet.code.splitlines()}
    assert lines >= BY_CI
    assert not [line for line in lines - BY_CI if line.startswith(("tokenmill", "make", "python", "."))]
