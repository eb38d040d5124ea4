"""Training loops that are killed, and go on in another process: the model that comes out has seen each sample once.

Here with what torch and torchdata have; other frameworks: tests/peers/loops.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.consumers.recording import Recording, rows_in, train_step
from tests.consumers.scenes import (
    OPEN_ERAS,
    era_store,
    expected,
    halves,
    open_batches,
    open_halves,
    open_steps,
    rows_of,
)
from tests.store.chains import STREAM
from tokenmill.consumers import Batch, MixtureDataset, StepDataset
from tokenmill.store import Store

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 with this torch
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]

SAVED, KILLED = 7, 9
"""The step after which a checkpoint is written, and the one in which the process is killed."""
ROWS = expected()[:39]
"""13 steps of three."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    import_module("torch.distributed.checkpoint")  # once, before processes are forked
    return era_store(tmp_path_factory.mktemp("store"))


def read_ahead(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches one late, as many frameworks do, which want to know of the last one that it is."""
    ahead: list[Batch] = []
    for batch in batches:
        ahead.append(batch)
        if len(ahead) > 1:
            yield ahead.pop(0)
    yield from ahead


class Loop:
    """A loop over `Batches` or a mixture that saves the state of the batch that it trained on last."""

    reads_ahead = True

    def __init__(self, store: Path, checkpoint: Path, *, mixed: bool) -> None:
        self.checkpoint, self.mixed = checkpoint, mixed
        self.model = Recording()
        self.data: Any = self.open(store)

    def open(self, store: Path) -> Any:
        return open_halves(store, batch_size=3) if self.mixed else open_batches(store, batch_size=3)

    def data_set(self, store: Path) -> StepDataset | MixtureDataset:
        if self.mixed:
            return MixtureDataset(**halves(store) | {"batch_size": 3})
        return open_steps(store, batch_size=3)

    def batches(self) -> Iterable[Batch]:
        return read_ahead(self.data) if self.reads_ahead else iter(self.data)

    def save(self, batch: Batch) -> None:
        torch.save({"model": self.model.state_dict(), "data": batch.state}, self.checkpoint)

    def load(self) -> None:
        saved = torch.load(self.checkpoint)
        self.model.load_state_dict(saved["model"])
        self.resume(saved["data"])

    def resume(self, state: Any) -> None:
        self.data.load_state_dict(state)

    def run(self) -> None:
        first = not self.checkpoint.exists()
        if not first:
            self.load()
        for batch in self.batches():
            train_step(self.model, batch)
            if first and batch.step == SAVED:
                self.save(batch)
            if first and batch.step == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
        torch.save(self.model.state_dict(), self.checkpoint.with_suffix(".end"))


class Loader(Loop):
    """A ``DataLoader`` with workers that live on."""

    def open(self, store: Path) -> Any:
        return self.data_set(store)

    def batches(self) -> Iterable[Batch]:
        return read_ahead(DataLoader(self.data, batch_size=None, num_workers=2, persistent_workers=True))


class StatefulLoader(Loop):
    """A ``StatefulDataLoader`` with workers, which saves what it handed out."""

    reads_ahead = False

    def open(self, store: Path) -> Any:
        from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415 - optional

        return StatefulDataLoader(self.data_set(store), batch_size=None, num_workers=2)

    def save(self, batch: Batch) -> None:  # noqa: ARG002 - the loader knows
        torch.save({"model": self.model.state_dict(), "data": self.data.state_dict()}, self.checkpoint)


class StatefulReadAhead(StatefulLoader):
    """The same in a loop that reads ahead, which saves the state of the batch instead."""

    reads_ahead = True

    def save(self, batch: Batch) -> None:
        Loop.save(self, batch)

    def resume(self, state: Any) -> None:
        self.data.dataset.resume(state)


class Distributed(Loop):
    """``torch.distributed.checkpoint``, which wants something with a state."""

    reads_ahead = False

    def save(self, batch: Batch) -> None:  # noqa: ARG002 - the data knows
        checkpoint = import_module("torch.distributed.checkpoint")  # slow, so not for all tests
        checkpoint.save({"model": self.model, "data": self.data}, checkpoint_id=self.checkpoint, no_dist=True)

    def load(self) -> None:
        checkpoint = import_module("torch.distributed.checkpoint")  # slow, so not for all tests
        checkpoint.load({"model": self.model, "data": self.data}, checkpoint_id=self.checkpoint, no_dist=True)


class DistributedLoader(Distributed):
    """The same with a data set, whose workers read ahead: it says what was used."""

    def open(self, store: Path) -> Any:
        return self.data_set(store)

    def batches(self) -> Iterable[Batch]:
        return read_ahead(DataLoader(self.data, batch_size=None, num_workers=2))


@pytest.mark.parametrize("mixed", [False, True], ids=["a stream", "a mixture"])
@pytest.mark.parametrize("kind", [Loop, Loader, StatefulLoader, StatefulReadAhead, Distributed, DistributedLoader])
@pytest.mark.slow
@pytest.mark.cases(1)
def test_killed_loops_train_on_each_sample_once(store: Store, tmp_path: Path, kind: type[Loop], *, mixed: bool) -> None:
    """From the checkpoint on: what was trained on after it is forgotten with the model, and read again."""
    whole = rows_of(open_halves(store, batch_size=3)) if mixed else ROWS
    assert len(whole) >= 3 * (KILLED + 2)
    ends = [in_a_process(lambda: kind(store.path, tmp_path / "saved", mixed=mixed).run()) for _ in range(2)]
    assert ends == [-signal.SIGKILL, 0]
    assert rows_in(torch.load(tmp_path / "saved.end")) == whole


def test_workers_end_with_a_loop_that_is_killed(tmp_path: Path) -> None:
    """Also those that wait for an era, which may never come."""
    store = era_store(tmp_path, OPEN_ERAS)
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)

    def loop() -> None:
        steps = iter(DataLoader(open_steps(store, batch_size=3), batch_size=None, num_workers=1))
        for _ in range(13):
            train_step(Recording(), next(steps))
        theirs.send([process.pid for process in multiprocessing.active_children()])
        next(steps)

    process = multiprocessing.get_context("fork").Process(target=loop)
    process.start()
    (worker,) = ours.recv()
    process.kill()
    process.join()
    while is_alive(worker):  # the test's own timeout ends this, should it not
        time.sleep(0.01)


def is_alive(process: int) -> bool:
    """Whether a process that is not ours runs; a zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def in_a_process(run: Callable[[], None]) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=_run_in_fork, args=(run,))
    process.start()
    process.join()
    return process.exitcode


def _run_in_fork(run: Callable[[], None]) -> None:
    """Have torch replace the thread pool that its parent may have used, before threads that compute do so at once.

    Two that do abort the process: "Invalid thread pool!".
    """
    torch.set_num_threads(1)
    run()


@pytest.mark.needs("minutes")
def test_a_process_that_ends_amid_its_loop_says_nothing(store: Store) -> None:
    """Its iterators end with the interpreter, when modules have lost their names."""
    code = (
        "from tokenmill.consumers import *\n"
        f"batches = Batches({str(store.path)!r}, {STREAM!r}, batch_size=3, sequence_length=4)\n"
        "loop = iter(batches)\n"
        "print(len(next(loop).x))\n"
    )
    said = subprocess.check_output([sys.executable, "-c", code], stderr=subprocess.STDOUT, text=True)
    assert said == "3\n"
