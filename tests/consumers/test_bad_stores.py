"""Stores that a trainer cannot use: each is refused with an error of its own kind, which says what to do."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.consumers.scenes import INFO, OPEN_ERAS, era_store, expected, grow, open_batches, rows_of
from tests.store.chains import STREAM, directory_of, fill, make_chain, make_store, segment_of
from tests.store.eras import make_eras, write_eras
from tokenmill.errors import DamagedError, DifferenceError, InputError, StoreError, TokenMillError
from tokenmill.store import Store, StreamInfo
from tokenmill.store.retiring import retire


def be_no_store(store: Store) -> None:
    """Leave an empty directory."""
    shutil.rmtree(store.path)
    store.path.mkdir()


def be_gone(store: Store) -> None:
    """Leave nothing."""
    shutil.rmtree(store.path)


def be_of_a_later_format(store: Store) -> None:
    """Say so in the stream's description."""
    file = store.path / STREAM / "stream.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))


def lose_the_description(store: Store) -> None:
    """Cut it off."""
    (store.path / STREAM / "stream.json").write_bytes(b'{"format": 1')


def lose_eras(store: Store) -> None:
    """Keep the index, without its lines: as while it is copied, so they are waited for."""
    (store.path / STREAM / "eras.jsonl").write_bytes(b"")


def flip_a_bit_of_the_eras(store: Store) -> None:
    """In the first of several rows."""
    file = store.path / STREAM / "eras.index"
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)


def lose_a_segment(store: Store) -> None:
    """In the middle."""
    for file in directory_of(store).glob(f"{4:012d}.*"):
        file.unlink()


def cut_a_segment_off(store: Store) -> None:
    """Lose its last token."""
    file = segment_of(store).tokens
    file.write_bytes(file.read_bytes()[:-2])


def hold_other_blocks(store: Store) -> None:
    """As a store of a stream of the same name from elsewhere would, with the eras of this one."""
    be_no_store(store)
    other = make_store(store.path, INFO)
    fill(other, INFO, make_chain(INFO, 40, seed=9), [40])
    write_eras(other, OPEN_ERAS)


def hold_another_stream(store: Store) -> None:
    """Under this one's name."""
    info = StreamInfo.from_values({**INFO.values, "stream": "other", "fingerprint": "ff" * 16})
    other = make_store(store.path.parent / "other", info)
    chain = make_chain(info, 5)
    fill(other, info, chain, [5])
    write_eras(other, make_eras(info, {0: chain}, [{0: 5}]), stream="other")
    shutil.rmtree(store.path / STREAM / "0")
    shutil.copytree(other.path / "other" / "0", store.path / STREAM / "0")


@pytest.mark.parametrize(
    ("harm", "kind", "advice"),
    [
        (be_gone, StoreError, "check both names"),
        (be_no_store, StoreError, "check both names"),
        (be_of_a_later_format, StoreError, r"/stream\.json: its format .*use the version"),
        (lose_the_description, DamagedError, r"/stream\.json: .*`tokenmill repair raw-text\.train --store /"),
        (lose_eras, StoreError, r"eras\.index has it and eras\.jsonl does not.*copy both again"),
        (flip_a_bit_of_the_eras, DamagedError, r"eras\.index|tokenmill|copy"),
        (lose_a_segment, DamagedError, "tokenmill repair"),
        (cut_a_segment_off, DamagedError, "tokenmill repair"),
        (hold_other_blocks, DifferenceError, "tokenmill verify"),
        (hold_another_stream, DifferenceError, "tokenmill verify"),
    ],
)
def test_a_store_that_is_foreign_or_damaged_is_refused(
    tmp_path: Path, harm: Callable[[Store], None], kind: type[TokenMillError], advice: str
) -> None:
    """Instead of other tokens than those of the stream."""
    store = era_store(tmp_path / "store")
    harm(store)
    with pytest.raises(kind, match=advice):
        rows_of(open_batches(store, timeout=0.1))


def test_a_loop_waits_for_a_copy_whose_index_came_first(tmp_path: Path) -> None:
    """As `rsync` brings it; the copier may have been killed between the two."""
    whole, store = era_store(tmp_path / "whole"), era_store(tmp_path / "store", OPEN_ERAS[:2])
    late = iter(["eras.index", "eras.jsonl"])

    def copies_when_it_waits() -> bool:
        if len(rows) == 8 and (name := next(late, None)):
            (whole.path / STREAM / name).rename(store.path / STREAM / name)
        return False

    for partition in (0, 1, 2):
        shutil.copytree(directory_of(whole, partition), directory_of(store, partition), dirs_exist_ok=True)
    rows: list[list[int]] = []
    for batch in open_batches(store, timeout=10, poll_seconds=0.01, stop=copies_when_it_waits):
        rows += rows_of([batch])
    assert rows == expected()


def test_segments_retired_under_a_reader_are_refused(tmp_path: Path) -> None:
    """What comes before them was delivered; the state stands there, and goes on in a store that still has them."""
    store, whole = era_store(tmp_path / "store"), era_store(tmp_path / "whole")
    batches = open_batches(store)
    batches._most_samples = 1
    loop = iter(batches)
    rows = rows_of([next(loop)])
    retire(store.path, STREAM, 0, 20)
    retire(store.path, STREAM, 1, 12)
    with pytest.raises(InputError, match=r"segments were retired[;.] .*read a store that still holds"):
        rows.extend(row for batch in loop for row in rows_of([batch]))
    assert 2 <= len(rows) < 40
    assert rows == expected()[: len(rows)]
    elsewhere = open_batches(whole)
    elsewhere.load_state_dict(batches.state_dict())
    assert rows + rows_of(elsewhere) == expected()


def test_validation_is_the_same_however_far_the_store_has_grown(tmp_path: Path) -> None:
    """Named eras, while others come and segments are sealed."""
    store = era_store(tmp_path, OPEN_ERAS[:2])
    validation = open_batches(store, eras=range(2), batch_size=3)
    before = rows_of(validation)
    assert len(before) == 9
    for count in range(3, len(OPEN_ERAS) + 1):
        grow(store, OPEN_ERAS[:count])
        assert rows_of(validation.rewind()) == before
        assert rows_of(open_batches(store, eras=range(2), batch_size=3)) == before
