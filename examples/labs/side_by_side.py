"""Lab: the same texts three ways, side by side: a plain loop with np.memmap, `tokenmill pack`, and a stream from Kafka.

    python examples/labs/side_by_side.py my_texts/

Of each it says when its first batch was there, when all of the texts were tokens, how many these are (the same, each
way), and how fast batches come once they are there.
"""

# ruff: noqa: INP001 - a script, no part of a package

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import lab
import numpy as np
import torch
from corpus import TOKENMILL, arguments, items_of, pack, reading, tokenizer_for
from from_stream import LENGTH, opened, produce, service
from tokenizers import Tokenizer

from tokenmill.app.sources import Item
from tokenmill.consumers import Batches, Documents
from tokenmill.errors import InputError, StoreError
from tokenmill.store import read_stream

BATCH = 4
TOPIC = "raw-text"
SECONDS = 120  # for a service to make all of it


class Way(NamedTuple):
    """What one way took."""

    first: float
    """Seconds until its first batch."""
    all: float
    """Seconds until all texts were tokens that a loop can read."""
    tokens: int
    rate: float
    """Tokens a second of the loop that only reads."""


def main() -> None:
    """Make batches three ways, and print a line of each."""
    parser = arguments(__doc__)
    parser.add_argument("--port", type=int, default=9092, help="of the Kafka that is started")
    parser.add_argument("--seconds", type=float, default=2.0, help="for how long each way reads")
    options = parser.parse_args()
    options.tokenizer = tokenizer_for(options.texts, options.store, options.tokenizer, reading(options))
    if options.tokenizer == "bytes":
        sys.exit("the plain loop of this lab needs a tokenizer.json: leave --tokenizer out, and one is trained")
    by_pack = packed(options)
    ways = {"plain loop": plain_loop(options), "pack": by_pack, "stream": streamed(options, by_pack.tokens)}
    print(f"{'':10}  {'first batch':>11}  {'all of it':>9}  {'tokens':>11}  {'tokens a second':>15}")
    for name, way in ways.items():
        print(f"{name:10}  {way.first:>9.2f} s  {way.all:>7.2f} s  {way.tokens:>11,}  {way.rate:>15,.0f}")
    print("After a kill the plain loop begins again. The other two go on, and the stream takes what comes meanwhile.")


def plain_loop(options: argparse.Namespace) -> Way:
    """Tokenize in a loop, write one array, and draw rows at random places of it."""
    stream = options.store / "packed" / f"{TOPIC}.train"  # for a tokenizer, and the token behind each text
    end = read_stream(stream.parent, stream.name).values["genesis"]["recipe"]["end_of_document"]
    began = time.perf_counter()
    tokenizer = Tokenizer.from_file(str(stream / "tokenizer.json"))
    texts = (item.text for item in items_of(options) if isinstance(item, Item))
    ids = np.array(
        [token for text in texts for token in (*tokenizer.encode(text, add_special_tokens=False).ids, end)],
        np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32,
    )
    path = options.store / "plain.bin"
    ids.tofile(path)
    made = time.perf_counter() - began
    batches = random_rows(np.memmap(path, ids.dtype, "r"), np.random.default_rng(options.seed))
    next(batches)
    return Way(time.perf_counter() - began, made, len(ids), speed(batches, options.seconds))


def random_rows(ids: np.ndarray, random: np.random.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches for ever, as nanoGPT's `get_batch` makes them: some texts come twice and some never."""
    while True:
        places = random.integers(0, len(ids) - LENGTH, BATCH)
        rows = torch.from_numpy(np.stack([ids[place : place + LENGTH + 1].astype(np.int64) for place in places]))
        yield rows[:, :-1], rows[:, 1:]


def packed(options: argparse.Namespace) -> Way:
    """Fill a store with one command, and read it."""
    began, store = time.perf_counter(), options.store / "packed"
    streams = pack(options.texts, store, options.tokenizer, reading(options), sequence_length=LENGTH)
    made = time.perf_counter() - began
    batches = iter(Batches(store, streams["train"].stream, batch_size=BATCH, passes=100_000))
    next(batches)
    first = time.perf_counter() - began
    return Way(first, made, tokens_in(store), speed(batches, options.seconds))


def streamed(options: argparse.Namespace, wanted: int) -> Way:
    """Start Kafka and the service, send the texts, and read while these become tokens."""
    began, store = time.perf_counter(), options.store / "streamed"
    own = argparse.Namespace(**vars(options) | {"store": store, "topic": TOPIC})
    with service(own) as environment:
        up = time.perf_counter()
        produce(own, environment)
        batches = iter(opened(store, f"{TOPIC}.train", SECONDS))
        next(batches)
        first = time.perf_counter() - began
        while (tokens := tokens_in(store)) < wanted and time.perf_counter() - began < SECONDS:
            time.sleep(0.1)
        made = time.perf_counter() - began
        close = [TOKENMILL, "close", f"{TOPIC}.train", "--yes"]  # nothing comes any more, so a second pass may begin
        subprocess.run(close, env=environment, check=True)
        rate = speed(batches, options.seconds)
    print(f"Kafka and the service took {up - began:.1f} s of the stream's time to start; they start once")
    return Way(first, made, tokens, rate)


def tokens_in(store: Path) -> int:
    """Return how many tokens a loop can read, of both streams."""
    return sum(tokens_of(store, f"{TOPIC}.{split}") for split in ("train", "validation"))


def tokens_of(store: Path, stream: str) -> int:
    """Return how many tokens a loop can read of a stream; 0 as long as it, or its first era, is not there."""
    try:
        return int(Documents(store, stream).lengths.sum())
    except (InputError, StoreError):
        return 0


def speed(batches: Iterator[object], seconds: float) -> float:
    """Return the tokens a second of a loop that only reads."""
    began, read = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        read += sum(1 for _ in islice(batches, 10))
    return read * BATCH * LENGTH / took


if __name__ == "__main__":
    lab.run(main)
