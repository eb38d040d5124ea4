"""Training loops of other frameworks that are killed, and go on in another process, with the real packages.

The model that comes out has seen each sample once, and none is missing. How docs/training.md says it is done is how
it is done here. `make test-peers` runs these.
"""

import json
import re
import signal
from itertools import islice
from pathlib import Path

import pytest
import torch

from tests.consumers.recording import rows_in
from tests.consumers.scenes import OPEN_ERAS, era_store, expected, rows_of
from tests.peers.loops.data import STEPS, dataset_of
from tests.peers.running import ROOT, run_with

pytestmark = pytest.mark.peers


def test_models_of_transformers_take_dictionaries(tmp_path: Path) -> None:
    """Without a collate function: with the loss of x and y, and each document as if it were alone, if that is asked."""
    assert train("with_models", era_store(tmp_path).path) == 0


def train(loop: str, *arguments: object) -> int:
    """Run one process of a loop; return how it ended."""
    return run_with("loops", "-m", f"tests.peers.loops.{loop}", *arguments, HF_HUB_OFFLINE="1").returncode


@pytest.mark.timeout(900)  # two processes that import for half a minute each, on a machine that does other things
@pytest.mark.parametrize("kind", ["batches", "mixture"])
@pytest.mark.parametrize(
    ("loop", "workers", "more", "trained"),
    [
        ("with_lightning", 0, "finite", STEPS + 1),
        ("with_lightning", 2, "open", STEPS),
        ("with_accelerate", 2, "own", STEPS),
        ("with_accelerate", 0, "prepared", STEPS),
        ("with_trainer", 2, "1", STEPS),
        ("with_trainer", 0, "2", STEPS),
        ("with_torchtitan", 0, "", STEPS),
        ("with_torchtitan", 2, "", STEPS),
        ("with_grain", 0, "steps", STEPS),
        ("with_grain", 0, "ahead", STEPS),
    ],
)
def test_a_loop_that_is_killed_trains_on_each_sample_once(
    tmp_path: Path, *, loop: str, workers: int, more: str, trained: int, kind: str
) -> None:
    """Whatever the framework had read ahead; in a stream that ends, and in one that goes on, and in a mixture."""
    store = era_store(tmp_path / "store", OPEN_ERAS) if more == "open" else era_store(tmp_path / "store")
    (tmp_path / "run").mkdir()
    ends = [train(loop, kind, store.path, tmp_path / "run", workers, more) for _ in range(2)]
    assert ends == [-signal.SIGKILL, 0]
    wanted = rows_of(islice(dataset_of(kind, str(store.path)), trained))
    assert kind == "mixture" or wanted == expected()[: 3 * trained]
    assert len(wanted) == 3 * trained
    assert rows_in(torch.load(tmp_path / "run" / "end.pt")) == wanted


def test_grain_shuffles_eras_as_a_source_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    """By Grain's own state: the order is Grain's, and each sample comes once."""
    store = era_store(tmp_path / "store")
    (tmp_path / "run").mkdir()
    ends = [train("with_grain", "batches", store.path, tmp_path / "run", 0, "source") for _ in range(2)]
    assert ends == [-signal.SIGKILL, 0]
    found = rows_in(torch.load(tmp_path / "run" / "end.pt"))
    assert len(found) == len({*map(tuple, found)}) == 3 * STEPS
    assert {*map(tuple, found)} < {*map(tuple, expected())}


def test_a_state_of_one_process_of_grain_goes_on_in_two(tmp_path: Path) -> None:
    """Grain's elastic iterator over a source of eras: all samples once."""
    store = era_store(tmp_path / "store")
    assert train("with_grain", "batches", store.path, tmp_path, 0, "elastic") == 0
    found = json.loads((tmp_path / "end.pt").read_text())
    rows = [*found["first"], *(row for shard in found["shards"] for batch in shard for row in batch)]
    assert sorted(rows) == sorted(row[:-1] for row in expected())


def test_the_page_shows_the_iterator_that_is_tested() -> None:
    """Its two classes are the program's."""
    page = (ROOT / "docs" / "training.md").read_text()
    program = (ROOT / "tests" / "peers" / "loops" / "with_grain.py").read_text()
    code = re.sub(r'\n *""".*?"""\n\n?', "\n", program.partition("\nclass Steps")[2].partition("\n\n\ndef ")[0])
    assert f"class Steps{code}" in page
