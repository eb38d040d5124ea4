"""``tokenmill mirror --from``: a store out of a bucket is the store that was uploaded, however it came about."""

import random
import signal
from hashlib import sha256
from pathlib import Path

import pytest

from tests import commands
from tests.app.buckets import scene
from tests.store.chains import STREAM, SUFFIXES, fill, make_eras, make_store, write_eras
from tokenmill.app.segments.retiring import retire
from tokenmill.bucket.objects import Data
from tokenmill.errors import BucketError, DifferenceError, TokenMillError
from tokenmill.store import open_eras, open_partition


def files(store: Path) -> dict[str, bytes]:
    """Return what must be equal in all stores of the stream."""
    found = [*store.glob(f"{STREAM}/*.json*"), *store.glob(f"{STREAM}/[0-9]/*")]
    return {str(one.relative_to(store)): one.read_bytes() for one in found if one.suffix[1:] in {*SUFFIXES, "jsonl"}}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    scene.small_segments(monkeypatch)


def test_what_comes_back_is_what_was_uploaded(tmp_path: Path) -> None:
    memory, store = scene.Memory(), make_store(tmp_path / "store", scene.INFO)
    for eras in range(1, len(scene.ERAS) + 1):
        scene.grow(store, eras)
        scene.uploaded(store.path, memory)
        scene.copied(tmp_path / "copy", memory)
        assert open_eras(tmp_path / "copy", STREAM).eras <= eras
    assert files(tmp_path / "copy") == files(store.path)
    assert open_eras(tmp_path / "copy", STREAM).ended


def test_a_bucket_of_a_store_that_began_late(tmp_path: Path) -> None:
    store = scene.whole_store(tmp_path / "store")
    retire(store, STREAM, 0, 16)
    scene.copied(tmp_path / "copy", scene.Memory(store))
    reader = open_partition(tmp_path / "copy", STREAM, 0)
    assert (reader.first_block, reader.blocks) == (24, 25)  # the bucket's begin at 18, of three blocks each
    assert reader.chain_before(24) == scene.CHAINS[0].chains[23]
    assert open_eras(tmp_path / "copy", STREAM).eras == len(scene.ERAS)


@pytest.mark.parametrize("end", ["bin", "docs", "index", "json", "commits"])
@pytest.mark.parametrize("how", ["changed", "gone", "short"])
@pytest.mark.cases(3)
def test_what_the_bucket_lost_or_changed_is_named(end: str, how: str, tmp_path: Path) -> None:
    store = scene.whole_store(tmp_path / "store")
    memory = scene.Memory(store)
    name = f"{STREAM}/0/{24 if end == 'commits' else 6:012d}.{end}"
    good = memory.objects[name]
    memory.objects[name] = {"changed": bytes([good[0] ^ 1]) + good[1:], "gone": b"", "short": good[:-1]}[how]
    if how == "gone":
        del memory.objects[name]
    with pytest.raises((BucketError, DifferenceError), match=name):
        scene.copied(tmp_path / "copy", memory)
    assert open_partition(tmp_path / "copy", STREAM, 0).blocks <= (24 if end == "commits" else 6)
    memory.objects[name] = good
    scene.copied(tmp_path / "copy", memory)
    assert files(tmp_path / "copy") == files(store)


def test_a_segment_with_good_checksums_and_other_text_is_refused(tmp_path: Path) -> None:
    memory = scene.Memory(scene.whole_store(tmp_path / "store"))
    foreign = make_store(tmp_path / "foreign", scene.INFO)
    fill(foreign, scene.INFO, scene.CHAINS[1], [25], partition=1)
    write_eras(foreign, make_eras(scene.INFO, scene.CHAINS, [{1: 25}]))
    other = scene.Memory(foreign.path)
    heads = memory.objects[f"{STREAM}/heads/00000000"]
    for end in ("bin", "docs", "index", "idx", "json"):
        of_1, of_0 = (f"{STREAM}/{partition}/000000000003.{end}" for partition in (1, 0))
        memory.objects[of_0] = other.objects[of_1]
    with pytest.raises(BucketError, match="its SHA-256 is not the one in the head"):
        scene.copied(tmp_path / "copy", memory)
    digest = sha256(memory.objects[f"{STREAM}/1/000000000003.json"]).hexdigest().encode()
    mine = heads[heads.index(b"[0,3,6,") + 8 :][:64]
    memory.objects[f"{STREAM}/heads/00000000"] = heads.replace(mine, digest)
    del memory.objects[f"{STREAM}/heads/00000001"]  # which would not continue that one
    with pytest.raises(DifferenceError, match="does not continue"):
        scene.copied(tmp_path / "copy", memory)


def test_another_history_is_refused(tmp_path: Path) -> None:
    memory, other = scene.Memory(scene.whole_store(tmp_path / "store")), scene.other_history(tmp_path / "other", 5)
    before = files(other)
    with pytest.raises(DifferenceError, match="have different eras"):
        scene.copied(other, memory)
    assert files(other) == before


def test_a_bucket_that_fails_in_between_costs_nothing(tmp_path: Path) -> None:
    rng, fails = random.Random(3), 0.0

    class Failing(scene.Memory):
        def read(self, path: str) -> Data:
            if rng.random() < fails:
                raise OSError("reset")
            return super().read(path)

    store = scene.whole_store(tmp_path / "store")
    memory = Failing(store)
    fails, errors = 0.05, list[TokenMillError]()
    while True:
        try:
            scene.copied(tmp_path / "copy", memory)
            break
        except TokenMillError as error:
            errors.append(error)
    assert len(errors) > 2
    assert all(isinstance(error, BucketError) and error.passing for error in errors)
    assert files(tmp_path / "copy") == files(store)


@pytest.mark.needs("minutes")
def test_the_command_once_and_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # commands know nothing of small segments
    share, copy, log = tmp_path / "share", tmp_path / "copy", tmp_path / "log"
    share.mkdir()
    words = ["mirror", "--store", str(copy), "--from", share.as_uri()]
    told = commands.run([*words, "--once"], log, {})
    assert (told.code, "holds no stream" in told.said) == (16, True), told.said
    store = scene.whole_store(tmp_path / "store")
    scene.uploaded_to(store, share)
    for blocks in (1, 9, 17):
        process = commands.command(words, log, {})
        try:
            scene.until(lambda blocks=blocks: _blocks(copy) >= blocks, process)  # type: ignore[misc]
        finally:
            process.kill()
            assert process.wait(scene.SECONDS) == -signal.SIGKILL
    told = commands.run([*words, "--once"], log, {})
    assert told.code == 0, told.said
    assert f"{STREAM}: 50 blocks, 7 eras; complete" in told.said
    assert files(copy) == files(store)


@pytest.mark.slow
def test_the_command_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # commands know nothing of small segments
    share, copy = tmp_path / "share", tmp_path / "copy"
    share.mkdir()
    process = commands.command(["mirror", "--store", str(copy), "--from", share.as_uri()], tmp_path / "log", {})
    try:
        for eras in (4, len(scene.STOPS) + 1):
            scene.uploaded_to(scene.store_with(tmp_path / f"store{eras}", eras), share)
            scene.until(lambda eras=eras: _blocks(copy) >= (16 if eras == 4 else 25), process)  # type: ignore[misc]
        scene.until(lambda: open_eras(copy, STREAM).ended, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(scene.SECONDS) == 0
    finally:
        process.kill()


def _blocks(store: Path) -> int:
    return open_partition(store, STREAM, 0).blocks if (store / STREAM / "stream.json").exists() else 0
