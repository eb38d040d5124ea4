"""What a GPU waits for, where there is one."""

from itertools import islice
from time import perf_counter
from typing import Any, Final

import torch
from torch import nn

from benchmarks.loaders.place import SEED, STREAM, Stock
from tokenmill.consumers import Batches

BATCH: Final = 16
COPIES: Final = 100
COPIED_BYTES: Final = 64 << 20
"""Of each copy with which the bandwidth is measured: large enough that starting it costs nothing."""
ALONE: Final = 4000
"""Batches that are read with nothing else to do."""
STEPS: Final = 200
WARM_UP: Final = 20
VOCABULARY: Final = 50_304
WIDTH: Final = 768


def measure_gpu(stock: Stock) -> dict[str, float] | None:
    """Return the loader's share of the pinned bandwidth, and the part of its time that training waits; None: no GPU."""
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda")
    bandwidth = _pinned_bandwidth(device)
    began = perf_counter()
    batches = _open(stock)
    for _ in islice(batches, ALONE):
        pass
    torch.cuda.synchronize()
    alone = batches.metrics.bytes / (perf_counter() - began)
    waited = _training(stock, device)
    return {
        "pinned_bytes_per_second": bandwidth,
        "loader_bytes_per_second": alone,
        "share_of_bandwidth": alone / bandwidth,
        "training_wait_ratio": waited.wait_ratio,
        "training_device_wait_seconds": waited.device_wait_seconds,
        "training_tokens_per_second": waited.tokens_per_second,
    }


def _open(stock: Stock) -> Batches:
    length = stock.block_tokens - 1
    return Batches(stock.store, STREAM, batch_size=BATCH, sequence_length=length, seed=SEED, passes=100, device="cuda")


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


def _training(stock: Stock, device: torch.device) -> Any:
    """Train a model of GPT-2's size as fast as it goes; return the metrics of the steps after the first ones."""
    layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.TransformerEncoder(layer, 12), nn.Linear(WIDTH, VOCABULARY)
    )
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = _open(stock)
    earlier = batches.metrics
    for step, (x, y) in enumerate(islice(batches, STEPS)):
        if step == WARM_UP:
            torch.cuda.synchronize()
            earlier = batches.metrics
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return batches.metrics.since(earlier)
