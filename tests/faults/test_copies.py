"""Stores that are copied or mirrored, begin late, or lose blocks that nothing holds any more."""

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.altering import delete_records, grow
from tests.faults.conftest import Configured, each_packing
from tests.faults.feeding import Feeder, document, flush_all
from tests.faults.oracle import assert_store_equal, expected_chains, judge
from tests.faults.serving import halted, working
from tests.faults.trial import Trial
from tests.service import Mirroring, Raw, Service, equal_files, send, stored_blocks
from tokenmill.app.settings import Settings
from tokenmill.app.tools.repair import repair_store
from tokenmill.app.tools.verify import verify
from tokenmill.errors import StoreError
from tokenmill.store import Store, open_eras, open_partition, partitions_in

SUFFIXES = (".bin", ".docs", ".index", ".idx", ".json")


def copy_sealed(settings: Settings, to: Path, *, segments: int) -> None:
    """Copy what a backup would: the store's and the stream's descriptions, and the oldest sealed segments' files."""
    for description in (settings.store / "store.json", *settings.store.glob("*/stream.json")):
        target = to / description.relative_to(settings.store)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(description, target)
    for manifest in settings.store.glob("*/*/0*.json"):
        if int(manifest.name[:12]) < segments * settings.segment_blocks:
            (to / manifest.relative_to(settings.store)).parent.mkdir(exist_ok=True)
            for suffix in SUFFIXES:
                file = manifest.with_suffix(suffix)
                shutil.copy(file, to / file.relative_to(settings.store))


def files(store: Path, stream: str, first: int = 0) -> dict[str, bytes]:
    """Return the files of partition 0 that must be equal in all stores, from a block on."""
    found = {path.name: path for path in (store / stream / "0").glob("0*") if path.suffix in SUFFIXES}
    return {name: path.read_bytes() for name, path in found.items() if int(name[:12]) >= first}


@pytest.mark.fault("files-missing", "source-retained")
@pytest.mark.needs("minutes")
@each_packing
def test_copied_and_late_stores_continue(
    configured: Configured, tmp_path: Path, trial: Trial, packing: dict[str, Any]
) -> None:
    """A copy is refused, adopted, and goes on; with retention, a new store begins at a border, and an old one halts."""
    settings = configured(splits={"train": 1000}, **packing)
    stream = settings.streams()[0]
    send(settings, [Raw(document(trial.rng)) for _ in range(250)])
    flush_all(settings)
    with working(settings) as service:
        judge(service, trial)
        service.stop()
    blocks = open_partition(settings.store, stream.name, 0).blocks
    assert blocks > 5 * settings.segment_blocks

    copy = settings.model_copy(update={"store": tmp_path / "copy"})
    copy_sealed(settings, copy.store, segments=2)
    _continues(copy, stream.name, tmp_path, blocks, refused=True)
    assert files(copy.store, stream.name) == files(settings.store, stream.name)
    trial.fired("a copy without commit logs")

    short = settings.model_copy(update={"store": tmp_path / "short"})
    copy_sealed(settings, short.store, segments=1)
    Store.adopt(short.store)
    delete_records(settings, stream.tokens_topic, 0, 10)
    trial.fired("retention took the first messages")
    with Service(short, tmp_path) as service:
        worker = service.segment()
        service.wait_until(lambda: "no longer holds block 16" in halted(worker, f"{stream.tokens_topic}/0"))

    late = settings.model_copy(update={"store": tmp_path / "late"})
    said = _continues(late, stream.name, tmp_path, blocks)
    first = open_partition(late.store, stream.name, 0).first_block
    assert first > 0
    assert first % settings.segment_blocks == 0
    assert "the store begins later" in said
    assert files(late.store, stream.name) == files(settings.store, stream.name, first)
    result = verify(settings, store=late.store)
    assert result.ok
    assert f"the store's {stream.name} partition 0 starts with block {first}" in result.notes

    _gives_back_what_there_is(settings, late, stream.name, first, trial)
    for chain in expected_chains(settings):
        assert_store_equal(settings, chain)
    trial.held("exact", "complete", "loud", blocks=blocks)


def _continues(settings: Settings, stream: str, directory: Path, blocks: int, *, refused: bool = False) -> str:
    """Let a segment worker fill a store to its end; a copied one must be adopted first. Return what the worker said."""
    with Service(settings, directory) as service:
        if refused:
            copied = service.segment()
            assert copied.process.wait() == StoreError.exit_code
            assert "tokenmill adopt" in copied.log
            Store.adopt(settings.store)
        worker = service.segment()
        service.wait_until(lambda: stored_blocks(settings, [(stream, 0)]) == {(stream, 0): blocks})
        service.stop()
        return worker.log


def _gives_back_what_there_is(settings: Settings, late: Settings, stream: str, first: int, trial: Trial) -> None:
    """Lose segments below and above what the topic retains: these come back, those only from another store."""
    size, whole = settings.segment_blocks, files(settings.store, stream)
    for lost in (0, first + size):
        for path in (settings.store / stream / "0").glob(f"{lost:012d}.*"):
            path.unlink()
    trial.fired("segments lost")
    (found,), _ = repair_store(settings, stream)
    assert [(s.first, s.blocks, s.given) for s in found.segments] == [(0, 0, 0), (first + size, size, size)]
    for donor, lost_blocks in ((late.store, [range(size)]), (late.store.parent / "copy", [])):
        assert found.lost == [range(size)]
        (found,), _ = repair_store(settings, stream, donor=donor)
        assert found.lost == lost_blocks
    assert files(settings.store, stream) == whole


@pytest.mark.fault("mirror-killed", "partitions-added")
@each_packing
def test_killed_mirrors_copy_everything_once(
    configured: Configured, tmp_path: Path, trial: Trial, packing: dict[str, Any]
) -> None:
    """By SIGKILL, at its start or while it follows; the last one takes new partitions up without a restart."""
    settings = configured(1, splits={"all": 1000}, era_blocks=40, session_timeout=2.0, **packing)
    (stream,), store = settings.streams(), tmp_path / "mirror"
    with working(settings) as service:
        with Feeder(settings, trial.rng, burst=2):
            for _ in range(trial.rounds(1, 10 if packing else 40)):
                with Mirroring(settings, store) as mirroring:
                    time.sleep(trial.rng.uniform(0.5, 4.0))
                    mirroring.kill()
                    assert mirroring.process.returncode == -signal.SIGKILL, mirroring.log
                    trial.fired("mirror SIGKILL")
        with Mirroring(settings, store) as mirroring:
            service.wait_until((store / stream.name / "0").is_dir)
            grow(settings, settings.raw_topics[0], 2)
            with Feeder(settings, trial.rng, burst=2):
                service.wait_until((settings.store / stream.name / "1").is_dir)
            trial.fired("partition added")
            judge(service, trial)
            service.wait_until(lambda: partitions_in(store, stream.name) == [0, 1])
            wanted = open_eras(settings.store, stream.name).blocks
            service.wait_until(lambda: open_eras(store, stream.name).blocks == wanted)
            service.stop()
            assert mirroring.stop() == 0, mirroring.log
    with Mirroring(settings, store, "--once") as mirroring:
        assert mirroring.wait() == 0, mirroring.log
    assert "; complete" in mirroring.log
    assert equal_files(store, stream.name) == equal_files(settings.store, stream.name)
    trial.held("exact", "complete", blocks=open_eras(store, stream.name).blocks)
