"""Samples, windows and documents by index; documents in every packing, held against a plain reading of their table."""

import json
import logging
import multiprocessing
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, SupportsIndex, runtime_checkable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, RandomSampler

from tests.consumers.packed import AGE, Block, Given, given_documents, pack, packed_info, packed_store
from tests.consumers.scenes import CHAINS, ERAS, INFO, OPEN_ERAS, era_store, grow, other_chains, other_eras
from tests.milled_store import SHAPES as MILLED_SHAPES
from tests.milled_store import milled_store
from tests.store.chains import STREAM, fill, segment_of, tokens_of, write_eras
from tokenmill.app.segments.retiring import retire
from tokenmill.consumers import Documents, EraDataset, Windows
from tokenmill.consumers.loading import Sample
from tokenmill.errors import DamagedError, InputError, StoreError
from tokenmill.packings import SEPARATE
from tokenmill.store import Store
from tokenmill.wire.pieces import PADDING


def rows_of(dataset: EraDataset, indices: list[int]) -> list[list[int]]:
    return [[*x.tolist(), int(y[-1])] for x, y in dataset.__getitems__(indices)]


@given(st.integers(0, 5), st.integers(1, 6), st.sampled_from([1, 2, 4]), st.data())
def test_samples_are_those_of_the_eras(store: Store, first: int, count: int, length: int, data: st.DataObject) -> None:
    eras = range(first, min(first + count, 6))
    dataset = EraDataset(store.path, STREAM, sequence_length=length, eras=eras)
    reached = {number: (part.first, part.first) for number, part in enumerate(ERAS[-1].ranges)}
    for number in range(3):
        blocks = [part for era in ERAS[first : eras.stop] for part in era.ranges[number : number + 1] if part.blocks]
        reached[number] = (blocks[0].first, blocks[-1].stop) if blocks else (0, 0)
    rows = [
        tokens_of(CHAINS[number], INFO)[block, start : start + length + 1].tolist()
        for number, (begin, stop) in reached.items()
        for block in range(begin, stop)
        for start in range(0, 4, length)
    ]
    assert len(dataset) == len(rows)
    assert rows_of(dataset, list(range(len(rows)))) == rows
    if rows:
        wanted = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), min_size=1, max_size=30))
        assert rows_of(dataset, wanted) == [rows[index] for index in wanted]
        for index in (-len(rows), -1, *wanted):
            x, y = dataset[index]
            assert [*x.tolist(), int(y[-1])] == rows[index]
    for wrong in (len(rows), -len(rows) - 1):
        with pytest.raises(IndexError):
            dataset[wrong]


def test_a_dataset_is_frozen(tmp_path: Path) -> None:
    store = era_store(tmp_path, OPEN_ERAS[:2])
    write_eras(store, ERAS)
    fill(store, INFO, CHAINS[1], [9], partition=1)
    dataset = EraDataset(store.path, STREAM)
    assert (dataset.eras, len(dataset)) == (range(2), 9)
    rows = rows_of(dataset, list(range(9)))
    grow(store, ERAS)
    assert rows_of(dataset, list(range(9))) == rows
    assert EraDataset(store.path, STREAM).eras == range(6)


def test_eras_that_are_not_there_are_refused(tmp_path: Path) -> None:
    path = era_store(tmp_path / "store", OPEN_ERAS[:2]).path
    several = "one era or more"
    for wrong, words in ((range(3), "which has 2"), (range(2, 2), several), (range(0, 2, 2), several)):
        with pytest.raises(InputError, match=words):
            EraDataset(path, STREAM, eras=wrong)
    write_eras(Store.open(path), ERAS)
    with pytest.raises(InputError, match="not all blocks"):
        EraDataset(path, STREAM, eras=range(3))
    with pytest.raises(InputError, match=r"^nothing to read yet: the first era of"):
        EraDataset(era_store(tmp_path / "new", []).path, STREAM)
    with pytest.raises(StoreError):
        EraDataset(path, "other")


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded", "ignore:This DataLoader will create")
@pytest.mark.slow
@pytest.mark.cases(1)
def test_loaders_take_it_into_workers(store: Store, start: str) -> None:
    dataset = EraDataset(store.path, STREAM)
    assert len(dataset[0]) == 2  # its files are mapped
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(1)),
        multiprocessing_context=multiprocessing.get_context(start),
    )
    batches = list(loader)
    assert all(x.shape == y.shape == (4, 4) and x.dtype == torch.int64 for x, y in batches)
    found = [[*x, y[-1]] for xs, ys in batches for x, y in zip(xs.tolist(), ys.tolist(), strict=True)]
    assert sorted(found) == sorted(rows_of(dataset, list(range(40))))
    assert pickle.loads(pickle.dumps(dataset))[7][0].tolist() == dataset[7][0].tolist()  # noqa: S301 - our own


@runtime_checkable
class RandomAccessDataSource(Protocol):
    """What Grain demands of a source (grain 0.2, ``grain.sources``); it also pickles it, and tells it by its repr."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: SupportsIndex, /) -> Sample: ...


def test_a_dataset_is_a_source_for_grain(store: Store, tmp_path: Path) -> None:
    dataset = EraDataset(store.path, STREAM)
    source: RandomAccessDataSource = dataset
    assert isinstance(source, RandomAccessDataSource)
    for index in (np.int64(7), np.uint8(7), torch.tensor(7)):
        assert source[index][0].tolist() == dataset[7][0].tolist()
    copy = EraDataset(shutil.copytree(store.path, tmp_path / "copy"), STREAM, sequence_length=4)
    assert repr(copy) == repr(pickle.loads(pickle.dumps(dataset))) == repr(dataset)  # noqa: S301 - our own
    others = [EraDataset(store.path, STREAM, sequence_length=2), EraDataset(store.path, STREAM, eras=range(5))]
    assert len({repr(one) for one in [dataset, *others]}) == 3


def test_a_source_for_grain_knows_its_content(store: Store, tmp_path: Path) -> None:
    """A checkpoint of Grain is refused where the repr is another: so it is for other text of the same recipe."""
    for kept, same in ((0, False), (3, False), (4, True)):
        other = era_store(tmp_path / str(kept), other_eras(kept), other_chains(kept))
        datasets = [EraDataset(one.path, STREAM, sequence_length=4, eras=range(4)) for one in (store, other)]
        assert (repr(datasets[0]) == repr(datasets[1])) is same


@given(st.integers(1, 30), st.sampled_from([(0, 115), (1, 65), (2, 20)]), st.data())
def test_a_window_is_a_stretch_of_the_partition(
    store: Store, length: int, part: tuple[int, int], data: st.DataObject
) -> None:
    partition, tokens = part
    windows = Windows(store.path, STREAM, length)
    assert windows.partitions == [0, 1, 2]
    assert windows.indices(partition) == range(max(tokens - length, 0))
    flat = tokens_of(CHAINS[partition], INFO)[: tokens // 5].reshape(-1).tolist()
    if tokens > length:
        places = data.draw(st.lists(st.sampled_from(windows.indices(partition)), min_size=1, max_size=5))
        x, y = windows.at(partition, places)
        assert x.tolist() == [flat[place : place + length] for place in places]
        assert y.tolist() == [flat[place + 1 : place + 1 + length] for place in places]
        assert windows[partition, places[0]].y.tolist() == y[0].tolist()


def test_windows_that_are_not_there_are_refused(store: Store) -> None:
    windows = Windows(store.path, STREAM, 7)
    for wrong in (-1, 13, 100):
        with pytest.raises(InputError, match="tokens 0 to 12"):
            windows.at(2, [0, wrong])
    with pytest.raises(InputError, match=r"one of \[0, 1, 2\]"):
        windows.indices(3)
    with pytest.raises(InputError, match=r"length is 0: give a whole number of tokens, 1 or more"):
        Windows(store.path, STREAM, 0)


def test_windows_see_a_store_grow_and_retire(tmp_path: Path) -> None:
    store = era_store(tmp_path)
    windows = Windows(store.path, STREAM, 5)
    before = windows[0, 60]
    fill(store, INFO, CHAINS[0], [30])
    retire(store.path, STREAM, 0, 8)
    windows.refresh()
    assert windows.indices(0) == range(40, 145)
    assert windows[0, 60].x.tolist() == before.x.tolist()


def test_windows_have_numbers(store: Store) -> None:
    windows = Windows(store.path, STREAM, 9)
    places = [(partition, token) for partition in windows.partitions for token in windows.indices(partition)]
    assert len(windows) == len(places) == 115 + 65 + 20 - 27
    expected = [windows[place].x.tolist() for place in places]
    assert [x.tolist() for x, _ in windows] == expected
    numbers = [5, 170, -1, 106, 105, 0]
    assert [x.tolist() for x, _ in windows.__getitems__(numbers)] == [expected[number] for number in numbers]
    again = pickle.loads(pickle.dumps(windows))  # noqa: S301 - our own
    assert (len(again), again[-1].y.tolist()) == (173, windows[places[-1]].y.tolist())
    for wrong in (173, -174):
        with pytest.raises(IndexError, match="173 windows"):
            windows[wrong]
    none = Windows(store.path, STREAM, 10_000)
    assert (bool(none), len(none)) == (True, 0)


LENGTHS = [3, 12, 5, 1, 10, 4, 7, 2, 5, 9, 6, 3, 21, 1, 2, 8]
LABELS = ["bad", "good", "bad"]


def labelled_store(path: Path, labels: list[Any] = LABELS) -> Store:
    info = packed_info()
    blocks = {n: pack(given_documents(LENGTHS, labels=labels, first=7 + n), "concat", 5) for n in range(2)}
    return packed_store(path, info, blocks, [{0: 4, 1: 6}, {0: 9}, {0: len(blocks[0]), 1: len(blocks[1])}])


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Store:
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


def test_documents_are_asked_for_as_those_of_a_list(labelled: Store) -> None:
    documents = Documents(labelled.path, STREAM)
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
    with pytest.raises(InputError, match=r"index is .*: give a slice of whole numbers, such as \[0:8\]"):
        documents[0.5:]


def test_documents_are_frozen_and_may_be_cut_by_eras(labelled: Store) -> None:
    counts = [len(Documents(labelled.path, STREAM, eras=range(n, n + 1))) for n in range(3)]
    assert sum(counts) < 32
    assert len(Documents(labelled.path, STREAM, eras=range(3))) == 32
    assert len(Documents(labelled.path, STREAM, eras=range(2))) < 32
    assert repr(Documents(labelled.path, STREAM)) == repr(pickle.loads(pickle.dumps(Documents(labelled.path, STREAM))))  # noqa: S301 - our own
    with pytest.raises(InputError, match="which has 4"):
        Documents(labelled.path, STREAM, eras=range(9))


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


def test_labels_are_numbers(labelled: Store) -> None:
    documents = Documents(labelled.path, STREAM, label_field="label", label_names=["bad", "good"])
    assert documents.labels is not None
    assert documents.labels.tolist() == [int(one.fields["label"] == "good") for one in documents]
    assert [one.label for one in documents] == documents.labels.tolist()
    assert documents.label_distribution() == {"bad": 22, "good": 10}
    assert documents.label_distribution([0, 1, 2, 4]) == {"bad": 2, "good": 2}
    with pytest.raises(InputError, match="no labels"):
        Documents(labelled.path, STREAM).label_distribution()


def test_missing_or_unknown_labels_are_refused_or_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
def test_loaders_take_documents_into_workers(labelled: Store) -> None:
    documents = Documents(labelled.path, STREAM)
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": multiprocessing.get_context("fork")}
    loader: DataLoader[Any] = DataLoader(documents, batch_size=5, collate_fn=list, **options)  # type: ignore[arg-type]
    found = [one.tokens.tolist() for batch in loader for one in batch]
    assert found == [one.tokens.tolist() for one in documents]
