"""What holds for whatever reads a store.

What surrounds a run changes nothing: paths, settings of torch, and a host without torch. Ids become text by the
tokenizer that the store keeps of the stream.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests import vocabularies
from tests.app.milling.tokenizers.conftest import words
from tests.consumers.packed import text_store
from tests.consumers.scenes import CHAINS, INFO, STEPS, era_store, open_batches, open_steps
from tests.mills import RECIPE
from tests.store.chains import STREAM, tokens_of
from tokenmill.app.settings import Settings
from tokenmill.app.tools.repair import repair_store
from tokenmill.consumers import (
    Batches,
    Documents,
    EraDataset,
    Mixture,
    MixtureDataset,
    PaddedBatches,
    StepDataset,
    Windows,
)
from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.recipe import Genesis
from tokenmill.samples.sequence import Position
from tokenmill.samples.tracing import Tracer
from tokenmill.store import StreamInfo, open_eras, open_partition, partitions_in, read_stream, streams_in
from tokenmill.store.layout import TOKENIZER_FILE


def every_reader(store: Any) -> dict[str, Any]:
    shared = {"store": store, "stream": STREAM}
    mixed: dict[str, Any] = {"streams": {"a": {"store": store}, "b": {}}, "weights": {"a": 1, "b": 1}} | shared | STEPS
    documents = Documents(**shared)
    return {
        "Batches": Batches(**shared, **STEPS),
        "StepDataset": StepDataset(**shared, **STEPS),
        "EraDataset": EraDataset(**shared, sequence_length=4),
        "Windows": Windows(**shared, length=4),
        "Documents": documents,
        "PaddedBatches": PaddedBatches(documents, batch_size=2),
        "Mixture": Mixture.open(**mixed),
        "MixtureDataset": MixtureDataset(**mixed),
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    text_store(tmp_path / "data" / "store", [3, 9, 4] * 4)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "data")
    return tmp_path / "data" / "store"


@pytest.mark.parametrize(
    "path", ["store", Path("store"), b"store", Path("../data/store"), "~/data/store", Path("~/data/store")]
)
def test_a_store_is_read_on_wherever_the_process_goes(place: Path, monkeypatch: pytest.MonkeyPatch, path: Any) -> None:
    """By everything that opens one: Hydra and others change the working directory behind it."""
    readers, eras, partition = every_reader(path), open_eras(path, STREAM), open_partition(path, STREAM, 0)
    tracer = Tracer(path, Position.read(readers["Batches"].state_after(3)))
    monkeypatch.chdir("/")
    for reader in readers.values():
        next(iter(reader))
    for kept in (eras, partition):
        kept.refresh()
    assert (eras.era(0).number, len(partition.read(0)), len(list(tracer.step(0)))) == (0, 5, 2)
    assert partition.documents(0)


def test_entries_of_a_listing_are_paths(place: Path) -> None:
    for listing in (os.scandir("."), os.scandir(b".")):
        (entry,) = listing
        assert partitions_in(entry, STREAM) == [0]
        assert streams_in(entry) == [STREAM]
    assert place.is_dir()


@pytest.mark.parametrize("path", ["~nobody-of-this-name/store", "", 4])
def test_what_is_no_path_of_this_machine_is_refused(path: Any) -> None:
    with pytest.raises(InputError, match=r"^store is .*: give the path of the store's directory, on a disk of this"):
        Windows(path, STREAM, 4)


@pytest.mark.parametrize("within", [STREAM, f"{STREAM}/0"])
def test_the_folder_of_a_stream_is_told_from_the_store(place: Path, within: str) -> None:
    settings = Settings(store=place / within, bootstrap_servers="127.0.0.1:1")  # nothing there: no broker is asked
    told = f"^{place / within} is of the stream {STREAM}, and no store: give {place}$"
    openings: list[Callable[[Path], object]] = [open_batches, every_reader, streams_in]
    openings.append(lambda _: repair_store(settings, STREAM))
    for opening in openings:
        with pytest.raises(StoreError, match=told):
            opening(place / within)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_store(tmp_path_factory.mktemp("store"), [3, 9, 4, 7] * 5)


@contextmanager
def changed(get: Callable[[], Any], change: Callable[[Any], object], value: Any) -> Iterator[None]:
    before = get()
    change(value)
    try:
        yield
    finally:
        change(before)


SETTINGS: dict[str, Callable[[], Any]] = {
    "the default device is meta": lambda: torch.device("meta"),
    "the default type is float64": lambda: changed(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "the default type is bfloat16": lambda: changed(torch.get_default_dtype, torch.set_default_dtype, torch.bfloat16),
    "algorithms are deterministic": lambda: changed(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "numpy raises": lambda: np.errstate(all="raise"),
}


def tensors_of(store: Path) -> dict[str, list[torch.Tensor]]:
    found: dict[str, list[torch.Tensor]] = {}
    for name, options in {"wide": {}, "narrow": {"widen": False}, "masked": {"mask_loss": True}}.items():
        made = list(open_batches(store, **options))
        found[name] = [tensor for batch in made for tensor in (batch.x, batch.y)]
    batch = next(iter(open_batches(store)))
    documents = batch.documents()
    found["documents"] = [documents.document_ids, documents.position_ids, documents.cu_seqlens, documents.loss_mask]
    found["masks"] = [documents.attention_mask(), documents.padded_cu_seqlens(9), documents.block_mask(2).to_dense()]
    found["steps"] = [batch.x for batch in open_steps(store)]
    mixture = Mixture.open({"a": {"eras": range(1)}}, {"a": 1}, store=store, stream=STREAM, **STEPS)
    found["mixture"] = [batch.y for batch in mixture]
    samples = EraDataset(store, STREAM, sequence_length=4)
    found["samples"] = [torch.from_numpy(part) for part in samples[3]]
    found["windows"] = [part for pair in islice(Windows(store, STREAM, 7), 5) for part in pair]
    padded = list(PaddedBatches(Documents(store, STREAM), batch_size=3))
    found["padded"] = [tensor for one in padded for tensor in one.values()]
    return found


@pytest.mark.cases(3)
@pytest.mark.parametrize("setting", SETTINGS)
def test_whatever_torch_is_set_to_the_same_is_read(store: Path, setting: str) -> None:
    wanted = tensors_of(store)
    with SETTINGS[setting]():
        found = tensors_of(store)
    for name, tensors in wanted.items():
        assert [(one.dtype, one.device, one.tolist()) for one in found[name]] == [
            (one.dtype, one.device, one.tolist()) for one in tensors
        ], name


LOOPS: dict[str, Callable[[Path], Any]] = {
    "batches": open_batches,
    "masked": lambda store: open_batches(store, mask_loss=True),
    "steps": lambda store: DataLoader(open_steps(store), batch_size=None),
    "padded": lambda store: PaddedBatches(Documents(store, STREAM), batch_size=3),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_batch_that_was_fetched_in_inference_mode_is_trained_on(store: Path, kind: str) -> None:
    """The first one, by which a model's lazy layers were given their shapes; and those behind it."""
    model, batches = nn.Embedding(1 << 16, 4), iter(LOOPS[kind](store))
    with torch.inference_mode():
        first = next(batches)
    for batch in (first, next(batches)):
        ids = batch["input_ids"] if kind == "padded" else batch.x
        model(ids).sum().backward()
        ids.add_(1)


WITHOUT = """
import sys

sys.modules["torch"] = None
from tokenmill.consumers import Behind, Metrics, Source, Windows
from tokenmill.store import open_eras, open_partition

store, stream = sys.argv[1:]
windows = Windows(store, stream, 7)
print(windows.rows(0, [3]).tolist(), open_eras(store, stream).eras, open_partition(store, stream, 0).blocks)
for ask in ("from tokenmill.consumers import Batches", "from tokenmill.consumers import *", "windows.at(0, [3])"):
    try:
        exec(ask)
    except ImportError as error:
        print(error)
"""
"""Reads with what needs no torch, then asks for what does."""


def test_readers_work_and_batches_say_what_to_install(tmp_path: Path) -> None:
    store = era_store(tmp_path)
    command = [sys.executable, "-c", WITHOUT, str(store.path), STREAM]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    first, *told = done.stdout.splitlines()
    flat = tokens_of(CHAINS[0], INFO).reshape(-1).tolist()
    assert first == f"[{flat[3:11]}] 6 23"
    assert len(told) == 3
    assert told[0].startswith("Batches needs torch: torch is not installed, which comes with the extra 'train': ")
    hint = "pip install '.[train]' in a checkout of TokenMill, or pip install './tokenmill-"
    assert all(hint in line for line in told)


@pytest.mark.slow
def test_the_package_loads_torch_when_it_is_asked_for() -> None:
    """Not before: that takes seconds."""
    look = (
        "import sys, tokenmill.consumers as c; before = 'torch' in sys.modules; c.Batches;"
        "print(before, 'torch' in sys.modules, sorted(set(c.__all__) - set(dir(c))), hasattr(c, 'Other'))"
    )
    done = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("False True")
    assert done.stdout.endswith("False\n")


def _store(path: Path, tokenizer: bytes, size: int) -> Path:
    recipe = replace(
        RECIPE, tokenizer_sha256=sha256(tokenizer).hexdigest(), vocabulary_size=size, block_tokens=5, dtype="uint32"
    )
    info = StreamInfo.from_genesis(Genesis(STREAM, recipe, (0,), 4), 4)
    store = text_store(path, [3, 9, 4] * 4, info=info)
    (store / STREAM / TOKENIZER_FILE).write_bytes(tokenizer)
    return store


def test_whatever_reads_tokens_shows_their_text(tmp_path: Path) -> None:
    """Special tokens are shown, and what is masked is left out.

    A model's output may have more ids than the vocabulary: what is no token has no text.
    """
    readers = every_reader(_store(tmp_path, words(), 4))
    copies = [deepcopy(readers[name]) for name in ("StepDataset", "EraDataset", "Documents")]
    for reader in (*readers.values(), *copies):
        assert reader.decode([1, 2, 3]) == "a b <eos>"
        assert reader.decode(np.array([2, 1], np.uint16)) == "b a"
        assert reader.decode(torch.tensor([-100, 2, -100])) == "b"
        assert reader.decode([]) == ""
        with pytest.raises(InputError, match=r"tokens hold the id 4: give ids of .*, from 0 to 3"):
            reader.decode([1, 4])


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


def test_a_tokenizer_that_is_missing_or_another_or_of_a_later_library_is_named(tmp_path: Path) -> None:
    store = _store(tmp_path / "store", words(), 4)
    path = store / STREAM / TOKENIZER_FILE
    path.write_bytes(words(normalizer={"type": "Lowercase"}))
    with pytest.raises(DamagedError, match=rf"{path}: it is not the stream's tokenizer.*tokenmill repair"):
        Batches(store, STREAM, batch_size=1).decode([1])
    path.unlink()
    with pytest.raises(DamagedError, match=rf"{path}: the stream's tokenizer is missing.*tokenmill repair"):
        Batches(store, STREAM, batch_size=1).decode([1])
    assert next(iter(Batches(store, STREAM, batch_size=1))).x.shape == (1, 4)
    later = _store(tmp_path / "later", b'{"version": "9.0"}', 4)
    with pytest.raises(StoreError, match=r"cannot be loaded by tokenizers [\d.]+, which is installed here"):
        Documents(later, STREAM).decode([1])


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


def test_how_many_ids_there_can_be_is_where_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    said = re.search(r"`vocabulary_size` in the recipe: `(read_stream.*?)`", page)
    monkeypatch.chdir(_store(tmp_path / "store", words(), 4).parent)
    assert said is not None
    recipe = eval(said[1], {"read_stream": read_stream, "stream": STREAM})  # noqa: S307 - the page's own code
    assert recipe["vocabulary_size"] == 4
