"""Blocks against their CRCs: of runs, of the wanted ones alone, and each looked at once."""

from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.store import segment
from tokenmill.store.segment import crcs_of_runs, marks_of, unsound


@given(st.integers(1, 70), st.integers(0, 60), st.integers(1, 40), st.integers(0, 2**32))
def test_the_crc_of_a_run_follows_from_those_of_its_pieces(size: int, count: int, each: int, seed: int) -> None:
    data = np.random.default_rng(seed).bytes(size * count)
    pieces = [crc32(data[at : at + size]) for at in range(0, len(data), size)]
    runs = [crc32(data[at : at + each * size]) for at in range(0, len(data), each * size)]
    assert crcs_of_runs(np.array(pieces, np.uint32), size, each) == runs


rows_of_100 = st.sets(st.integers(0, 99), max_size=100)


@given(
    st.sets(st.integers(0, 99), max_size=5),
    rows_of_100,
    rows_of_100,
    st.fixed_dictionaries({"_RUN_BYTES": st.sampled_from([1, 24, 10**6]), "_SMALL_BYTES": st.sampled_from([0, 10**6])}),
    st.booleans(),
)
def test_damage_is_found_among_the_wanted_blocks(
    damaged: set[int],
    wanted: set[int],
    marked: set[int],
    sizes: dict[str, int],
    whole: bool,  # noqa: FBT001 - Hypothesis gives it
) -> None:
    tokens = np.random.default_rng(0).integers(0, 65536, (100, 3), np.uint16)
    crcs = np.array([crc32(row.tobytes()) for row in tokens], np.uint32)
    tokens[sorted(damaged), 1] ^= 1
    marks = np.zeros(100, np.bool_)
    marks[sorted(marked - damaged)] = True
    rows = np.array(sorted(wanted - (marked - damaged)), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ({"_RUNS_AT_LEAST": 1} | sizes).items():
            patch.setattr(segment, name, value)
        found = unsound(tokens, crcs, marks, rows, whole=whole)
    assert found.tolist() == sorted(damaged & wanted)
    assert not marks[sorted(damaged)].any()
    assert marks[sorted(wanted - damaged)].all()


def test_a_sound_block_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks next is told without a look; neighbours are looked at with it where they will be wanted, too."""
    looked: list[int] = []

    def watched(data: bytes, start: int = 0) -> int:
        looked.append(len(data))
        return crc32(data, start)

    monkeypatch.setattr(segment, "crc32", watched)
    tokens = np.zeros((2048, 1025), np.uint16)
    crcs = np.full(2048, crc32(tokens[0].tobytes()), np.uint32)
    marks = np.zeros(2048, np.bool_)
    assert not len(unsound(tokens, crcs, marks, np.arange(0, 2048, 31), whole=True))
    assert max(looked) == 32 * 2050
    assert sum(size for size in looked if size == 32 * 2050) == tokens.nbytes
    assert marks.all()


def test_marks_are_one_processs_own_and_of_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """All who read the file share them; a changed file has none, nor one that changed a moment ago."""
    monkeypatch.setattr(segment, "_remembered", {})
    monkeypatch.setattr(segment, "_REMEMBERED_BYTES", 20)
    marks = marks_of((1, 2, 3, 4), 8)
    assert marks_of((1, 2, 3, 4), 8) is marks
    assert not any(marks_of(other, 8) is marks for other in [(1, 2, 3, 5), (1, 9, 3, 4)])
    assert marks_of((1, 2, 3, 4), 8) is not marks  # three files have more marks than are remembered
    recent = (1, 2, 3, 1 << 62)
    assert marks_of(recent, 8) is not marks_of(recent, 8)
