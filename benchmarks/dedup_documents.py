"""The documents of `dedup.py`: made ones with planted duplicates, and real ones, with their exact similarities."""

import pydoc
import sys
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from heapq import heappop, heappush
from importlib import import_module
from inspect import isclass
from itertools import chain, takewhile
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.app.milling.duplicates.plain_duplicates import shingles_of
from tokenmill.app.milling.duplicates.signatures import Near

SHINGLE: Final = 5
WORDS: Final = 175
SHINGLES: Final = WORDS - SHINGLE + 1
KILLED: Final = {"exact": 0, "0.95": 4, "0.9": 9, "0.8": 19, "0.7": 30, "0.6": 43, "0.5": 57}
"""By the similarity of a planted duplicate: shingles that it has not of its original; it has as many others."""
COPIED: Final = 0.27
"""Share of made documents that come again."""
OUTSIDE: Final = 0.1
"""Share of copies that come when the window has forgotten their original."""
REAL_LENGTH: Final = 20_000
_LEFT_OUT: Final = {"antigravity", "idlelib", "lib2to3", "test", "this", "tkinter", "turtle", "turtledemo"}

Similarities = npt.NDArray[np.float32]


class Made(NamedTuple):
    """A made document: its original's number, the shingles that it lacks of it, and where in the stream that is."""

    number: int
    killed: int
    """-1: it is an original."""
    original: int
    is_outside: bool

    @property
    def text(self) -> str:
        """Its words; those of a copy that are not its original's are in no other document."""
        rng = Random(self.number)
        words = rng.choices(_vocabulary(), k=WORDS)
        spread, tail = divmod(max(self.killed, 0), SHINGLE)
        for at in (*rng.sample(range(SHINGLE - 1, WORDS - 10, SHINGLE), spread), *range(WORDS - tail, WORDS)):
            words[at] = f"{self.number}x{at}"
        return " ".join(words)


@cache
def _vocabulary() -> list[str]:
    rng = Random(0)
    return ["".join(rng.choices("abdefgiklmnoprstuvz", k=rng.randint(2, 9))) for _ in range(20_000)]


def made_similarity(killed: int) -> float:
    """Return the Jaccard similarity of a copy and its original."""
    return (SHINGLES - killed) / (SHINGLES + killed)


def made_documents(count: int, window: int) -> Iterator[Made]:
    """Yield so many documents; copies come within the part of a window that is promised, some after all of it."""
    rng, due = Random(1), list[tuple[int, Made]]()
    levels, number = list(KILLED.values()), 0
    for position in range(count):
        if due and due[0][0] <= position:
            yield heappop(due)[1]
            continue
        yield Made(number, -1, position, False)
        if rng.random() < COPIED:
            outside = rng.random() < OUTSIDE
            distance = window * 3 // 2 if outside else rng.randint(1, window * 3 // 5)
            heappush(due, (position + distance, Made(number, rng.choice(levels), position, outside)))
        number += 1


def real_documents(count: int) -> list[str]:
    """Return copyright files, licences, the headers of sources and pydoc's texts, in a random order."""
    texts = [text[:REAL_LENGTH] for text in chain(_licences(), _pydoc()) if len(text.split()) >= SHINGLE]
    Random(0).shuffle(texts)
    return texts[:count]


def _licences() -> Iterator[str]:
    site = Path(sysconfig.get_path("purelib"))
    for path in (*sorted(Path("/usr/share/doc").glob("*/copyright")), *sorted(site.rglob("*.dist-info/**/LICENSE*"))):
        if path.is_file():
            yield path.read_text(errors="replace")
    for path in sorted(site.rglob("*.py")):
        with path.open(errors="replace") as file:
            header = "".join(takewhile(lambda line: line.startswith("#"), file))
        if "copyright" in header.lower() or "licen" in header.lower():
            yield header


def _pydoc() -> Iterator[str]:
    """Yield what pydoc says of the standard library's modules and of their classes."""
    warnings.simplefilter("ignore")
    for name in sorted(sys.stdlib_module_names - _LEFT_OUT):
        if not name.startswith("_"):
            with suppress(ImportError):
                module = import_module(name)
                own = [one for one in vars(module).values() if isclass(one) and one.__module__ == name]
                yield from (pydoc.plain(pydoc.render_doc(one)) for one in (module, *own))


def similarities(texts: Sequence[str]) -> Similarities:
    """Return the exact Jaccard similarity of each text with each other one, 0 with itself; shape ``[texts, texts]``."""
    found = np.zeros((len(texts), len(texts)), np.float32)
    holders = defaultdict[str, list[int]](list)
    sizes = np.zeros(len(texts), np.int64)
    for at, text in enumerate(texts):
        shingles = shingles_of(Near(), text)
        sizes[at] = len(shingles)
        same = np.fromiter(chain.from_iterable(holders[one] for one in shingles), np.int64)
        shared = np.bincount(same, minlength=at)[:at]
        found[at, :at] = shared / np.maximum(sizes[:at] + sizes[at] - shared, 1)
        for one in shingles:
            holders[one].append(at)
    return found + found.T
