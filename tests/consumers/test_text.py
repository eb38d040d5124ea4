"""Text of tokens, by the tokenizer that the store keeps of the stream."""

import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import vocabularies
from tests.app.milling.tokenizers.conftest import words
from tests.consumers.packed import text_store
from tests.consumers.scenes import era_store, every_reader
from tests.mills import RECIPE
from tests.store.chains import STREAM
from tokenmill.consumers import (
    Batches,
    Documents,
    EraDataset,
    Mixture,
    MixtureDataset,
    StepDataset,
    Windows,
)
from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.recipe import Genesis
from tokenmill.store import StreamInfo, read_stream
from tokenmill.store.layout import TOKENIZER_FILE


def _store(path: Path, tokenizer: bytes, size: int) -> Path:
    recipe = replace(
        RECIPE, tokenizer_sha256=sha256(tokenizer).hexdigest(), vocabulary_size=size, block_tokens=5, dtype="uint32"
    )
    info = StreamInfo.from_genesis(Genesis(STREAM, recipe, (0,), 4), 4)
    store = text_store(path, [3, 9, 4] * 4, info=info)
    (store / STREAM / TOKENIZER_FILE).write_bytes(tokenizer)
    return store


def test_whatever_reads_tokens_shows_their_text(tmp_path: Path) -> None:
    """Special tokens are shown, and what is masked is left out."""
    readers = every_reader(_store(tmp_path, words(), 4))
    copies = [deepcopy(readers[name]) for name in ("StepDataset", "EraDataset", "Documents")]
    for reader in (*readers.values(), *copies):
        assert reader.decode([1, 2, 3]) == "a b <eos>"
        assert reader.decode(np.array([2, 1], np.uint16)) == "b a"
        assert reader.decode(torch.tensor([-100, 2, -100])) == "b"
        assert reader.decode([]) == ""


@pytest.mark.parametrize("kind", ["gpt2", "claude", "mistral_sentencepiece", "tekken", "wordpiece", "unigram"])
@pytest.mark.cases(3)
def test_text_comes_back_with_vocabularies_in_use(tmp_path: Path, kind: str) -> None:
    from tokenizers import Tokenizer  # noqa: PLC0415 - as the package has it

    content = getattr(vocabularies, kind)()
    library = Tokenizer.from_str(content.decode())
    text = "the quick brown fox, jumps over 12 lazy dogs"
    ids = library.encode(text, add_special_tokens=False).ids
    assert Documents(_store(tmp_path, content, library.get_vocab_size()), STREAM).decode(ids) == library.decode(
        ids, skip_special_tokens=False
    )


def test_raw_bytes_are_text(tmp_path: Path) -> None:
    documents = Documents(text_store(tmp_path, [3, 9, 4] * 4), STREAM)
    assert documents.decode([*"né".encode(), 0]) == "né\0"
    assert documents.decode(list("né".encode()[:2])) == "n�"


def test_an_id_that_the_stream_cannot_have_is_refused(tmp_path: Path) -> None:
    """A model's output may have more ids than the vocabulary: what is no token has no text."""
    with pytest.raises(InputError, match=r"tokens hold the id 4: give ids of .*, from 0 to 3"):
        Documents(_store(tmp_path, words(), 4), STREAM).decode([1, 4])


def test_a_tokenizer_that_is_missing_or_another_is_named(tmp_path: Path) -> None:
    store = _store(tmp_path, words(), 4)
    path = store / STREAM / TOKENIZER_FILE
    path.write_bytes(words(normalizer={"type": "Lowercase"}))
    with pytest.raises(DamagedError, match=rf"{path}: it is not the stream's tokenizer.*tokenmill repair"):
        Batches(store, STREAM, batch_size=1).decode([1])
    path.unlink()
    with pytest.raises(DamagedError, match=rf"{path}: the stream's tokenizer is missing.*tokenmill repair"):
        Batches(store, STREAM, batch_size=1).decode([1])
    assert next(iter(Batches(store, STREAM, batch_size=1))).x.shape == (1, 4)


def test_a_tokenizer_of_a_later_library_is_named(tmp_path: Path) -> None:
    later = b'{"version": "9.0"}'
    with pytest.raises(StoreError, match=r"cannot be loaded by tokenizers [\d.]+, which is installed here"):
        Documents(_store(tmp_path, later, 4), STREAM).decode([1])


@pytest.mark.needs("minutes")
def test_no_tokenizer_is_loaded_before_text_is_asked_for(tmp_path: Path) -> None:
    look = (
        "import sys; from tokenmill.consumers import Batches; batches = Batches(*sys.argv[1:], batch_size=1);"
        "next(iter(batches)); before = 'tokenizers' in sys.modules;"
        "print(before, batches.decode([1]), 'tokenizers' in sys.modules)"
    )
    command = [sys.executable, "-c", look, str(_store(tmp_path, words(), 4)), STREAM]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == ["False", "a", "True"]


def test_samples_are_as_long_as_the_stream_has_them_unless_told_otherwise(tmp_path: Path) -> None:
    store = era_store(tmp_path).path
    one: dict[str, Any] = {"store": store, "stream": STREAM, "batch_size": 2}
    mixed: dict[str, Any] = {"streams": {"a": {}}, "weights": {"a": 1}, **one}
    for loop in (Batches(**one), StepDataset(**one), Mixture.open(**mixed), MixtureDataset(**mixed)):
        assert next(iter(loop)).x.shape == (2, 4)
    assert EraDataset(store, STREAM)[0][0].shape == (4,)
    assert Windows(store, STREAM)[0].x.shape == (4,)


def test_how_many_ids_there_can_be_is_where_the_training_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    said = re.search(r"`vocabulary_size` in the recipe: `(read_stream.*?)`", page)
    monkeypatch.chdir(_store(tmp_path / "store", words(), 4).parent)
    assert said is not None
    recipe = eval(said[1], {"read_stream": read_stream, "stream": STREAM})  # noqa: S307 - the page's own code
    assert recipe["vocabulary_size"] == 4
