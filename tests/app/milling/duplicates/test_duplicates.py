"""Signatures and the window: the verdicts of a plain list, however documents are fed, and after every end."""

import random
import subprocess
import sys
from hashlib import sha256
from itertools import pairwise
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.app.milling.duplicates.plain_duplicates import plainly, shingles_of, signature_of
from tokenmill.app.milling.duplicates.signatures import SLICES, Deduplication, Exact, Near, kernels, sign
from tokenmill.app.milling.duplicates.window import Window
from tokenmill.errors import DamagedError

WORDS = [
    *("a", "mill", "Stone", "x" * 40, "y" * 300, "\u2003", "\t", "\n\n", "\x1c"),
    *("日本語", "ไทย", "ß", "İstanbul", "🙂"),
]
GOLDEN = "72f74e436b5da20125d93a41a26e7066da2a3a6676b7c33bc93e58722db93301"
"""The hash of all signatures of some texts."""
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=30), max_size=8)


@given(TEXTS, st.sampled_from([Near(), Near(fold=True, shingle=2, bands=3, rows=2), Near(rows=31, bands=2), Exact()]))
@settings(deadline=None, max_examples=60)
def test_signatures_are_those_of_the_plain_rules(texts: list[str], deduplication: Deduplication) -> None:
    assert sign(deduplication, texts).tolist() == [signature_of(deduplication, text) for text in texts]


def test_the_kernel_hashes_as_xxhash_does() -> None:
    rng = random.Random(1)
    data = rng.randbytes(4000)
    begins = np.array([rng.randrange(3800) for _ in range(9, 129)])
    ends, hashes = begins + np.arange(9, 129), np.zeros(120, np.uint64)

    kernels().hash_spans(np.frombuffer(data + bytes(8), np.uint8), begins, ends, hashes)

    wanted = [xxhash.xxh3_64_intdigest(data[begin:end]) for begin, end in zip(begins, ends, strict=True)]
    assert hashes.tolist() == wanted


def test_signatures_never_change() -> None:
    """They are in logs and files that are read for years."""
    text = "The first document in the recorded order is kept; later ones are filtered, with the place of the first."
    signed = sign(Near(), [text, "too short", text.upper(), ""])
    folded = sign(Near(fold=True), [text, text.upper()])

    assert signed[0, :2].tolist() == [8937130482446879205, 9484102528508095067]
    assert sha256(signed.astype("<u8").tobytes()).hexdigest() == GOLDEN
    assert folded[0].tolist() == folded[1].tolist()
    assert sign(Exact(), [text]).tolist() == [[signed[0, -1]]]


def test_the_chance_of_being_found_is_what_the_parameters_say() -> None:
    """Pairs of texts that share a known part of their shingles share a band as often as theory says."""
    near, rng = Near(), random.Random(2)
    pairs = []
    for number in range(300):
        words = [f"w{number}-{rng.random()}" for _ in range(200)]
        other = list(words)
        for at in rng.sample(range(0, 200, 5), 5):
            other[at] = f"changed{at}"
        pairs.append((" ".join(words), " ".join(other)))
    one, other_signed = sign(near, [a for a, _ in pairs]), sign(near, [b for _, b in pairs])
    chances = []
    for a, b in pairs:
        first, second = shingles_of(near, a), shingles_of(near, b)
        chances.append(near.chance(len(first & second) / len(first | second)))
    expected, found = sum(chances), int((one[:, :-1] == other_signed[:, :-1]).any(axis=1).sum())

    assert abs(found - expected) < 4 * sqrt(sum(chance * (1 - chance) for chance in chances))
    assert 0.6 < expected / 300 < 0.97


Told = list[tuple[int, tuple[int, int]]]


def fed(window: Window, deduplication: Deduplication, texts: list[str], cuts: list[int], start: int = 0) -> Told:
    found: Told = []
    for low, high in pairwise([0, *cuts, len(texts)]):
        places = np.array([(0, start + at) for at in range(low, high)], np.uint64).reshape(-1, 2)
        told = window.judge(sign(deduplication, texts[low:high]), places)
        found += zip(told.kinds.tolist(), map(tuple, told.places.tolist()), strict=True)
    return found


def texts_of(seed: int, count: int, different: int) -> list[str]:
    """Return texts of which many are the same or nearly, some too short for shingles."""
    rng, texts = random.Random(seed), []
    for _ in range(count):
        words = [f"{word}{rng.randrange(different)}" for word in ("a", "b", "c", "d")] * rng.randint(0, 3)
        texts.append(" ".join([f"text {rng.randrange(different)}", *words]))
    return texts


COMPILED = """
from tokenmill.app.milling.duplicates.window import compile_window
compile_window()
from tokenmill.app.milling.duplicates import kernels
called = {name: one for name, one in vars(kernels).items() if not name.startswith("_") and hasattr(one, "signatures")}
print([name for name, one in called.items() if not one.signatures])
"""


@pytest.mark.slow
def test_all_kernels_are_compiled_for_an_image() -> None:
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


NEAR = [Near(window=window, bands=6, rows=2) for window in (12, 2000)]
KINDS = [*NEAR, Exact(window=40), Exact(window=4, fold=True)]


@given(st.integers(0, 1000), st.integers(2, 12), st.sampled_from(KINDS), st.lists(st.integers(0, 120), max_size=6))
@settings(deadline=None, max_examples=60)
def test_verdicts_are_those_of_a_list(
    tmp_path_factory: pytest.TempPathFactory, seed: int, different: int, deduplication: Deduplication, cuts: list[int]
) -> None:
    texts = texts_of(seed, 120, different)

    window = Window(deduplication, tmp_path_factory.mktemp("window"))

    assert fed(window, deduplication, texts, sorted(cuts)) == plainly(deduplication, texts)


@given(st.integers(0, 1000), st.sampled_from(KINDS), st.integers(0, 120), st.integers(0, 30))
@settings(deadline=None, max_examples=15)
def test_a_window_that_goes_on_says_what_it_would_have_said(
    tmp_path_factory: pytest.TempPathFactory, seed: int, deduplication: Deduplication, at: int, beyond: int
) -> None:
    """Also where documents came after the noted place that nobody noted; files that nobody needs are removed."""
    texts, directory = texts_of(seed, 150, 9), tmp_path_factory.mktemp("window")
    first = Window(deduplication, directory)
    told = fed(first, deduplication, texts[:at], [])
    kept = first.kept
    first.sync()
    first.forget(kept)
    fed(first, deduplication, texts[at : at + beyond], [], at)  # and then it is killed

    again = Window(deduplication, directory, kept)

    assert again.kept == sum(kind == 0 for kind, _ in told) == kept
    assert told + fed(again, deduplication, texts[at:], [], at) == plainly(deduplication, texts)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    near = Near(window=8, bands=2, rows=2)
    window = Window(near, tmp_path)
    fed(window, near, [f"text number {number} of the ones that differ" for number in range(7)], [])
    window.sync()
    (tmp_path / "seen-000000000001.bin").unlink()

    with pytest.raises(DamagedError, match="seen-000000000001"):
        Window(near, tmp_path, window.kept)


def test_memory_and_disk_are_what_is_said(tmp_path: Path) -> None:
    """Near: 63 bytes of memory a document of the window, all slices full; files are as long as was written to them."""
    near = Near(window=4000)
    window = Window(near, tmp_path)
    fed(window, near, [f"{number} " * 6 for number in range(4500)], [])

    tables = sum(one.tags.nbytes + one.blocks.nbytes for one in window._slices)

    assert len(window._slices) == SLICES
    assert tables / near.window <= near.table_bytes + 0.1 <= 64
    assert near.table_bytes == 63
    window.forget(window.kept)
    assert len(list(tmp_path.iterdir())) == SLICES
