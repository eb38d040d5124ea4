"""Training loops of other frameworks that are killed, and go on in another process, with the real packages.

The model that comes out has seen each sample once, and none is missing. How docs/training.md says it is done is how
it is done here. Rows are what `transformers` makes of a text. `make test-peers` runs these.
"""

import json
import re
import signal
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from tests.app.milling.packing.test_separate_packing import KINDS, mask_of
from tests.consumers.recording import rows_in
from tests.consumers.scenes import OPEN_ERAS, era_store, expected, rows_of
from tests.mills import RECIPE, Source, cut_blocks, text
from tests.peers.loops.data import STEPS, dataset_of
from tests.peers.running import ROOT, run_with
from tokenmill.app.milling.recipe_stages import complete
from tokenmill.app.milling.tokenizers import TokenizerFile

pytestmark = pytest.mark.peers


def test_models_of_transformers_take_dictionaries(tmp_path: Path) -> None:
    """Without a collate function: with the loss of x and y, and each document as if it were alone, if that is asked."""
    assert train("with_models", era_store(tmp_path).path) == 0


def train(loop: str, *arguments: object) -> int:
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
    page = (ROOT / "docs" / "training.md").read_text()
    program = (ROOT / "tests" / "peers" / "loops" / "with_grain.py").read_text()
    code = re.sub(r'\n *""".*?"""\n\n?', "\n", program.partition("\nclass Steps")[2].partition("\n\n\ndef ")[0])
    assert f"class Steps{code}" in page


PADDING: Final = {"bert": "[PAD]", "gpt2": "<|endoftext|>"}
TEXTS: Final = ["fox", "a dozen é jugs 🙂. " * 9, "The quick brown fox jumps", "x " * 7, "pack\nmy  box", "." * 40]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", [3, 8, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_transformers(kind: str, row: int, tmp_path: Path) -> None:
    """Of BERT's kind, with its template, and of GPT-2's, without one."""
    tokenizer, settings, _ = KINDS[kind]
    content = tokenizer.to_str().encode()
    (tmp_path / "tokenizer.json").write_bytes(content)
    draft = replace(RECIPE, decode="text", packing="rows", block_tokens=row, steps=())
    recipe, stages = complete(draft, TokenizerFile(kind, content), **settings)
    records = [text(number, value) for number, value in enumerate(TEXTS)]
    blocks = cut_blocks(Source(stages, (recipe,)).mill().feed(records).messages["train"], recipe)
    ours = {
        "input_ids": [np.frombuffer(ids, recipe.token_dtype).tolist() for _, ids, _ in blocks],
        "attention_mask": [mask_of(entry, row) for _, _, entry in blocks],
    }
    assert ours == theirs(tmp_path / "tokenizer.json", PADDING[kind], row)


def theirs(file: Path, padding: str, row: int) -> Any:
    call = ["-m", "tests.peers.loops.with_tokenizer", file, padding, row, json.dumps(TEXTS)]
    return json.loads(run_with("loops", *call, HF_HUB_OFFLINE="1").stdout)
