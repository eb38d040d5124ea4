"""On a host without torch: what needs none works, and the rest says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.consumers.scenes import CHAINS, INFO, era_store
from tests.store.chains import STREAM, tokens_of

WITHOUT = """
import sys

sys.modules["torch"] = None
from tokenmill.consumers import Behind, Metrics, Source, Windows
from tokenmill.store import open_eras, open_partition

store, stream = sys.argv[1:]
windows = Windows(store, stream, 7)
print(windows.rows(0, [3]).tolist(), open_eras(store, stream).eras, open_partition(store, stream, 0).blocks)
for ask in ("from tokenmill.consumers import Batches", "from tokenmill.consumers import *", "windows.at(0, [3])"):
    try:
        exec(ask)
    except ImportError as error:
        print(error)
"""
"""Reads with what needs no torch, then asks for what does."""


def test_readers_work_and_batches_say_what_to_install(tmp_path: Path) -> None:
    store = era_store(tmp_path)
    command = [sys.executable, "-c", WITHOUT, str(store.path), STREAM]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    first, *told = done.stdout.splitlines()
    flat = tokens_of(CHAINS[0], INFO).reshape(-1).tolist()
    assert first == f"[{flat[3:11]}] 6 23"
    assert len(told) == 3
    assert told[0].startswith("Batches needs torch: torch is not installed, which comes with the extra 'train': ")
    hint = "pip install '.[train]' in a checkout of TokenMill, or pip install './tokenmill-"
    assert all(hint in line for line in told)


@pytest.mark.slow
def test_the_package_loads_torch_when_it_is_asked_for() -> None:
    """Not before: that takes seconds."""
    look = (
        "import sys, tokenmill.consumers as c; before = 'torch' in sys.modules; c.Batches;"
        "print(before, 'torch' in sys.modules, sorted(set(c.__all__) - set(dir(c))), hasattr(c, 'Other'))"
    )
    done = subprocess.run([sys.executable, "-c", look], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("False True")
    assert done.stdout.endswith("False\n")
