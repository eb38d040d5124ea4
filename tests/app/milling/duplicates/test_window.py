"""The window: verdicts are those of a plain list, however documents are fed, and after every end."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.app.milling.duplicates.plain_duplicates import plainly
from tokenmill.app.milling.duplicates.signatures import SLICES, Deduplication, Exact, Near, sign
from tokenmill.app.milling.duplicates.window import Window
from tokenmill.errors import DamagedError

Told = list[tuple[int, tuple[int, int]]]


def fed(window: Window, deduplication: Deduplication, texts: list[str], cuts: list[int], start: int = 0) -> Told:
    found: Told = []
    for low, high in zip([0, *cuts], [*cuts, len(texts)], strict=True):
        places = np.array([(0, start + at) for at in range(low, high)], np.uint64).reshape(-1, 2)
        told = window.judge(sign(deduplication, texts[low:high]), places)
        rows = zip(told.kinds.tolist(), told.places.tolist(), strict=True)
        found += [(kind, (one, other)) for kind, (one, other) in rows]
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


KINDS = [
    Near(window=12, bands=6, rows=2),
    Near(window=2000, bands=6, rows=2),
    Exact(window=40),
    Exact(window=4, fold=True),
]


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
