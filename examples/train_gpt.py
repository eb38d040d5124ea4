"""A tiny GPT that trains on a store while the store grows, on a CPU if need be.

    python examples/train_gpt.py store raw-text.train --seconds 60

The model is GPT-2's in small (Radford et al. 2019; after Karpathy's nanoGPT), enough to see a loss fall. What to take
from here is the loop over `Batches`: blocks are there as soon as their era is closed, in the same order for everyone,
and the time spent waiting for them is measured.
"""

# ruff: noqa: INP001 - a script, no part of a package

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tokenmill.consumers import Batches
from tokenmill.errors import StoreError
from tokenmill.segments import StreamInfo, read_stream

LOOK_SECONDS = 0.5  # how often to look for a stream that is not in the store yet


class Block(nn.Module):
    """Attention to all tokens before, then a layer of its own for each token; both add to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        """Make a block for vectors of ``width``."""
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[batch, length, width]`` for the same."""
        batch, length, width = x.shape
        split = self.attention_in(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.mlp(self.norm_2(x))
        return out


class TinyGPT(nn.Module):
    """Token ids to the next token's logits."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        """Make a model for sequences of up to ``length`` tokens."""
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._start)
        self.head.weight = self.tokens.weight  # tied, as in GPT-2: most of a tiny model is its embedding

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits ``[batch, length, vocabulary]`` for ids ``[batch, length]``."""
        places = torch.arange(x.shape[1], device=x.device)
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.tokens(x) + self.positions(places))))
        return logits


class Progress(NamedTuple):
    """How far the training is."""

    step: int
    loss: float
    """Mean over the steps since the last report, in nats for each token."""
    tokens_per_second: float
    wait_share: float
    """Share of the time so far, 0 to 1, that was spent waiting for data."""


def train(arguments: argparse.Namespace) -> Iterator[Progress]:
    """Train as long as the arguments say; yield progress about once a second."""
    device = "cuda" if torch.cuda.is_available() and not arguments.cpu else "cpu"
    torch.manual_seed(0)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    begun = time.monotonic()
    info = wait_for_stream(arguments.store, arguments.stream)
    batches = Batches(
        arguments.store,
        arguments.stream,
        batch_size=arguments.batch_size,
        sequence_length=info.block_tokens - 1,
        device=device,
        stop=lambda: time.monotonic() - begun > (arguments.seconds or math.inf),
    )
    vocabulary = int(info.values["genesis"]["recipe"]["vocabulary_size"])
    model = TinyGPT(vocabulary, info.block_tokens - 1, arguments.width, arguments.layers, arguments.heads).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, betas=(0.9, 0.95))
    started = reported = time.monotonic()
    losses: list[float] = []
    tokens = 0
    for step, (x, y) in enumerate(batches, 1):
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        tokens += x.numel()
        now = time.monotonic()
        if now - reported >= 1 or step == arguments.steps:
            elapsed = now - started
            yield Progress(step, sum(losses) / len(losses), tokens / elapsed, batches.waited_seconds / elapsed)
            reported, losses = now, []
        if step == arguments.steps:
            return


def wait_for_stream(store: Path, stream: str) -> StreamInfo:
    """Return what the store knows of the stream, once it knows it."""
    while True:
        try:
            return read_stream(store, stream)
        except StoreError:
            time.sleep(LOOK_SECONDS)


def main() -> None:
    """Train, and print progress."""
    parser = argparse.ArgumentParser(description="Train a tiny GPT on a store that may still be growing.")
    parser.add_argument("store", type=Path, help="directory of the store")
    parser.add_argument("stream", help="for example raw-text.train")
    parser.add_argument("--seconds", type=float, help="end after this time")
    parser.add_argument("--steps", type=int, help="end after so many steps")
    parser.add_argument("--json", action="store_true", help="print each progress as JSON")
    parser.add_argument("--cpu", action="store_true", help="leave the GPU alone")
    parser.add_argument("--threads", type=int, default=0, help="threads on a CPU (0: torch decides)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    arguments = parser.parse_args()
    for progress in train(arguments):
        if arguments.json:
            print(json.dumps(progress._asdict()), flush=True)
        else:
            print(
                f"step {progress.step:6,}  loss {progress.loss:.3f}  {progress.tokens_per_second:9,.0f} tokens/s  "
                f"{progress.wait_share:4.0%} waiting for data",
                flush=True,
            )


if __name__ == "__main__":
    main()
