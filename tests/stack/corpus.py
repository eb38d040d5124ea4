"""Documents to push, made from a seed, and what must become of them."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import parquet

WORDS = 5000
WORDS_IN_DOCUMENT = (20, 600)


class Document(NamedTuple):
    id: str
    text: str


class Corpus(NamedTuple):
    path: Path
    filtered: Counter[str]
    """Documents that a filter drops, by reason."""
    documents: int
    """All others."""
    tokens: int
    """Theirs, with raw bytes as tokens: the bytes of the texts, and one for the end of each document."""


Filter = Callable[[str], str | None]
"""Says why a text is dropped, if it is."""


def write_json_lines(path: Path, size: int) -> Corpus:
    """Write documents of ``size`` bytes of text or a little more, with ids that begin with the file's name."""
    documents = list(_documents(path.stem, size))
    lines = (json.dumps(document._asdict(), ensure_ascii=False) + "\n" for document in documents)
    path.write_text("".join(lines), encoding="utf-8")
    return _corpus(path, documents, lambda _: None)


def write_parquet(path: Path, size: int, reason: Filter) -> Corpus:
    """Do the same as a parquet file with the columns ``id`` and ``text``, for a topic with a filter."""
    documents = list(_documents(path.stem, size))
    columns = {name: [getattr(document, name) for document in documents] for name in Document._fields}
    parquet.write_table(pa.table(columns), path, row_group_size=1000)
    return _corpus(path, documents, reason)


def _documents(name: str, size: int) -> Iterator[Document]:
    source = random.Random(name)
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyzäöüß", k=source.randint(2, 12))) for _ in range(WORDS)]
    written = number = 0
    while written < size:
        text = " ".join(source.choices(words, k=source.randint(*WORDS_IN_DOCUMENT)))
        yield Document(f"{name}-{number}", text)
        number += 1
        written += len(text.encode())


def _corpus(path: Path, documents: list[Document], reason: Filter) -> Corpus:
    path.chmod(0o644)
    reasons = [reason(document.text) for document in documents]
    kept = [document for document, why in zip(documents, reasons, strict=True) if why is None]
    tokens = sum(len(document.text.encode()) + 1 for document in kept)
    return Corpus(path, Counter(why for why in reasons if why), len(kept), tokens)
