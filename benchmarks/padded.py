"""Padded batches of whole documents, beside a ``DataLoader`` over ``datasets`` that gives the same ones.

Both give ``input_ids``, ``attention_mask`` and ``labels``, int64, of the same documents in the same batches: shuffled,
and by length bucket; padded to the longest of the batch, and cut to 256 tokens. ``datasets`` has the ids and masks in
Arrow, as a tokenizer's call leaves them there, in its format ``numpy``; torch's ``pad_sequence`` puts rows together.
Where the two give different batches, nothing is measured.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Final

import datasets
import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from benchmarks.measuring import BenchmarkError
from tests.consumers.packed import given_documents, pack, packed_info, packed_store
from tests.store.chains import STREAM
from tokenmill.consumers import BucketSampler, Documents, EraSampler, PaddedBatches
from tokenmill.consumers.samplers import DocumentSampler

DOCUMENTS: Final = 30_000
BATCH: Final = 32
MOST: Final = 256
SECONDS: Final = 2.0
"""Of one core, that each reads in each round."""
BLOCK_TOKENS: Final = 2049
LABELS: Final = ("negative", "positive")

Batches = Iterable[Any]


def measure_padded(
    directory: Path, *, rounds: int = 3, count: int = DOCUMENTS, seconds: float = SECONDS
) -> dict[str, Any]:
    """Return documents of a CPU second of both, in both orders, and how many times as fast ours are, round by round.

    Raises:
        BenchmarkError: the two give different batches.

    """
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    rng = np.random.default_rng(1)
    lengths = np.clip(rng.lognormal(5.0, 0.8, count).astype(np.int64), 8, 4000).tolist()
    made = pack(given_documents(lengths, labels=LABELS), "concat", BLOCK_TOKENS)
    store = packed_store(directory / "padded", packed_info(block_tokens=BLOCK_TOKENS, segment_blocks=1024), {0: made})
    documents = Documents(store.path, STREAM, label_field="label", label_names=LABELS)
    theirs = _dataset(documents, directory / "datasets")
    found: dict[str, Any] = {"documents": len(documents), "batch_size": BATCH, "max_length": MOST, "rounds": rounds}
    ratios = {}
    orders: dict[str, DocumentSampler] = {
        "shuffled": EraSampler(documents, seed=1, passes=100),
        "bucketed": BucketSampler(documents, seed=1, bucket_size=BATCH, passes=100),
    }
    for name, sampler in orders.items():
        ours = partial(PaddedBatches, documents, sampler, batch_size=BATCH, max_length=MOST)
        order = sampler._between(0, 10 * len(documents)).tolist()  # noqa: SLF001 - what DataLoader would be asked for
        loader = DataLoader(theirs, batch_size=BATCH, sampler=order, collate_fn=_together, drop_last=True)
        _compare(ours(), loader)
        speeds = [(_speed(ours, seconds), _speed(lambda loader=loader: loader, seconds)) for _ in range(rounds)]  # type: ignore[misc]
        ratios[name] = round(median(mine / its for mine, its in speeds), 2)
        found[name] = {
            "documents_per_cpu_second": {
                "tokenmill": round(median(mine for mine, _ in speeds)),
                "dataloader_over_datasets": round(median(its for _, its in speeds)),
            },
            "ratio": ratios[name],
        }
    found["ratio"] = min(ratios.values())
    return found


def _dataset(documents: Documents, directory: Path) -> Any:
    """Return the same documents as a data set in Arrow, mapped from its file."""
    rows: dict[str, list[Any]] = {"input_ids": [], "attention_mask": [], "labels": []}
    for first in range(0, len(documents), 4096):
        for one in documents[first : first + 4096]:
            rows["input_ids"].append(one.tokens[:MOST].astype(np.int32))
            rows["attention_mask"].append(np.ones(min(len(one.tokens), MOST), np.int8))
            rows["labels"].append(one.label)
    datasets.Dataset.from_dict(rows).save_to_disk(str(directory))
    return datasets.load_from_disk(str(directory)).with_format("numpy")


def _together(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    found = {
        name: pad_sequence([torch.from_numpy(np.asarray(row[name], np.int64)) for row in rows], batch_first=True)
        for name in ("input_ids", "attention_mask")
    }
    return found | {"labels": torch.tensor([int(row["labels"]) for row in rows])}


def _compare(ours: Batches, theirs: Batches) -> None:
    for number, (mine, its) in enumerate(zip(ours, theirs, strict=False)):
        if not all(torch.equal(mine[name], its[name]) for name in its):
            raise BenchmarkError(f"batch {number} is another one than that of datasets")
        if number == 50:  # noqa: PLR2004 - enough
            return


def _speed(batches: Callable[[], Batches], seconds: float) -> float:
    """Return documents in a second of one core."""
    count, began = 0, process_time()
    for batch in batches():
        count += len(batch["labels"])
        if process_time() - began > seconds:
            break
    return count / (process_time() - began)
