"""Uploads, mirrors and training on real servers: what competes, is killed or cut changes nothing of what is there."""

import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np
import obstore
import pytest
from obstore.store import from_url

from tests import commands
from tests.app.buckets.scene import uploaded_to, whole_store
from tests.app.buckets.test_mirrors import files
from tests.app.buckets.test_uploads import objects, without_heads
from tests.bucket.server import Server, Way, login
from tests.faults.test_buckets import OPTIONS, known
from tests.store.chains import STREAM
from tokenmill.consumers import Batches, EraDataset

pytestmark = pytest.mark.timeout(1800)

SECONDS: Final = 60.0
MAKES: Final[dict[str, Sequence[pytest.MarkDecorator]]] = {
    "moto": [],  # make test
    "gofakes3": [pytest.mark.bucket],  # make test-bucket, which builds it
    "versitygw": [pytest.mark.bucket],
    "fake-gcs-server": [pytest.mark.peers],  # make test-peers; the only one that speaks as Google does
}
KILLS: Final = {"moto": 6, "gofakes3": 200, "fake-gcs-server": 30}
ROUNDS: Final = {"moto": 1, "gofakes3": 5, "versitygw": 5, "fake-gcs-server": 2}
FAULTS: Final = frozenset({"reset", "throttled", "lost", "conflict", "torn"})


def on(*kinds: str) -> pytest.MarkDecorator:
    params = [pytest.param(kind, marks=MAKES[kind]) for kind in kinds]
    return pytest.mark.parametrize("server", params, indirect=True, scope="module")


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(request.param, tmp_path_factory.mktemp("server") / "buckets") as running:
        yield running


@pytest.fixture
def bucket(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in login(server.address).items():
        monkeypatch.setenv(name, value)
    return f"{server.scheme}://corpus/{tmp_path.name}"


def found_in(address: str) -> dict[str, bytes]:
    store = from_url(address)
    names = sorted(one["path"] for part in obstore.list(store) for one in part)
    return {name: bytes(obstore.get(store, name).bytes()) for name in names}


def command(words: list[str], log: Path, environment: Mapping[str, str]) -> str:
    told = commands.run(words, log, {**os.environ, **environment})
    assert told.code == 0, told.said
    return told.said


@on("moto", "gofakes3", "versitygw", "fake-gcs-server")
def test_a_store_goes_there_comes_back_and_is_trained_from(bucket: str, tmp_path: Path) -> None:
    store, log = whole_store(tmp_path / "store"), tmp_path / "log"
    assert "8 segments uploaded" in command(["upload", "--store", str(store), "--to", bucket], log, {})
    assert "0 segments uploaded" in command(["upload", "--store", str(store), "--to", bucket], log, {})
    assert without_heads(found_in(bucket)) == without_heads(objects(uploaded_to(store, tmp_path / "share")))
    command(["mirror", "--store", str(tmp_path / "copy"), "--from", bucket, "--once"], log, {})
    assert files(tmp_path / "copy").items() <= files(store).items()
    local = [batch.x.tolist() for batch in Batches(store, STREAM, **OPTIONS)]
    assert [batch.x.tolist() for batch in Batches(bucket, STREAM, cache=tmp_path / "cache", **OPTIONS)] == local
    mine, theirs = EraDataset(bucket, STREAM, cache=tmp_path / "cache"), EraDataset(store, STREAM)
    assert all(np.array_equal(mine[number][0], theirs[number][0]) for number in range(len(theirs)))
    for words in (["eras", STREAM], ["describe", STREAM, "--offline", "--format", "croissant"]):
        command([*words, "--store", bucket], log, {})


@pytest.mark.needs("minutes")
@on("moto", "gofakes3", "fake-gcs-server")
def test_uploads_that_compete_are_killed_again_and_again(server: Server, bucket: str, tmp_path: Path) -> None:
    """Into new prefixes: at each kill, what is there is what one upload makes, and heads are numbered without a gap.

    Not on versitygw, which looks whether a name is taken before it reads the body, so two may create one name; on moto,
    which looks, and then writes, one upload is killed at a time.
    """
    stores = [whole_store(tmp_path / name) for name in (["a"] if server.kind == "moto" else ["a", "b"])]
    truth = without_heads(objects(uploaded_to(stores[0], tmp_path / "share")))
    rng, numbers, killed = random.Random(os.environ.get("FAULT_SEED", "bucket")), count(), 0
    while killed < KILLS[server.kind]:
        there = f"{bucket}/{next(numbers)}"
        for _ in range(4):
            words = [["upload", "--store", str(store), "--to", there] for store in stores]
            running = [commands.command(each, tmp_path / "log", {**os.environ}) for each in words]
            time.sleep(rng.uniform(0, 0.6))
            for process in running:
                process.kill()
                code = process.wait(SECONDS)
                assert code in {0, -signal.SIGKILL}, process.said
                killed += code == -signal.SIGKILL
            found = found_in(there)
            assert without_heads(found).items() <= truth.items()
            if any("/heads/" in name for name in found):
                assert truth.keys() <= found.keys()  # all of it is one head
        command(["upload", "--store", str(stores[0]), "--to", there], tmp_path / "log", {})
        assert without_heads(found_in(there)) == truth
        assert known(there).eras[-1].end


@on("moto", "gofakes3", "versitygw", "fake-gcs-server")
def test_a_way_that_fails_changes_nothing(
    server: Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Requests that are slow, cut, throttled, refused for a moment, or lost after they took effect; torn answers."""
    store, log = whole_store(tmp_path / "store"), tmp_path / "log"
    local = [batch.x.tolist() for batch in Batches(store, STREAM, **OPTIONS)]
    truth = without_heads(objects(uploaded_to(store, tmp_path / "share")))
    with Way(server.address, 7, 0.2, 0.02) as way:
        through = login(way.address)
        for number in count():
            if number >= ROUNDS[server.kind] and way.fired.keys() >= FAULTS:
                break
            there = f"{bucket}/{number}"
            again(["upload", "--store", str(store), "--to", there], log, through)
            assert without_heads(found_in(there)) == truth
            again(["mirror", "--store", str(tmp_path / f"copy{number}"), "--from", there, "--once"], log, through)
            assert files(tmp_path / f"copy{number}").items() <= files(store).items()
        way.chance = 0.05
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.address)
        read = partial(Batches, f"{bucket}/0", STREAM, cache=tmp_path / "cache", **OPTIONS)
        assert [batch.x.tolist() for batch in read()] == local


def again(words: list[str], log: Path, environment: Mapping[str, str]) -> None:
    while (told := commands.run(words, log, {**os.environ, **environment})).code:
        assert told.code == 16, told.said


@on("versitygw")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"AWS_SECRET_ACCESS_KEY": "another"}, "check the address"), ({"AWS_REGION": "eu-west-7"}, "region")],
)
def test_a_login_or_a_region_that_is_wrong_is_named(
    server: Server, bucket: str, tmp_path: Path, wrong: dict[str, str], words: str
) -> None:
    """With the address, and what to check or what the server says."""
    call = ["upload", "--store", str(whole_store(tmp_path / "store")), "--to", bucket]
    told = commands.run(call, tmp_path / "log", {**os.environ, **login(server.address), **wrong})
    assert (told.code, bucket in told.said, words in told.said) == (16, True, True), told.said
    assert found_in(bucket) == {}


@on("moto", "gofakes3", "versitygw", "fake-gcs-server")
def test_a_login_that_is_over_is_named_and_a_new_one_goes_on(server: Server, bucket: str, tmp_path: Path) -> None:
    """A token that expires amid an upload ends it; the same command with another one does the rest."""
    store = whole_store(tmp_path / "store")
    words = ["upload", "--store", str(store), "--to", bucket]
    with Way(server.address, 0, 0.0) as way:
        way.expires_after = 9
        told = commands.run(words, tmp_path / "log", {**os.environ, **login(way.address)})
        assert way.fired["expired"]
        assert (told.code, bucket in told.said, "ExpiredToken" in told.said) == (16, True, True), told.said
        way.expires_after = None
        assert commands.run(words, tmp_path / "log", {**os.environ, **login(way.address)}).code == 0
    assert without_heads(found_in(bucket)) == without_heads(objects(uploaded_to(store, tmp_path / "share")))


@on("moto", "gofakes3", "versitygw", "fake-gcs-server")
def test_a_foreign_object_stops_an_upload(bucket: str, tmp_path: Path) -> None:
    store = whole_store(tmp_path / "store")
    name = f"{STREAM}/1/000000000000.bin"
    obstore.put(from_url(bucket), name, b"of somebody else")
    told = commands.run(["upload", "--store", str(store), "--to", bucket], tmp_path / "log", {**os.environ})
    assert (told.code, f"{name} is another object" in told.said) == (16, True), told.said
    assert found_in(bucket)[name] == b"of somebody else"
