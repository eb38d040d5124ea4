"""Lab: documents drawn stratified by length, an equal share of short, middling and long ones, in padded batches.

python examples/labs/stratified.py my_texts/ --samples 200 --strata 5
"""

# ruff: noqa: INP001 - a script, no part of a package

import lab
from corpus import arguments, pack, reading

from tokenmill.consumers import Documents, PaddedBatches, StratifiedSampler


def main() -> None:
    """Draw, and show what was drawn."""
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--strata", type=int, default=5)
    parser.add_argument("--max-length", type=int, default=512)
    options = parser.parse_args()
    train = pack(options.texts, options.store, options.tokenizer, reading(options), sequence_length=127)["train"]
    documents = Documents(options.store, train.stream)
    lengths = documents.lengths
    print(f"{len(documents):,} documents of {lengths.min():,} to {lengths.max():,} tokens")
    sampler = StratifiedSampler(documents, num_samples=options.samples, num_strata=options.strata, seed=options.seed)
    for number, stratum in enumerate(sampler.strata):
        print(
            f"stratum {number}: {stratum.shortest:,} to {stratum.longest:,} tokens, {stratum.drawn} of "
            f"{stratum.documents:,} documents drawn"
        )
    batches = PaddedBatches(documents, sampler, batch_size=8, max_length=options.max_length)
    widths = [batch["input_ids"].shape[1] for batch in batches]
    print(f"{len(widths)} batches of 8, padded to {min(widths)} to {max(widths)} tokens")


if __name__ == "__main__":
    lab.run(main)
