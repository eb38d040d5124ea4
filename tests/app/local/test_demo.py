"""The demo as a user sees it: from the text to the proof, and no process left however it ends."""

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.marked import MARK, marked, until
from tokenmill.store import open_partition

SECONDS: Final = 240.0
"""How long the demo may take on a machine that does other things as well; with this text it takes 20."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text("".join(f"Line {n} of a book, {n * n} words.\n{'' if n % 9 else chr(10)}" for n in range(9000)))
    return path


class Demo:
    def __init__(self, directory: Path, arguments: Sequence[str]) -> None:
        self.mark = uuid.uuid4().hex
        self._log = directory / "demo.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tokenmill.app.cli", "demo", *arguments],
                env={**os.environ, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def says(self, words: str) -> bool:
        return until(lambda: words in self.output or self.process.poll() is not None, SECONDS) and words in self.output

    def left_nothing(self) -> bool:
        """Return whether all of its processes are gone, or go within a moment: some end when their pipe closes."""
        return until(lambda: marked(self.mark) == [], 3.0)


@pytest.mark.needs("minutes")
def test_the_whole_story(text: Path, tmp_path: Path) -> None:
    for run, training in (("book-1", ["--train-seconds", "2"]), ("book-2", ["--no-train"])):
        demo = Demo(tmp_path, ["--text", str(text), "--seconds", "2", *training])
        assert demo.process.wait(SECONDS) == 0, demo.output
        assert "killed 1, lost 0, duplicated 0, " in demo.output
        assert "blocks equal to the reference" in demo.output
        learnt = re.search(r"the model(?: made|'s loss went from .* in) ([\d,]+) steps", demo.output)
        assert (learnt is not None) == (run == "book-1"), demo.output
        assert f"    {run}, partition " in demo.output
        assert "of a book, " in demo.output.partition("which came from")[2]
        assert " up\n" in demo.output.partition("Next:")[2]
        assert demo.left_nothing()
        store = tmp_path / ".tokenmill/demo/store"
        assert sum(open_partition(store, f"{run}.train", number).blocks for number in range(4)) > 100


@pytest.mark.parametrize(
    "moment",
    [
        "starting Apache Kafka",
        *(pytest.param(moment, marks=pytest.mark.needs("minutes")) for moment in ("feeding", "computed again")),
    ],
)
def test_ctrl_c_leaves_no_process(text: Path, tmp_path: Path, moment: str) -> None:
    """At any moment, as at a terminal: the signal reaches the whole process group."""
    demo = Demo(tmp_path, ["--no-train", "--text", str(text), "--seconds", "0.5" if "again" in moment else "20"])
    assert demo.says(moment), demo.output
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.process.wait(SECONDS) == 130, demo.output
    assert demo.left_nothing()
    assert "Traceback" not in demo.output
