"""`demo`: text goes through a real Kafka into blocks and a training run, a worker is killed, and all is proved."""

import asyncio
import importlib.util
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from tokenizers import Tokenizer

import tokenmill
from tokenmill.errors import TokenMillError
from tokenmill.store import open_partition, partitions_in

from ..funnel import kept_line
from ..kafka.topics import ensure_topics
from ..processes import guarded
from ..settings import Settings
from ..sources import GivenSource, Item, shape_for
from ..supervisor.supervisor import Event, Status, Supervisor
from ..tasks import beside, in_background, run_until_signalled
from ..tools.inspect.tracing import trace_block
from ..tools.produce.producing import RunPlan, flush, produce
from ..tools.produce.sending import Summary
from ..tools.tokenizers import train_tokenizer
from ..tools.verify import VerifyProgress, VerifyResult, verify
from ..worker.watchdog import WatchLimits
from .broker import Broker, download
from .live_view import LiveScene, LiveView, TrainingStatus, log_to_file, saying_when_cancelled
from .local_state import DEMO_DIRECTORY, PARTITIONS, VOCABULARY, DemoPlan, DemoText, LocalState, demo_settings, program

EXAMPLE: Final = Path("examples/train_gpt.py")
LEAST_STEPS: Final = 50
"""Below so many, a difference of losses is noise."""
COMPARED: Final = 0.2
"""The share of the steps, first and last, whose mean losses are compared."""


def _example() -> Path | None:
    """Return the example's file, beside this package's source; others may have put files into the working directory."""
    place = Path(tokenmill.__file__).parents[1] / EXAMPLE
    return place if place.is_file() else None


class DemoTrainer:
    """Trains while `run` runs; the last of `reports` says how it goes."""

    def __init__(self, store: Path, stream: str, seconds: float, log: Path) -> None:
        self.reports: list[TrainingStatus] = []
        self.ended = asyncio.Event()
        self.code = 0
        self._log = log
        self._command = [sys.executable, str(_example()), str(store), stream, "--json", "--threads=1", "--cpu"]
        self._command += [f"--seconds={seconds}", "--timeout=300"]  # a busy machine starts the service sooner

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
            os.setpriority(os.PRIO_PROCESS, process.pid, 10)  # on two cores, it must not slow the service down
            if process.stdout is None:
                raise TypeError("the process was started without a pipe")
            async for line in process.stdout:
                said = json.loads(line)
                report = TrainingStatus(said["step"], said["loss"], said["tokens_per_second"], said["wait_share"])
                self.reports.append(report)
            await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.kill()  # it has nothing to save
            self.code = await process.wait()
            self.ended.set()


def _training_line(reports: Sequence[TrainingStatus]) -> str:
    last = reports[-1]
    waited = f"{last.wait_share:.0%} of its time it waited for data"
    if last.step < LEAST_STEPS:
        return f"the model made {last.step:,} steps; {waited}"
    first = _mean_loss(reports, 0, last.step * COMPARED)
    final = _mean_loss(reports, last.step * (1 - COMPARED), last.step)
    return f"the model's loss went from {first:.2f} to {final:.2f} in {last.step:,} steps; {waited}"


def _mean_loss(reports: Sequence[TrainingStatus], begin: float, end: float) -> float:
    """Return the mean of these steps; each report has that of the steps since the one before."""
    steps = [0, *(report.step for report in reports)]
    sums = np.cumsum([0.0, *(np.diff(steps) * [report.loss for report in reports])])
    first, last = np.interp([begin, end], steps, sums)
    return float(last - first) / (end - begin)


SHOWN_PIECES: Final = 3
SHOWN_CHARACTERS: Final = 160


def _say_result(view: LiveView, killed: int, result: VerifyResult) -> bool:
    """Say what became of every block, and return whether all are right; an era may still be on its way to the store."""
    lost = result.lost + result.behind + result.store_behind
    good = result.ok and not lost and result.blocks > 0
    counts = f"killed {killed}, lost {lost}, duplicated {result.duplicated}"
    view.say(f"{counts}, {result.blocks:,} blocks equal to the reference", "bold green" if good else "bold red")
    for difference in result.differences:
        view.say(str(difference), "red")
    return good


async def _go_back(settings: Settings, view: LiveView) -> None:
    stream = settings.streams()[0].name
    numbers = partitions_in(settings.store, stream)
    stored = {number: open_partition(settings.store, stream, number).blocks for number in numbers}
    partition = max(stored, key=lambda number: stored[number], default=None)
    if partition is None or not stored[partition]:
        return
    trace = await trace_block(settings, stream, partition, stored[partition] // 2, store=settings.store)
    view.say(f"block {trace.block:,} of {stream}, partition {partition}: {trace.tokens} tokens, which came from")
    for piece in trace.pieces[:SHOWN_PIECES]:
        place = f"{piece.topic}, partition {piece.partition}, offset {piece.offset}"
        name = f", {piece.id!s}" if piece.id is not None else ""
        what = ": the flush, which filled the block" if piece.padding else f"{name}: tokens from {piece.position:,} on"
        view.show(f"    {place}{what}", "cyan")
        if piece.record is not None:
            view.show(f"      {_excerpt(piece.record.text, piece.text)}")
    if len(trace.pieces) > SHOWN_PIECES:
        view.show(f"    and {len(trace.pieces) - SHOWN_PIECES} more documents")


def _next_commands(view: LiveView, directory: Path, settings: Settings) -> None:
    state = "" if directory == DEMO_DIRECTORY else f" --state {shlex.quote(str(directory))}"
    partition = directory / "store" / settings.streams()[0].name / "0"
    view.show()
    view.show("All of it is still there. Next:", "bold")
    view.show(f"  {program()} up{state}", "bold cyan")
    view.show(f"    the service on this state again: push text of your own into {settings.raw_topics[0]} and watch")
    view.show(f"  {program()} inspect segment {shlex.quote(str(partition))}", "bold cyan")
    view.show("    what the files hold that a trainer reads; needs no broker")


def _excerpt(text: str, piece: str) -> str:
    start = max(0, text.find(piece[:60]))  # not all of it: its end may be a token that no text holds
    line = " ".join(text[start : start + 4 * SHOWN_CHARACTERS].split())
    return f"{'… ' if start else ''}{line[:SHOWN_CHARACTERS]}{' …' if len(line) > SHOWN_CHARACTERS else ''}"


LONGEST_SECONDS: Final = 120.0
"""How long to wait without any progress. A restart of everything takes 20."""
STARTING: Final = "starting the service"


async def until(condition: Callable[[Status], bool], look: Callable[[], Status], lasting: float = 0.0) -> None:
    """Wait until the condition has held for ``lasting`` seconds; raises TokenMillError where there is no progress."""
    progressed = time.monotonic()
    held_since: float | None = None
    seen: object = None
    while True:
        status, now = look(), time.monotonic()
        held_since = (held_since if held_since is not None else now) if condition(status) else None
        if held_since is not None and now - held_since >= lasting:
            return
        if (progress := (status.lag, status.stored)) != seen:
            progressed, seen = now, progress
        if now - progressed > LONGEST_SECONDS:
            raise TokenMillError(
                f"the service has made no progress for {LONGEST_SECONDS:.0f} s, {status.lag} records wait: "
                "its logs, in the state's folder logs/, say why"
            )
        await asyncio.sleep(0.2)


def run_demo(plan: DemoPlan, console: Console) -> int:
    """Run the demo; return 0 when every block is equal to the reference's. On return no process is left."""
    state = LocalState(plan.directory.absolute())
    log_to_file(state.logs / "supervisor.log", "info")
    view = LiveView(console)
    also = ", while a model trains on them" if plan.train else ""
    view.show(f"TokenMill: text in Kafka becomes token blocks, once each{also}", "bold")
    view.say(f"text: {plan.text.description}, {plan.text.bytes / 1e6:,.1f} MB")
    tokenizer = in_background(lambda: _learn(plan.text))
    view.say(f"starting Apache Kafka in {plan.directory / 'broker'}{download()}")
    # Outside of the event loop, so that Ctrl-C does not have to wait for a download.
    with Broker(state.broker) as broker:
        view.say(f"Kafka serves at {broker.bootstrap_servers}")
        settings = demo_settings(state, plan.text, broker.bootstrap_servers)
        return run_until_signalled(_Demo(plan, state, settings, view).run(tokenizer))


def _learn(text: DemoText) -> Tokenizer:
    items = text.items(shape_for(Settings(), Settings().max_record_bytes))
    return train_tokenizer((item.text for item in items if isinstance(item, Item)), vocabulary_size=VOCABULARY)


class _Demo:
    def __init__(self, plan: DemoPlan, state: LocalState, settings: Settings, view: LiveView) -> None:
        self._plan = plan
        self._state = state
        self._settings = settings
        self._view = view
        limits = WatchLimits(first_backoff=8.0)  # long enough to see the other worker do a killed one's work
        self._supervisor = Supervisor(settings, limits=limits, log_directory=state.logs, on_event=self._show_event)
        self._killed = 0
        self._share = 0.0  # how much of the text is in Kafka, 0 to 1
        self._training_log = state.logs / "training.log"
        self._trainer = self._make_trainer()
        self._doing = STARTING

    async def run(self, tokenizer: Future[Tokenizer]) -> int:
        await self._prepare(tokenizer)
        works: list[Coroutine[Any, Any, None]] = [self._supervisor.run(), self._view.run(self._look)]
        if self._trainer is not None:
            works.append(self._train(self._trainer))
        if self._settings.page_url is not None:
            self._view.say(f"watch it in a browser: {self._settings.page_url}", "bold")
        async with beside(*works), saying_when_cancelled(self._view):
            await until(
                lambda status: bool(status.partitions) and all(row["worker"] for row in status.partitions),
                self._supervisor.status,
            )
            self._doing = "feeding"
            await self._feed()
            good = await self._end()
            if self._trainer is not None and not self._trainer.ended.is_set():
                self._view.say("the model trains on for a while")
                self._doing = "training"
                await self._trainer.ended.wait()
                await asyncio.sleep(0)  # so that `_train` says how it went
        _next_commands(self._view, self._plan.directory, self._settings)
        return 0 if good else TokenMillError.exit_code

    async def _prepare(self, tokenizer: Future[Tokenizer]) -> None:
        learnt = await asyncio.wrap_future(tokenizer)
        learnt.save(self._settings.tokenizer)
        self._view.say(f"tokenizer: byte-level BPE, {learnt.get_vocab_size():,} ids, learnt from the text")
        self._state.save(self._settings)
        await ensure_topics(self._settings, partitions=PARTITIONS)

    async def _feed(self) -> None:
        """Send all of the text, then a flush, and kill a worker meanwhile; on return all of it is acknowledged."""
        topic, text, rate = self._settings.raw_topics[0], self._plan.text, self._plan.bytes_per_second
        self._view.say(f"feeding {topic} with {rate / 1e6:.2f} MB/s, for {text.bytes / rate:.0f} s")
        items = text.items(shape_for(self._settings.for_topic(topic), self._settings.max_record_bytes))
        done = await produce(self._settings, topic, [GivenSource(items)], RunPlan(rate=rate), self._progress)
        if not self._killed:
            self._kill()
        self._share = 1.0
        passed = f"; {done.refused:,} that are no UTF-8 text were passed over" if done.refused else ""
        self._view.say(f"fed {done.documents:,} documents, {done.bytes / 1e6:,.1f} MB{passed}; now a flush")
        await flush(self._settings, topic)

    def _progress(self, summary: Summary) -> None:
        self._share = min(1.0, summary.bytes / max(1, self._plan.text.bytes))
        if self._share >= 0.4 and not self._killed:  # noqa: PLR2004 - it is seen to come back before the text ends
            self._kill()

    def _kill(self) -> None:
        """Kill a mill worker that has partitions, if another one can take them over."""
        mills = [mill for mill in self._supervisor.status().workers if mill.role == "mill" and mill.partitions]
        if len(mills) > 1 and (pid := mills[0].pid) is not None:
            self._killed += 1
            self._view.say(f"kill -9 {pid}: that was {mills[0].name}, in the middle of its work", "bold red")
            os.kill(pid, signal.SIGKILL)

    async def _end(self) -> bool:
        self._doing = "filling the last blocks"
        # For longer than between two heartbeats, and two looks at the brokers.
        await until(lambda status: status.settled, self._supervisor.status, 1.5)
        blocks = self._supervisor.status().stored
        self._view.say(f"{blocks:,} blocks are in the store; each is computed again by the reference, and compared")
        self._doing = f"verifying, 0 of {blocks:,} blocks"

        def progress(so_far: VerifyProgress) -> None:
            self._doing = f"verifying, {so_far.blocks:,} of {blocks:,} blocks"

        every = partial(verify, self._settings, store=self._settings.store, reference=True, progress=progress)
        result = await asyncio.wrap_future(in_background(every))
        self._view.say(kept_line(result.totals))
        good = _say_result(self._view, self._killed, result)
        await _go_back(self._settings, self._view)
        return good

    async def _train(self, trainer: DemoTrainer) -> None:
        await trainer.run()
        if not trainer.reports:
            self._view.say(f"the training ended with code {trainer.code}; {self._training_log} says why", "red")
        else:
            self._view.say(_training_line(trainer.reports), "bold cyan")

    def _make_trainer(self) -> DemoTrainer | None:
        if not self._plan.train:
            return None
        if importlib.util.find_spec("torch") is None:
            self._view.say("no training, for torch is not installed: pip install torch, or say --no-train", "yellow")
            return None
        if _example() is None:
            clone = "run `make demo` in a clone of the repository"
            self._view.say(f"no training, for {EXAMPLE} is not beside the source: {clone}", "yellow")
            return None
        stream = self._settings.streams()[0].name
        return DemoTrainer(self._settings.store, stream, self._plan.train_seconds, self._training_log)

    def _show_event(self, event: Event) -> None:
        if event.kind == "moved" and self._doing == STARTING:
            return  # the first worker had all partitions until the second one came
        self._view.say_event(event)

    def _look(self) -> LiveScene:
        share = f" {self._share:.0%}" if self._doing == "feeding" else ""
        title = f"{self._settings.raw_topics[0]} · {self._doing}{share}"
        reports = self._trainer.reports if self._trainer is not None else []
        return LiveScene(title, self._supervisor.status(), reports[-1] if reports else None)
