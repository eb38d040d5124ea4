"""Stores that a trainer cannot use: each is refused with an error of its own kind, which says what to do."""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.consumers.scenes import ERAS, INFO, OPEN_ERAS, era_store, expected, grow, open_batches, rows_of
from tests.store.chains import STREAM, directory_of, fill, make_chain, make_store, segment_of
from tests.store.eras import make_eras, write_eras
from tokenmill.app.segments.retiring import retire
from tokenmill.app.tools.repair import repair_partition
from tokenmill.consumers import Batches, Documents, EraDataset
from tokenmill.errors import DamagedError, DifferenceError, InputError, StoreError, TokenMillError
from tokenmill.store import Store, StreamInfo
from tokenmill.store.eras import ROW_BYTES


def be_no_store(store: Store) -> None:
    shutil.rmtree(store.path)
    store.path.mkdir()


def be_gone(store: Store) -> None:
    shutil.rmtree(store.path)


def be_of_a_later_format(store: Store) -> None:
    file = store.path / STREAM / "stream.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))


def lose_the_description(store: Store) -> None:
    (store.path / STREAM / "stream.json").write_bytes(b'{"format": 1')


def lose_eras(store: Store) -> None:
    """Keep the index, without its lines: as while it is copied, so they are waited for."""
    (store.path / STREAM / "eras.jsonl").write_bytes(b"")


def flip_a_bit_of_the_eras(store: Store) -> None:
    flip(store.path / STREAM / "eras.index", 3)


def lose_a_segment(store: Store) -> None:
    for file in directory_of(store).glob(f"{4:012d}.*"):
        file.unlink()


def cut_a_segment_off(store: Store) -> None:
    file = segment_of(store).tokens
    file.write_bytes(file.read_bytes()[:-2])


def hold_other_blocks(store: Store) -> None:
    """As a store of a stream of the same name from elsewhere would, with the eras of this one."""
    be_no_store(store)
    other = make_store(store.path, INFO)
    fill(other, INFO, make_chain(INFO, 40, seed=9), [40])
    write_eras(other, OPEN_ERAS)


def hold_another_stream(store: Store) -> None:
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


def be_retired(store: Store) -> None:
    retire(store.path, STREAM, 0, 20)
    retire(store.path, STREAM, 1, 12)


@pytest.mark.parametrize(
    ("harm", "kind", "advice"),
    [
        (be_retired, InputError, r"segments were retired[;.] .*read a store that still holds"),
        (be_gone, StoreError, r"no longer holds the stream 'raw-text\.train': it was deleted.*Bring it back"),
    ],
)
def test_what_goes_away_under_a_reader_is_named(
    tmp_path: Path, harm: Callable[[Store], None], kind: type[TokenMillError], advice: str
) -> None:
    store, whole = era_store(tmp_path / "store"), era_store(tmp_path / "whole")
    batches = open_batches(store)
    batches._most_samples = 1
    loop = iter(batches)
    rows = rows_of([next(loop)])
    harm(store)
    with pytest.raises(kind, match=advice) as refused:
        rows.extend(row for batch in loop for row in rows_of([batch]))
    assert str(store.path) in str(refused.value)
    assert 2 <= len(rows) < 40
    assert rows == expected()[: len(rows)]
    elsewhere = open_batches(whole)
    elsewhere.load_state_dict(batches.state_dict())
    assert rows + rows_of(elsewhere) == expected()


def test_validation_is_the_same_however_far_the_store_has_grown(tmp_path: Path) -> None:
    store = era_store(tmp_path, OPEN_ERAS[:2])
    validation = open_batches(store, eras=range(2), batch_size=3)
    before = rows_of(validation)
    assert len(before) == 9
    for count in range(3, len(OPEN_ERAS) + 1):
        grow(store, OPEN_ERAS[:count])
        assert rows_of(validation.rewind()) == before
        assert rows_of(open_batches(store, eras=range(2), batch_size=3)) == before


def pack_was_here(store: Store) -> None:
    (store.path / "pack" / "raw-text").mkdir(parents=True)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << at % 8
    file.write_bytes(data)


def last_logs(store: Store) -> list[Path]:
    """Return what says which blocks and eras count: what is damaged there looks as if it had not come yet."""
    logs = sorted((store.path / STREAM).glob("*/*.commits"))
    return [*(log for log in logs if not log.with_suffix(".json").exists()), store.path / STREAM / "eras.index"]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.cases(1)
def test_a_changed_bit_is_named_where_the_end_marker_proves_that_more_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, packed: bool
) -> None:
    """No loop waits for ever for what was there once: it reads all the same, or says what is damaged."""
    monkeypatch.setattr("tokenmill.consumers.waiting._SAY_AFTER", 0.0)
    store = era_store(tmp_path / "store")
    if packed:
        pack_was_here(store)
    rng = random.Random(1)
    told = set()
    for file in last_logs(store):
        whole = file.read_bytes()
        for at in rng.sample(range(len(whole)), 25):
            flip(file, at)
            try:
                assert rows_of(open_batches(store)) == expected()
            except DamagedError as error:
                told.add(str(error))
            finally:
                file.write_bytes(whole)
    proven = [one for one in told if "The end of the stream is marked, so all of it was written once" in one]
    assert any(".commits" in one for one in proven)
    assert any("eras.index" in one for one in proven)
    for one in proven:
        assert "`tokenmill pack` command with --verify" in one if packed else "`tokenmill verify`" in one
        assert not packed or not re.search(r"worker|topic|broker", one)


@pytest.mark.parametrize("kind", ["eras.index", "commits"])
def test_what_is_frozen_is_no_less_where_a_bit_was_changed(tmp_path: Path, kind: str) -> None:
    store = era_store(tmp_path / "store")
    flip(last_logs(store)[-1 if kind == "eras.index" else -2], 5 * ROW_BYTES if kind == "eras.index" else 40)
    for opening in (
        lambda: EraDataset(store.path, STREAM, sequence_length=4),
        lambda: EraDataset(store.path, STREAM, sequence_length=4, eras=range(6 if kind == "eras.index" else 5)),
        lambda: Documents(store.path, STREAM),
    ):
        with pytest.raises(DamagedError, match="so all of it was written once"):
            opening()


def test_a_writer_at_work_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no end is marked, half a record may become a whole one; the message says what stands there."""
    monkeypatch.setattr("tokenmill.consumers.waiting._SAY_AFTER", 0.0)
    store = era_store(tmp_path / "store", OPEN_ERAS)
    log = last_logs(store)[-2]
    whole = log.read_bytes()
    log.write_bytes(whole[:-8])
    batches = open_batches(store, timeout=0.01)
    with pytest.raises(StoreError, match=r"commits: what stands at byte .* unless something writes or copies there"):
        list(batches)
    log.write_bytes(whole)
    grow(store, ERAS)
    assert rows_of(Batches(store.path, STREAM, batch_size=2, sequence_length=4, seed=1)) == expected()


def test_a_packed_store_is_repaired_from_itself(tmp_path: Path) -> None:
    """The eras prove blocks whose record was changed; nobody else has them."""
    store = era_store(tmp_path / "store")
    pack_was_here(store)
    before = {file: file.read_bytes() for file in (store.path / STREAM).glob("*/*.*")}
    for file in last_logs(store)[:-1]:
        flip(file, len(before[file]) - 3)
        (repaired,) = repair_partition(file.parent, INFO, int(file.parent.name), lambda *_: ())
        assert (repaired.given, repaired.lost) == (0, ())
        assert [path.name for path in repaired.kept] == [f"{file.name}.broken"]
    assert rows_of(open_batches(store)) == expected()
    assert all(file.read_bytes() == data for file, data in before.items() if file.suffix != ".commits")


@pytest.mark.parametrize("ended", [True, False])
def test_a_packed_store_is_waited_for_by_the_command_that_fills_it(tmp_path: Path, *, ended: bool) -> None:
    store = era_store(tmp_path / "store", ERAS if ended else OPEN_ERAS)
    pack_was_here(store)
    if ended:
        for file in (store.path / STREAM / "2").glob("*"):
            file.unlink()
    with pytest.raises(StoreError) as refused:
        list(open_batches(store, timeout=0.01))
    said = str(refused.value)
    assert "`tokenmill pack` command with --verify" in said if ended else "--end where no more will come" in said
    assert not re.search("worker|Kafka|broker|topic|close", said)
    pack_was_here(still_open := era_store(tmp_path / "open", OPEN_ERAS))
    with pytest.raises(TypeError, match=r"close the stream \(`tokenmill pack … --end`\)"):
        len(open_batches(still_open))


@pytest.mark.parametrize("lost", ["eras.index", "eras.jsonl"])
def test_which_file_of_the_eras_is_lost_is_told_by_the_other(tmp_path: Path, lost: str) -> None:
    store = era_store(tmp_path / "store")
    os.truncate(store.path / STREAM / lost, 0)
    told = f"has it and {re.escape(lost)} does not, as while a store is copied; copy both again"
    with pytest.raises(StoreError, match=told):
        next(iter(open_batches(store, timeout=0.0)))
    for opening in (Documents, EraDataset):
        with pytest.raises(InputError, match=told):
            opening(store.path, STREAM)
