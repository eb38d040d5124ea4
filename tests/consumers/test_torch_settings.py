"""Settings of torch that hold for a whole process change nothing of what is read, nor fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.consumers.packed import text_store
from tests.store.chains import STREAM
from tokenmill.consumers import Batches, Documents, EraDataset, Mixture, PaddedBatches, StepDataset, Windows

STEPS: dict[str, Any] = {"batch_size": 2, "sequence_length": 4, "seed": 1}


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
        made = list(Batches(store, STREAM, **STEPS, **options))  # type: ignore[arg-type]
        found[name] = [tensor for batch in made for tensor in (batch.x, batch.y)]
    batch = next(iter(Batches(store, STREAM, **STEPS)))
    documents = batch.documents()
    found["documents"] = [documents.document_ids, documents.position_ids, documents.cu_seqlens, documents.loss_mask]
    found["masks"] = [documents.attention_mask(), documents.padded_cu_seqlens(9), documents.block_mask(2).to_dense()]
    found["steps"] = [batch.x for batch in StepDataset(store, STREAM, **STEPS)]
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


def loops(store: Path) -> dict[str, Callable[[], Any]]:
    return {
        "batches": lambda: Batches(store, STREAM, **STEPS),
        "masked": lambda: Batches(store, STREAM, **STEPS, mask_loss=True),
        "steps": lambda: DataLoader(StepDataset(store, STREAM, **STEPS), batch_size=None),
        "padded": lambda: PaddedBatches(Documents(store, STREAM), batch_size=3),
    }


@pytest.mark.parametrize("kind", ["batches", "masked", "steps", "padded"])
def test_a_batch_that_was_fetched_in_inference_mode_is_trained_on(store: Path, kind: str) -> None:
    """The first one, by which a model's lazy layers were given their shapes; and those behind it."""
    model, batches = nn.Embedding(1 << 16, 4), iter(loops(store)[kind]())
    with torch.inference_mode():
        first = next(batches)
    for batch in (first, next(batches)):
        ids = batch["input_ids"] if kind == "padded" else batch.x
        model(ids).sum().backward()
        ids.add_(1)
