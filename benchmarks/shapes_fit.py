"""The packing ``fit`` beside ``concat`` and TRL's: how full blocks are, which documents are cut, how fast a mill is."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Final

import numpy as np

from benchmarks.corpus import whole_documents
from tests.mills import RECIPE, Source
from tests.vocabularies import gpt2
from tokenmill.app.milling.partition_mill import PartitionMill
from tokenmill.app.milling.recipe_stages import open_stages
from tokenmill.app.milling.tokenizers import TokenizerFile
from tokenmill.documents import Record
from tokenmill.wire.message import Message
from tokenmill.wire.pieces import ENTRY_HEADER, PADDING, PIECE

PEER: Final = Path(".venv/peers/packing")
DOCUMENTS: Final = 8_500
BLOCKS: Final = (2049, 8193)
FETCH_BYTES: Final = 4 << 20
MESSAGE_BYTES: Final = 1 << 20
LONGEST_TEXT: Final = 4 << 20


def measure_fit(rounds: int, share: float, directory: Path) -> Mapping[str, Any]:
    """Return fills, cuts and ratios (see `benchmarks/README.md`)."""
    texts = list(whole_documents(int(DOCUMENTS * share)))
    records = [Record(at, 0, None, text.value) for at, text in enumerate(texts)]
    megabytes = sum(len(record.value or b"") for record in records) / 1e6
    fetches = list(_fetches(records))
    found: dict[str, Any] = {"fit_documents": len(records), "fit_text_mb": round(megabytes, 1), "ratios": {}}
    cut_that_fits = 0
    for block in BLOCKS:
        sources = {name: _source(name, block) for name in ("concat", "fit")}
        mills = {name: _mill(source, fetches)[0] for name, source in sources.items()}  # the tokenizer is warm then
        packed = {name: _Packed(block) for name in sources}
        for name, source in sources.items():
            _mill(source, fetches, packed[name])
        fit, lengths = packed["fit"], packed["fit"].lengths()
        cut_that_fits += fit.cut_that_fits
        found[f"fit_fill_{block}"] = round(100 * fit.fill, 3)
        found[f"trl_bfd_split_fill_{block}"] = round(100 * _trl(lengths, block, directory), 3)
        found[f"concat_cut_percent_{block}"] = round(100 * packed["concat"].cut_share, 2)
        found[f"fit_cut_percent_{block}"] = round(100 * fit.cut_share, 2)
        speeds: list[dict[str, float]] = []
        for number in range(rounds):
            order = list(sources) if number % 2 else list(sources)[::-1]
            speeds.append({name: megabytes / _mill(sources[name], fetches)[1] for name in order})
        ratio = median(speed["fit"] / speed["concat"] for speed in speeds)
        found["ratios"][f"fit_of_concat_{block}"] = float(f"{ratio:.4g}")
        for name in mills:
            found[f"{name}_mill_mb_per_cpu_s_{block}"] = float(f"{median(speed[name] for speed in speeds):.4g}")
    found["fit_cut_that_fits"] = cut_that_fits
    found["ratios"]["fit_of_concat"] = min(found["ratios"].values())
    return found


class _Packed:
    """What is in the blocks of a chain: how many tokens, and in how many pieces each document is."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._blocks = self._padding = 0
        self._pieces: Counter[int] = Counter()
        self._tokens: Counter[int] = Counter()

    def add(self, message: Message) -> None:
        for entry in message.entries:
            count, _ = ENTRY_HEADER.unpack_from(entry)
            rows = np.frombuffer(entry, PIECE, count, ENTRY_HEADER.size)
            sizes = np.diff(rows["start"].astype(np.int64), append=self._block)
            for offset, position, size in zip(
                rows["offset"].tolist(), rows["position"].tolist(), sizes.tolist(), strict=True
            ):
                if position == PADDING:
                    self._padding += size
                else:
                    self._pieces[offset] += 1
                    self._tokens[offset] += size
            self._blocks += 1

    def lengths(self) -> list[int]:
        """Return the tokens of each document, as far as they are in blocks that left."""
        return list(self._tokens.values())

    @property
    def fill(self) -> float:
        """The share of documents' tokens in the blocks that left."""
        return 1 - self._padding / (self._blocks * self._block)

    @property
    def cut_share(self) -> float:
        """The share of documents that are in several pieces."""
        return sum(count > 1 for count in self._pieces.values()) / len(self._pieces)

    @property
    def cut_that_fits(self) -> int:
        """How many documents are in several pieces, and fit a block."""
        return sum(count > 1 and self._tokens[offset] <= self._block for offset, count in self._pieces.items())


def _source(packing: str, block: int) -> Source:
    tokenizer = TokenizerFile("gpt2", gpt2())
    recipe = replace(
        RECIPE,
        max_text_bytes=LONGEST_TEXT,
        tokenizer_sha256=tokenizer.sha256,
        vocabulary_size=50_257,
        end_of_document=50_256,
        dtype="uint16",
        block_tokens=block,
        packing=packing,
    )
    return Source(open_stages(recipe, tokenizer), (recipe,))


def _fetches(records: Sequence[Record]) -> Iterator[list[Record]]:
    fetch: list[Record] = []
    size = 0
    for record in records:
        fetch.append(record)
        size += len(record.value or b"")
        if size > FETCH_BYTES:
            yield fetch
            fetch, size = [], 0
    if fetch:
        yield fetch


def _mill(
    source: Source, fetches: Sequence[list[Record]], packed: _Packed | None = None
) -> tuple[PartitionMill, float]:
    """Return a mill that has taken all fetches, and the CPU seconds that this took."""
    mill = source.mill(message_bytes=MESSAGE_BYTES)
    began = process_time()
    for fetch in fetches:
        for message in mill.feed(fetch).messages["train"]:
            if packed is not None:
                packed.add(message)
    return mill, process_time() - began


def _trl(lengths: Sequence[int], block: int, directory: Path) -> float:
    """Return how full TRL's ``bfd_split`` makes rows of ``block`` tokens, given the whole set at once."""
    given = directory / "lengths.json"
    given.write_text(json.dumps(lengths))
    environment = {**os.environ, "PYTHONPATH": f"{PEER.resolve()}{os.pathsep}."}
    command = [sys.executable, "-m", "benchmarks.shapes_peer", str(given), str(block)]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return sum(lengths) / (int(answer.stdout.split()[-1]) * block)
