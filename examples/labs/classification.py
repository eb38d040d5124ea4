"""Lab: binary classification. One document a row of 256 tokens, its label beside it, and what each worker gets of both.

    python examples/labs/classification.py reviews.jsonl --label-field sentiment --labels negative,positive

Without texts of your own, Python files are told from pages of text.
"""

# ruff: noqa: INP001 - a script, no part of a package

import argparse
import json
import time
from pathlib import Path

import lab
import torch
from corpus import STANDARD_LIBRARY, arguments, pack, reading
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

from tokenmill.app.milling.tokenizers import load_tokenizer
from tokenmill.consumers import Documents, PaddedBatches
from tokenmill.store import read_stream

LENGTH = 256
WORKERS = 2


def main() -> None:
    """Pack, count labels, train, measure."""
    parser = arguments(__doc__)
    parser.add_argument("--label-field", default="kind")
    parser.add_argument("--labels", default="code,prose")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    texts = options.texts if options.texts != parser.get_default("texts") else [str(labelled(options.store))]
    packing = {"name": "rows", "long": "truncate", "short": "pad"}
    settings = {"sequence_length": LENGTH, "packing": packing, "metadata_fields": options.label_field}
    if has_template(options.tokenizer):
        settings["template"] = "tokenizer"
    train = pack(texts, options.store, options.tokenizer, reading(options), **settings)["train"]
    names = label_names(options, train.stream)
    documents = Documents(options.store, train.stream, label_field=options.label_field, label_names=names)
    print(f"{len(documents):,} documents: {documents.label_distribution()}")
    show(documents)
    for rank in range(WORKERS):
        mine = PaddedBatches(documents, batch_size=8, rank=rank, world_size=WORKERS)
        print(f"worker {rank}: {mine.label_distribution()}")
    batches = PaddedBatches(documents, batch_size=16, max_length=LENGTH, padding="max_length")
    fit(batches, read_stream(options.store, train.stream).values["genesis"]["recipe"]["vocabulary_size"], options.steps)


def has_template(tokenizer: str | None) -> bool:
    """Return whether a tokenizer puts tokens around a text by itself, as BERT's does with [CLS] and [SEP]."""
    if tokenizer is None:
        return False
    content = load_tokenizer(tokenizer).content  # None: bytes
    return content is not None and Tokenizer.from_str(content.decode()).num_special_tokens_to_add(is_pair=False) > 0


def label_names(options: argparse.Namespace, stream: str) -> list[str | int]:
    """Return the labels as the documents have them: 0 and 1 are numbers in JSON and parquet, and texts in csv."""
    names = options.labels.split(",")
    value = Documents(options.store, stream)[0].fields.get(options.label_field)
    numbers = isinstance(value, int) and all(name.lstrip("-").isdigit() for name in names)
    return [int(name) for name in names] if numbers else names


def show(documents: Documents) -> None:
    """Print the first text as its tokens say it, with its label."""
    row = next(iter(PaddedBatches(documents, batch_size=1)))
    text = documents.decode(row["input_ids"][0][row["attention_mask"][0].bool()])
    print(f"a document of label {documents.label_names[row['labels'][0].item()]}: {text[:160]!r}")


def labelled(store: Path) -> Path:
    """Write sources and pages of text of this machine as one file of labelled documents; return its path."""
    path = store / "labelled.jsonl"
    store.mkdir(parents=True, exist_ok=True)
    code = sorted(STANDARD_LIBRARY.glob("*.py"))[:150]
    with path.open("w", encoding="utf-8") as file:
        for number, source in enumerate(code):
            text = source.read_text(encoding="utf-8", errors="replace")
            prose = "\n".join(line.strip("# ") for line in text.splitlines() if line.lstrip().startswith("#"))
            for kind, part in (("code", text), ("prose", prose)):
                file.write(json.dumps({"id": f"{kind}-{number}", "text": part, "kind": kind}) + "\n")
    return path


def fit(batches: PaddedBatches, vocabulary: int, steps: int) -> None:
    """Train a bag of embeddings, and print its accuracy and its speed."""
    torch.manual_seed(0)
    embedding, head = nn.Embedding(vocabulary, 64), nn.Linear(64, 2)
    optimizer = torch.optim.AdamW([*embedding.parameters(), *head.parameters()], lr=1e-2)
    began, samples, step = time.perf_counter(), 0, 0
    while step < steps:
        for batch in batches.rewind():
            mask = batch["attention_mask"][..., None]
            states = (embedding(batch["input_ids"]) * mask).sum(1) / mask.sum(1)
            logits = head(states)
            loss = functional.cross_entropy(logits, batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples, step = samples + len(logits), step + 1
            if step == steps:
                break
    right = (logits.argmax(1) == batch["labels"]).float().mean().item()
    print(f"loss {loss.item():.3f}, accuracy of the last batch {100 * right:.0f} %")
    print(f"{samples / (time.perf_counter() - began):,.0f} samples a second")


if __name__ == "__main__":
    lab.run(main)
