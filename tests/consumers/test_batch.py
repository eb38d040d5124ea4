"""Which tokens of a batch belong together, and where they came from."""

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.data import DataLoader, default_collate

from tests.consumers.scenes import CHAINS, INFO, era_store, open_batches
from tests.store.chains import STREAM, filled_store, make_chain, make_info, tokens_of
from tests.store.eras import make_eras, write_eras
from tokenmill.app.segments.retiring import retire
from tokenmill.consumers import Batch, BatchDocuments, EraDataset, StepDataset
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
        for index, row in enumerate(numbers):
            assert may[index, 0].tolist() == [
                [k <= q and row[k] == row[q] for k in range(length)] for q in range(length)
            ]


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
def test_documents_come_through_workers(store: Store) -> None:
    options: dict[str, Any] = {"batch_size": 3, "sequence_length": 2, "seed": 1, "documents": True}
    loader: Any = DataLoader(
        StepDataset(store.path, STREAM, **options), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    for here, there in zip(open_batches(store, batch_size=3, sequence_length=2), loader, strict=True):
        assert_same(here.documents(), there.documents())
        assert_same(here.documents(), pickle.loads(pickle.dumps(there)).documents())  # noqa: S301 - our own


def test_documents_of_samples_by_index(store: Store) -> None:
    dataset = EraDataset(store.path, STREAM, sequence_length=2, documents=True)
    places = [7, 0, 33, 79, 7]
    together = dataset.documents(places)
    collated = default_collate(dataset.__getitems__(places))
    assert torch.equal(collated.document_ids, together.document_ids)
    assert torch.equal(collated.position_ids, together.position_ids)
    assert torch.equal(collated.loss_mask, together.loss_mask)
    again = BatchDocuments.from_ids(collated.document_ids)
    assert torch.equal(again.cu_seqlens, together.cu_seqlens)
    assert torch.equal(again.position_ids, together.position_ids)
    assert torch.equal(again.attention_mask(), together.attention_mask())
    x, y = EraDataset(store.path, STREAM, sequence_length=2)[33]
    assert (collated.x[2].tolist(), collated.y[2].tolist()) == (x.tolist(), y.tolist())
    with pytest.raises(InputError, match=r"document_ids is .*: give a tensor"):
        BatchDocuments.from_ids(torch.zeros(3))


def assert_same(one: BatchDocuments, other: BatchDocuments) -> None:
    for name in ("document_ids", "position_ids", "cu_seqlens", "loss_mask"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.max_seqlen == other.max_seqlen


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
            assert all(
                (source.topic, source.partition, source.block) == ("raw-text", partition, block) for source in found
            )
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
    for file in (store.path / "raw-text.train").glob("*/*.docs"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    batch = next(iter(open_batches(store)))
    with pytest.raises(DamagedError, match=r"entry of block [0-9]+, at byte [0-9]+, is not what was committed"):
        batch.documents()
    with pytest.raises(DamagedError, match=r"entry of block [0-9]+, at byte [0-9]+, is not what was committed"):
        batch.sources()


def test_documents_of_retired_blocks_are_refused(tmp_path: Path) -> None:
    store = era_store(tmp_path)
    batch = next(iter(open_batches(store, shuffle=False)))
    retire(store.path, "raw-text.train", 0, 12)
    for ask in (batch.documents, batch.sources):
        with pytest.raises(InputError, match=r"block 0 .* begins at block 12, .* retired; ask for later"):
            ask()
