"""Stores that a trainer cannot use: each is refused with an error of its own kind, which says what to do."""

import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.consumers.scenes import (
    CHAINS,
    ERAS,
    INFO,
    OPEN_ERAS,
    era_store,
    expected,
    grow,
    open_batches,
    open_steps,
    raises_in_workers,
    rows_of,
)
from tests.store.chains import (
    STREAM,
    directory_of,
    filled_store,
    flip,
    make_chain,
    make_eras,
    make_info,
    segment_of,
    tokens_of,
    write_eras,
)
from tokenmill.app.segments.retiring import retire
from tokenmill.app.tools.repair import repair_partition
from tokenmill.consumers import Batch, Batches, Documents, EraDataset, Windows, sample_lookup
from tokenmill.consumers.sample_lookup import Gathering, Rows
from tokenmill.errors import DamagedError, DifferenceError, DiskError, InputError, StoreError, TokenMillError
from tokenmill.store import Store, StreamInfo, open_partition
from tokenmill.store.eras import ROW_BYTES

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")

GONE = r"no longer holds the stream 'raw-text\.train': it was deleted.*Bring it back, or open another copy"


def read_into(rows: list[list[int]], batches: Iterable[Batch]) -> None:
    for batch in batches:
        rows += rows_of([batch])


def be_gone(store: Store) -> None:
    shutil.rmtree(store.path)


def be_no_store(store: Store) -> None:
    be_gone(store)
    store.path.mkdir()


def be_of_a_later_format(store: Store) -> None:
    file = store.path / STREAM / "stream.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))


def lose_a_segment(store: Store) -> None:
    for file in directory_of(store).glob(f"{4:012d}.*"):
        file.unlink()


def cut_a_segment_off(store: Store) -> None:
    file = segment_of(store).tokens
    os.truncate(file, file.stat().st_size - 2)


def hold_other_blocks(store: Store) -> None:
    """As a store of a stream of the same name from elsewhere would, with the eras of this one."""
    be_no_store(store)
    write_eras(filled_store(store.path, INFO, make_chain(INFO, 40, seed=9), [40]), OPEN_ERAS)


def hold_another_stream(store: Store) -> None:
    info = StreamInfo.from_values({**INFO.values, "stream": "other", "fingerprint": "ff" * 16})
    chain = make_chain(info, 5)
    other = filled_store(store.path.parent / "other", info, chain, [5])
    write_eras(other, make_eras(info, {0: chain}, [{0: 5}]), stream="other")
    shutil.rmtree(store.path / STREAM / "0")
    shutil.copytree(other.path / "other" / "0", store.path / STREAM / "0")


@pytest.mark.parametrize(
    ("harm", "kind", "advice"),
    [
        (be_gone, StoreError, "check both names"),
        (be_no_store, StoreError, "check both names"),
        (be_of_a_later_format, StoreError, r"/stream\.json: its format .*use the version"),
        (
            lambda store: (store.path / STREAM / "stream.json").write_bytes(b'{"format": 1'),
            DamagedError,
            r"/stream\.json: .*`tokenmill repair raw-text\.train --store /",
        ),
        (lambda store: flip(store.path / STREAM / "eras.index", 3), DamagedError, r"eras\.index|tokenmill|copy"),
        (lose_a_segment, DamagedError, "tokenmill repair"),
        (cut_a_segment_off, DamagedError, "tokenmill repair"),
        (hold_other_blocks, DifferenceError, "tokenmill verify"),
        (hold_another_stream, DifferenceError, "tokenmill verify"),
    ],
)
def test_a_store_that_is_foreign_or_damaged_is_refused(
    tmp_path: Path, harm: Callable[[Store], object], kind: type[TokenMillError], advice: str
) -> None:
    harm(store := era_store(tmp_path / "store"))
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
    read_into(rows, open_batches(store, timeout=10, poll_seconds=0.01, stop=copies_when_it_waits))
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
    tmp_path: Path, harm: Callable[[Store], object], kind: type[TokenMillError], advice: str
) -> None:
    store, whole = era_store(tmp_path / "store"), era_store(tmp_path / "whole")
    batches = open_batches(store)
    batches._most_samples = 1
    loop = iter(batches)
    rows = rows_of([next(loop)])
    harm(store)
    with pytest.raises(kind, match=advice) as refused:
        read_into(rows, loop)
    assert str(store.path) in str(refused.value)
    assert 2 <= len(rows) < 40
    assert rows == expected()[: len(rows)]
    elsewhere = open_batches(whole, state=batches.state_dict())
    assert rows + rows_of(elsewhere) == expected()


def pack_was_here(store: Store) -> None:
    (store.path / "pack" / "raw-text").mkdir(parents=True)


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
            flip(file, at, at % 8)
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
        flip(file, len(before[file]) - 3, 5)
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


@pytest.mark.parametrize(("lost", "other"), [("eras.index", "eras.jsonl"), ("eras.jsonl", "eras.index")])
def test_which_file_of_the_eras_is_lost_is_told_by_the_other(tmp_path: Path, lost: str, other: str) -> None:
    store = era_store(tmp_path / "store")
    os.truncate(store.path / STREAM / lost, 0)
    told = re.escape(f"{other} has it and {lost} does not, as while a store is copied; copy both again")
    with pytest.raises(StoreError, match=told):
        next(iter(open_batches(store, timeout=0.0)))
    for opening in (Documents, EraDataset):
        with pytest.raises(InputError, match=told):
            opening(store.path, STREAM)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Be a user for whom rights count: root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture(scope="module")
def public() -> Iterator[Store]:
    """Return a store in a directory that all may enter, which pytest's own is not; each test restores its rights."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        path.chmod(0o755)
        store = era_store(path / "store")
        for found in [store.path, *store.path.rglob("*")]:
            found.chmod(0o755 if found.is_dir() else 0o644)
        read_all(store)  # what is imported at first use is there
        yield store


def read_all(store: Store) -> None:
    for batch in open_batches(store, check=True):
        batch.documents()


def read_by_index(store: Store) -> None:
    EraDataset(store.path, STREAM, sequence_length=4).__getitems__(range(40))


def read_windows(store: Store) -> None:
    windows = Windows(store.path, STREAM, 4)
    for partition in windows.partitions:
        windows.rows(partition, windows.indices(partition)[:: INFO.block_tokens])


ALL_NEED = ("stream.json", ".", "0", "0/000000000000.bin", "0/000000000000.json", "0/000000000020.commits")
BATCHES_NEED = ("eras.jsonl", "eras.index", "0/000000000000.docs", "0/000000000000.index")


@pytest.mark.parametrize(
    ("read", "name"),
    [*product((read_all, read_by_index, read_windows), ALL_NEED), *product((read_all,), BATCHES_NEED)],
)
def test_a_file_that_may_not_be_read_is_named(public: Store, read: Callable[[Store], None], name: str) -> None:
    forbidden = public.path / STREAM / name
    forbidden.chmod(0)
    told = rf"{re.escape(str(forbidden.resolve()))}.* cannot be read \(Permission denied\): let"
    try:
        with without_privileges(), pytest.raises(DiskError, match=told):
            read(public)
    finally:
        forbidden.chmod(0o755)
    with without_privileges():
        read(public)


@pytest.mark.parametrize("eras", [0, 2])
def test_a_store_that_is_deleted_while_it_is_waited_for_is_named(tmp_path: Path, eras: int) -> None:
    store = era_store(tmp_path, OPEN_ERAS[:eras])
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        if looks == 20:
            shutil.rmtree(store.path / STREAM)
        return looks > 100

    with pytest.raises(StoreError, match=GONE):
        rows_of(open_batches(store, stop=look, poll_seconds=0.0001, timeout=60))
    assert looks < 100


def later(reader: Any) -> list[Callable[[], object]]:
    if isinstance(reader, Batches):
        batch = next(iter(reader))
        return [batch.documents, batch.sources, reader.behind]
    if isinstance(reader, EraDataset):
        return [lambda: pickle.loads(pickle.dumps(reader))[0]]  # noqa: S301 - our own, as a loader's worker has it
    return [reader.refresh, lambda: reader.rows(0, [0])]


@pytest.mark.parametrize("kind", [Batches, EraDataset, Windows])
def test_every_reader_names_a_store_that_is_gone(tmp_path: Path, kind: type[Any]) -> None:
    store = era_store(tmp_path / "store")
    asks = later(kind(store.path, STREAM, **({"batch_size": 2} if kind is Batches else {})))
    store.path.rename(tmp_path / "away")
    for ask in asks:
        with pytest.raises(StoreError, match=GONE):
            ask()
    (tmp_path / "away").rename(store.path)
    for ask in asks:
        ask()


MESSAGE = r"000000000004\.bin: block 6, at byte 20, is not what was committed.*tokenmill repair"


def spoil(store: Store, at: int = 2 * INFO.block_bytes + 3) -> None:
    """Change a bit of block 6 of partition 0, in a segment that was sealed; the second time, take that back."""
    flip(segment_of(store, 4).tokens, at)


@pytest.fixture
def damaged(tmp_path: Path) -> Store:
    store = era_store(tmp_path)
    spoil(store)
    return store


def by_batches(store: Store, **options: Any) -> list[list[int]]:
    return rows_of(open_batches(store, **options))


def by_steps(store: Store, workers: int = 0, **options: Any) -> list[list[int]]:
    return rows_of(DataLoader(open_steps(store, **options), batch_size=None, num_workers=workers))


def by_index(store: Store, **options: Any) -> EraDataset:
    return EraDataset(store.path, STREAM, sequence_length=4, **options)


def by_windows(store: Store, **options: Any) -> list[list[int]]:
    windows = Windows(store.path, STREAM, 4, **options)
    return [row for block in range(23) for row in windows.rows(0, [5 * block]).tolist()]


LOADERS: dict[str, Callable[..., list[list[int]]]] = {
    "Batches": by_batches,
    "Batches, as stored": lambda store, **options: [
        row for batch in open_batches(store, widen=False, **options) for row in batch.rows.tolist()
    ],
    "Batches, in order": partial(by_batches, shuffle=False),
    "Batches, views of blocks": partial(by_batches, sequence_length=2),
    "Batches, of all ranks": lambda store, **options: [
        row for rank in range(2) for row in by_batches(store, rank=rank, world_size=2, batch_size=1, **options)
    ],
    "StepDataset": by_steps,
    "StepDataset, in workers": partial(by_steps, workers=2),
    "EraDataset": lambda store, **options: [
        [*x.tolist(), int(y[-1])] for x, y in map(by_index(store, **options).__getitem__, range(40))
    ],
    "EraDataset, many at once": lambda store, **options: [
        [*x.tolist(), int(y[-1])] for x, y in by_index(store, **options).__getitems__(range(40))
    ],
    "Windows": by_windows,
    "open_partition": lambda store, **options: [
        row.tolist() for row in map(open_partition(store.path, STREAM, 0, **options).read, range(23))
    ],
    "open_partition, many at once": lambda store, **options: (
        open_partition(store.path, STREAM, 0, **options).gather(range(23)).tolist()
    ),
}


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("table_blocks", [1, 1 << 20])
@pytest.mark.cases(8)
def test_a_changed_bit_is_refused_unless_checks_are_not_wanted(
    damaged: Store, monkeypatch: pytest.MonkeyPatch, name: str, table_blocks: int
) -> None:
    monkeypatch.setattr(sample_lookup, "_TABLE_BLOCKS", table_blocks)
    with raises_in_workers(DamagedError, MESSAGE):
        LOADERS[name](damaged)
    changed, sound = LOADERS[name](damaged, check=False), tokens_of(CHAINS[0], INFO)[6].tolist()
    kept = [sound[start : start + 3] for start in (0, 2)] if "views" in name else [sound]
    assert not all(row in changed for row in kept)
    spoil(damaged)
    mended = LOADERS[name](damaged)
    assert all(row in mended for row in kept)
    assert len(mended) == len(changed)


@pytest.mark.parametrize("at", range(INFO.block_bytes))
@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.cases(8)
def test_no_byte_of_a_block_goes_unchecked(tmp_path: Path, length: int, at: int) -> None:
    spoil(store := era_store(tmp_path), 2 * INFO.block_bytes + at)
    with pytest.raises(DamagedError, match=MESSAGE):
        by_batches(store, sequence_length=length)


@pytest.mark.parametrize("batch_size", [1, 3, 7, 40])
def test_all_before_the_damage_is_delivered(damaged: Store, batch_size: int) -> None:
    sequence = expected(shuffle=False)
    whole = sequence.index(tokens_of(CHAINS[0], INFO)[6].tolist()) // batch_size
    found: list[list[int]] = []
    with pytest.raises(DamagedError, match=MESSAGE):
        read_into(found, open_batches(damaged, shuffle=False, batch_size=batch_size))
    assert found == sequence[: whole * batch_size]


def test_after_a_repair_the_run_goes_on(damaged: Store, tmp_path: Path) -> None:
    """Also with the same Batches: a repaired file is another one, and is read."""
    batches = open_batches(damaged, shuffle=False)
    with pytest.raises(DamagedError, match=MESSAGE):
        rows_of(batches)
    broken = segment_of(damaged, 4).tokens
    mended = Path(shutil.copy(broken, tmp_path / "mended"))
    flip(mended, 23)
    mended.rename(broken)
    delivered = batches.state_dict()["sample"]
    assert rows_of(batches) == expected(shuffle=False)[delivered:]


def test_a_block_that_changes_after_it_was_read_is_refused_next_time(damaged: Store) -> None:
    spoil(damaged)
    batches = open_batches(damaged)
    assert rows_of(batches) == expected()
    spoil(damaged)
    with pytest.raises(DamagedError, match="block 6"):
        list(batches.rewind())


def test_damage_in_the_copy_alone_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is what was committed when it is looked at again: memory may be at fault."""
    copied = Gathering.rows

    def spoilt(self: Gathering, start: int = 0, stop: int | None = None) -> Rows:
        found = copied(self, start, stop)
        found[-1, -1] ^= np.uint16(1)
        return found

    monkeypatch.setattr(Gathering, "rows", spoilt)
    with pytest.raises(DamagedError, match="was not what was committed when it was read, and is now"):
        list(open_batches(store))


TRAIN = """
import faulthandler, sys

faulthandler.enable()
from tokenmill.consumers import Batches, EraDataset, Windows
from tokenmill.errors import DamagedError
from tokenmill.store import maps

seconds, store, stream = sys.argv[1:]
maps._LOOK_SECONDS = float(seconds)
dataset = EraDataset(store, stream, sequence_length=1024, check=False)
windows = Windows(store, stream, 1024, check=False)
sources = {
    "Batches": iter(Batches(store, stream, batch_size=4, sequence_length=1024, check=False)),
    "EraDataset": map(dataset.__getitem__, range(len(dataset))),
    "Windows": (windows.rows(0, [1025 * block]) for block in range(399)),
}
for source in sources.values():
    next(source)
print("ready", flush=True)
input()
for name, source in sources.items():
    try:
        for _ in source:
            pass
    except DamagedError as error:
        print(name, error)
"""
"""Takes a batch of each loader, and the others after a line came in."""


def cut_off_in_a_process(folder: Path, look_seconds: float) -> tuple[Store, int, str, str]:
    """Cut off the tokens of an era of 800 kB, copied in several parts, while a process reads them.

    Return the store, how the process ended, what it printed and what it wrote to stderr.
    """
    info = make_info(block_tokens=1025, segment_blocks=1024)
    chain, said = make_chain(info, 400), folder / "said"
    store = filled_store(folder / "store", info, chain, [400])
    write_eras(store, make_eras(info, {0: chain}, [{0: 400}], end=True))
    command = [sys.executable, "-c", TRAIN, str(look_seconds), str(store.path), STREAM]
    with (
        said.open("w") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", said.read_text()
        os.truncate(segment_of(store).tokens, 4096)
        told, _ = process.communicate("go\n")
    return store, process.returncode, told, said.read_text()


@pytest.mark.slow
def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    _, code, told, said = cut_off_in_a_process(tmp_path, 0)
    assert (code, said) == (0, "")
    lines = told.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["Batches", "EraDataset", "Windows"]
    for line in lines:
        assert "000000000000.bin: it has 4096 bytes, but 820000 were committed" in line
        assert "tokenmill repair" in line


@pytest.mark.slow
def test_a_file_that_is_cut_off_between_two_looks_ends_the_process_with_a_word(tmp_path: Path) -> None:
    """The bus error that nobody can take back; faulthandler says where it was, and the next start names the file."""
    store, code, told, said = cut_off_in_a_process(tmp_path, 3600)
    assert (code, told) == (-signal.SIGBUS, "")
    assert "Fatal Python error: Bus error" in said
    assert "sample_lookup.py" in said
    with pytest.raises(DamagedError, match=r"000000000000\.bin: it has 4096 bytes, but 820000 were committed"):
        next(iter(Batches(store.path, STREAM, batch_size=4, sequence_length=1024)))
