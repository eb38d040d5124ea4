"""``as_dict=True``: batches as models of Transformers take them; parts of rows, and what a row's loss counts."""

import json
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.consumers import scenes
from tests.consumers.mixtures import open_mixture, open_streams, stores_of
from tests.consumers.packed import text_store
from tests.consumers.scenes import raises_in_workers
from tests.store.chains import STREAM
from tokenmill.consumers import Batches, Documents, EraDataset, Mixture, MixtureDataset, PaddedBatches, StepDataset
from tokenmill.errors import InputError
from tokenmill.store import Store

TABLE = torch.randn(1 << 16, 8, generator=torch.Generator().manual_seed(0))
OPTIONS: dict[str, Any] = {"batch_size": 3, "sequence_length": 4, "seed": 1}
open_batches: Any = scenes.open_batches
"""Of one kind or the other."""


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of documents with padding in the last block, which carry a field."""
    return text_store(tmp_path_factory.mktemp("texts"), [3, 9, 4, 6, 2] * 4, labels=["n", "y"])


def loss_of_a_shifting_model(input_ids: torch.Tensor, labels: torch.Tensor, **_: torch.Tensor) -> torch.Tensor:
    """Return the mean loss as models of Transformers compute it: token j + 1 from what stands at token j."""
    logits, wanted = TABLE[input_ids][:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return functional.cross_entropy(logits, torch.where(wanted < 0, wanted, wanted % 8))


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(
    "more", [{}, {"sequence_length": 2}, {"on_damage": "skip"}, {"sequence_length": [(0, 2), (3, 4)]}]
)
@pytest.mark.cases(3)
def test_a_model_that_shifts_its_labels_has_the_loss_of_x_and_y(
    store: Store, *, masks: bool, more: dict[str, Any]
) -> None:
    plain, named = (open_batches(store, mask_loss=True, as_dict=as_dict, **more) for as_dict in (False, True))
    if not masks:
        named = open_batches(store, as_dict=True, **more)
    for batch, inputs in zip(plain, named, strict=True):
        there = batch.documents()
        assert set(inputs) == {"input_ids", "labels", "attention_mask", "position_ids"}
        assert all(one.dtype == torch.int64 and one.shape == inputs["input_ids"].shape for one in inputs.values())
        assert torch.equal(inputs["input_ids"][:, :-1], batch.x)
        assert torch.equal(inputs["attention_mask"][:, :-1] > 0, there.document_ids >= 0)
        assert inputs["position_ids"].tolist() == [[*range(batch.x.shape[1] + 1)]] * len(batch.x)
        labels = inputs["labels"][:, 1:]
        if masks:
            assert torch.equal(labels, batch.y)
            assert inputs.label_tokens == batch.label_tokens
            logits, wanted = TABLE[batch.x].flatten(0, 1), batch.y.flatten()
            loss = functional.cross_entropy(logits, torch.where(wanted < 0, wanted, wanted % 8))
            torch.testing.assert_close(loss_of_a_shifting_model(**inputs), loss, equal_nan=True)
        else:
            padding = inputs["attention_mask"] == 0
            assert torch.equal(inputs["labels"], inputs["input_ids"].masked_fill(padding, -100))
        assert (inputs.step, inputs.state, inputs.streams) == (batch.step, batch.state, batch.streams)


def test_padding_is_neither_seen_nor_a_label(labelled: Path) -> None:
    kept = padding = 0
    named: Any = Batches(labelled, STREAM, batch_size=2, sequence_length=4, as_dict=True, drop_last=False)
    for inputs in named:
        unseen = inputs["attention_mask"] == 0
        assert torch.equal(inputs["labels"] == -100, unseen)
        assert not inputs["input_ids"][unseen].any()
        kept += int((~unseen).sum())
        padding += int(unseen.sum())
    assert (kept, padding) == (96, 4)


def test_documents_are_kept_apart_by_positions_where_that_is_asked_for(store: Store) -> None:
    """Models of Transformers do so where there is no mask."""
    options: dict[str, Any] = {"documents": True, "as_dict": True}
    for batch, inputs in zip(open_batches(store), open_batches(store, **options), strict=True):
        assert set(inputs) == {"input_ids", "labels", "position_ids"}
        assert torch.equal(inputs["position_ids"][:, :-1], batch.documents().position_ids)
    assert any(inputs["position_ids"][:, -1].min() == 0 for inputs in open_batches(store, **options))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", ["batches", "mixture"])
@pytest.mark.cases(2)
def test_loaders_need_no_collating_and_keep_their_place(store: Store, workers: int, kind: str) -> None:
    options: dict[str, Any] = {**OPTIONS, "as_dict": True, "store": store.path, "stream": STREAM}
    streams: dict[str, Any] = {"one": {"eras": range(2)}, "two": {"eras": range(2, 5)}}

    def opened() -> Any:
        return StepDataset(**options) if kind == "batches" else MixtureDataset(streams, {"one": 1, "two": 2}, **options)

    whole = [inputs["input_ids"].tolist() for inputs in opened()]
    dataset = opened()
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    found = []
    for inputs in islice(loader, 3):
        loss_of_a_shifting_model(**inputs)
        found.append(inputs["input_ids"].tolist())
    assert dataset.state_dict() == inputs.state
    rest = list(loader)
    assert found + [inputs["input_ids"].tolist() for inputs in rest] == whole
    assert [inputs.step for inputs in rest] == list(range(3, len(whole)))
    assert json.dumps(rest[-1].state) == json.dumps(dataset.state_dict())
    again = opened()
    again.resume(inputs.state)
    assert [inputs["input_ids"].tolist() for inputs in again] == whole[3:]


@pytest.mark.slow
@pytest.mark.parametrize("use", ["items", "values", "stars", "item"])
def test_a_dictionary_is_used_however_it_is_asked(store: Store, use: str) -> None:
    """Moving or looking at it is no use."""
    dataset = StepDataset(store.path, STREAM, **OPTIONS, as_dict=True)
    inputs = next(iter(DataLoader(dataset, batch_size=None, num_workers=1)))
    moved = inputs.to("cpu")
    assert (repr(moved), len(moved), moved.step) == (repr(inputs), 4, 0)
    assert dataset.state_dict()["sample"] == 0
    uses: dict[str, Any] = {
        "items": lambda: dict(moved.items()),
        "values": lambda: list(moved.values()),
        "stars": lambda: dict(**moved),
        "item": lambda: moved["labels"],
    }
    uses[use]()
    assert dataset.state_dict() == moved.state


def test_dictionaries_can_be_pickled_and_made_anew(store: Store) -> None:
    inputs = next(iter(open_batches(store, as_dict=True)))
    again = pickle.loads(pickle.dumps(inputs))  # noqa: S301 - what we just wrote
    assert type(again) is type(inputs)
    assert all(torch.equal(again[name], inputs[name]) for name in inputs)
    assert (again.step, again.state, again.streams) == (inputs.step, inputs.state, inputs.streams)
    made = type(inputs)({name: one + 1 for name, one in inputs.items()})
    assert torch.equal(made["input_ids"], inputs["input_ids"] + 1)


@pytest.mark.parametrize("other", [{"widen": False}, {"in_order": True}])
def test_what_dictionaries_cannot_have_is_refused(store: Store, other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"as_dict is True.*without {next(iter(other))}"):
        open_batches(store, as_dict=True, **other)


def test_a_loader_that_collates_dictionaries_is_refused(store: Store) -> None:
    """It would put a dimension before all of them."""
    dataset = StepDataset(store.path, STREAM, **OPTIONS, as_dict=True)
    with raises_in_workers(TypeError, match="batch_size=None"):
        next(iter(DataLoader(dataset, batch_size=1)))


def test_padded_batches_say_how_many_labels_they_have(labelled: Path) -> None:
    documents = Documents(labelled, STREAM)
    batch = next(iter(PaddedBatches(documents, batch_size=5)))
    assert batch.label_tokens == int(documents.lengths[batch.indices].sum()) - 5
    known = Documents(labelled, STREAM, label_field="label", label_names=["n", "y"])
    assert next(iter(PaddedBatches(known, batch_size=5))).label_tokens == 5


@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_of_rows_are_the_rows(store: Store, size: int, *, zigzag: bool) -> None:
    if size == 4 and zigzag:
        with pytest.raises(InputError, match="size is 4, and rows have 4 tokens, which are not divided by 8"):
            next(iter(open_batches(store))).part(0, 4, zigzag=True)
        return
    for batch in open_batches(store, batch_size=3, mask_loss=True):
        parts = [batch.part(rank, size, zigzag=zigzag) for rank in range(size)]
        x, y, places = (torch.cat([part[field] for part in parts], dim=1) for field in range(3))
        order = places[0].argsort()
        assert places[:, order].tolist() == [[0, 1, 2, 3]] * 3
        assert torch.equal(x[:, order], batch.x)
        assert torch.equal(y[:, order], batch.y)
        ids = batch.documents().position_ids
        assert torch.equal(torch.cat([ids[:, part.columns] for part in parts], dim=1)[:, order], ids)
        if zigzag and size == 2:
            assert [part.columns.tolist() for part in parts] == [[0, 3], [1, 2]]


def test_rows_of_a_mixture_know_what_their_loss_counts(tmp_path: Path) -> None:
    stores = stores_of(tmp_path, {"books": 3, "web": 4, "code": 3})
    streams: dict[str, Any] = {name: {"store": str(stores[name])} for name in ("books", "web")}
    streams["web"] |= {"loss_weight": 0.25}
    options: dict[str, Any] = {"stream": STREAM, "timeout": 0.0, **OPTIONS}
    weights = {"books": 1, "web": 2}
    for batch in Mixture.open(streams, weights, **options):
        wanted = [1.0 if name == "books" else 0.25 for name in batch.streams]
        assert batch.loss_weights.tolist() == wanted
        again = pickle.loads(pickle.dumps(batch))  # noqa: S301 - what we just wrote
        assert again.loss_weights.tolist() == wanted
    named: Any = Mixture.open(streams, weights, as_dict=True, **options)
    for inputs in named:
        assert inputs.loss_weights.tolist() == [1.0 if name == "books" else 0.25 for name in inputs.streams]
    mixture = open_mixture({name: stores[name] for name in ("books", "web")}, weights)
    mixture.add_stream("code", open_streams({"code": stores["code"]}, loss_weight=3)["code"], 0.5)
    batch = next(batch for batch in mixture if "code" in batch.streams)
    assert batch.loss_weights[batch.streams.index("code")] == 3
    alone = next(iter(Batches(stores["web"], STREAM, **OPTIONS, loss_weight=2)))
    assert alone.loss_weights.tolist() == [2.0] * 3


@pytest.mark.slow
def test_documents_of_a_mixture_come_through_workers(tmp_path: Path) -> None:
    stores = stores_of(tmp_path, {"books": 3, "web": 4})
    streams = {name: {"store": str(path)} for name, path in stores.items()}
    options: dict[str, Any] = {"stream": STREAM, **OPTIONS, "documents": True}
    dataset = MixtureDataset(streams, {"books": 1, "web": 2}, **options)
    here = [
        batch.documents().document_ids.tolist() for batch in Mixture.open(streams, {"books": 1, "web": 2}, **options)
    ]
    loader = DataLoader(dataset, batch_size=None, num_workers=1)
    assert [batch.documents().document_ids.tolist() for batch in loader] == here


def test_documents_know_the_fields_of_their_records(labelled: Path) -> None:
    for batch in Batches(labelled, STREAM, batch_size=2, sequence_length=2, shuffle=False, drop_last=False):
        documents = batch.documents()
        for ids, fields, sources in zip(
            documents.document_ids.tolist(), documents.fields, batch.sources(), strict=True
        ):
            assert {*fields} == {*ids} - {-1}
            for source in sources:
                assert source.start == 2 or fields[ids[source.start]] == source.fields
                assert source.fields["label"] in {"n", "y"}
    samples = EraDataset(labelled, STREAM, sequence_length=4, documents=True)
    assert samples.documents([0]).fields == [{0: {"label": "n"}, 1: {"label": "y"}}]
