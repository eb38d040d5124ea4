"""The small GPT: real processes train on a store that grows, are killed, and go on as others."""

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.marked import until
from tests.mills import RECIPE
from tests.store.chains import STREAM, fill, make_chain, make_eras, write_eras
from tokenmill.recipe import Genesis
from tokenmill.store import Store, StreamInfo

pytestmark = pytest.mark.timeout(600)  # ten processes load torch, which takes a busy machine minutes

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "train_gpt.py"
HELD_OUT: Final = "raw-text.validation"
SEGMENT: Final = 8
BLOCKS: Final = 102
BATCH: Final = 4
STEPS: Final = 25  # as many as there are in the blocks; two of these are left


def info_of(stream: str, split: str) -> StreamInfo:
    splits = (("train", 998), ("validation", 2))
    recipe = replace(RECIPE, block_tokens=17, splits=splits, split=split)
    return StreamInfo.from_genesis(Genesis(stream, recipe, (0, 0), SEGMENT), SEGMENT)


INFO = info_of(STREAM, "train")
CHAINS = {partition: make_chain(INFO, BLOCKS, partition=partition, seed=partition) for partition in range(2)}
STOPS = [{0: 3 * n, 1: n} for n in range(1, 25)] + [{0: 78}]
ERAS = make_eras(INFO, CHAINS, STOPS, end=True)
assert sum(part.stop for part in ERAS[-1].ranges) == BLOCKS


class GrowingStore:
    """A store with a validation stream; of the other, there is what `grow_to` brought."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store.open_or_create(path)
        held_out = info_of(HELD_OUT, "validation")
        chain = make_chain(held_out, 14, seed=9)
        for info in (INFO, held_out):
            self.store.add_stream(info, None)
        fill(self.store, held_out, chain, [14])
        write_eras(self.store, make_eras(held_out, {0: chain}, [{0: 5}, {0: 9}, {0: 14}]), stream=HELD_OUT)

    def grow_to(self, eras: int) -> None:
        for partition, part in enumerate(ERAS[eras - 1].ranges):
            fill(self.store, INFO, CHAINS[partition], [*range(part.first, part.stop), part.stop], partition=partition)
        write_eras(self.store, ERAS[:eras])

    def sealed(self) -> int:
        return len(list((self.path / STREAM).glob("*/*.json")))


class Trainer:
    def __init__(self, store: GrowingStore, directory: Path) -> None:
        self.log_file, self.checkpoint, self.output = (directory / name for name in ("log", "gpt.pt", "output"))
        self.arguments = [str(store.path), STREAM, "--json", "--cpu", "--timeout=120", f"--batch-size={BATCH}"]
        self.arguments += ["--width=16", "--layers=1", "--heads=2", "--threads=1", f"--checkpoint={self.checkpoint}"]
        self.arguments += ["--save-every=3", "--validate-every=4", f"--samples-log={self.log_file}"]
        self.arguments += [f"--validation={HELD_OUT}@0:2", f"--test={HELD_OUT}@2:3"]

    @contextmanager
    def running(self, ranks: int = 1) -> Iterator[subprocess.Popen[bytes]]:
        """Train with so many processes, several by torchrun; all that are left of them in the end are killed."""
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        with self.output.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *launcher, str(EXAMPLE), *self.arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                launched = psutil.Process(process.pid)
                for one in [launched, *launched.children(recursive=True)]:
                    one.kill()
                process.wait()

    def run(self, ranks: int = 1) -> None:
        with self.running(ranks) as process:
            assert process.wait(240) == 0, self.output.read_text()

    def run_until(self, step: int, ranks: int) -> None:
        with self.running(ranks) as process:
            assert until(lambda: self.begun() >= step or process.poll() is not None, 240), self.output.read_text()
            assert process.poll() is None, self.output.read_text()

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_file.read_text().splitlines()] if self.log_file.exists() else []

    def begun(self) -> int:
        """Return the last step that was begun; -1: none."""
        return max((step for step, _ in self.steps()), default=-1)

    def steps(self) -> list[tuple[int, str]]:
        """Return the number and the samples' hash of each step, those that were made again included."""
        return [(line["step"], line["samples"]) for line in self.log() if "held_out" not in line]

    def held_out(self, name: str) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for line in self.log():
            if line.get("held_out") == name:
                found.setdefault(line["step"], []).append(line["samples"])
        return found

    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    store = GrowingStore(tmp_path_factory.mktemp("store"))
    store.grow_to(len(ERAS))
    trainer = Trainer(store, tmp_path_factory.mktemp("whole"))
    trainer.run()
    return trainer


@pytest.fixture(scope="module", params=[(2, 1), pytest.param((2, 1, 4), marks=pytest.mark.needs("minutes"))], ids=str)
def pieces(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Trainer, list[int]]:
    """Return the runs of so many processes, each killed but the last; and how often segments were sealed.

    The store grows all the while: an era or two are there before the trainer needs them, never more, and the end marker
    comes last. Nothing comes behind the step at which a run is to be killed until it was.
    """
    store = GrowingStore(tmp_path_factory.mktemp("store"))
    trainer = Trainer(store, tmp_path_factory.mktemp("pieces"))
    ended = threading.Event()
    allowed = 0

    def grow() -> None:
        eras = 0
        while not ended.wait(0.02):
            if eras < min(allowed, trainer.begun() + 3):  # each has the blocks of a step
                eras += 1
                store.grow_to(eras)

    growing = threading.Thread(target=grow)
    growing.start()
    try:
        sealed = [store.sealed()]
        for ranks, step in zip(request.param[:-1], (7, 15), strict=False):
            allowed = step + 1
            trainer.run_until(step, ranks)
            sealed.append(store.sealed())
        allowed = len(ERAS)
        trainer.run(request.param[-1])
        sealed.append(store.sealed())
    finally:
        ended.set()
        growing.join()
    return trainer, sealed


def test_it_trains_and_reports_as_json(whole: Trainer) -> None:
    """To the end marker, leaving what is too little for a step; ids that are random cost about log(256) nats each."""
    *_, last, test = whole.said()
    assert last["step"] == STEPS
    assert 5 < last["loss"] < 6
    assert last["tokens_per_second"] > 0
    assert 0 <= last["wait_share"] < 1
    assert last["bottleneck"] in {"data", "model"}
    assert test == {"step": STEPS, "name": "test", "loss": test["loss"]}
    assert 5 < test["loss"] < 6
    assert [step for step, _ in whole.steps()] == list(range(STEPS))
    assert len({samples for _, samples in whole.steps()}) == STEPS
    state = json.loads(whole.checkpoint.with_name("gpt.pt.json").read_text())
    assert (state["sample"], state["ranges"]) == (STEPS * BATCH, [[0, 0, BATCH]])


def test_validation_has_the_same_batches_each_time(whole: Trainer) -> None:
    found = whole.held_out("validation")
    assert list(found) == [4, 8, 12, 16, 20, 24]
    assert len(found[4]) == len(set(found[4])) == 2
    assert all(hashes == found[4] for hashes in found.values())
    losses = [said["loss"] for said in whole.said() if said.get("name") == "validation"]
    assert len(losses) == len(set(losses)) == 6


@pytest.mark.needs("minutes")
def test_killed_runs_go_on_exactly_with_other_numbers_of_processes(
    whole: Trainer, pieces: tuple[Trainer, list[int]]
) -> None:
    """From 2 to 1, and to 4; steps made again have the samples that they had, and the model comes to the same loss."""
    trainer, sealed = pieces
    steps = trainer.steps()
    assert all(later > earlier for earlier, later in pairwise(sealed)), "segments were sealed"
    assert dict(steps) == dict(whole.steps())
    assert set(steps) == set(whole.steps())
    numbers = [step for step, _ in steps]
    again = [later for earlier, later in pairwise(numbers) if later != earlier + 1]
    assert len(again) == len(sealed) - 2, "it was killed behind its last checkpoint, in each run but the last"
    assert all(step and step % 3 == 0 for step in again), "it went on at a checkpoint"
    for name in ("validation", "test"):
        assert set(trainer.held_out(name)) == set(whole.held_out(name))
        for step, hashes in trainer.held_out(name).items():
            wanted = whole.held_out(name)[step]
            assert (hashes[-len(wanted) :], set(hashes)) == (wanted, set(wanted))  # a kill may have cut one short
    assert trainer.said()[-1]["name"] == "test"
    assert trainer.said()[-1]["loss"] == pytest.approx(whole.said()[-1]["loss"], abs=1e-4)
    trained = [said["loss"] for said in whole.said() if said.get("name") == "validation"]
    assert abs(trained[0] - trained[1]) > 1e-3, "a model that forgot steps would be seen"


@pytest.mark.skipif(not Path("/proc/driver/nvidia/version").exists(), reason="needs an NVIDIA GPU")
def test_it_trains_on_a_gpu(whole: Trainer, tmp_path: Path) -> None:
    store = GrowingStore(tmp_path / "store")
    store.grow_to(len(ERAS))
    trainer = Trainer(store, tmp_path)
    trainer.arguments.remove("--cpu")
    trainer.arguments += ["--learning-rate", "2e-3", "--warmup", "1"]
    trainer.run()
    assert trainer.steps() == whole.steps()
    assert trainer.held_out("validation") == whole.held_out("validation")
    assert trainer.said()[-1]["loss"] == pytest.approx(whole.said()[-1]["loss"], abs=0.05)


def test_a_store_that_is_not_there_is_waited_for_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    example = importlib.import_module("train_gpt")
    waits: list[str] = []

    def sleep(_seconds: float) -> None:
        waits.append(capsys.readouterr().err)
        if len(waits) == 3:
            Store.open_or_create(tmp_path / "store").add_stream(INFO, None)

    monkeypatch.setattr(example.time, "sleep", sleep)
    assert example.wait_for_stream(tmp_path / "store", STREAM).name == STREAM
    said = f"waiting: the store {tmp_path / 'store'} holds no stream 'raw-text.train' (streams there: "
    assert waits[0].startswith(said)
    assert waits[1:] == ["", ""]


def test_a_mistake_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the example as of the commands: what is wrong, and what to do. In this process, which has loaded torch."""
    store = GrowingStore(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    monkeypatch.setattr(sys, "argv", ["train_gpt.py", str(store.path), STREAM, "--cpu", "--sequence-length", "5"])
    with pytest.raises(
        SystemExit, match=r"^train_gpt\.py: sequence_length is 5, but blocks of raw-text\.train have 17"
    ):
        runpy.run_path(str(EXAMPLE), run_name="__main__")


@pytest.mark.slow
def test_ctrl_c_while_torch_loads_shows_no_traceback(tmp_path: Path) -> None:
    """A new Python, for this one has loaded torch: the signal comes while torch's libraries are in, and no more."""
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "store"), STREAM, "--cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert until(lambda: "libtorch_cpu" in Path(f"/proc/{process.pid}/maps").read_text(), 120)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, said) == (-signal.SIGINT, b"")
