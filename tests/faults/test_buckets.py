"""Buckets that fail, uploads that are killed and compete, caches that are broken: what counts is what was uploaded."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest

from tests import commands
from tests.app.buckets.scene import uploaded, uploaded_to, whole_store
from tests.app.buckets.test_uploads import objects, without_heads, words
from tests.faults.conftest import Configured
from tests.faults.feeding import Feeder
from tests.faults.oracle import judge
from tests.faults.serving import working
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
                assert truth.keys() <= there.keys()  # all of it is one head
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
    create, read = StoredObjects.create, StoredObjects.read

    def fails() -> bool:
        if chance > 1:
            trial.fired("refused")
            raise PermissionError("403 Forbidden")
        return rng.random() < chance

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
    wanted = [batch.x.tolist() for batch in Batches(store, STREAM, **OPTIONS)]
    for round_number in range(trial.rounds(2, 20)):
        chance, bucket = 0.1, Bucket.open(share.as_uri())
        bucket._pause = lambda _: None
        _again(partial(uploaded, store, bucket))
        path = tmp_path / f"copy{round_number}"
        _again(partial(_copy, path, bucket))
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


def _again(work: Callable[[], object]) -> object:
    """Do it until nothing fails: what fails says that it passes."""
    while True:
        try:
            return work()
        except BucketError as error:
            if not error.passing:
                raise


def _copy(path: Path, bucket: Bucket) -> None:
    with closing(StreamCopy(Store.open_or_create(path), STREAM, bucket)) as copy:
        copy.copy(lambda: None)


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


WORLDS: Final = (2, 3, 1, 4)
GROWN: Final[dict[str, Any]] = {"batch_size": 2, "seed": 3}
"""Options of ranks that train from a bucket that a service fills."""


class Host:
    """A host that trains: the rows that count so far, and the state after them."""

    def __init__(self, address: str, stream: str, directory: Path) -> None:
        directory.mkdir()
        self.rows: list[list[int]] = []
        self._begin: str | None = None
        self._address, self._stream, self._directory = address, stream, directory
        self._ranks: list[commands.Command] = []
        self._files: list[Path] = []

    def start(self, world: int, step_seconds: float = 0.01) -> None:
        self._files = [self._directory / f"rank{rank}" for rank in range(world)]
        for rank, file in enumerate(self._files):
            file.write_text("" if self._begin is None else f"{self._begin}\n")
            run = GROWN | {"timeout": SECONDS, "rank": rank, "world_size": world, "step_seconds": step_seconds}
            self._ranks.append(start_rank(self._address, self._directory / "cache", file, run, self._stream))

    def wait_for(self, steps: int) -> None:
        """Wait until each rank has made so many steps, or has reached the stream's end."""
        wait_for_ranks(self._ranks, lambda: min(map(len, self._steps())) >= steps)

    def kill(self, trial: Trial) -> None:
        for rank in self._ranks:
            rank.kill()
            trial.fired("killed", rank.wait(SECONDS) == -signal.SIGKILL)
        self._take()

    def finish(self) -> None:
        for rank in self._ranks:
            assert rank.wait(SECONDS) == 0, rank.said
        self._take()

    def _take(self) -> None:
        self._ranks, steps = [], self._steps()
        for step in zip(*steps, strict=False):
            self.rows += chain.from_iterable(rows for rows, _ in step)
            self._begin = json.dumps([[], step[0][1]])

    def _steps(self) -> list[list[Any]]:
        """Return what each rank wrote down since it began: its rows of each step, and the state after it."""
        begun = self._begin is not None
        texts = [file.read_text().rpartition("\n")[0].splitlines()[begun:] for file in self._files]
        return [list(map(json.loads, lines)) for lines in texts]


@pytest.mark.fault("cache-broken", "upload-killed", "ranks-killed")
def test_killed_ranks_of_a_bucket_that_a_service_fills_see_one_sequence(
    configured: Configured, tmp_path: Path, trial: Trial
) -> None:
    """At world sizes 2, 3, 1 and 4, with the upload killed and the cache deleted: it is that of the service's store."""
    settings = configured(2, splits={"all": 1000}, era_blocks=48, session_timeout=2.0)
    (stream,), share = settings.streams(), tmp_path / "share"
    share.mkdir()
    upload = words(settings.store, share, "--follow")
    with working(settings) as service:
        service.wait_until((settings.store / stream.name).is_dir)
        host = Host(share.as_uri(), stream.name, tmp_path / "host")
        with Feeder(settings, trial.rng, burst=2):  # the log grows for minutes, and all of it is read at last
            uploading = commands.command(upload, tmp_path / "upload.log", {})
            service.wait_until((share / stream.name / "heads").is_dir)
            for number in range(trial.rounds(4, 24)):
                host.start(WORLDS[number % len(WORLDS)])
                host.wait_for(trial.rng.randint(2, 12))
                host.kill(trial)
                if number % 2:
                    uploading.kill()
                    trial.fired("upload killed", uploading.wait(SECONDS) == -signal.SIGKILL)
                    uploading = commands.command(upload, tmp_path / "upload.log", {})
                    shutil.rmtree(tmp_path / "host" / "cache")
                    trial.fired("deleted")
        judge(service, trial)
        ended = commands.run(["close", stream.name, "--yes"], tmp_path / "close.log", settings.environment())
        assert ended.code == 0, ended.said
        host.start(WORLDS[1], 0.0)  # there is a lot
        host.finish()
        uploading.send_signal(signal.SIGTERM)
        assert uploading.wait(SECONDS) == 0, uploading.said
    alone = Batches(settings.store, stream.name, batch_size=1, seed=GROWN["seed"], drop_last=False)
    wanted = list(chain.from_iterable(batch.x.tolist() for batch in alone))
    assert host.rows == wanted[: len(host.rows)]
    assert len(wanted) - len(host.rows) < GROWN["batch_size"] * WORLDS[1]
    trial.held("reader", steps=len(host.rows))
