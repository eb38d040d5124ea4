"""Rows are what `transformers` makes of a text with truncation and padding, id for id and mask for mask."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.app.milling.packing.test_separate_packing import KINDS, mask_of
from tests.mills import RECIPE, Source, cut_blocks, text
from tests.peers.running import run_with
from tokenmill.app.milling.recipe_stages import complete
from tokenmill.app.milling.tokenizers import TokenizerFile

pytestmark = pytest.mark.peers
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
