"""Texts that were made to take memory, each as long as it may be, milled one after the other; says how much they took.

A program of its own, for its memory is measured: ``python -m tests.faults.hostile_texts TOKENIZER ENGINE NORMALIZE``.
"""
# ruff: noqa: T201 - what it prints is its result

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from tests.mills import RECIPE, Source
from tokenmill.app.milling.recipe_stages import complete
from tokenmill.app.milling.tokenizers import EngineName, load_tokenizer
from tokenmill.documents import Record

UNITS: Final = {
    "white space": " ",
    "letters and digits by turns": "a1",
    "digits": "1234567890",
    "a character that NFKC makes 33 bytes": "\ufdfa",
    "combining marks": "\u0301",
    "a symbol that NFC makes 12 bytes": "\U0001d160",
    "decomposed in NFD": "\u0390",
    "one syllable": "\uac01",
}
NEW: Final = "\u088f"  # since Unicode 17: the reference engine encodes its text
BESIDES: Final = {"\ufdfa": 11, "\U0001d160": 3, "\u0390": 3}
"""How much longer some of them are once they are normalized: with others beside them they are just short enough."""


def texts(limit: int) -> Iterator[tuple[str, str]]:
    for name, unit in UNITS.items():
        yield name, unit * (limit // len(unit.encode()))
    yield "with a character that is newer than fast engines", "a1" * (limit // 2 - 2) + NEW
    for unit, factor in BESIDES.items():
        size = len(unit.encode())
        count = limit // 16 // (size * factor)
        for other in (" ", "a1"):
            yield f"{unit!a} beside {other!r}", unit * count + other * ((limit - count * size * factor) // len(other))


def main(tokenizer: str, engine: str, normalize: str) -> None:
    """Mill them, and print what became of each and the most memory that this process had until then, in MiB."""
    file = load_tokenizer(tokenizer)
    draft = replace(RECIPE, decode="text", max_text_bytes=0, normalize=normalize, block_tokens=1025)
    end = 0 if file.content is None else None
    recipe, stages = complete(draft, file, end, cast("EngineName", engine))
    mill = Source(stages, (recipe,)).mill(message_bytes=1 << 20)
    print(json.dumps({"engine": stages.engine.kind, "peak": peak()}))
    for offset, (name, text) in enumerate(texts(recipe.max_text_bytes)):
        milled = mill.feed([Record(offset, 0, None, text.encode())])
        reason = milled.dead_letters[0].reason if milled.dead_letters else ""
        print(json.dumps({"text": name, "reason": reason, "peak": peak()}), flush=True)


def peak() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) >> 10


if __name__ == "__main__":
    main(*sys.argv[1:])
