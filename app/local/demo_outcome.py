"""The demo's training run, and its end: whether all blocks are there, where one came from, and what to try next."""

import asyncio
import importlib.util
import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import tokenmill
from tokenmill.store import open_partition, partitions_in

from ..funnel.retention import kept_line
from ..processes import guarded
from ..settings import Settings
from ..tools.inspect import TracedPiece, trace_block
from ..tools.verify import VerifyProgress, VerifyResult, verify
from .live_scene import TrainingStatus
from .live_view import LiveView
from .local_state import DEMO_DIRECTORY, program

EXAMPLE: Final = Path("examples/train_gpt.py")
FIRST_SECONDS: Final = 300.0
"""How long the model may wait for its first data: longer than a busy machine takes to start the service."""
NICENESS: Final = 10
"""The service comes first: on two cores, training must not slow it down."""
LEAST_STEPS: Final = 50
"""Below so many, a difference of losses is noise."""
COMPARED: Final = 0.2
"""The share of the steps, first and last, whose mean losses are compared."""


def example() -> Path | None:
    """Return the example's file, which is beside this package's source; None where there is no source.

    The working directory is not searched: others may have put files there.
    """
    place = Path(tokenmill.__file__).parents[1] / EXAMPLE
    return place if place.is_file() else None


def why_not() -> str | None:
    """Return why nothing can be trained here, or None."""
    if importlib.util.find_spec("torch") is None:
        return "no training, for torch is not installed: pip install torch, or say --no-train"
    if example() is None:
        return f"no training, for {EXAMPLE} is not beside the source: run `make demo` in a clone of the repository"
    return None


class DemoTrainer:
    """Trains while `run` runs; `training` says how it goes."""

    def __init__(self, store: Path, stream: str, seconds: float, log: Path) -> None:
        self.reports: list[TrainingStatus] = []
        self.ended = asyncio.Event()
        self.code = 0
        self._log = log
        self._command = [sys.executable, str(example()), str(store), stream]
        self._command += [
            "--json",
            "--seconds",
            str(seconds),
            "--timeout",
            str(FIRST_SECONDS),
            "--threads",
            "1",
            "--cpu",
        ]

    @property
    def training(self) -> TrainingStatus | None:
        """The last report."""
        return self.reports[-1] if self.reports else None

    async def run(self) -> None:
        """Train to the end; when cancelled, end the process first."""
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *guarded(self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        try:
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            await self._listen(process)
        finally:
            with suppress(ProcessLookupError):
                process.kill()  # it has nothing to save
            self.code = await process.wait()
            self.ended.set()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            raise TypeError("the process was started without a pipe")
        async for line in process.stdout:
            said = json.loads(line)
            self.reports.append(
                TrainingStatus(said["step"], said["loss"], said["tokens_per_second"], said["wait_share"])
            )
        await process.wait()


def training_line(reports: Sequence[TrainingStatus]) -> str:
    """Return in one line what was trained, by the reports in their order; no loss below `LEAST_STEPS`.

    Each report's loss is the mean over the steps since the report before.
    """
    last = reports[-1]
    waited = f"{last.wait_share:.0%} of its time it waited for data"
    if last.step < LEAST_STEPS:
        return f"the model made {last.step:,} steps; {waited}"
    first = _mean_loss(reports, 0, last.step * COMPARED)
    final = _mean_loss(reports, last.step * (1 - COMPARED), last.step)
    return f"the model's loss went from {first:.2f} to {final:.2f} in {last.step:,} steps; {waited}"


def _mean_loss(reports: Sequence[TrainingStatus], begin: float, end: float) -> float:
    """Return the mean loss of the steps from ``begin`` to ``end``, by the share of each report that is among them."""
    starts = (0, *(report.step for report in reports))
    shares = [
        max(0.0, min(end, report.step) - max(begin, start)) for start, report in zip(starts, reports, strict=False)
    ]
    return sum(share * report.loss for share, report in zip(shares, reports, strict=True)) / sum(shares)


T = TypeVar("T")
SHOWN_PIECES: Final = 3
SHOWN_CHARACTERS: Final = 160
FOUND_CHARACTERS: Final = 60
"""Enough of a piece to find its place in the text; its end may be a token that no text holds."""


def in_background(work: Callable[[], T]) -> Future[T]:
    """Start ``work`` in a thread and return its future; unlike with a pool, the process may end before the work."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # so that cancelling does nothing: the thread sets it

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by the future
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


async def check(settings: Settings, blocks: int, show: Callable[[str], None]) -> VerifyResult:
    """Verify everything, every record by the reference; ``show`` is called with the progress."""

    def progress(so_far: VerifyProgress) -> None:
        show(f"verifying, {so_far.blocks:,} of {blocks:,} blocks")

    def work() -> VerifyResult:
        return verify(settings, store=settings.store, reference=True, progress=progress)

    return await asyncio.wrap_future(in_background(work))


def say_funnel(view: LiveView, result: VerifyResult) -> None:
    """Show what became of the documents in one line."""
    view.say(kept_line(result.totals))


def say_result(view: LiveView, killed: int, result: VerifyResult) -> bool:
    """Say in one line what became of every block, and return whether all are right.

    An era that was written when the verification began may still be on its way to the store: that is no fault.
    """
    lost = result.lost + result.behind + result.store_behind
    line = (
        f"killed {killed}, lost {lost}, duplicated {result.duplicated}, {result.blocks:,} blocks equal to the reference"
    )
    good = result.ok and not lost and result.blocks > 0
    view.say(line, "bold green" if good else "bold red")
    for difference in result.differences:
        view.say(str(difference), "red")
    return good


async def go_back(settings: Settings, view: LiveView) -> None:
    """Take a block from the middle of the store, and print the Kafka records that it came from."""
    stream = settings.streams()[0].name
    numbers = partitions_in(settings.store, stream)
    stored = {number: open_partition(settings.store, stream, number).blocks for number in numbers}
    partition = max(stored, key=lambda number: stored[number], default=None)
    if partition is None or not stored[partition]:
        return
    trace = await trace_block(settings, stream, partition, stored[partition] // 2, store=settings.store)
    view.say(f"block {trace.block:,} of {stream}, partition {partition}: {trace.tokens} tokens, which came from")
    for piece in trace.pieces[:SHOWN_PIECES]:
        view.show(_where(piece), "cyan")
        if piece.record is not None:
            view.show(f"      {_excerpt(piece.record.text, piece.text)}")
    if len(trace.pieces) > SHOWN_PIECES:
        view.show(f"    and {len(trace.pieces) - SHOWN_PIECES} more documents")


def next_commands(view: LiveView, directory: Path, settings: Settings) -> None:
    """Name commands to try with what the demo left behind."""
    state = "" if directory == DEMO_DIRECTORY else f" --state {shlex.quote(str(directory))}"
    partition = directory / "store" / settings.streams()[0].name / "0"
    view.show()
    view.show("All of it is still there. Next:", "bold")
    view.show(f"  {program()} up{state}", "bold cyan")
    view.show(f"    the service on this state again: push text of your own into {settings.raw_topics[0]} and watch")
    view.show(f"  {program()} inspect segment {shlex.quote(str(partition))}", "bold cyan")
    view.show("    what the files hold that a trainer reads; needs no broker")


def _where(piece: TracedPiece) -> str:
    place = f"    {piece.topic}, partition {piece.partition}, offset {piece.offset}"
    if piece.padding:
        return f"{place}: the flush, which filled the block"
    name = f", {piece.id!s}" if piece.id is not None else ""
    return f"{place}{name}: tokens from {piece.position:,} on"


def _excerpt(text: str, piece: str) -> str:
    """Return in one line what a record's text says where a piece of a block begins in it."""
    start = max(0, text.find(piece[:FOUND_CHARACTERS]))
    line = " ".join(text[start : start + 4 * SHOWN_CHARACTERS].split())
    return f"{'… ' if start else ''}{line[:SHOWN_CHARACTERS]}{' …' if len(line) > SHOWN_CHARACTERS else ''}"
