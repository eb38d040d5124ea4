"""Eras of more segments than a process may have files open."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store.chains import STREAM, fill, make_chain, make_info, make_store, tokens_of
from tests.store.eras import make_eras, write_eras
from tokenmill.store import Store

SEGMENTS = 300
INFO = make_info(segment_blocks=1)
CHAIN = make_chain(INFO, SEGMENTS)
READ = """
import json, os, resource, sys

allowed = 256 + len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
import numpy as np
from tokenmill.consumers import Batches, EraDataset, StepDataset, Windows, sample_lookup
from tokenmill.store import open_partition

store, stream = sys.argv[1:]
options = {"batch_size": 4, "sequence_length": 4}

def of(batches):
    return [[*x, y[-1]] for xs, ys, *_ in batches for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]

found = {}
for check in (True, False):
    found[f"Batches, check={check}"] = of(Batches(store, stream, **options, check=check))
    dataset = EraDataset(store, stream, sequence_length=4, check=check)
    samples = dataset.__getitems__(range(len(dataset)))
    found[f"EraDataset, check={check}"] = [[*x.tolist(), int(y[-1])] for x, y in samples]
found["views"] = [
    [*first, *second[1:]]
    for first, second in zip(
        *[iter(of(Batches(store, stream, batch_size=4, sequence_length=2, shuffle=False)))] * 2, strict=True
    )
]
found["skip"] = of(Batches(store, stream, **options, on_damage="skip"))
found["StepDataset"] = of(StepDataset(store, stream, **options))
windows = Windows(store, stream, 4)
found["Windows"] = windows.rows(0, [5 * block for block in range(300)]).tolist()
found["gather"] = open_partition(store, stream, 0).gather(range(300)).tolist()
sample_lookup._TABLE_BLOCKS = 1
found["large eras"] = of(Batches(store, stream, **options))
print(json.dumps({name: sorted(rows) for name, rows in found.items()}))
"""
"""Reads all blocks in every way, in a process that may open 256 files more."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store with one era of 300 segments, written without waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    store = make_store(tmp_path, INFO)
    fill(store, INFO, CHAIN, [SEGMENTS])
    write_eras(store, make_eras(INFO, {0: CHAIN}, [{0: SEGMENTS}], end=True))
    return store


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_an_era_may_have_more_segments_than_a_process_descriptors(store: Store) -> None:
    """Every loader reads it to the end."""
    found = json.loads(subprocess.check_output([sys.executable, "-c", READ, store.path, STREAM]))
    assert len(found) == 10
    for name, rows in found.items():
        assert rows == sorted(tokens_of(CHAIN, INFO).tolist()), name
