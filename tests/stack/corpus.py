"""Documents to push, made from a seed, and what must become of them."""

import json
import random
from pathlib import Path
from typing import NamedTuple

WORDS = 5000
WORDS_IN_DOCUMENT = (20, 600)


class Corpus(NamedTuple):
    """A file of JSON lines."""

    path: Path
    documents: int
    tokens: int
    """With raw bytes as tokens: the bytes of the texts, and one for the end of each document."""


def write_corpus(path: Path, name: str, size: int) -> Corpus:
    """Write documents of ``size`` bytes of text or a little more, with ids ``name-0`` up."""
    source = random.Random(name)
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyzäöüß", k=source.randint(2, 12))) for _ in range(WORDS)]
    documents = tokens = 0
    with path.open("w", encoding="utf-8") as file:
        while tokens < size:
            text = " ".join(source.choices(words, k=source.randint(*WORDS_IN_DOCUMENT)))
            file.write(json.dumps({"id": f"{name}-{documents}", "text": text}, ensure_ascii=False) + "\n")
            documents += 1
            tokens += len(text.encode()) + 1
    path.chmod(0o644)
    return Corpus(path, documents, tokens)
