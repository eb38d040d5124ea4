"""Ctrl-C on a terminal, at any moment: a command ends with 130, shows no traceback, and leaves no process."""

import os
import pty
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from tests.conftest import TopicFactory
from tests.marked import MARK, marked, until
from tokenmill.app.local.broker import Broker

pytestmark = [pytest.mark.slow]

SECONDS: Final = 120.0
COMMANDS: Final = (
    "pack TEXTS --tokenizer bytes --store store",
    "pack TEXTS --tokenizer bytes --store store --workers 2",
    "try TEXTS --profile gopher",
    "produce TOPIC TEXTS --rate 20kB --bootstrap-servers BROKER",
    "mirror --store copy --bootstrap-servers BROKER",
)
"""Commands that are at it for seconds."""


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for number in range(40):
        (folder / f"{number}.txt").write_text(" ".join(f"word{(n * n + number) % 9973}" for n in range(60_000)))
    return folder


class AtTerminal:
    """A command in the foreground of a terminal of its own; all its processes are marked."""

    def __init__(self, command: Sequence[str], directory: Path) -> None:
        self.mark, self.said = uuid.uuid4().hex, b""
        self._ours, its = pty.openpty()
        environment = {**os.environ, MARK: self.mark, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=its, stdout=its, stderr=its, start_new_session=True
        )
        os.close(its)
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # the other side is closed
            while piece := os.read(self._ours, 1 << 16):
                self.said += piece

    def has_loaded(self, library: str) -> bool:
        maps = Path(f"/proc/{self.process.pid}/maps")
        return until(lambda: self.process.poll() is not None or library in maps.read_text(), SECONDS)

    def press_ctrl_c(self, times: int) -> None:
        for _ in range(times):
            os.killpg(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._ours)


@pytest.fixture
def words(texts: Path, broker: Broker, topic: TopicFactory) -> Mapping[str, str]:
    return {"TEXTS": str(texts), "BROKER": broker.bootstrap_servers, "TOPIC": topic()}


@pytest.mark.parametrize(("moment", "times"), [("imports", 1), ("work", 1), ("work", 2)])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.cases(4)
def test_ctrl_c_ends_a_command(command: str, moment: str, times: int, words: Mapping[str, str], tmp_path: Path) -> None:
    arguments = [words.get(part, part) for part in command.split()]
    with closing(AtTerminal([sys.executable, "-m", "tokenmill.app.cli", *arguments], tmp_path)) as running:
        if moment == "imports":
            assert running.has_loaded("_pydantic_core")
        else:
            assert until(lambda: running.said != b"" or running.process.poll() is not None, SECONDS)
        running.press_ctrl_c(times)
        code = running.process.wait(SECONDS)
        assert b"Traceback" not in running.said
        assert code in ({130} if times == 1 else {130, -signal.SIGINT}), running.said
        assert until(lambda: marked(running.mark) == [], 3.0)


HALF_MADE = """
import sys
from tokenmill.app import cli

class EventLoop:
    def __init__(self):
        raise KeyboardInterrupt
    def __del__(self):
        self.closed

cli._version = lambda: EventLoop() and None
"""
IN_A_FINALIZER = """
import os, signal, sys, time
from tokenmill.app import cli

class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)

cli._version = lambda: (Freed() and None, time.sleep(60))
"""
CATCHING = "import sys; sys.path.insert(0, '.')"
RUN = """
sys.argv[1:] = ["version"]
from tokenmill.app import cli
cli.main()
"""
CAUGHT: Final = {
    "an event loop that is half made": (HALF_MADE, ""),  # it looks at its attributes when it is freed
    "in a finalizer": (IN_A_FINALIZER, ""),  # Python drops what is raised there, and shows its traceback
    "by a library": (CATCHING, "pass"),
    "by a library that raises another": (CATCHING, "raise RuntimeError"),  # as Python 3.11 makes of any in __set_name__
}
"""Where Ctrl-C comes → a command, and what a library makes of it."""


@pytest.mark.parametrize("place", CAUGHT)
def test_ctrl_c_that_something_catches_ends_a_command_all_the_same(place: str, tmp_path: Path) -> None:
    code, made_of_it = CAUGHT[place]
    if made_of_it:
        library = f"import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException: {made_of_it}"
        (tmp_path / "typer.py").write_text(library)
    command = [sys.executable, "-c", code + RUN]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, timeout=SECONDS)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


def test_ctrl_c_while_torch_loads_ends_a_lab(texts: Path, tmp_path: Path) -> None:
    """By the signal itself: nothing has begun that could be ended in order."""
    lab = Path(__file__).parents[2] / "examples/labs/characters.py"
    with closing(AtTerminal([sys.executable, str(lab), str(texts)], tmp_path)) as running:
        assert running.has_loaded("libtorch")
        running.press_ctrl_c(1)
        assert running.process.wait(SECONDS) in {-signal.SIGINT, 130}
        assert b"Traceback" not in running.said
