"""Traces: what a step is made of, and where a record went, as an exhaustive search finds it."""

import random
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.consumers.scenes import open_batches, open_ranks
from tests.store.chains import STREAM, fill, make_eras, make_info, make_store, write_eras
from tokenmill.app.segments.retiring import retire
from tokenmill.eras import Era
from tokenmill.errors import InputError
from tokenmill.reading import Blocks
from tokenmill.samples.sequence import Position, SequenceId
from tokenmill.samples.tracing import Tracer
from tokenmill.store import Store
from tokenmill.store.sealing import Rows
from tokenmill.wire.chain import genesis_hash, roll
from tokenmill.wire.pieces import PADDING, Piece, encode_entry

INFO = make_info(block_tokens=9, segment_blocks=4)
BLOCKS: Final = 24
Token = tuple[int, int]
"""Offset of its record, and its number in the document; `PADDING` for padding."""


@dataclass(frozen=True)
class Scene:
    store: Store
    eras: list[Era]
    tokens: dict[int, list[Token]]
    """Of each partition, from block 0 on."""

    def position(self, *, length: int = 4, passes: int = 1, eras: tuple[int, int | None] = (0, None)) -> Position:
        """Return where a run stands that made 3 steps of 2, then 2 of 5 samples."""
        sequence = SequenceId(STREAM, INFO.fingerprint.hex(), length, 1, shuffle=True, eras=eras, passes=passes)
        return Position.beginning(sequence, 2).after(3).with_batches_of(5).after(2)

    def tokens_of(self, partition: int, block: int, view: int, length: int) -> list[Token]:
        first = block * INFO.block_tokens + view * length
        return self.tokens[partition][first : first + length + 1]


def make_chain_of_documents(seed: int, partition: int) -> tuple[Blocks, list[Token]]:
    """Make blocks of documents of 1 to 30 tokens at ascending offsets with gaps, with a flush now and then."""
    rng, size = random.Random(seed * 10 + partition), INFO.block_tokens
    tokens: list[Token] = []
    offset = rng.randrange(5)
    while len(tokens) < BLOCKS * size:
        tokens += [(offset, position) for position in range(rng.choice([1, 2, 3, 7, 30]))]
        offset += rng.choice([1, 1, 2, 6])
        if rng.random() < 0.1 and len(tokens) % size:
            tokens += [(offset, PADDING)] * (-len(tokens) % size)
            offset += 1
    tokens = tokens[: BLOCKS * size]
    entries = []
    for first in range(0, len(tokens), size):
        block = tokens[first : first + size]
        starts = [n for n in range(size) if not n or block[n][0] != block[n - 1][0]]
        metas = [b'{"id":"d%d"}' % (block[n][0] % 7) if block[n][0] % 7 != 5 else b"" for n in starts]
        entries.append(encode_entry([Piece(n, *block[n], meta) for n, meta in zip(starts, metas, strict=True)]))
    data = rng.randbytes(len(tokens) * INFO.dtype.itemsize)
    return Blocks(0, data, entries, roll(genesis_hash(INFO.fingerprint, partition), data, entries)), tokens


def make_scene(path: Path, seed: int, *, end: bool) -> Scene:
    """Make a store of three partitions; the last blocks of the third are in no era."""
    store = make_store(path, INFO)
    chains, tokens = {}, {}
    for partition in range(3):
        chains[partition], tokens[partition] = make_chain_of_documents(seed, partition)
        fill(store, INFO, chains[partition], [BLOCKS], partition=partition)
    stops = [{0: 3}, {0: 9, 2: 5}, {1: 12}, {0: BLOCKS, 1: BLOCKS, 2: 17}]
    eras = make_eras(INFO, chains, stops, end=end)
    write_eras(store, eras)
    return Scene(store, eras, tokens)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return make_scene(tmp_path_factory.mktemp("traced"), 1, end=True)


def brute_force(tracer: Tracer, samples: int) -> dict[tuple[int, int, int], list[int]]:
    found: dict[tuple[int, int, int], list[int]] = {}
    for number in range(samples):
        traced = tracer.sample(number)
        assert traced.use.sample == number
        found.setdefault((traced.partition, traced.block, traced.view), []).append(number)
    return found


@pytest.mark.needs("minutes")
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 99), st.sampled_from([2, 4, 8]), st.integers(1, 2), st.sampled_from(["open", "ended", "named"]))
@pytest.mark.slow
def test_every_record_is_where_a_search_of_all_samples_finds_it(seed: int, length: int, passes: int, kind: str) -> None:
    with TemporaryDirectory() as directory:
        scene = make_scene(Path(directory), seed, end=kind == "ended")
        eras = (1, 3) if kind == "named" else (0, None)
        known = 1 if kind == "open" else passes
        position = scene.position(length=length, passes=passes, eras=eras)
        tracer = Tracer(scene.store.path, position)
        blocks = sum(era.blocks for era in scene.eras[eras[0] : eras[1]])
        by_view = brute_force(tracer, blocks * tracer.views * known)
        with pytest.raises(InputError, match="is not in"):
            tracer.sample(blocks * tracer.views * known)
        for partition, tokens in scene.tokens.items():
            views = [
                (block, view, scene.tokens_of(partition, block, view, length))
                for block in range(BLOCKS)
                for view in range(tracer.views)
            ]
            for offset in range(tokens[-1][0] + 3):
                wanted = [
                    (block, view, by_view.get((partition, block, view), []))
                    for block, view, held in views
                    if any(token[0] == offset and token[1] != PADDING for token in held)
                ]
                found = tracer.record(partition, offset)
                assert [(v.block, v.view, [use.sample for use in v.uses]) for v in found.views] == wanted
                for view in found.views:
                    held = scene.tokens_of(partition, view.block, view.view, length)
                    for source in view.sources:
                        assert held[source.start : source.stop] == [
                            (offset, source.position + n) for n in range(source.stop - source.start)
                        ]
                    for use in view.uses:
                        assert use == tracer.sample(use.sample).use
                        assert (use.step, use.row) == step_and_row(position, use.sample)


def step_and_row(position: Position, sample: int) -> tuple[int | None, int | None]:
    steps = ((step, position.samples_of(step)) for step in range(position.step))
    return next(((step, sample - taken.start) for step, taken in steps if sample in taken), (None, None))


def test_a_step_is_what_the_batches_delivered(scene: Scene) -> None:
    ranks = open_ranks(scene.store, 2, batch_size=1)
    steps = zip(*(islice(rank, 3) for rank in ranks), strict=True)
    wanted = [one.sources() + other.sources() for one, other in steps]
    later = open_batches(scene.store, batch_size=5, state=ranks[0].state_dict())
    wanted += [batch.sources() for batch in islice(later, 2)]
    tracer = Tracer(scene.store.path, Position.read(later.state_dict()))
    found = [list(tracer.step(step)) for step in range(5)]
    assert [[sample.sources for sample in step] for step in found] == wanted
    assert [[sample.use.row for sample in step] for step in found] == [[0, 1]] * 3 + [[0, 1, 2, 3, 4]] * 2
    assert {sample.use.step for sample in found[4]} == {4}
    with pytest.raises(InputError, match="step 5 was not made"):
        list(tracer.step(5))


def test_absence_is_told_apart(scene: Scene, tmp_path: Path) -> None:
    tracer = Tracer(scene.store.path, scene.position(eras=(1, 2)))
    offsets = [offset for offset, position in scene.tokens[0] if position != PADDING]
    missing = next(n for n in range(offsets[0], offsets[-1]) if n not in offsets)
    assert "yielded no tokens" in tracer.record(0, missing).verdict
    assert "it is not milled or stored yet" in tracer.record(0, offsets[-1] + 1).verdict
    assert "eras that this run does not take" in tracer.record(0, offsets[0]).verdict
    assert tracer.record(0, scene.tokens[0][5 * INFO.block_tokens][0]).verdict == "it is in the sequence"
    last = [offset for offset, position in scene.tokens[2] if position != PADDING][-1]
    assert "no era holds its blocks yet" in tracer.record(2, last).verdict
    for partition in (3, -1):
        with pytest.raises(InputError, match=r"has the partitions \[0, 1, 2\]"):
            tracer.record(partition, 0)
    with pytest.raises(InputError, match="holds blocks 0 to 23 of partition 0, not 24"):
        tracer.block(0, 24)

    cut = make_scene(tmp_path, 1, end=True)
    retire(cut.store.path, STREAM, 0, 8)
    assert "it was retired" in Tracer(cut.store.path, cut.position()).record(0, offsets[0]).verdict


def test_documents_are_found_by_their_id(scene: Scene) -> None:
    """All records that have it, each once, however many blocks it lies in; progress is told for each block.

    No text is the id of those that have none.
    """
    tracer = Tracer(scene.store.path, scene.position())
    steps = list(tracer.documents("d3"))
    assert [(done, total) for done, total, _ in steps] == [(n + 1, 3 * BLOCKS) for n in range(3 * BLOCKS)]
    found = [place for _, _, places in steps for place in places]
    wanted = [
        (partition, offset)
        for partition, tokens in scene.tokens.items()
        for offset in dict.fromkeys(offset for offset, position in tokens)
        if offset % 7 == 3
    ]
    assert found == wanted
    assert not any(places for _, _, places in tracer.documents("None"))


def test_another_stream_is_refused(scene: Scene) -> None:
    sequence = SequenceId(STREAM, "11" * 16, 4, 1, shuffle=True, eras=(0, None), passes=1)
    with pytest.raises(InputError, match="with the fingerprint 1111"):
        Tracer(scene.store.path, Position.beginning(sequence, 2))


def test_little_is_read_for_a_record(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = Tracer(scene.store.path, scene.position())
    reader = tracer._samples.reader(0)
    read: list[int] = []
    pieces = reader.pieces

    def counted(number: int) -> Rows:
        read.append(number)
        return pieces(number)

    monkeypatch.setattr(reader, "pieces", counted)
    tracer.record(0, scene.tokens[0][-1][0])
    assert len(read) < 2 + 5 + 2 * 5 + 2
    assert np.unique(read).size < BLOCKS / 2
