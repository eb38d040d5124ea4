"""Documents by index, in every packing, held against a plain reading of the document table."""

import json
import logging
import multiprocessing
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.consumers.packed import AGE, Block, Given, given_documents, pack, packed_info, packed_store
from tests.milled_store import SHAPES as MILLED_SHAPES
from tests.milled_store import milled_store
from tests.store.chains import STREAM, segment_of
from tokenmill.app.segments.retiring import retire
from tokenmill.consumers import Documents
from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.packings import SEPARATE
from tokenmill.store import Store
from tokenmill.wire.pieces import PADDING

LENGTHS = [3, 12, 5, 1, 10, 4, 7, 2, 5, 9, 6, 3, 21, 1, 2, 8]
LABELS = ["bad", "good", "bad"]


def labelled_store(path: Path, labels: list[Any] = LABELS) -> Store:
    info = packed_info()
    blocks = {n: pack(given_documents(LENGTHS, labels=labels, first=7 + n), "concat", 5) for n in range(2)}
    return packed_store(path, info, blocks, [{0: 4, 1: 6}, {0: 9}, {0: len(blocks[0]), 1: len(blocks[1])}])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return labelled_store(tmp_path_factory.mktemp("store"))


def whole_documents(
    documents: Sequence[Given], blocks: Sequence[Block], size: int, first: int, stop: int, *, packing: str, ended: bool
) -> list[tuple[int, list[int]]]:
    """Return offset and tokens of the documents that blocks ``[first, stop)`` hold as a whole, by place, one by one.

    ``ended``: nothing comes behind them.
    """
    fit = packing == "fit"
    found: list[tuple[tuple[int, int], int, list[int]]] = []
    for document in documents:
        mine = [
            (number, piece, block)
            for number, block in enumerate(blocks)
            for piece in block.pieces
            if piece.offset == document.offset and piece.position != PADDING
        ]
        inside = [(number, piece, block) for number, piece, block in mine if first <= number < stop]
        if not inside or len(inside) < len(mine):
            continue
        tokens: dict[int, int] = {}
        for _, piece, block in mine:
            later = [other.start for other in block.pieces if other.start > piece.start]
            for at in range(piece.start, min([*later, size])):
                tokens[piece.position + at - piece.start] = block.tokens[at]
        number, piece, block = max(mine, key=lambda one: one[1].position)
        ends_inside = any(other.start > piece.start for other in block.pieces)
        if fit:
            ends_inside = len(tokens) % size > 0  # what is no whole block is a rest, which comes last
        ends_inside |= ended and (packing in SEPARATE or len(tokens) == len(document.tokens))
        highest = max(other.offset for some in blocks[first:stop] for other in some.pieces)
        if ends_inside or (document.offset + AGE < highest if fit else number < stop - 1):
            place = min((number, piece.start) for number, piece, _ in mine)
            found.append((place, document.offset, [tokens[at] for at in range(len(tokens))]))
    return [(offset, tokens) for _, offset, tokens in sorted(found)]


@given(
    st.sampled_from(["concat", "fit", "rows", "chunks"]),
    st.lists(st.lists(st.integers(1, 17), min_size=1, max_size=12), min_size=1, max_size=2),
    st.integers(2, 6),
    st.data(),
)
def test_documents_are_those_of_the_table(
    tmp_path_factory: pytest.TempPathFactory, packing: str, lengths: list[list[int]], size: int, data: st.DataObject
) -> None:
    """Each once, whole, by partition and place, with all that is known of it; over any eras.

    The end marker proves those whole that end with a block, but for what was left in open blocks.
    """
    documents = {partition: given_documents(some, first=partition) for partition, some in enumerate(lengths)}
    blocks = {partition: pack(some, packing, size) for partition, some in documents.items()}
    if data.draw(st.booleans()):
        blocks = {partition: some[: data.draw(st.integers(0, len(some)))] for partition, some in blocks.items()}
    if not sum(map(len, blocks.values())):
        return
    cuts = {partition: data.draw(st.integers(0, len(some))) for partition, some in blocks.items()}
    ends = {partition: len(some) for partition, some in blocks.items()}
    stops = [step for step, before in ((cuts, {}), (ends, cuts)) if any(step[n] > before.get(n, 0) for n in step)]
    store = packed_store(tmp_path_factory.mktemp("store"), packed_info(packing, block_tokens=size), blocks, stops)
    bounds = [dict.fromkeys(blocks, 0), *stops, stops[-1]]
    for first in range(len(stops)):
        for stop in range(first + 1, len(stops) + 2):
            found = Documents(store.path, STREAM, eras=range(first, stop))
            expected = [
                (partition, offset, tokens)
                for partition, some in documents.items()
                for offset, tokens in whole_documents(
                    some,
                    blocks[partition],
                    size,
                    bounds[first][partition],
                    bounds[stop][partition],
                    packing=packing,
                    ended=stop > len(stops),
                )
            ]
            taken = found.take(range(len(found)))
            assert [(one.partition, one.offset, one.tokens.tolist()) for one in taken] == expected
            begun = {
                (partition, piece.offset)
                for partition, some in blocks.items()
                for block in some[bounds[first][partition] : bounds[stop][partition]]
                for piece in block.pieces
                if piece.position == 0
            }
            assert found.unfinished == len(begun - {(partition, offset) for partition, offset, _ in expected})
            assert [one.index for one in taken] == list(range(len(expected)))
            assert found.lengths.tolist() == [len(tokens) for _, _, tokens in expected]
            metas = {(n, one.offset): json.loads(one.meta or "{}") for n, some in documents.items() for one in some}
            assert [one.id for one in taken] == [metas[one.partition, one.offset].get("id") for one in taken]


@pytest.mark.cases(3)
@pytest.mark.parametrize("shape", MILLED_SHAPES)
def test_documents_of_a_mill_have_each_of_their_tokens_once(tmp_path: Path, shape: str) -> None:
    """Whatever rows repeat and chunks share; only one whose end nobody can know yet is not listed."""
    milled = milled_store(tmp_path, **MILLED_SHAPES[shape])
    milled.close_era()
    documents = Documents(milled.path, milled.info.name)
    wanted = {(n, one.offset): (one.id, one.tokens) for n, some in milled.documents.items() for one in some}
    found = {(one.partition, one.offset): (one.id, one.tokens.tolist()) for one in documents}
    assert len(found) == len(documents)
    assert {place: wanted[place] for place in found} == found
    missing = sorted(set(wanted) - set(found))
    last = {n: some[-1].offset for n, some in milled.documents.items()}
    age = 10 if milled.info.values["genesis"]["recipe"]["packing"] == "fit" else 0
    assert all(offset >= last[partition] - age for partition, offset in missing)
    assert any(len(tokens) > 3 * milled.info.block_tokens for _, tokens in found.values()) == (shape != "rows")
    assert documents.lengths.tolist() == [len(one.tokens) for one in documents]


def test_documents_are_asked_for_as_those_of_a_list(store: Store) -> None:
    documents = Documents(store.path, STREAM)
    everything = [one.tokens.tolist() for one in documents]
    assert len(documents) == len(everything) == 32
    assert documents[-1].tokens.tolist() == everything[-1]
    assert [one.tokens.tolist() for one in documents[3:30:7]] == everything[3:30:7]
    assert [one.tokens.tolist() for one in documents[::-1]] == everything[::-1]
    assert [one.index for one in documents.take(np.array([5, -1, 5]))] == [5, 31, 5]
    assert documents.take([]) == []
    assert documents[1].tokens.dtype == np.uint16
    assert (documents[1].id, dict(documents[1].fields), documents[1].label) == ("document 1", {"label": "good"}, None)
    for wrong in (32, -33):
        with pytest.raises(IndexError, match="32 documents"):
            documents[wrong]
    with pytest.raises(InputError, match="slice of whole numbers"):
        documents[0.5:]


def test_documents_are_frozen_and_may_be_cut_by_eras(store: Store) -> None:
    counts = [len(Documents(store.path, STREAM, eras=range(n, n + 1))) for n in range(3)]
    assert sum(counts) < 32
    assert len(Documents(store.path, STREAM, eras=range(3))) == 32
    assert len(Documents(store.path, STREAM, eras=range(2))) < 32
    assert repr(Documents(store.path, STREAM)) == repr(pickle.loads(pickle.dumps(Documents(store.path, STREAM))))  # noqa: S301 - our own
    with pytest.raises(InputError, match="which has 4"):
        Documents(store.path, STREAM, eras=range(9))


def test_retired_documents_are_not_listed(tmp_path: Path) -> None:
    store = labelled_store(tmp_path)
    retire(store.path, STREAM, 0, 4)
    documents = Documents(store.path, STREAM)
    assert documents.eras == range(1, 4)
    assert {one.partition for one in documents} == {0, 1}
    with pytest.raises(InputError, match="older segments were retired"):
        Documents(store.path, STREAM, eras=range(2))


@pytest.mark.parametrize("ends", [False, True])
def test_where_the_only_era_is_not_whole_this_is_said(tmp_path: Path, *, ends: bool) -> None:
    """Its blocks do not come again, so nobody is told to wait for them; the mark of a stream's end is no era."""
    blocks = pack(given_documents(LENGTHS), "concat", 5)
    store = packed_store(tmp_path, packed_info(), {0: blocks}, ends=ends)
    retire(store.path, STREAM, 0, 4)
    with pytest.raises(InputError, match=r"retired, as far as into era 0, the last one\. Read a store that"):
        Documents(store.path, STREAM)


def test_labels_are_numbers(store: Store) -> None:
    documents = Documents(store.path, STREAM, label_field="label", label_names=["bad", "good"])
    assert documents.labels is not None
    assert documents.labels.tolist() == [int(one.fields["label"] == "good") for one in documents]
    assert [one.label for one in documents] == documents.labels.tolist()
    assert documents.label_distribution() == {"bad": 22, "good": 10}
    assert documents.label_distribution([0, 1, 2, 4]) == {"bad": 2, "good": 2}
    with pytest.raises(InputError, match="no labels"):
        Documents(store.path, STREAM).label_distribution()


def test_labels_that_are_missing_or_unknown_are_refused_or_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = labelled_store(tmp_path, [0, 1, "odd", True, None])
    numbers = {"label_field": "label"}
    with pytest.raises(InputError, match=r"12 documents .* offset 11 of partition 0 \(id 'document 2'\) is 'odd'"):
        Documents(store.path, STREAM, **numbers)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        documents = Documents(store.path, STREAM, on_missing_label="drop", **numbers)  # type: ignore[arg-type]
    assert "leaving out 12 documents whose 'label' is not a whole number" in caplog.text
    assert (len(documents), documents.unlabelled) == (20, 12)
    assert documents.label_distribution() == {0: 8, 1: 12}
    assert [one.fields["label"] for one in documents.take([0, 1, 2, 3])] == [0, 1, True, 0]
    whole = {(one.partition, one.offset): one.tokens.tolist() for one in Documents(store.path, STREAM)}
    assert all(one.tokens.tolist() == whole[one.partition, one.offset] for one in documents)
    with pytest.raises(InputError, match=r"18 documents .* offset 9 of partition 0 .* is 1"):
        Documents(store.path, STREAM, label_field="label", label_names=[0, "odd"])
    with pytest.raises(InputError, match=r"'other', which raw-text.train does not carry: give one of label, or mill"):
        Documents(store.path, STREAM, label_field="other")
    missing = labelled_store(tmp_path / "missing", [])
    with pytest.raises(InputError, match="at offset 7 of partition 0 has none"):
        Documents(missing.path, STREAM, label_field="label")


@pytest.mark.parametrize("suffix", ["docs", "bin"])
def test_damage_is_refused(tmp_path: Path, suffix: str) -> None:
    store = labelled_store(tmp_path)
    file = getattr(segment_of(store, 4), "documents" if suffix == "docs" else "tokens")
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")
    with pytest.raises(DamagedError, match=r"block 7, at byte .* is not what was committed"):
        Documents(store.path, STREAM).take(range(16))
    unchecked = Documents(store.path, STREAM, check=False)
    assert len(unchecked) == 32
    if suffix == "docs":
        with pytest.raises(DamagedError, match="blocks from 4 on cannot be read"):
            unchecked.take(range(16))
    else:
        assert len(unchecked.take(range(16))) == 16


def test_a_store_that_went_away_is_named(tmp_path: Path) -> None:
    store = labelled_store(tmp_path / "store")
    documents = pickle.loads(pickle.dumps(Documents(store.path, STREAM)))  # noqa: S301 - our own
    store.path.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="no longer holds"):
        documents[0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_loaders_take_documents_into_workers(store: Store) -> None:
    documents = Documents(store.path, STREAM)
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": multiprocessing.get_context("fork")}
    loader: DataLoader[Any] = DataLoader(documents, batch_size=5, collate_fn=list, **options)  # type: ignore[arg-type]
    found = [one.tokens.tolist() for batch in loader for one in batch]
    assert found == [one.tokens.tolist() for one in documents]
