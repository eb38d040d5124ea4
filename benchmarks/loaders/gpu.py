"""What a GPU gets, and what it waits for, where there is one."""

from collections.abc import Iterator
from itertools import islice, repeat
from pathlib import Path
from shutil import rmtree
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch
from torch import nn

from benchmarks.loaders.place import SEED, STREAM, Stock, warm
from benchmarks.loaders.stock import make_stock
from tokenmill.consumers import Batches

SIZES: Final = {(16, 1024): 131_072, (32, 8192): 16_384}
"""Batch size and sequence length, and how many blocks the store has: 256 MiB."""
FORMS: Final[dict[str, dict[str, Any]]] = {
    "int64": {},
    "stored": {"widen": False},
    "masked": {"mask_loss": True},
    "dictionary": {"as_dict": True},
}
"""Ways to ask for batches, by their names in the result."""
COPIES: Final = 100
COPIED_BYTES: Final = 64 << 20
"""Of each copy with which the bandwidth is measured: large enough that starting it costs nothing."""
ALONE_BYTES: Final = 256 << 20
"""Of tokens that are read with nothing else to do: each block about once."""
STEP_SECONDS: Final = 0.020
"""Of a step's work on the device."""
STEPS: Final = 50
MATRIX: Final = 4096
"""Rows of the matrices that a step multiplies: a fraction of a millisecond of any GPU for each product."""
TRAINING_STEPS: Final = 100
WARM_UP: Final = 20
VOCABULARY: Final = 50_304
WIDTH: Final = 768


def measure_gpu(directory: Path, rounds: int) -> dict[str, Any] | None:
    """Return the loader's share of the pinned bandwidth, and what steps wait for; None: there is no GPU."""
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda")
    bandwidth = _pinned_bandwidth(device)
    found: dict[str, Any] = {"pinned_bytes_per_second": round(bandwidth), "step_seconds": STEP_SECONDS, "sizes": []}
    for (batch_size, length), blocks in SIZES.items():
        stock = make_stock(directory / "gpu", blocks=blocks, block_tokens=length + 1)
        warm(stock.store)
        cell: dict[str, Any] = {"batch_size": batch_size, "sequence_length": length}
        for name, options in FORMS.items():
            opening = {"batch_size": batch_size, "sequence_length": length, "device": "cuda"} | options
            rates = [_alone(stock, opening) for _ in range(rounds + 1)][1:]  # the first one allocates memory
            waits = [_steps(stock, opening) for _ in range(rounds)]
            cell[name] = {
                "bytes_per_second": round(median(rates)),
                "share_of_bandwidth": round(median(rates) / bandwidth, 4),
                **{key: round(median(wait[key] for wait in waits), 6) for key in waits[0]},
            }
        if length == 1024:  # noqa: PLR2004 - what GPT-2 was trained with
            cell["gpt2"] = _training(stock, {"batch_size": batch_size, "device": "cuda"})
        found["sizes"].append(cell)
        rmtree(stock.directory)
    return found


def _open(stock: Stock, options: dict[str, Any]) -> Batches:
    return Batches(stock.store, STREAM, seed=SEED, passes=100, **options)


def _pinned_bandwidth(device: torch.device) -> float:
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    began = perf_counter()
    for _ in range(COPIES):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return COPIES * COPIED_BYTES / (perf_counter() - began)


def _alone(stock: Stock, options: dict[str, Any]) -> float:
    """Return how many bytes of stored tokens come to the device in a second."""
    count = ALONE_BYTES // (2 * stock.block_tokens * options["batch_size"])
    with _open(stock, options) as batches:
        all_ = iter(batches)
        next(all_)
        torch.cuda.synchronize()
        began, before = perf_counter(), batches.metrics.bytes
        for _ in islice(all_, count):
            pass
        torch.cuda.synchronize()
        return (batches.metrics.bytes - before) / (perf_counter() - began)


def _steps(stock: Stock, options: dict[str, Any]) -> dict[str, float]:
    """Return how much longer steps of `STEP_SECONDS` take with the loader than with one batch that is there."""
    matrix = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)
    into = torch.empty_like(matrix)
    products = 500
    for _ in range(2):  # the first time, libraries are loaded
        began = perf_counter()
        _multiply(matrix, into, products)
        torch.cuda.synchronize()
        each = (perf_counter() - began) / products
    times = max(1, round(STEP_SECONDS / each))

    def seconds(batches: Iterator[Any], *, read: bool) -> float:
        torch.cuda.synchronize()
        began = perf_counter()
        for batch in islice(batches, STEPS):
            loss = _ids(batch).sum()
            _multiply(matrix, into, times)
            if read:
                loss.item()
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        return perf_counter() - began

    with _open(stock, options) as opened:
        batches = iter(opened)
        one = next(batches)
        plain, loaded = seconds(repeat(one), read=False), seconds(batches, read=False)
        plain_read = seconds(repeat(one), read=True)
        earlier = opened.metrics
        loaded_read = seconds(batches, read=True)
        waited = opened.metrics.since(earlier)
    return {
        "longer": loaded / plain - 1,
        "longer_where_each_loss_is_read": loaded_read / plain_read - 1,
        "wait_ratio": waited.wait_seconds / loaded_read,
        "device_wait_ratio": waited.device_wait_seconds / loaded_read,
    }


def _multiply(matrix: torch.Tensor, into: torch.Tensor, times: int) -> None:
    for _ in range(times):
        torch.mm(matrix, matrix, out=into)


def _ids(batch: Any) -> torch.Tensor:
    ids: torch.Tensor = batch["input_ids"] if isinstance(batch, dict) else batch.x
    return ids.to(torch.int64)


def _training(stock: Stock, options: dict[str, Any]) -> dict[str, float]:
    """Train a model of GPT-2's size as fast as it goes; return what the steps after the first ones waited."""
    layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.TransformerEncoder(layer, 12), nn.Linear(WIDTH, VOCABULARY)
    )
    model.to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with _open(stock, options) as batches:
        earlier = batches.metrics
        for step, (x, y) in enumerate(islice(batches, WARM_UP + TRAINING_STEPS)):
            if step == WARM_UP:
                torch.cuda.synchronize()
                earlier = batches.metrics
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        waited = batches.metrics.since(earlier)
    return {
        "tokens_per_second": round(waited.tokens_per_second),
        "wait_ratio": round(waited.wait_ratio, 6),
        "device_wait_seconds": round(waited.device_wait_seconds, 6),
    }
