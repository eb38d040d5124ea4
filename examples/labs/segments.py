"""Lab: chunk, segment, batch. A byte model with memory reads the segments of a chunk one after the other.

    python examples/labs/segments.py my_texts/ --chunk 1024 --segment 128

An optimizer step is made for each segment; the memory goes from one to the next and is cleared where a chunk begins.
"""

# ruff: noqa: INP001 - a script, no part of a package

from itertools import islice

import lab
import torch
from corpus import arguments, pack, reading
from torch import nn
from torch.nn import functional

from tokenmill.consumers import Batches

WIDTH = 96


class ByteModel(nn.Module):
    """Reads bytes, and keeps what it has read in a state."""

    def __init__(self) -> None:
        """Make a model of one recurrent layer."""
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.layer = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits ``[batch, length, 256]`` and the memory behind the last byte."""
        states, memory = self.layer(self.bytes(x), memory)
        return self.head(states), memory


def main() -> None:
    """Pack chunks of single documents, train segment by segment, validate now and then."""
    parser = arguments(__doc__)
    parser.add_argument("--chunk", type=int, default=1024, help="tokens of a chunk, a multiple of the segment")
    parser.add_argument("--segment", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--validate", type=int, default=40, help="steps between two validations")
    options = parser.parse_args()
    packing = {"name": "chunks", "chunk_tokens": options.chunk}
    settings = {"sequence_length": options.segment, "packing": packing, "splits": "train=80,validation=20"}
    streams = pack(options.texts, options.store, "bytes", reading(options), **settings)
    for split, packed in streams.items():
        print(f"{split}: {packed.blocks:,} chunks of {options.chunk // options.segment} segments; {packed.lines()[0]}")
    sizes = {"batch_size": options.batch_size, "sequence_length": options.segment, "in_order": True}
    model = ByteModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    train = Batches(options.store, streams["train"].stream, seed=options.seed, passes=100, **sizes)
    memory = torch.zeros(1, options.batch_size, WIDTH)
    for batch in islice(train, options.steps):
        if batch.begins:
            memory = torch.zeros(1, options.batch_size, WIDTH)
        logits, memory = model(batch.x, memory.detach())
        loss = functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (batch.step + 1) % options.validate == 0:
            validation = Batches(options.store, streams["validation"].stream, **(sizes | {"batch_size": 1}))
            print(f"step {batch.step + 1}: loss {loss.item():.3f}, validation {validate(model, validation):.3f}")


@torch.no_grad()
def validate(model: ByteModel, batches: Batches, segments: int = 16) -> float:
    """Return the mean loss of some segments in their order."""
    memory, losses = torch.zeros(1, 1, WIDTH), []
    for batch in islice(batches, segments):
        if batch.begins:
            memory = torch.zeros(1, 1, WIDTH)
        logits, memory = model(batch.x, memory)
        losses.append(functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten()))
    return torch.stack(losses).mean().item()


if __name__ == "__main__":
    lab.run(main)
