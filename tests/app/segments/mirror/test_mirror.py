"""A mirror's store is the stream's, byte for byte: killed, late, copied, in a store that is damaged or another's."""

import json
import os
import shutil
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.conftest import topics_on
from tests.mirrors import Mirroring, equal_files, mirror_once
from tests.scraping import free_port, scrape
from tests.service import Raw, Service, send, service_settings, stored_blocks
from tokenmill.app.cli import create_cli
from tokenmill.app.local.broker import Broker
from tokenmill.app.settings import Settings
from tokenmill.consumers import Batches
from tokenmill.errors import DamagedError, FingerprintError, InputError, LockedError, StoreError
from tokenmill.store import Store, StoreLock, open_eras, open_partition
from tokenmill.store.layout import partition_directory

PARTITIONS = 2


def documents(count: int) -> list[Raw]:
    return [Raw(b"a document of some length %d " % number * 7, number % PARTITIONS) for number in range(count)]


@dataclass(frozen=True)
class Scene:
    """A stream that is complete in a segment worker's store, and in two mirrors' beside it."""

    settings: Settings
    stream: str
    mirrors: list[Path]
    directory: Path


def complete(settings: Settings, store: Path) -> bool:
    (stream,) = settings.streams()
    chains = [(stream.name, number) for number in range(PARTITIONS)]
    blocks = stored_blocks(settings, chains)
    if stored_blocks(settings.model_copy(update={"store": store}), chains) != blocks:
        return False
    eras = open_eras(store, stream.name)
    return eras.eras > 0 and eras.blocks == sum(blocks.values())


@pytest.fixture(scope="module")
def scene(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Mill, and mirror meanwhile: one mirror from the beginning, killed in the middle, and one that comes later."""
    directory = tmp_path_factory.mktemp("mirrors")
    topic = topics_on(broker, "mirrored")(PARTITIONS)
    settings = service_settings(
        broker, topic, directory, splits={"all": 1000}, era_blocks=40, era_max_seconds=0.5, session_timeout=3.0
    )
    (stream,) = settings.streams()
    early, late, port = directory / "early", directory / "late", free_port()
    with Service(settings, directory) as service, Mirroring(settings, early) as killed:
        service.mill()
        service.segment()
        send(settings, documents(60))
        service.wait_until(lambda: stored(early, stream.name) > 20)
        killed.kill()
        send(settings, documents(60))
        service.wait_until_complete()
        service.wait_until(lambda: complete(settings, settings.store))  # what comes now is in eras of its own
        with Mirroring(settings, early) as first, Mirroring(settings, late, port=port) as second:
            send(settings, documents(60))
            service.wait_until_complete()
            for store in (settings.store, early, late):
                service.wait_until(lambda: complete(settings, store))  # noqa: B023
            service.wait_until(lambda: "tokenmill_mirror_eras_behind" in {name for name, _ in scrape(port)})
            assert (first.stop(), second.stop()) == (0, 0), first.log + second.log
        service.stop()
    return Scene(settings, stream.name, [early, late], directory)


def stored(store: Path, stream: str) -> int:
    try:
        return sum(open_partition(store, stream, number).blocks for number in range(PARTITIONS))
    except StoreError:
        return 0


@pytest.mark.slow
def test_all_stores_are_equal(scene: Scene) -> None:
    """Segment worker, a mirror that was killed, and one that came later: every file that is not a store's own."""
    wanted = equal_files(scene.settings.store, scene.stream)
    assert {Path(name).suffix for name in wanted} == {".bin", ".docs", ".json", ".idx", ".index", ".jsonl"}
    assert sum(name.endswith(".idx") for name in wanted) >= 4
    for store in scene.mirrors:
        assert equal_files(store, scene.stream) == wanted


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_copied_segments_continue_once_they_are_adopted(scene: Scene) -> None:
    """A copy of sealed segments by any means, without commit logs and the open ones; the rest comes from the topic."""
    copy = scene.directory / "copy"
    for manifest in scene.mirrors[0].glob("*/*/0*.json"):
        if int(manifest.stem) < 32:
            (copy / scene.stream / manifest.parent.name).mkdir(parents=True, exist_ok=True)
            for file in manifest.parent.glob(f"{manifest.stem}.*"):
                if file.suffix != ".commits":
                    shutil.copy(file, copy / file.relative_to(scene.mirrors[0]))
    for file in (scene.mirrors[0] / scene.stream).glob("*.json*"):
        shutil.copy(file, copy / scene.stream)
    shutil.copy(scene.mirrors[0] / "store.json", copy)
    code, said = mirror_once(scene.settings, copy)
    assert (code, "tokenmill adopt" in said) == (StoreError.exit_code, True)
    Store.adopt(copy)
    before = (copy / scene.stream / "0" / "000000000000.bin").stat()
    code, said = mirror_once(scene.settings, copy)
    assert (code, said.splitlines()[-1].endswith("; complete")) == (0, True), said
    assert (copy / scene.stream / "0" / "000000000000.bin").stat() == before
    assert equal_files(copy, scene.stream) == equal_files(scene.settings.store, scene.stream)


@pytest.mark.slow
def test_mirrors_and_segment_workers_exclude_each_other(scene: Scene, tmp_path: Path) -> None:
    settings = scene.settings.model_copy(update={"store": scene.mirrors[0]})
    held = StoreLock(settings.store, exclusive=False)
    StoreLock(settings.store, exclusive=False).close()
    code, said = mirror_once(settings, settings.store)
    assert (code, "a segment worker, or another mirror, fills" in said) == (LockedError.exit_code, True)
    held.close()
    held = StoreLock(settings.store, exclusive=True)
    with Service(settings, tmp_path) as service:
        worker = service.segment()
        assert worker.process.wait() == LockedError.exit_code
        assert "a mirror fills the store" in worker.log
    held.close()


@pytest.mark.slow
def test_mirror_keeps_what_a_checkpoint_needs(scene: Scene) -> None:
    def batches(store: Path) -> Batches:
        return Batches(
            store, scene.stream, batch_size=2, sequence_length=scene.settings.sequence_length, seed=3,
            eras=range(open_eras(store, scene.stream).eras),
        )  # fmt: skip

    whole = batches(scene.settings.store)
    every = [batch.x.tolist() for batch in whole]
    trained = batches(scene.settings.store)
    made = len(every) * 9 // 10  # in an era of the last documents, whose blocks are a third
    assert len(list(islice(trained, made))) == made
    file = scene.directory / "state.json"
    file.write_text(json.dumps(trained.state_dict()))
    store = scene.directory / "kept"
    shutil.copytree(scene.mirrors[0], store)
    Store.adopt(store)
    code, said = mirror_once(scene.settings, store, "--keep-from", str(file))
    assert code == 0, said
    firsts = [open_partition(store, scene.stream, number).first_block for number in range(PARTITIONS)]
    assert max(firsts) > 0
    eras = open_eras(store, scene.stream)
    needed = eras.era(eras.find(trained.state_dict()["sample"])).ranges
    size = scene.settings.segment_blocks
    places = [partition_directory(store, scene.stream, number) for number in range(PARTITIONS)]
    newest = [max(int(file.stem) for file in place.glob("0*.json")) for place in places]  # sealed: this one stays
    assert firsts == [min(part.first - part.first % size, last) for part, last in zip(needed, newest, strict=True)]
    by_hand = scene.directory / "kept by hand"
    shutil.copytree(scene.mirrors[0], by_hand)
    runner = CliRunner()
    told = runner.invoke(
        create_cli("retire"), ["retire", scene.stream, "--store", str(by_hand), "--keep-from", str(file)]
    )
    assert told.exit_code == 0, told.output
    assert [open_partition(by_hand, scene.stream, number).first_block for number in range(PARTITIONS)] == firsts
    going_on = batches(store)
    going_on.load_state_dict(json.loads(file.read_text()))
    assert [batch.x.tolist() for batch in going_on] == every[made:]
    with pytest.raises(InputError, match="its older segments were retired"):
        next(iter(batches(store)))


def test_damage_is_told_and_stops_that_partition_alone(scene: Scene) -> None:
    store = scene.directory / "damaged"
    shutil.copytree(scene.mirrors[1], store)
    Store.adopt(store)
    last = max((store / scene.stream / "0").glob("*.bin"))
    os.truncate(last, last.stat().st_size - 1)
    for file in (store / scene.stream / "1").glob("0*"):
        file.unlink()
    code, said = mirror_once(scene.settings, store)
    assert (code, "tokenmill repair" in said) == (DamagedError.exit_code, True), said
    assert open_partition(store, scene.stream, 1).blocks == open_partition(scene.settings.store, scene.stream, 1).blocks


def test_a_store_of_another_stream_of_that_name_is_refused(scene: Scene) -> None:
    store = scene.directory / "foreign"
    (store / scene.stream).mkdir(parents=True)
    description = json.loads((scene.settings.store / scene.stream / "stream.json").read_text())
    description["segment_blocks"] += 1
    description["genesis"]["segment_blocks"] += 1
    text = json.dumps(description, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    (store / scene.stream / "stream.json").write_text(text + "\n")
    code, said = mirror_once(scene.settings, store)
    assert (code, "use another store" in said) == (FingerprintError.exit_code, True), said
