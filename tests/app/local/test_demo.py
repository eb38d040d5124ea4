"""The demo as a user sees it: from the text to the proof and what it calls good; no process is left however it ends."""

import os
import re
import signal
import uuid
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from tests.commands import command
from tests.marked import MARK, marked, until
from tokenmill.app.local.demo import _say_result, _training_line
from tokenmill.app.local.live_view import LiveView, TrainingStatus
from tokenmill.app.tools.verify import ChainResult, EraResult, VerifyDifference, VerifyResult
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
        self._log = directory / f"{self.mark}.log"
        self.process = command(["demo", *arguments], self._log, {MARK: self.mark}, directory)

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


def chain(reference: int = 7, topic: int = 7, store: int = 7, *differences: VerifyDifference) -> ChainResult:
    blocks = {"reference_blocks": reference, "topic_blocks": (0, topic), "store_blocks": (0, store)}
    return ChainResult("s", 0, "t", (0, 9), (0, 9), **blocks, topic_equal=topic, differences=[*differences])  # type: ignore[arg-type]


def told(found: ChainResult, eras: EraResult) -> tuple[bool, str]:
    output = StringIO()
    result = VerifyResult([found], found.differences, [], 1.0, eras=[eras])
    return _say_result(LiveView(Console(file=output)), 1, result), output.getvalue()


@pytest.mark.parametrize(
    ("found", "eras", "good", "said"),
    [
        # eras go on while the demo verifies: one that the store does not hold yet is no fault
        (
            chain(),
            EraResult("s", eras=3, store_eras=2),
            True,
            "killed 1, lost 0, duplicated 0, 7 blocks equal to the reference",
        ),
        # all had come to rest before: nothing is on its way any more
        (chain(topic=6, store=6), EraResult("s"), False, "lost 1, "),
        (chain(store=6), EraResult("s"), False, "lost 1, "),
        (chain(0, 0, 0), EraResult("s"), False, ""),
        (
            chain(7, 7, 7, VerifyDifference("topic", "different", "s", 0, "other ids", block=3)),
            *(EraResult("s"), False, "topic: s partition 0, block 3: other ids"),
        ),
    ],
    ids=["all blocks", "a block that is nowhere", "one that is not in the store", "nothing at all", "a difference"],
)
def test_only_what_lost_nothing_is_good(found: ChainResult, eras: EraResult, said: str, *, good: bool) -> None:
    assert told(found, eras)[0] is good
    assert said in told(found, eras)[1]


def test_the_readme_shows_what_the_demo_says() -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    (headline,) = re.findall(r"^killed \d.*$", readme, re.MULTILINE)
    (blocks,) = re.findall(r"([\d,]+) blocks", headline)
    count = int(blocks.replace(",", ""))
    good, line = told(chain(count, count, count), EraResult("s"))
    assert good
    assert headline in line


def test_losses_are_means_over_the_first_and_the_last_steps() -> None:
    """Whatever single reports said, and whether a busy machine made many steps between two of them or one."""
    steps = [(1, 9.0), (2, 20.0), (10, 8.0), (50, 6.0), (90, 5.0), (99, 4.0), (100, 30.0)]
    reports = [TrainingStatus(step, loss, 1.0, 0.25) for step, loss in steps]
    first = (9 + 20 + 8 * 8 + 10 * 6) / 20
    last = (10 * 5 + 9 * 4 + 30) / 20
    said = "25% of its time it waited for data"
    assert _training_line(reports) == f"the model's loss went from {first:.2f} to {last:.2f} in 100 steps; {said}"
    assert _training_line(reports[:3]) == f"the model made 10 steps; {said}"
