"""Stores that were packed, damaged: repaired without a broker, and no message speaks of one."""

import re
import shutil
from pathlib import Path

import pytest

from tests.app.sources.files import write_jsonl
from tests.app.tools.pack.packing import content, pack_into, require_equal, rows, small_settings
from tests.store.chains import flip
from tokenmill.app.settings import Settings
from tokenmill.app.tools.repair import examine_store, repair_store
from tokenmill.errors import DamagedError

STREAM = "raw-text.train"
SERVICE = re.compile(r"worker|topic|broker|Kafka|tokenmill verify")


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Settings, list[Path]]:
    """Pack a store, to its end; return where, and what."""
    paths = [tmp_path / "a.jsonl"]
    write_jsonl(paths[0], rows(120))
    settings = small_settings(tmp_path / "store", bootstrap_servers="127.0.0.1:1")
    pack_into(settings, paths, flush=True, end=True)
    return settings, paths


def test_lost_records_are_made_again_from_the_blocks_that_the_eras_name(packed: tuple[Settings, list[Path]]) -> None:
    """Before that, pack refuses the store, and takes nothing away that a repair needs."""
    settings, paths = packed
    before = content(settings.store, eras=True)
    (log,) = [log for log in (settings.store / STREAM / "0").glob("*.commits") if not log.with_suffix(".json").exists()]
    flip(log, -1)
    with pytest.raises(DamagedError, match=r"blocks, and \d+ were packed. To repair it, run `tokenmill repair") as told:
        pack_into(settings, paths, flush=True, end=True)
    assert not SERVICE.search(str(told.value))
    assert [len(partition.segments) for partition in examine_store(settings.store, STREAM)] == [1, 0]
    found, _ = repair_store(settings, STREAM)
    assert [(segment.given, segment.lost) for one in found for segment in one.segments] == [(0, ())]
    log.with_name(f"{log.name}.broken").unlink()
    require_equal(content(settings.store, eras=True), before)
    pack_into(settings, paths, flush=True, end=True)
    require_equal(content(settings.store, eras=True), before)


def test_a_lost_partition_comes_from_another_store(packed: tuple[Settings, list[Path]], tmp_path: Path) -> None:
    """That is packed again by the same command; without one, what is lost is said."""
    settings, paths = packed
    before = content(settings.store, eras=True)
    shutil.rmtree(settings.store / STREAM / "1")
    assert [bool(partition.segments) for partition in examine_store(settings.store, STREAM)] == [False, True]
    found, _ = repair_store(settings, STREAM, [1])
    assert found[0].lost
    other = settings.model_copy(update={"store": tmp_path / "other"})
    pack_into(other, paths, flush=True, end=True)
    found, _ = repair_store(settings, STREAM, donor=other.store)
    assert not any(one.lost for one in found)
    require_equal(content(settings.store, eras=True), before)


@pytest.mark.parametrize("name", ["eras.jsonl", "eras.index"])
def test_eras_are_written_again_by_the_same_command(packed: tuple[Settings, list[Path]], name: str) -> None:
    """As the message says."""
    settings, paths = packed
    before = content(settings.store, eras=True)
    flip(settings.store / STREAM / name, -1)
    if name == "eras.jsonl":
        with pytest.raises(DamagedError, match="call the same `tokenmill pack` command again: it writes both") as told:
            examine_store(settings.store, STREAM)
        assert not SERVICE.search(str(told.value))
    for file in ("eras.jsonl", "eras.index"):
        (settings.store / STREAM / file).unlink()
    pack_into(settings, paths, flush=True, end=True)
    require_equal(content(settings.store, eras=True), before)


def test_a_damaged_description_comes_from_another_store(packed: tuple[Settings, list[Path]]) -> None:
    """The file is named."""
    settings, _ = packed
    (settings.store / STREAM / "stream.json").write_bytes(b"{")
    with pytest.raises(DamagedError, match=r"/stream\.json: it is not JSON .*`tokenmill repair .* --from DIR") as told:
        repair_store(settings, STREAM)
    assert not SERVICE.search(str(told.value))
