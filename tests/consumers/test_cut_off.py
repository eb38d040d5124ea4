"""A file of the store that is cut off while a process trains on it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.chains import STREAM, fill, make_chain, make_info, make_store, segment_of
from tests.store.eras import make_eras, write_eras
from tokenmill.consumers import Batches
from tokenmill.errors import DamagedError
from tokenmill.store import Store

BLOCKS = 400
INFO = make_info(block_tokens=1025, segment_blocks=1024)
TRAIN = """
import faulthandler, sys

faulthandler.enable()
from tokenmill.consumers import Batches, EraDataset, Windows
from tokenmill.errors import DamagedError
from tokenmill.store import maps

seconds, store, stream = sys.argv[1:]
maps._LOOK_SECONDS = float(seconds)
dataset = EraDataset(store, stream, sequence_length=1024, check=False)
windows = Windows(store, stream, 1024, check=False)
sources = {
    "Batches": iter(Batches(store, stream, batch_size=4, sequence_length=1024, check=False)),
    "EraDataset": map(dataset.__getitem__, range(len(dataset))),
    "Windows": (windows.rows(0, [1025 * block]) for block in range(399)),
}
for source in sources.values():
    next(source)
print("ready", flush=True)
input()
for name, source in sources.items():
    try:
        for _ in source:
            pass
    except DamagedError as error:
        print(name, error)
"""
"""Takes a batch of each loader, and the others after a line came in."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with an era of 800 kB, which is copied in several parts."""
    store = make_store(tmp_path, INFO)
    chain = make_chain(INFO, BLOCKS)
    fill(store, INFO, chain, [BLOCKS])
    write_eras(store, make_eras(INFO, {0: chain}, [{0: BLOCKS}], end=True))
    return store


def train(store: Store, look_seconds: float, folder: Path) -> tuple[int, str, str]:
    """Cut the tokens off while a process reads them; return how it ended and what it wrote."""
    said = folder / "said"
    command = [sys.executable, "-c", TRAIN, str(look_seconds), str(store.path), STREAM]
    with (
        said.open("w") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", said.read_text()
        os.truncate(segment_of(store).tokens, 4096)
        told, _ = process.communicate("go\n")
    return process.returncode, told, said.read_text()


@pytest.mark.slow
def test_a_file_that_was_cut_off_is_named(store: Store, tmp_path: Path) -> None:
    code, told, said = train(store, 0, tmp_path)
    assert (code, said) == (0, "")
    lines = told.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["Batches", "EraDataset", "Windows"]
    for line in lines:
        assert "000000000000.bin: it has 4096 bytes, but 820000 were committed" in line
        assert "tokenmill repair" in line


@pytest.mark.slow
def test_a_file_that_is_cut_off_between_two_looks_ends_the_process_with_a_word(store: Store, tmp_path: Path) -> None:
    """The bus error that nobody can take back; faulthandler says where it was, and the next start names the file."""
    code, told, said = train(store, 3600, tmp_path)
    assert (code, told) == (-signal.SIGBUS, "")
    assert "Fatal Python error: Bus error" in said
    assert "sample_lookup.py" in said
    with pytest.raises(DamagedError, match=r"000000000000\.bin: it has 4096 bytes, but 820000 were committed"):
        next(iter(Batches(store.path, STREAM, batch_size=4, sequence_length=1024)))
