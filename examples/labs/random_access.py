"""Lab: any document by its number. How long one takes, and a thousand at once.

python examples/labs/random_access.py my_texts/ --takes 1000
"""

# ruff: noqa: INP001 - a script, no part of a package

import time

import lab
import numpy as np
from corpus import arguments, pack, reading

from tokenmill.consumers import Documents


def main() -> None:
    """Open, look at one, take many."""
    parser = arguments(__doc__)
    parser.add_argument("--takes", type=int, default=1000)
    options = parser.parse_args()
    train = pack(options.texts, options.store, options.tokenizer, reading(options), sequence_length=127)["train"]
    began = time.perf_counter()
    documents = Documents(options.store, train.stream)
    print(f"{len(documents):,} documents, opened in {1000 * (time.perf_counter() - began):.1f} ms")
    first, last = documents[0], documents[-1]
    print(f"the first: {first.id}, {len(first.tokens):,} tokens; the last: {last.id}, {len(last.tokens):,} tokens")
    places = np.random.default_rng(options.seed).integers(0, len(documents), options.takes)
    began = time.perf_counter()
    tokens = sum(len(documents[int(place)].tokens) for place in places)
    one_by_one = time.perf_counter() - began
    began = time.perf_counter()
    taken = sum(len(document.tokens) for document in documents.take(places))
    at_once = time.perf_counter() - began
    print(f"{options.takes:,} one by one: {1e6 * one_by_one / options.takes:.0f} microseconds each, {tokens:,} tokens")
    print(f"{options.takes:,} at once: {1e6 * at_once / options.takes:.0f} microseconds each, {taken:,} tokens")


if __name__ == "__main__":
    lab.run(main)
