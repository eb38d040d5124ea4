"""A mirror's store is the stream's, byte for byte, whatever befalls either; and what it keeps for runs that go on."""

import asyncio
import json
import os
import shutil
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.app.commands import Told, invoke
from tests.app.conftest import until
from tests.conftest import topics_on
from tests.consumers.scenes import CHAINS, ERAS, era_store, open_batches, other_chains, other_eras
from tests.scraping import free_port, scrape
from tests.service import Mirroring, Raw, Service, equal_files, mirror_once, send, service_settings, stored_blocks
from tests.store.chains import STREAM, fill, make_info
from tokenmill.app.local.broker import Broker
from tokenmill.app.segments import mirror
from tokenmill.app.segments.mirror import CheckpointKeeper
from tokenmill.app.settings import Settings
from tokenmill.consumers import Batches
from tokenmill.errors import DamagedError, FingerprintError, InputError, LockedError, StoreError
from tokenmill.store import Store, StoreLock, open_eras, open_partition
from tokenmill.store.layout import partition_directory
from tokenmill.store.store import StreamInfo

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
    wanted = equal_files(scene.settings.store, scene.stream)
    assert {Path(name).suffix for name in wanted} == {".bin", ".docs", ".json", ".idx", ".index", ".jsonl"}
    assert sum(name.endswith(".idx") for name in wanted) >= 4
    for store in scene.mirrors:
        assert equal_files(store, scene.stream) == wanted


@pytest.mark.slow
@pytest.mark.needs("minutes")
def test_copied_segments_continue_once_they_are_adopted(scene: Scene) -> None:
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


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with five eras, sealed far beyond these."""
    store = era_store(tmp_path / "store")
    for partition, stop in ((0, 40), (1, 32), (2, 24)):
        fill(store, make_info(), CHAINS[partition], [stop], partition=partition)
    return store


def state(store: Store, steps: int, file: str = "state.json", **changes: Any) -> Path:
    path = store.path.parent / file
    path.write_text(json.dumps(open_batches(store).skip(steps).state_dict() | changes))
    return path


def firsts(store: Store) -> list[int]:
    return [open_partition(store.path, STREAM, number).first_block for number in range(3)]


def needed(store: Store, samples: int) -> list[int]:
    """Return with which block partitions begin, of whose era the sample is, as the eras of `scenes` have them."""
    passed, found = 0, ERAS[0]
    for era in ERAS[:-1]:
        if samples < passed + era.blocks:
            found = era
            break
        passed += era.blocks
    ranges = [part.first for part in found.ranges] + [0] * 3
    return [first - first % 4 for first in ranges[:3]]


@pytest.mark.parametrize("steps", [0, 3, 6, 8, 12, 15, 19])
def test_what_lies_before_the_era_of_the_next_sample_goes(store: Store, steps: int) -> None:
    keeper = CheckpointKeeper(store.path, [state(store, steps)])
    with capture_logs() as logs:
        keeper.look()
        assert firsts(store) == needed(store, 2 * steps)
        keeper.look()
    retired = [entry for entry in logs if entry["event"] == "segments retired"]
    assert sum(entry["segments"] for entry in retired) == sum(firsts(store)) // 4
    places = {(entry["partition"], entry["first"]) for entry in retired}
    assert places == {(number, first) for number, first in enumerate(firsts(store)) if first}


def test_what_any_of_the_states_needs_stays(store: Store) -> None:
    late, early = state(store, 19, "late.json"), state(store, 6, "early.json")
    for files in ([late, early], [early, late]):
        CheckpointKeeper(store.path, files).look()
        assert firsts(store) == needed(store, 12)
    CheckpointKeeper(store.path, [late]).look()
    assert firsts(store) == needed(store, 38)
    assert firsts(store) != needed(store, 12)


def test_while_a_file_is_missing_nothing_is_retired(store: Store, tmp_path: Path) -> None:
    """A run that is about to write its first state may need everything. The command refuses to go on without it."""
    late, missing = state(store, 19, "late.json"), tmp_path / "missing.json"
    for files in ([late, missing], [missing, late], [missing]):
        keeper = CheckpointKeeper(store.path, files)
        with capture_logs() as logs:
            keeper.look()
            keeper.look()
        (entry,) = logs
        assert (entry["event"], entry["reason"]) == ("nothing is retired", f"{missing}: not there yet")
        told = retire(store, *(part for file in files for part in ("--keep-from", file)))
        assert told.code == InputError.exit_code
        assert f"{missing} cannot be read as a state" in told.err
        assert firsts(store) == [0, 0, 0]
    state(store, 6, "missing.json")
    CheckpointKeeper(store.path, [late, missing]).look()
    assert firsts(store) == needed(store, 12)


def test_what_is_missing_again_is_said_again(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    keeper = CheckpointKeeper(store.path, [file])
    with capture_logs() as logs:
        keeper.look()
        state(store, 0)
        keeper.look()
        file.unlink()
        keeper.look()
    assert [entry["event"] for entry in logs] == ["nothing is retired"] * 2


def test_an_old_state_is_obeyed_with_a_warning(store: Store) -> None:
    file = state(store, 6, content=None)
    keeper = CheckpointKeeper(store.path, [file])
    with capture_logs() as logs:
        keeper.look()
        state(store, 8, content=None)
        keeper.look()
    assert [entry["event"] for entry in logs].count("state without content") == 1
    assert firsts(store) == needed(store, 16)
    told = retire(store, "--keep-from", state(store, 19, content=None))
    assert (told.code, "does not say over which content" in told.err) == (0, True)
    assert firsts(store) == needed(store, 38)


def test_streams_of_which_no_state_speaks_are_kept(store: Store) -> None:
    store.add_stream(StreamInfo.from_values({**make_info().values, "stream": "other"}), None)
    for source in (store.path / STREAM).glob("[012]/0*"):
        target = store.path / "other" / source.relative_to(store.path / STREAM)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(source, target)
    before = sorted((store.path / "other").rglob("*"))
    CheckpointKeeper(store.path, [state(store, 19)]).look()
    assert max(firsts(store)) > 0
    assert sorted((store.path / "other").rglob("*")) == before


def test_a_partition_that_no_era_has_met_is_kept(store: Store) -> None:
    file = state(store, 4)  # in the era before partition 2 came
    CheckpointKeeper(store.path, [file]).look()
    retire(store, "--keep-from", file)
    assert firsts(store) == needed(store, 8)
    assert firsts(store)[2] == 0
    assert open_partition(store.path, STREAM, 2).blocks == 24


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stream": "other"}, "'other', which is not in .*raw-text.train"),
        ({"fingerprint": "00" * 16}, "fingerprint 0000"),
    ],
)
def test_a_state_of_something_else_is_refused(store: Store, changes: dict[str, str], message: str) -> None:
    files = [state(store, 19), state(store, 19, "other.json", **changes)]
    with pytest.raises(InputError, match=message):
        CheckpointKeeper(store.path, files).look()
    assert firsts(store) == [0, 0, 0] or "stream" in changes


async def test_a_mirror_looks_again_and_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "KEEP_LOOK_SECONDS", 0.001)
    file = state(store, 0)
    keeper = CheckpointKeeper(store.path, [file])
    looks, real = 0, keeper.look

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            file.write_text("no state")
        if looks == 6:
            state(store, 19)
        real()

    monkeypatch.setattr(keeper, "look", look)
    with capture_logs() as logs:
        running = asyncio.create_task(keeper.run())
        await until(lambda: looks >= 8, running)
        running.cancel()
        await asyncio.wait({running})
    assert [entry["event"] for entry in logs].count("nothing is retired") == 1
    assert firsts(store) == needed(store, 38)


def retire(store: Store, *arguments: object) -> Told:
    return invoke("retire", STREAM, "--store", store.path, *arguments)


def test_retire_keeps_what_any_limit_keeps(store: Store) -> None:
    late, early = state(store, 19, "late.json"), state(store, 6, "early.json")
    assert retire(store, "--keep-from", late, "--keep-from", early).code == 0
    assert firsts(store) == needed(store, 12)
    assert retire(store, "--keep-from", late, "--below", "12").code == 0
    assert firsts(store) == [min(12, first) for first in needed(store, 38)]
    assert retire(store, "--keep-from", late, "--keep", "24").code == 0
    assert firsts(store)[0] == min(16, needed(store, 38)[0])


@pytest.mark.parametrize("kept", [0, 3])
def test_a_state_over_other_content_frees_nothing(store: Store, tmp_path: Path, kept: int) -> None:
    other = era_store(tmp_path / "other", other_eras(kept), other_chains(kept))
    file = state(other, 19)
    with pytest.raises(InputError, match=r"state: era 4 hash \w+; store: era 4 hash"):
        CheckpointKeeper(store.path, [file]).look()
    told = retire(store, "--keep-from", file)
    assert told.code == InputError.exit_code
    assert "state: era 4 hash" in told.err
    assert firsts(store) == [0, 0, 0]
