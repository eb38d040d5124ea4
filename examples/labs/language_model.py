"""Lab: a language model on blocks of 128 tokens. What is kept of the text, how full the blocks are, what is in them.

python examples/labs/language_model.py my_texts/ --steps 500
python examples/labs/language_model.py hf://datasets/Salesforce/wikitext --tokenizer openai-community/gpt2
"""

# ruff: noqa: INP001 - a script, no part of a package

import sys
from itertools import islice
from pathlib import Path

import lab
import torch
from corpus import arguments, pack, reading
from torch.nn import functional

from tokenmill.consumers import Batches
from tokenmill.store import read_stream

sys.path.append(str(Path(__file__).parents[1]))
from gpt import GPT

BLOCK = 128


def main() -> None:
    """Pack, look, train."""
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--min-chars", type=int, default=100, help="shorter documents are filtered out")
    options = parser.parse_args()
    streams = pack(
        options.texts,
        options.store,
        options.tokenizer,
        reading(options),
        sequence_length=BLOCK - 1,
        min_chars=options.min_chars,
    )
    train = streams["train"]
    print("\n".join(train.lines()))
    print(f"{train.blocks:,} blocks of {BLOCK} tokens")
    show(options.store, train.stream)
    fit(options.store, train.stream, options.steps, options.seed)


def show(store: Path, stream: str) -> None:
    """Print the first blocks as text."""
    batches = Batches(store, stream, batch_size=2, shuffle=False)
    batch = next(iter(batches))
    for number, row in enumerate(torch.cat([batch.x, batch.y[:, -1:]], 1).tolist()):
        print(f"block {number}: {batches.decode(row)[:160]!r} …")


def fit(store: Path, stream: str, steps: int, seed: int) -> None:
    """Train a tiny GPT, and print its loss."""
    torch.manual_seed(seed)
    vocabulary = read_stream(store, stream).values["genesis"]["recipe"]["vocabulary_size"]
    model = GPT(vocabulary, BLOCK - 1, width=96, layers=2, heads=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = Batches(store, stream, batch_size=16, seed=seed, passes=100)
    for batch in islice(batches, steps):
        loss = functional.cross_entropy(model(batch.x).flatten(0, 1), batch.y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if batch.step % 20 == 0 or batch.step == steps - 1:
            print(f"step {batch.step}: loss {loss.item():.3f}")
    metrics = batches.metrics
    waited = 100 * metrics.wait_ratio
    print(f"{metrics.tokens_per_second:,.0f} tokens a second; {waited:.2f} % of the time waited for data")


if __name__ == "__main__":
    lab.run(main)
