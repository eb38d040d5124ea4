"""Buckets that fail, uploads that are killed and compete, caches that are broken: what counts is what was uploaded."""

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests import commands
from tests.app.buckets.scene import uploaded, uploaded_to, whole_store
from tests.app.buckets.test_upload_command import objects, without_heads, words
from tests.faults.trial import Trial
from tests.store.chains import STREAM
from tokenmill.app.buckets import StreamCopy
from tokenmill.bucket.objects import Bucket, Data, HeadLog, StoredObjects, stream_of
from tokenmill.consumers import Batches
from tokenmill.errors import BucketError
from tokenmill.store import Store

pytestmark = [pytest.mark.needs("minutes"), pytest.mark.slow]

SECONDS: Final = 120.0
OPTIONS: Final[dict[str, Any]] = {"sequence_length": 4, "batch_size": 1, "passes": 2, "seed": 3, "timeout": 60}


def known(address: str) -> HeadLog:
    """Return what a bucket's heads say."""
    bucket = Bucket.open(address)
    heads = HeadLog(stream_of(bucket, STREAM))
    heads.look(bucket)
    return heads


@pytest.mark.fault("upload-killed", "uploaders-compete")
def test_uploads_of_two_stores_are_killed_again_and_again(trial: Trial, tmp_path: Path) -> None:
    """Until all is there, again and again into new buckets: at each kill, what a head names is there."""
    stores = [whole_store(tmp_path / name) for name in ("a", "b")]
    truth = without_heads(objects(uploaded_to(stores[0], tmp_path / "truth")))
    for round_number in range(trial.rounds(2, 20)):
        share = tmp_path / f"share{round_number}"
        share.mkdir()
        for _ in range(4):
            _kill_two(trial, stores, share, tmp_path / "log", trial.rng.randint(1, len(truth)))
            there = objects(share)
            assert without_heads(there).items() <= truth.items()
            if f"{STREAM}/heads/00000000" in there:
                assert {name for name in truth if name not in there} == set()  # all of it is one head
        assert commands.run(words(stores[0], share), tmp_path / "log", dict(os.environ)).code == 0
        assert without_heads(objects(share)) == truth
        assert known(share.as_uri()).eras[-1].end
        trial.held("exact", "eras", objects=len(truth))
        shutil.rmtree(share)


def _kill_two(trial: Trial, stores: list[Path], share: Path, log: Path, aim: int) -> None:
    running = [commands.command(words(store, share), log, {}) for store in stores]
    end = time.monotonic() + SECONDS
    while len(objects(share)) < aim and any(process.poll() is None for process in running):
        assert time.monotonic() < end
    for process in running:
        process.kill()
        code = process.wait(SECONDS)
        assert code in {0, -signal.SIGKILL}, process.said
        trial.fired("killed", code == -signal.SIGKILL)


@pytest.mark.fault("bucket-fails")
def test_a_bucket_fails_while_it_is_filled_copied_and_trained_from(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that fail before and after they took effect, and 409; then a login without rights, which ends it."""
    store, rng, share = whole_store(tmp_path / "store"), trial.rng, tmp_path / "share"
    share.mkdir()
    chance = 0.0
    _fail(trial, rng, lambda: chance, monkeypatch)
    wanted = [batch.x.tolist() for batch in Batches(store, STREAM, **OPTIONS)]
    for round_number in range(trial.rounds(2, 20)):
        chance, bucket = 0.1, Bucket.open(share.as_uri())
        bucket._pause = lambda _: None
        _again(partial(uploaded, store, bucket))
        path = tmp_path / f"copy{round_number}"
        _again(partial(_mirror, path, bucket))
        copied = Batches(path, STREAM, **OPTIONS)
        assert [batch.x.tolist() for batch in copied] == wanted
        chance = 0.02
        cache = tmp_path / f"cache{round_number}"
        _again(partial(_read, share, cache, wanted))
        trial.held("exact", "reader", steps=len(wanted))
    chance = 2.0
    with pytest.raises(BucketError, match="check the address, and that this login may list, read and create"):
        _read(share, tmp_path / "none", wanted)
    trial.held("loud")


def _fail(trial: Trial, rng: random.Random, chance: Callable[[], float], monkeypatch: pytest.MonkeyPatch) -> None:
    create, read = StoredObjects.create, StoredObjects.read

    def fails() -> bool:
        if chance() > 1:
            trial.fired("refused")
            raise PermissionError("403 Forbidden")
        return rng.random() < chance()

    def creating(self: StoredObjects, path: str, data: Data) -> None:
        if fails():
            trial.fired("put failed")
            if rng.random() < 0.3:
                raise FileExistsError("409 ConditionalRequestConflict")
            if rng.random() < 0.5:
                create(self, path, data)
            raise OSError("connection reset")
        create(self, path, data)

    def reading(self: StoredObjects, path: str) -> Data:
        if fails():
            trial.fired("get failed")
            raise OSError("503 Slow Down")
        return read(self, path)

    monkeypatch.setattr(StoredObjects, "create", creating)
    monkeypatch.setattr(StoredObjects, "read", reading)


def _again(work: Callable[[], object]) -> None:
    """Do it until nothing fails: what fails says that it passes."""
    while True:
        try:
            work()
        except BucketError as error:
            if not error.passing:
                raise
        else:
            return


def _mirror(path: Path, bucket: Bucket) -> None:
    copy = StreamCopy(Store.open_or_create(path), STREAM, bucket)
    try:
        copy.copy(lambda: None)
    finally:
        copy.close()


def _read(share: Path, cache: Path, wanted: list[Any]) -> None:
    batches = Batches(share.as_uri(), STREAM, cache=cache, **OPTIONS)
    assert [batch.x.tolist() for batch in batches] == wanted


@pytest.mark.fault("cache-broken")
def test_ranks_are_killed_and_their_cache_is_deleted(trial: Trial, tmp_path: Path) -> None:
    """Whoever fetches is killed, or all are and the folder is gone: each rank goes on with the next step."""
    store = whole_store(tmp_path / "store")
    address, cache = uploaded_to(store, tmp_path / "share").as_uri(), tmp_path / "cache"
    files = [tmp_path / f"rank{rank}" for rank in range(2)]
    running: dict[int, commands.Command] = {}
    for _ in range(trial.rounds(3, 40)):
        _start_missing(running, address, cache, files)
        steps = _steps(files) + trial.rng.randint(1, 8)
        wait_for_ranks(running.values(), lambda: _steps(files) >= steps)  # noqa: B023 - called at once
        victims = trial.rng.choice([[0], [1], [0, 1]])
        for rank in victims:
            running[rank].kill()
            trial.fired("killed", running[rank].wait(SECONDS) == -signal.SIGKILL)
        if len(victims) == len(files):
            shutil.rmtree(cache)
            trial.fired("deleted")
        if all(process.poll() == 0 for process in running.values()):
            _require_all(trial, store, files)  # and from the beginning again
            running.clear()
            for file in files:
                file.unlink()
    _start_missing(running, address, cache, files)
    for process in running.values():
        assert process.wait(SECONDS) == 0, process.said
    _require_all(trial, store, files)


def _start_missing(running: dict[int, commands.Command], address: str, cache: Path, files: list[Path]) -> None:
    for rank, file in enumerate(files):
        if rank not in running or running[rank].poll() not in {None, 0}:
            running[rank] = start_rank(address, cache, file, {**OPTIONS, "rank": rank, "world_size": len(files)})


def _require_all(trial: Trial, store: Path, files: list[Path]) -> None:
    """Require that each rank wrote down the steps of a local run, each once, in order."""
    for rank, file in enumerate(files):
        found = [json.loads(line)[0] for line in file.read_text().splitlines()]
        whole = Batches(store, STREAM, **{**OPTIONS, "rank": rank, "world_size": len(files)})
        assert found == [batch.x.tolist() for batch in whole]
        trial.held("reader", steps=len(found))


def _steps(files: list[Path]) -> int:
    return sum(len(file.read_text().splitlines()) if file.exists() else 0 for file in files)


def start_rank(
    address: str, cache: Path, file: Path, options: Mapping[str, Any], stream: str = STREAM
) -> commands.Command:
    """Start a rank that trains from a bucket, and writes its steps into a file (`tests.faults.bucket_rank`)."""
    arguments = [address, str(cache), str(file), json.dumps(options), stream]
    return commands.Command("tests.faults.bucket_rank", arguments, file.with_suffix(".log"), {**os.environ})


def wait_for_ranks(ranks: Collection[commands.Command], condition: Callable[[], bool]) -> None:
    """Wait for a condition, or until all ranks have reached the stream's end."""
    end = time.monotonic() + SECONDS
    while not condition():
        codes = {rank.poll() for rank in ranks}
        assert codes <= {None, 0}, [rank.said for rank in ranks]
        if codes == {0}:
            return
        assert time.monotonic() < end
        time.sleep(0.01)
