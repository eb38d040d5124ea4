"""``tokenmill upload`` as a process, into a directory: once, again, killed, beside another one, while a store grows."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import commands
from tests.app.buckets.scene import ERAS, INFO, SECONDS, STOPS, grow, store_with, until
from tests.store.chains import STREAM, make_store


def words(store: Path, share: Path, *more: str) -> Sequence[str]:
    return ["upload", "--store", str(store), "--to", share.as_uri(), *more]


def objects(share: Path) -> dict[str, bytes]:
    """Return what readers see of a bucket; what was being written has a # in its name."""
    files = [path for path in share.rglob("*") if path.is_file() and "#" not in path.name]
    return {str(path.relative_to(share)): path.read_bytes() for path in files}


def without_heads(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in found.items() if "/heads/" not in name}


@pytest.fixture
def share(tmp_path: Path) -> Path:
    path = tmp_path / "share"
    path.mkdir()
    return path


def test_once_and_again(share: Path, tmp_path: Path) -> None:
    store, log, environment = store_with(tmp_path / "store", 5), tmp_path / "log", dict(os.environ)
    told = commands.run(words(store, share, "--dry-run"), log, environment)
    assert (told.code, objects(share)) == (0, {})
    assert f"{STREAM}: would upload 4 segments (320 B of tokens); 5 eras not in the bucket" in told.said
    told = commands.run(words(store, share), log, environment)
    assert told.code == 0, told.said
    assert (
        "4 segments uploaded (320 B); the bucket has 32 blocks, 4 eras; 1 more era when segments are full" in told.said
    )
    before = objects(share)
    assert f"{STREAM}/heads/00000000" in before
    told = commands.run(words(store, share), log, environment)
    assert "0 segments uploaded" in told.said
    assert objects(share) == before


def test_what_stops_it_says_what_to_do(share: Path, tmp_path: Path) -> None:
    log, environment = tmp_path / "log", dict(os.environ)
    store = store_with(tmp_path / "store", 5)
    told = commands.run(words(store, tmp_path / "not mounted"), log, environment)
    assert (told.code, "check the address" in told.said) == (16, True)
    (share / STREAM).mkdir()
    (share / STREAM / "stream.json").write_bytes(b"{}")
    for more in ((), ("--dry-run",), ("--follow",)):
        told = commands.run(words(store, share, *more), log, environment)
        assert (told.code, "holds another stream" in told.said) == (16, True), told.said
    assert commands.run(words(tmp_path / "empty", share), log, environment).code == 6


@pytest.mark.slow
def test_it_follows_a_store_that_grows(share: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    process = commands.command(words(path, share, "--follow"), tmp_path / "log", {})
    try:
        store = make_store(path, INFO)
        until(lambda: "bucket.json" in objects(share), process)
        for eras in range(1, len(STOPS) + 2):
            grow(store, eras)
            full = eras == 4  # two segments of partition 0, one of partition 1
            until(lambda full=full: not full or f"{STREAM}/heads/00000000" in objects(share), process)  # type: ignore[misc]
        last = ERAS[-1].pack().decode().replace('"', '\\"').encode()
        until(lambda: any(last in data for name, data in objects(share).items() if "/heads/" in name), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
