"""Every command and snippet of the README, in its order, as a reader would run them; and what `help` shows, run."""

import doctest
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

import pytest

import tokenmill
from tests.docs.test_training_page import store_of
from tests.stack.engine import free_ports
from tests.store.chains import STREAM, make_info
from tokenmill import consumers
from tokenmill.errors import StoreError
from tokenmill.store import open_eras, open_partition, partitions_in

ROOT: Final = Path(__file__).parents[1]
README: Final = (ROOT / "README.md").read_text()
BY_CI: Final = {"make demo", "pip install '.[app,produce]'"}
"""Commands that continuous integration and the tests of the demo run, and `make faults`."""
UP_SECONDS: Final = 120


class Snippet(NamedTuple):
    language: str
    code: str


_PARTS: Final = re.split(r"^```(\w*)\n", README, flags=re.MULTILINE)
FENCED: Final = [Snippet(language, code) for language, code in zip(_PARTS[1::4], _PARTS[2::4], strict=True)]
"""All fenced blocks, in order; those that no reader types have no language."""
SNIPPETS: Final = [snippet for snippet in FENCED if snippet.language]


PASTED: Final = "-- that was all of it"
FAILED: Final = "Traceback (most recent call last)"
SESSION: Final = f"""
import json, sys, traceback

for line in sys.stdin:
    try:
        exec(json.loads(line), {{"__name__": "__main__"}})
    except Exception:
        traceback.print_exc(file=sys.stdout)
    print({PASTED!r}, flush=True)
"""
"""A Python that stays open: it runs what is pasted into it, each time without the names of what came before."""


class Reader:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = str(free_ports(1)[0])
        self.up: subprocess.Popen[bytes] | None = None
        self.python: subprocess.Popen[str] | None = None
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TOKENMILL_BOOTSTRAP_SERVERS": f"127.0.0.1:{self.port}",
            "OMP_NUM_THREADS": "1",  # torch's own threads wait busily
        }
        for name in ("docs", "examples"):
            shutil.copytree(ROOT / name, directory / name)
        shutil.copy(ROOT / "README.md", directory)

    def run(self, snippet: Snippet) -> str:
        """Run a block; `tokenmill up` is left running. Return what the others print."""
        code = snippet.code.replace("9092", self.port)
        if snippet.language == "python":
            return self.paste(code)
        return "".join(self.type(line) for line in code.splitlines())

    def type(self, line: str) -> str:
        if not line.startswith("tokenmill up"):
            return self.call(["bash", "-euo", "pipefail", "-c", line])
        with (self.directory / "up.log").open("wb") as log:
            self.up = subprocess.Popen(
                line.split(), cwd=self.directory, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.wait_until(lambda: "2 of 2 mills" in self.log)
        return ""

    def call(self, command: list[str]) -> str:
        done = subprocess.run(
            command, cwd=self.directory, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}\n{self.log[-3000:]}"
        return done.stdout

    def paste(self, code: str) -> str:
        if self.python is None:
            self.python = subprocess.Popen(
                [sys.executable, "-c", SESSION],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.python.stdout is not None
        print(json.dumps(code), file=self.python.stdin, flush=True)
        printed = ""
        while not printed.endswith(f"{PASTED}\n"):
            line = self.python.stdout.readline()
            assert line, f"Python ended: {printed}"
            printed += line
        assert FAILED not in printed, printed
        return printed.removesuffix(f"{PASTED}\n")

    @property
    def log(self) -> str:
        file = self.directory / "up.log"
        return file.read_text() if file.exists() else ""

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition while `tokenmill up` runs."""
        deadline = time.monotonic() + UP_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.log
            assert self.up is not None
            assert self.up.poll() is None, self.log
            time.sleep(0.1)

    def eras_of_store(self) -> int:
        """Return how many blocks are in eras of the store; 0 while there are blocks outside of these."""
        store = self.directory / "store"
        try:
            streams = {file.parent.name: partitions_in(store, file.parent.name) for file in store.glob("*/stream.json")}
            stored = [sum(open_partition(store, name, n).blocks for n in found) for name, found in streams.items()]
            in_eras = [open_eras(store, name).blocks for name in streams]
        except StoreError:
            return 0
        return sum(stored) if stored == in_eras else 0

    def is_trainable(self) -> bool:
        """Tell whether all that was sent is in the store, and in eras."""
        trainable = self.eras_of_store()
        if not trainable:  # then there is no need for a verification
            return False
        verified = json.loads(self.call(["tokenmill", "verify", "--json", "--processes", "1"]))
        return bool(verified["complete"]) and int(verified["blocks"]) == trainable

    def leave(self) -> None:
        """Close Python, and press Ctrl-C; neither is left running, even if it does not end in time."""
        with ExitStack() as last:
            if self.up is not None:
                last.callback(self.up.kill)
                last.callback(self.up.wait, 60)
                last.callback(self.up.send_signal, signal.SIGINT)
            if self.python is not None:
                last.callback(self.python.kill)
                self.python.communicate(timeout=60)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    somebody = Reader(tmp_path)
    yield somebody
    somebody.leave()


def test_it_can_be_read_in_five_minutes() -> None:
    assert len(README.splitlines()) <= 120
    for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", README):
        assert (ROOT / link).exists(), link


@pytest.mark.needs("minutes")
def test_a_new_user_has_a_batch_after_minutes(tmp_path: Path) -> None:
    """From an empty environment, with the torch that is there; prints how long installing and reading took."""
    began = time.monotonic()
    bin_directory, checkout = tmp_path / "new/bin", tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
    subprocess.run([sys.executable, "-m", "venv", str(bin_directory.parent)], check=True)
    subprocess.run([bin_directory / "pip", "install", "--quiet", ".[app,produce]"], cwd=checkout, check=True)
    installed = time.monotonic()
    environment = {**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}"}
    short_way = SNIPPETS[:2]
    for line in short_way[0].code.splitlines():
        subprocess.run(line, shell=True, cwd=checkout, env=environment, check=True)  # noqa: S602 - README's
    packed = time.monotonic()
    code = f"import sys; sys.path.append({sysconfig.get_paths()['purelib']!r})\n{short_way[1].code}"
    said = subprocess.check_output([bin_directory / "python", "-c", code], cwd=checkout, text=True)
    assert "packed and read: torch.Size([4, 64])" in said
    times = f"installed in {installed - began:.0f} s, packed in {packed - installed:.0f} s"
    print(f"{times}, read in {time.monotonic() - packed:.0f} s")  # noqa: T201 - for people: nothing asserts them


@pytest.mark.slow
def test_every_snippet_of_the_readme_does_what_it_says(reader: Reader) -> None:
    printed = []
    for snippet in SNIPPETS:
        printed.append(reader.run(snippet))
        if "aiokafka" in snippet.code:  # all text is sent: what follows reads it
            reader.run(Snippet("bash", "tokenmill flush raw-text"))
            reader.wait_until(reader.is_trainable)
    everything = "\n".join(printed)
    assert "streamed and read: torch.Size([4, 64]) torch.Size([4, 64])" in everything
    assert "packed and read: torch.Size([4, 64])" in everything
    assert "loss" in everything
    assert "equal to the reference" in printed[-1]


def test_no_other_command_stands_in_the_readme() -> None:
    """A block without a language is run by continuous integration, or is what a command prints."""
    lines = {line for snippet in FENCED if not snippet.language for line in snippet.code.splitlines()}
    assert lines >= BY_CI
    assert not [line for line in lines - BY_CI if line.startswith(("tokenmill", "make", "python", "."))]


@pytest.mark.parametrize("module", [tokenmill, consumers])
def test_a_package_begins_with_an_example_that_runs(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a store with 8 eras of 3 blocks; the words of the model stand above it."""
    told = module.__doc__ or ""
    assert all(word in told for word in ("sample", "era", "step", "state", "store"))
    assert 15 <= len(told.splitlines()) <= 35
    store_of(tmp_path / "store", make_info(block_tokens=65), [[(n, n + 1), (2 * n, 2 * n + 2)] for n in range(8)])
    assert (tmp_path / "store" / STREAM).is_dir()
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(told, {}, module.__name__, None, 0)
    assert len(test.examples) >= 4
    lines: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=lines.append)
    assert not failed, "".join(lines)
