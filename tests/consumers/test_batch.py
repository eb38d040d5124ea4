"""Batches: whose tokens they are, where those came from, and what models of Transformers take (`as_dict`)."""

import json
import math
import pickle
from collections.abc import Callable
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.data import DataLoader, default_collate

from tests.consumers.mixtures import open_mixture, open_streams, stores_of
from tests.consumers.packed import text_store
from tests.consumers.scenes import CHAINS, INFO, STEPS, era_store, halves, open_batches, open_halves, open_steps
from tests.store.chains import STREAM, filled_store, make_chain, make_eras, make_info, tokens_of, write_eras
from tokenmill.app.segments.retiring import retire
from tokenmill.consumers import Batch, BatchDocuments, Documents, EraDataset, Mixture, MixtureDataset, PaddedBatches
from tokenmill.errors import DamagedError, InputError
from tokenmill.store import Store
from tokenmill.wire.pieces import PADDING, Piece, decode_entry


def pieces_of(batch: Batch) -> list[list[tuple[int, Piece]]]:
    """Return, for each token of each row (x and the last of y), the number of its piece in the row, and the piece."""
    found = []
    length = batch.x.shape[1]
    for partition, block, view in zip(*(column.tolist() for column in batch.samples), strict=True):
        pieces = decode_entry(CHAINS[partition].entries[block])
        tokens = [
            max((n, piece) for n, piece in enumerate(pieces) if piece.start <= at)
            for at in range(view * length, (view + 1) * length + 1)
        ]
        found.append([(n - tokens[0][0], piece) for n, piece in tokens])
    return found


@given(st.sampled_from([1, 2, 4]), st.integers(1, 9))
@pytest.mark.slow
def test_documents_are_those_of_the_pieces(store: Store, length: int, batch_size: int) -> None:
    for batch in open_batches(store, sequence_length=length, batch_size=batch_size):
        documents = batch.documents()
        rows = pieces_of(batch)
        numbers = [[n for n, _ in row] for row in rows]
        padding = [[piece.position == PADDING for _, piece in row] for row in rows]
        assert documents.document_ids.tolist() == [
            [-1 if pad else n for n, pad in zip(row[:-1], pads, strict=False)]
            for row, pads in zip(numbers, padding, strict=True)
        ]
        assert documents.position_ids.tolist() == [[row[:at].count(row[at]) for at in range(length)] for row in numbers]
        assert documents.loss_mask.tolist() == [
            [row[at] == row[at + 1] and not pads[at + 1] for at in range(length)]
            for row, pads in zip(numbers, padding, strict=True)
        ]
        flat = [(index, n) for index, row in enumerate(numbers) for n in row[:-1]]
        begins = [at for at in range(len(flat)) if at == 0 or flat[at] != flat[at - 1]]
        assert documents.cu_seqlens.tolist() == [*begins, len(flat)]
        assert documents.cu_seqlens.dtype == torch.int32
        assert documents.max_seqlen == max(b - a for a, b in zip(begins, [*begins[1:], len(flat)], strict=True))
        may = documents.attention_mask()
        assert may.shape == (batch_size, 1, length, length)
        for at, row in enumerate(numbers):
            assert may[at, 0].tolist() == [[k <= q and row[k] == row[q] for k in range(length)] for q in range(length)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize(("length", "size"), [(64, 16), (64, 24), (32, 128), (64, 1)])
@pytest.mark.cases(2)
def test_a_block_mask_is_what_create_block_mask_makes(tmp_path: Path, length: int, size: int) -> None:
    info = make_info(block_tokens=65)
    chain = make_chain(info, 9)
    store = filled_store(tmp_path, info, chain, [9])
    write_eras(store, make_eras(info, {0: chain}, [{0: 9}], end=True))
    batch = next(iter(open_batches(store, sequence_length=length, batch_size=6)))
    documents = batch.documents()
    mask = documents.block_mask(size)
    plain = create_block_mask(mask.mask_mod, 6, None, length, length, device="cpu", BLOCK_SIZE=size)
    assert torch.equal(mask.to_dense(), plain.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(mask, name), getattr(plain, name)), name
    row, query, key = (
        part.reshape(-1) for part in torch.meshgrid(*map(torch.arange, (6, length, length)), indexing="ij")
    )
    may = mask.mask_mod(row, torch.zeros_like(row), query, key).reshape(6, 1, length, length)
    assert torch.equal(may, documents.attention_mask())
    states = torch.randn(6, 2, length, 16, generator=torch.Generator().manual_seed(0))
    expected = functional.scaled_dot_product_attention(states, states, states, attn_mask=documents.attention_mask())
    if size == 16:
        torch.testing.assert_close(flex_attention(states, states, states, block_mask=mask), expected)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("mixed", [False, True])
def test_documents_come_through_workers(store: Store, *, mixed: bool) -> None:
    options: dict[str, Any] = {"batch_size": 3, "sequence_length": 2}
    loop = open_halves(store, **options) if mixed else open_batches(store, **options)
    options |= {"documents": True}
    steps = MixtureDataset(**halves(store) | options) if mixed else open_steps(store, **options)
    loader: Any = DataLoader(steps, batch_size=None, num_workers=1, multiprocessing_context="fork")
    for here, there in zip(loop, loader, strict=True):
        assert_same(here.documents(), there.documents())
        assert_same(here.documents(), pickle.loads(pickle.dumps(there)).documents())  # noqa: S301 - our own


def assert_same(one: BatchDocuments, other: BatchDocuments) -> None:
    for name in ("document_ids", "position_ids", "cu_seqlens", "loss_mask"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.max_seqlen == other.max_seqlen


def test_documents_of_samples_by_index(store: Store) -> None:
    dataset = EraDataset(store.path, STREAM, sequence_length=2, documents=True)
    places = [7, 0, 33, 79, 7]
    together = dataset.documents(places)
    collated = default_collate(dataset.__getitems__(places))
    for name in ("document_ids", "position_ids", "loss_mask"):
        assert torch.equal(getattr(collated, name), getattr(together, name)), name
    again = BatchDocuments.from_ids(collated.document_ids)
    for name in ("cu_seqlens", "position_ids"):
        assert torch.equal(getattr(again, name), getattr(together, name)), name
    assert torch.equal(again.attention_mask(), together.attention_mask())
    x, y = EraDataset(store.path, STREAM, sequence_length=2)[33]
    assert (collated.x[2].tolist(), collated.y[2].tolist()) == (x.tolist(), y.tolist())
    with pytest.raises(InputError, match=r"document_ids is .*: give a tensor"):
        BatchDocuments.from_ids(torch.zeros(3))


def test_shapes_can_be_kept(store: Store) -> None:
    documents = next(iter(open_batches(store))).documents()
    count = len(documents.cu_seqlens) - 1
    padded = documents.padded_cu_seqlens(count + 3)
    assert padded.tolist() == documents.cu_seqlens.tolist() + [8] * 3
    with pytest.raises(InputError, match=rf"documents is {count - 1}, but .* {count} of them"):
        documents.padded_cu_seqlens(count - 1)


def logits(x: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return what a small model with one layer of attention makes of x, ids below 50."""
    generator = torch.Generator().manual_seed(0)
    embedding, places = (torch.randn(n, 8, generator=generator) for n in (50, 8))
    states = (embedding[x] + places[positions])[:, None]
    causal = mask is None
    seen = functional.scaled_dot_product_attention(states, states, states, attn_mask=mask, is_causal=causal)
    return (states + seen)[:, 0] @ embedding.T


def losses(x: torch.Tensor, y: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return functional.cross_entropy(logits(x, positions, mask).transpose(1, 2), y, reduction="none")


@pytest.mark.slow
def test_documents_do_not_see_each_other(store: Store) -> None:
    """Other tokens in any document of a row change nothing in the others: neither what is predicted nor the loss."""
    leaks, lost, changes = 0, 0, 0
    for batch in open_batches(store, batch_size=4):
        documents = batch.documents()
        ids, mask, positions = documents.document_ids, documents.attention_mask(), documents.position_ids
        rows = torch.cat([batch.x, batch.y[:, -1:]], dim=1) % 50
        x, y = rows[:, :-1], rows[:, 1:]
        for one in sorted(set(ids.flatten().tolist())):  # -1, padding, is one, too
            mine = functional.pad(ids == one, (0, 1))  # the last token of y is nobody's here: left as it is
            changed = torch.where(mine, (rows + 1) % 50, rows)
            x_2, y_2 = changed[:, :-1], changed[:, 1:]
            other = ids != one
            before, after = logits(x, positions, mask), logits(x_2, positions, mask)
            assert torch.equal(before[other], after[other])
            assert not torch.equal(before[~other], after[~other])
            loss, loss_2 = losses(x, y, positions, mask), losses(x_2, y_2, positions, mask)
            counted = other & documents.loss_mask
            assert torch.equal(loss[counted], loss_2[counted])
            changes += int(counted.sum())
            lost += int((loss != loss_2)[other].sum())
            plain = torch.arange(4).expand(4, 4)
            leaks += int((logits(x, plain, None) != logits(x_2, plain, None))[other].sum())
    assert changes > 0
    assert leaks > 0  # without the mask, they see each other
    assert lost > 0  # without the loss mask, the token before a document is to predict it


def test_loss_is_masked_when_told_to(store: Store) -> None:
    for plain, masked in zip(open_batches(store), open_batches(store, mask_loss=True), strict=True):
        keep = plain.documents().loss_mask
        assert torch.equal(plain.x, masked.x)
        assert torch.equal(torch.where(keep, plain.y, -100), masked.y)
        assert not keep.all()
        assert [int(one.label_tokens) for one in (plain, masked)] == [keep.numel(), int(keep.sum())]


def test_sums_weighed_by_label_tokens_need_no_batch_to_have_labels(store: Store) -> None:
    """Where means over batches are not numbers; whatever the number of ranks, the loss of a run is the same."""
    table = torch.randn(1 << 16, 4, generator=torch.Generator().manual_seed(0))

    def loss(batch: Batch, how: str = "sum") -> float:
        labels = torch.where(batch.y < 0, batch.y, batch.y % 4)
        return float(functional.cross_entropy(table[batch.x].flatten(0, 1), labels.flatten(), reduction=how))

    options: dict[str, Any] = {"batch_size": 1, "sequence_length": 2, "mask_loss": True, "drop_last": False}
    alone = list(open_batches(store, **options))
    assert any(math.isnan(loss(batch, "mean")) for batch in alone)
    ranks = [batch for rank in range(3) for batch in open_batches(store, rank=rank, world_size=3, **options)]
    assert math.fsum(map(loss, ranks)) == pytest.approx(math.fsum(map(loss, alone)))
    assert sum(batch.label_tokens for batch in ranks) == sum(batch.label_tokens for batch in alone)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_sources_name_the_records_of_every_token(store: Store, length: int) -> None:
    for batch in open_batches(store, sequence_length=length, on_damage="skip"):
        rows, sources = pieces_of(batch), batch.sources()
        assert len(sources) == len(rows)
        for index, (row, found) in enumerate(zip(rows, sources, strict=True)):
            partition, block, view = (int(column[index]) for column in batch.samples)
            assert all((one.topic, one.partition, one.block) == ("raw-text", partition, block) for one in found)
            covered = {at: source for source in found for at in range(source.start, source.stop)}
            assert sorted(covered) == [at for at, (_, piece) in enumerate(row) if piece.position != PADDING]
            for at, source in covered.items():
                piece = row[at][1]
                token = view * length + at
                assert source.offset == piece.offset
                assert source.position + at - source.start == piece.position + token - piece.start
                assert (f'"{source.id}"'.encode() in piece.meta) or source.id in {7, None}
            tokens = tokens_of(CHAINS[partition], INFO)[block, view * length :][: length + 1].tolist()
            assert tokens == [*batch.x[index].tolist(), int(batch.y[index, -1])]


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    store = era_store(tmp_path)
    for file in (store.path / STREAM).glob("*/*.docs"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    batch = next(iter(open_batches(store)))
    for ask in (batch.documents, batch.sources):
        with pytest.raises(DamagedError, match=r"entry of block [0-9]+, at byte [0-9]+, is not what was committed"):
            ask()


def test_documents_of_retired_blocks_are_refused(tmp_path: Path) -> None:
    store = era_store(tmp_path)
    batch = next(iter(open_batches(store, shuffle=False)))
    retire(store.path, STREAM, 0, 12)
    for ask in (batch.documents, batch.sources):
        with pytest.raises(InputError, match=r"block 0 .* begins at block 12, .* retired; ask for later"):
            ask()


TABLE = torch.randn(1 << 16, 8, generator=torch.Generator().manual_seed(0))
OPTIONS = STEPS | {"batch_size": 3}


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
def test_a_model_that_shifts_labels_has_the_loss_of_x_and_y(store: Store, *, masks: bool, more: dict[str, Any]) -> None:
    named: Any = open_batches(store, as_dict=True, mask_loss=masks, **more)
    plain = open_batches(store, mask_loss=True, **more)
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
    named: Any = open_batches(labelled, as_dict=True, drop_last=False)
    for inputs in named:
        unseen = inputs["attention_mask"] == 0
        assert torch.equal(inputs["labels"] == -100, unseen)
        assert not inputs["input_ids"][unseen].any()
        kept += int((~unseen).sum())
        padding += int(unseen.sum())
    assert (kept, padding) == (96, 4)


def test_documents_are_kept_apart_by_positions_where_that_is_asked_for(store: Store) -> None:
    """Models of Transformers do so where there is no mask."""
    named: Any = list(open_batches(store, documents=True, as_dict=True))
    for batch, inputs in zip(open_batches(store), named, strict=True):
        assert set(inputs) == {"input_ids", "labels", "position_ids"}
        assert torch.equal(inputs["position_ids"][:, :-1], batch.documents().position_ids)
    assert any(inputs["position_ids"][:, -1].min() == 0 for inputs in named)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", ["batches", "mixture"])
@pytest.mark.cases(2)
def test_loaders_need_no_collating_and_keep_their_place(store: Store, workers: int, kind: str) -> None:
    options: dict[str, Any] = {**OPTIONS, "as_dict": True}

    def opened() -> Any:
        return open_steps(store, **options) if kind == "batches" else MixtureDataset(**halves(store) | options)

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
@pytest.mark.parametrize(
    "use",
    [lambda one: dict(one.items()), lambda one: list(one.values()), lambda one: dict(**one), itemgetter("labels")],
    ids=["items", "values", "stars", "item"],
)
def test_a_dictionary_is_used_however_it_is_asked(store: Store, use: Callable[[Any], object]) -> None:
    """Moving or looking at it is no use."""
    dataset = open_steps(store, as_dict=True)
    inputs = next(iter(DataLoader(dataset, batch_size=None, num_workers=1)))
    moved = inputs.to("cpu")
    assert (repr(moved), len(moved), moved.step) == (repr(inputs), 4, 0)
    assert dataset.state_dict()["sample"] == 0
    use(moved)
    assert dataset.state_dict() == moved.state


def test_dictionaries_can_be_pickled_and_made_anew(store: Store) -> None:
    inputs: Any = next(iter(open_batches(store, as_dict=True)))
    again = pickle.loads(pickle.dumps(inputs))  # noqa: S301 - what we just wrote
    assert type(again) is type(inputs)
    assert all(torch.equal(again[name], inputs[name]) for name in inputs)
    assert (again.step, again.state, again.streams) == (inputs.step, inputs.state, inputs.streams)
    made = type(inputs)({name: one + 1 for name, one in inputs.items()})
    assert torch.equal(made["input_ids"], inputs["input_ids"] + 1)


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
        for same in (batch, pickle.loads(pickle.dumps(batch))):  # noqa: S301 - what we just wrote
            assert same.loss_weights.tolist() == wanted
    named: Any = Mixture.open(streams, weights, as_dict=True, **options)
    for inputs in named:
        assert inputs.loss_weights.tolist() == [1.0 if name == "books" else 0.25 for name in inputs.streams]
    mixture = open_mixture({name: stores[name] for name in ("books", "web")}, weights)
    mixture.add_stream("code", open_streams({"code": stores["code"]}, loss_weight=3)["code"], 0.5)
    batch = next(batch for batch in mixture if "code" in batch.streams)
    assert batch.loss_weights[batch.streams.index("code")] == 3
    alone = next(iter(open_batches(stores["web"], batch_size=3, loss_weight=2)))
    assert alone.loss_weights.tolist() == [2.0] * 3


def test_documents_know_the_fields_of_their_records(labelled: Path) -> None:
    for batch in open_batches(labelled, sequence_length=2, shuffle=False, drop_last=False):
        documents = batch.documents()
        rows = zip(documents.document_ids.tolist(), documents.fields, batch.sources(), strict=True)
        for ids, fields, sources in rows:
            assert {*fields} == {*ids} - {-1}
            for source in sources:
                assert source.start == 2 or fields[ids[source.start]] == source.fields
                assert source.fields["label"] in {"n", "y"}
    samples = EraDataset(labelled, STREAM, sequence_length=4, documents=True)
    assert samples.documents([0]).fields == [{0: {"label": "n"}, 1: {"label": "y"}}]
