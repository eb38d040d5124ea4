"""What people give by mistake is refused with what to give instead; `test_every_argument` has the values of each."""

import copy
import inspect
import pickle
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.consumers.scenes import ERAS, expected, open_batches, open_steps, raises_in_workers, rows_of
from tests.store.chains import STREAM
from tokenmill.consumers import Batches, Documents, EraDataset, Mixture, PaddedBatches, StepDataset, Windows
from tokenmill.consumers.transfer import device_of
from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.store import Store


def test_numbers_of_numpy_are_numbers(store: Store) -> None:
    """They come from configurations; the state is JSON all the same."""
    batches = open_batches(
        store,
        batch_size=np.int64(2),
        seed=np.uint8(1),
        shuffle=np.bool_(1),
        timeout=np.float32(1),
        rank=np.int16(0),
        world_size=np.int8(1),
    )
    assert rows_of(batches) == expected()
    assert batches.state_dict() == open_batches(store).state_dict() | {"sample": 40, "content": [4, ERAS[4].hash.hex()]}
    assert all(type(value) in {int, str, bool, list} for value in batches.state_dict().values())


@pytest.mark.parametrize(("device", "gpus"), [("cuda", 0), ("cuda:0", 0), (torch.device("cuda"), 0), ("cuda:2", 2)])
def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, device: Any, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    there = "there are 2 GPUs: give one from 'cuda:0' to 'cuda:1'"
    with pytest.raises(InputError, match=there if gpus else "no CUDA GPU here: give 'cpu', or install a driver"):
        device_of(device)


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"shuffle": True}, {"num_workers": 2}])
def test_a_loader_over_batches_is_told_of_step_datasets(store: Store, options: dict[str, Any]) -> None:
    batches: Any = open_batches(store)
    with raises_in_workers(TypeError, "StepDataset of the same arguments"):
        list(DataLoader(batches, **options))
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"neither copied nor .* load its state_dict.*StepDataset of the same arg"):
            copied(batches)
    assert batches
    assert len(list(batches)) == 20


def test_a_loop_in_a_data_set_of_somebodys_own_is_told_of_workers(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its workers would read all steps; those that are given their turns do not."""
    info = SimpleNamespace(id=0, num_workers=2)
    monkeypatch.setattr("torch.utils.data.get_worker_info", lambda: info)
    for worker in ((0, 1), (info.id, info.num_workers)):
        next(iter(open_batches(store, worker=worker)))
    assert [record.getMessage() for record in caplog.records] == [
        "each of the 2 workers of a DataLoader reads all of Batches: give it a StepDataset of the same arguments"
    ]


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"stop": lambda: False}, {"worker": (0, 2)}])
def test_what_workers_cannot_have_is_refused(store: Store, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"StepDataset takes no {next(iter(options))}.*in the loop"):
        open_steps(store, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sequence_length": 3}, "give 4 or 2 or 1"),
        ({"eras": range(0, 4, 2)}, r"range\(0, 8\)"),
        ({"mask_loss": True, "widen": False}, "widen=False"),
        ({"seed": 1 << 64}, "64 bits"),
        ({"as_dict": True, "widen": False}, "as_dict is True.*without widen"),
        ({"as_dict": True, "in_order": True}, "as_dict is True.*without in_order"),
        ({"in_order": True, "drop_last": False}, "drop_last is False and in_order True"),
        ({"in_order": True}, "packed as 'concat', whose blocks are no chunks"),
        *(({"sequence_length": wrong}, "sequence_length.*give") for wrong in ([(0, 3), (4, 4)], [(1, 2)], [])),
        ({"sequence_length": [(0, 2), (0, 4)]}, "sequence_length.*give"),
        *(({"batch_size": wrong}, "batch_size.*give") for wrong in ([(0, 2), (5, 0)], [(0, 2), (-1, 3)], [2])),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_told_what_would(store: Store, options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        open_batches(store, **options)


@pytest.mark.parametrize("state", [{"data": {}, "made": 0}, {"data": None, "made": "1"}])
def test_half_a_state_of_steps_is_refused(store: Store, state: Any) -> None:
    with pytest.raises(InputError, match=r"is no state|whole number"):
        open_steps(store).load_state_dict(state)


def test_a_step_behind_the_last_one_has_no_state(store: Store) -> None:
    for reader in (open_steps(store), open_batches(store)):
        assert reader.state_after(19)["sample"] == 40
        with pytest.raises(InputError, match="last one of this run is 19"):
            reader.state_after(20)


@pytest.mark.parametrize("kind", ["a file", "under a file", "missing", "empty", "unreadable"])
def test_a_path_that_is_no_store_is_named(tmp_path: Path, kind: str) -> None:
    """By every reader; root may read all, so what cannot be read is a directory where a file should be."""
    path = tmp_path / "store"
    if kind == "empty":
        path.mkdir()
    elif kind == "unreadable":
        (path / STREAM / "stream.json").mkdir(parents=True)
    elif kind != "missing":
        path.write_text("a file")
    path = path / "below" if kind == "under a file" else path
    for reader in (partial(Batches, batch_size=1), EraDataset, Windows):
        with pytest.raises((StoreError, DamagedError), match=re.escape(str(path))):
            reader(path, STREAM)


def test_each_says_in_one_line_what_it_is(store: Store) -> None:
    batches = open_batches(store, rank=1, world_size=2, eras=range(3))
    batch = next(iter(batches))
    where = repr(str(store.path))
    assert repr(batches) == (
        f"Batches({where}, 'raw-text.train', batch_size=2, sequence_length=4, seed=1, rank=1 of 2, eras=0 to 2, "
        "next step 1)"
    )
    assert repr(batch) == "Batch('raw-text.train', step=0, x and y [2, 4] of torch.int64 on cpu)"
    assert "eras=0 on" in repr(open_batches(store))
    narrow = repr(next(iter(open_batches(store, widen=False))))
    assert narrow == "Batch('raw-text.train', step=0, x and y [2, 4] of torch.uint16 on cpu)"
    steps = StepDataset(store.path, STREAM, batch_size=2, sequence_length=4)
    assert repr(steps).endswith("stream='raw-text.train', batch_size=2, sequence_length=4, begins at sample 0)")
    assert repr(Windows(store.path, STREAM, 7)) == f"Windows({where}, 'raw-text.train', 7, partitions [0, 1, 2])"


@pytest.mark.parametrize("size", [1, 4])
def test_a_loader_that_puts_batches_together_is_told_of_batch_size_none(store: Store, size: int) -> None:
    for workers in (0, 1):
        with raises_in_workers(TypeError, rf"puts {size} of them together: give the DataLoader batch_size=None"):
            list(DataLoader(open_steps(store), batch_size=size, num_workers=workers))
    with raises_in_workers(TypeError, "batch_size=None"):  # and would put a dimension before all of them
        list(DataLoader(open_steps(store, as_dict=True), batch_size=size))


def test_a_seed_without_a_sign_is_the_one_of_its_bits(store: Store) -> None:
    """As `torch.initial_seed` gives them; states hold what all JSON readers take."""
    large = open_batches(store, seed=(1 << 63) + 5)
    assert large.state_dict() == open_batches(store, seed=5 - (1 << 63)).state_dict()
    assert rows_of(large) == expected(seed=5 - (1 << 63))
    assert rows_of(open_batches(store, seed=torch.tensor(7))) == expected(seed=7)


def test_copies_of_batches_and_of_what_can_be_opened_again_are_whole(store: Store) -> None:
    batch = next(iter(open_batches(store, documents=True)))
    for again in (copy.deepcopy(batch), copy.copy(batch)):
        assert (again.x.tolist(), again.state, again.step) == (batch.x.tolist(), batch.state, 0)
    assert rows_of(copy.deepcopy(open_steps(store))) == expected()
    samples, windows = EraDataset(store.path, STREAM, sequence_length=4), Windows(store.path, STREAM, 4)
    assert copy.deepcopy(samples)[3][0].tolist() == samples[3][0].tolist()
    assert copy.deepcopy(windows)[3].x.tolist() == windows[3].x.tolist()


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        (Batches, "epochs", "; passes is meant"),
        (Batches, "num_replicas", "; world_size is meant"),
        (Batches, "num_workers", r", which is an argument of torch's DataLoader, .*StepDataset"),
        (Batches, "pin_memory", "device='cuda' copies out of pinned memory by itself"),
        (Batches, "seqence_length", "; sequence_length is meant"),
        (Batches, "nothing_like_it", "; it takes store, stream, batch_size, "),
        (StepDataset, "epochs", "; passes is meant"),
        (EraDataset, "drop_last", "an argument of torch's DataLoader"),
        (Windows, "sequence_length", "; length is meant"),
        (Windows, "num_replicas", "; world_size is an argument of Batches, .*: divide numbers"),
        (Batches, "shuffle_seed", "; seed is meant"),
        (Batches, "max_length", "; sequence_length is meant"),
        (Documents, "random_seed", "; seed is an argument of Batches and document samplers"),
        (Documents, "num_workers", r"PaddedBatches\(…\)\.loader\(num_workers=2\)"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_one_meant(store: Store, kind: Any, name: str, said: str) -> None:
    with pytest.raises(TypeError, match=f"takes no {name}.*{said}"):
        kind(store.path, STREAM, **{name: 1})
    assert "store" in inspect.signature(kind).parameters


def test_arguments_of_mixtures_and_padded_batches_that_are_not_there_are_refused(store: Store) -> None:
    streams: Any = {"a": open_batches(store)}
    with pytest.raises(TypeError, match="Batches takes no epochs"):
        Mixture.open({"a": {"store": store.path, "stream": STREAM}}, {"a": 1}, batch_size=1, epochs=2)
    with pytest.raises(TypeError, match="Mixture takes no seq_len; sequence_length is an argument of Batches and"):
        Mixture(streams, {"a": 1}, seq_len=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Mixture takes streams, weights by place, and others by name: linear=…"):
        Mixture(streams, {"a": 1}, True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="PaddedBatches takes documents, sampler by place, and others by name: batch_"):
        PaddedBatches(Documents(store.path, STREAM), None, 4)  # type: ignore[call-arg]
