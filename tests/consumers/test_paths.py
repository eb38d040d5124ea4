"""Stores by whatever path people give: relative, at home, as bytes; the folder that is no store is named."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.packed import text_store
from tests.store.chains import STREAM
from tokenmill.app.settings import Settings
from tokenmill.app.tools.repair import repair_store
from tokenmill.consumers import (
    Batches,
    Documents,
    EraDataset,
    Mixture,
    MixtureDataset,
    PaddedBatches,
    StepDataset,
    Windows,
)
from tokenmill.errors import InputError, StoreError
from tokenmill.samples.sequence import Position
from tokenmill.samples.tracing import Tracer
from tokenmill.store import open_eras, open_partition, partitions_in, streams_in

STEPS: dict[str, Any] = {"batch_size": 2, "sequence_length": 4}


def opened(store: Any) -> dict[str, Callable[[], object]]:
    batches = Batches(store, STREAM, **STEPS)
    steps, samples = StepDataset(store, STREAM, **STEPS), EraDataset(store, STREAM, sequence_length=4)
    windows, documents = Windows(store, STREAM, 4), Documents(store, STREAM)
    padded = PaddedBatches(documents, batch_size=2)
    streams = {"a": {"store": store}, "b": {}}
    shared = STEPS | {"stream": STREAM, "store": store}
    mixture = Mixture.open(streams, {"a": 1, "b": 1}, **shared)
    mixed = MixtureDataset(streams, {"a": 1, "b": 1}, **shared)
    partition, eras = open_partition(store, STREAM, 0), open_eras(store, STREAM)
    tracer = Tracer(store, Position.read(batches.state_after(3)))
    return {
        "Batches": lambda: next(iter(batches)),
        "StepDataset": lambda: next(iter(steps)),
        "EraDataset": lambda: samples[0],
        "Windows": lambda: windows[0],
        "Documents": lambda: documents[0],
        "PaddedBatches": lambda: next(iter(padded)),
        "Mixture": lambda: next(iter(mixture)),
        "MixtureDataset": lambda: next(iter(mixed)),
        "open_partition": lambda: (partition.refresh(), partition.read(0), partition.documents(0)),
        "open_eras": lambda: (eras.refresh(), eras.era(0)),
        "Tracer": lambda: list(tracer.step(0)),
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a store, ``home/data/store``, and work in ``home/data``."""
    text_store(tmp_path / "data" / "store", [3, 9, 4] * 4)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "data")
    return tmp_path / "data" / "store"


@pytest.mark.parametrize(
    "path", ["store", Path("store"), b"store", Path("../data/store"), "~/data/store", Path("~/data/store")]
)
def test_a_store_is_read_on_wherever_the_process_goes(place: Path, monkeypatch: pytest.MonkeyPatch, path: Any) -> None:
    """By everything that opens one: Hydra and others change the working directory behind it."""
    readers = opened(path)
    monkeypatch.chdir("/")
    for read in readers.values():
        read()
    assert place.is_dir()


def test_entries_of_a_listing_are_paths(place: Path) -> None:
    for listing in (os.scandir("."), os.scandir(b".")):
        (entry,) = listing
        assert partitions_in(entry, STREAM) == [0]
        assert streams_in(entry) == [STREAM]
    assert place.is_dir()


@pytest.mark.parametrize("path", ["~nobody-of-this-name/store", "", 4])
def test_what_is_no_path_of_this_machine_is_refused(path: Any) -> None:
    with pytest.raises(InputError, match=r"^store is .*: give the path of the store's directory, on a disk of this"):
        Windows(path, STREAM, 4)


@pytest.mark.parametrize("within", [STREAM, f"{STREAM}/0"])
def test_the_folder_of_a_stream_is_told_from_the_store(place: Path, within: str) -> None:
    told = f"{place / within} is of the stream {STREAM}, and no store: give {place}"
    with pytest.raises(StoreError, match=f"^{told}$"):
        opened(place / within)
    with pytest.raises(StoreError, match=f"^{told}$"):
        streams_in(place / within)
    with pytest.raises(StoreError, match=f"^{told}$"):  # before any broker is asked
        repair_store(Settings(store=place / within, bootstrap_servers="127.0.0.1:1"), STREAM)
